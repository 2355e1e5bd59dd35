//! Fetches frames that are not in memory, once for all waiting readers.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use kvasir_store::StoreError;
use kvasir_types::Medium;

use crate::{blocking::blocking, error::ChunkError, memory::Region};

use super::{
    context::{HotContext, RangeReader},
    disk::FrameFile,
    frames::HotObject,
    pending::{FrameBatch, PendingFrame},
    tier::HotTier,
};

/// One fetch of consecutive frames, for all readers that wait for them. Frames that have not arrived when it
/// is dropped are abandoned, so that no reader waits forever.
pub(super) struct SharedFetch {
    tier: Arc<HotTier>,
    object: Arc<HotObject>,
    context: HotContext,
    used: bool,
    /// Frames still to arrive, the next one last.
    pending: FrameBatch,
}

impl SharedFetch {
    pub(super) fn new(
        tier: &Arc<HotTier>,
        object: &Arc<HotObject>,
        context: HotContext,
        used: bool,
        mut batch: FrameBatch,
    ) -> Self {
        batch.reverse();
        Self { tier: Arc::clone(tier), object: Arc::clone(object), context, used, pending: batch }
    }

    fn deliver(&mut self, bytes: Bytes, from: Medium) {
        let Some(PendingFrame { frame, sender, .. }) = self.pending.pop() else { return };
        self.tier.complete_fetch(&self.object, frame, self.context, self.used, &bytes);
        // All readers may be gone.
        let _ = sender.send(Ok((bytes, from)));
    }

    /// Fetches from a file, or from the store if the file is damaged.
    pub(super) async fn fetch_from_disk(mut self, file: FrameFile, source: RangeReader) {
        let (folder, wanted) = (Arc::clone(&self.tier.folder), file.clone());
        let frame = self.pending.last().map_or(0, |pending| pending.frame);
        let lease = self.pending.last_mut().and_then(|pending| pending.lease.take());
        let read = blocking(move || folder.read(&wanted, lease)).await;
        match read {
            Ok(Some(bytes)) if self.object.verify(frame, &bytes) => self.deliver(bytes, Medium::Disk),
            Ok(_) | Err(_) => {
                self.tier.drop_corrupt_file(file);
                if let Some(pending) = self.pending.last_mut() {
                    // The damaged bytes are freed first, so that a frame never uses more than its
                    // reservation.
                    pending.lease = self.tier.lease_for(&self.object, pending.frame);
                }
                self.fetch_from_store(source).await;
            }
        }
    }

    /// Sends one request for the whole batch. Readers of frames that do not arrive get the error.
    pub(super) async fn fetch_from_store(mut self, source: RangeReader) {
        if let Err(error) = self.try_fetch_from_store(source).await {
            tracing::debug!(%error, "fetching frames for the hot tier failed");
            let error = Arc::new(error);
            // Remove them from the table first: a reader that retries must not find this fetch.
            self.tier.abandon_fetches(&self.object, self.pending.iter().map(|pending| pending.frame));
            for PendingFrame { sender, .. } in self.pending.drain(..) {
                let _ = sender.send(Err(Arc::clone(&error)));
            }
        }
    }

    async fn try_fetch_from_store(&mut self, source: RangeReader) -> Result<(), ChunkError> {
        let (Some(last), Some(first)) = (self.pending.first(), self.pending.last()) else { return Ok(()) };
        let range = self.object.range(first.frame).start..self.object.range(last.frame).end;
        let mut parts = source(range).await?;
        let (mut gathered, mut filled) = (None, 0);
        while let Some(part) = parts.next().await {
            let mut part = part?;
            while let (false, Some(pending)) = (part.is_empty(), self.pending.last_mut()) {
                let (frame, at) = (pending.frame, self.object.range(pending.frame));
                let bytes = (at.end - at.start) as usize;
                // Exactly sized: a frame must not keep a larger buffer alive.
                let space: &mut Region =
                    gathered.get_or_insert_with(|| Region::new(bytes, pending.lease.take()));
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
        if self.pending.is_empty() {
            Ok(())
        } else {
            Err(StoreError::own("reading an object", "the store's response ended early").into())
        }
    }
}

impl Drop for SharedFetch {
    fn drop(&mut self) {
        if !self.pending.is_empty() {
            self.tier.abandon_fetches(&self.object, self.pending.iter().map(|pending| pending.frame));
        }
    }
}
