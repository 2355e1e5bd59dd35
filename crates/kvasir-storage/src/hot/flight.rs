//! Bringing frames that the memory lacks, once however many wait for them.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use kvasir_types::Medium;
use tokio::sync::watch;

use crate::StorageError;

use super::{
    HotObject,
    disk::FrameFile,
    tier::{Fetch, HotContext, HotTier},
};

/// What became of a frame: its bytes and where they were, or why it did not come.
pub(super) type Outcome = Result<(Bytes, Medium), Arc<StorageError>>;

/// Where a frame will be; closed without a value when its flight died.
pub(super) type Arrival = watch::Receiver<Option<Outcome>>;

/// Consecutive frames of an object and who waits for them.
pub(super) type Run = Vec<(u32, watch::Sender<Option<Outcome>>)>;

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
        let Some((frame, waiting)) = self.run.pop() else { return };
        self.tier.arrived(&self.object, frame, self.context, self.used, &bytes);
        waiting.send_replace(Some(Ok((bytes, from))));
    }

    /// From a file, and from the store if the file is broken.
    pub(super) async fn bring_from_disk(mut self, file: FrameFile, fetch: Fetch) {
        let (folder, wanted) = (Arc::clone(self.tier.folder()), file.clone());
        let read = tokio::task::spawn_blocking(move || folder.read(&wanted)).await;
        let frame = self.run.last().map_or(0, |(frame, _)| *frame);
        match read {
            Ok(Some(bytes)) if self.object.verify(frame, &bytes) => self.deliver(bytes, Medium::Disk),
            Ok(_) | Err(_) => {
                self.tier.broken(file);
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
            self.tier.lost(&self.object, self.run.iter().map(|(frame, _)| *frame));
            for (_, waiting) in self.run.drain(..) {
                waiting.send_replace(Some(Err(Arc::clone(&error))));
            }
        }
    }

    async fn try_bring_from_store(&mut self, fetch: Fetch) -> Result<(), StorageError> {
        let (Some((last, _)), Some((first, _))) = (self.run.first(), self.run.last()) else { return Ok(()) };
        let range = self.object.range(*first).start..self.object.range(*last).end;
        let mut parts = fetch(range).await?;
        let mut gathered: Vec<u8> = Vec::new();
        while let Some(part) = parts.next().await {
            let mut part = part?;
            while let (false, Some((frame, _))) = (part.is_empty(), self.run.last()) {
                let at = self.object.range(*frame);
                let bytes = (at.end - at.start) as usize;
                // Exactly sized: a frame must not keep a larger buffer alive.
                gathered.reserve_exact(bytes - gathered.len());
                let more = part.split_to(part.len().min(bytes - gathered.len()));
                gathered.extend_from_slice(&more);
                if gathered.len() == bytes {
                    if !self.object.verify(*frame, &gathered) {
                        return Err(self.object.corrupt(*frame));
                    }
                    self.deliver(std::mem::take(&mut gathered).into(), Medium::Object);
                }
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
            self.tier.lost(&self.object, self.run.iter().map(|(frame, _)| *frame));
        }
    }
}
