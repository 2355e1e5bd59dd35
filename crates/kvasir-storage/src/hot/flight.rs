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

/// Where a frame will be; closed without a value when it does not come.
pub(super) type Arrival = watch::Receiver<Option<Bytes>>;

/// Consecutive frames of an object and who waits for them.
pub(super) type Run = Vec<(u32, watch::Sender<Option<Bytes>>)>;

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
        if self.used {
            self.tier.observer().served(from, self.context.class, bytes.len() as u64);
        }
        self.tier.arrived(&self.object, frame, self.context, &bytes);
        waiting.send_replace(Some(bytes));
    }

    /// From a file, and from the store if the file is broken.
    pub(super) async fn bring_from_disk(mut self, file: FrameFile, fetch: Fetch) {
        let (folder, wanted) = (Arc::clone(self.tier.folder()), file.clone());
        let read = tokio::task::spawn_blocking(move || folder.read(&wanted)).await;
        match read {
            Ok(Some(bytes)) => self.deliver(bytes, Medium::Disk),
            Ok(None) | Err(_) => {
                self.tier.broken(file);
                self.bring_from_store(fetch).await;
            }
        }
    }

    /// One request for the whole run. The error, if there is one, is learnt by those who wait: they ask again.
    pub(super) async fn bring_from_store(mut self, fetch: Fetch) {
        if let Err(error) = self.try_bring_from_store(fetch).await {
            tracing::debug!(%error, "filling the hot tier");
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
                    self.deliver(std::mem::take(&mut gathered).into(), Medium::Object);
                }
            }
        }
        Ok(())
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if !self.run.is_empty() {
            self.tier.lost(&self.object, self.run.iter().map(|(frame, _)| *frame));
        }
    }
}
