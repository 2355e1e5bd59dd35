//! Bringing frames that the memory lacks, once however many wait for them.

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, channel::oneshot, future::Shared};
use kvasir_types::Medium;

use crate::{
    StorageError,
    blocking::blocking,
    memory::{Lease, Region},
};

use super::{
    HotObject,
    disk::FrameFile,
    tier::{Fetch, HotContext, HotTier},
};

/// What became of a frame: its bytes and where they were, or why it did not come.
pub(super) type Outcome = Result<(Bytes, Medium), Arc<StorageError>>;

/// Where a frame will be; cancelled when its flight died. Who waits is woken in a fixed order, where a watch would choose at
/// random: simulations rely on it.
pub(super) type Arrival = Shared<oneshot::Receiver<Outcome>>;

/// One frame of a flight: the memory that it will be in, and who waits for it.
#[derive(Debug)]
pub(super) struct Coming {
    pub(super) frame: u32,
    pub(super) lease: Option<Lease>,
    pub(super) waiting: oneshot::Sender<Outcome>,
}

/// Consecutive frames of an object.
pub(super) type Run = Vec<Coming>;

/// A run of frames on its way. Whatever has not come when it is dropped is given up, so nobody waits for ever.
pub(super) struct Flight {
    tier: Arc<HotTier>,
    object: Arc<HotObject>,
    context: HotContext,
    used: bool,
    /// What is still to come, the next frame last.
    run: Run,
}

impl Flight {
    pub(super) fn new(
        tier: &Arc<HotTier>,
        object: &Arc<HotObject>,
        context: HotContext,
        used: bool,
        mut run: Run,
    ) -> Self {
        run.reverse();
        Self { tier: Arc::clone(tier), object: Arc::clone(object), context, used, run }
    }

    fn deliver(&mut self, bytes: Bytes, from: Medium) {
        let Some(Coming { frame, waiting, .. }) = self.run.pop() else { return };
        self.tier.arrived(&self.object, frame, self.context, self.used, &bytes);
        // Nobody may wait any more.
        let _ = waiting.send(Ok((bytes, from)));
    }

    /// From a file, and from the store if the file is broken.
    pub(super) async fn bring_from_disk(mut self, file: FrameFile, fetch: Fetch) {
        let (folder, wanted) = (Arc::clone(self.tier.folder()), file.clone());
        let frame = self.run.last().map_or(0, |coming| coming.frame);
        let lease = self.run.last_mut().and_then(|coming| coming.lease.take());
        let read = blocking(move || folder.read(&wanted, lease)).await;
        match read {
            Ok(Some(bytes)) if self.object.verify(frame, &bytes) => self.deliver(bytes, Medium::Disk),
            Ok(_) | Err(_) => {
                self.tier.broken(file);
                if let Some(coming) = self.run.last_mut() {
                    // What the broken bytes were in is free again, and a frame was never more than was paid for.
                    coming.lease = self.tier.lease_for(&self.object, coming.frame);
                }
                self.bring_from_store(fetch).await;
            }
        }
    }

    /// One request for the whole run. Whoever waits for what does not come learns why.
    pub(super) async fn bring_from_store(mut self, fetch: Fetch) {
        if let Err(error) = self.try_bring_from_store(fetch).await {
            tracing::debug!(%error, "filling the hot tier");
            let error = Arc::new(error);
            // Gone from the table first: whoever tries again must not find this flight.
            self.tier.lost(&self.object, self.run.iter().map(|coming| coming.frame));
            for Coming { waiting, .. } in self.run.drain(..) {
                let _ = waiting.send(Err(Arc::clone(&error)));
            }
        }
    }

    async fn try_bring_from_store(&mut self, fetch: Fetch) -> Result<(), StorageError> {
        let (Some(last), Some(first)) = (self.run.first(), self.run.last()) else { return Ok(()) };
        let range = self.object.range(first.frame).start..self.object.range(last.frame).end;
        let mut parts = fetch(range).await?;
        let (mut gathered, mut filled) = (None, 0);
        while let Some(part) = parts.next().await {
            let mut part = part?;
            while let (false, Some(coming)) = (part.is_empty(), self.run.last_mut()) {
                let (frame, at) = (coming.frame, self.object.range(coming.frame));
                let bytes = (at.end - at.start) as usize;
                // Exactly sized: a frame must not keep a larger buffer alive.
                let space: &mut Region =
                    gathered.get_or_insert_with(|| Region::new(bytes, coming.lease.take()));
                let more = part.split_to(part.len().min(bytes - filled));
                space[filled..filled + more.len()].copy_from_slice(&more);
                filled += more.len();
                if filled < bytes {
                    continue;
                }
                if !self.object.verify(frame, space) {
                    return Err(self.object.corrupt(frame));
                }
                if let Some(space) = gathered.take() {
                    self.deliver(space.freeze(bytes), Medium::Object);
                }
                filled = 0;
            }
        }
        if self.run.is_empty() {
            Ok(())
        } else {
            Err(StorageError::broken_off("the store's answer ended early"))
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if !self.run.is_empty() {
            self.tier.lost(&self.object, self.run.iter().map(|coming| coming.frame));
        }
    }
}
