//! Building the hot index anew from what the store holds.

use futures::{TryStreamExt, future};
use kvasir_store::{StoreError, layout::Key};

use super::Lifecycle;
use crate::{
    error::ChunkError,
    index::{IndexEntry, Scope},
    limits,
};

/// How far a rebuild is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RebuildProgress {
    /// Chunk objects met.
    pub objects: u64,
    /// Of these, in the index now.
    pub indexed: u64,
    /// Of these, unreadable or corrupt; they stay misses.
    pub failed: u64,
}

impl Lifecycle {
    /// Lists the whole store and indexes every sound chunk object, under traffic. Adds; what is gone from the store is
    /// found out by reads.
    ///
    /// # Errors
    /// [`StoreError::Request`] when the listing fails. Single objects that fail are counted.
    pub async fn rebuild_index(
        &self,
        mut progress: impl FnMut(RebuildProgress),
    ) -> Result<RebuildProgress, StoreError> {
        let begun = self.bucket.now_ms();
        let listed = self.bucket.list(&self.bucket.layout().tenants_prefix(), "listing the store");
        let keys = listed.try_filter_map(|(key, _)| {
            future::ready(Ok(match key {
                Key::Chunk(key) => Some(key),
                _ => None,
            }))
        });
        let index = self.reads.index().index();
        let mut heads = std::pin::pin!(
            keys.map_ok(|key| async move {
                let head = match self.reads.tombstones().has(&key).await {
                    Ok(true) => None,
                    Ok(false) => Some(self.reads.read_head(&key).await),
                    Err(error) => Some(Err(error.into())),
                };
                Ok((key, head))
            })
            .try_buffer_unordered(limits::REBUILD_PARALLEL)
        );
        let mut state = RebuildProgress::default();
        while let Some((key, head)) = heads.try_next().await? {
            // What has a tombstone is on its way out.
            let Some(head) = head else { continue };
            // It went meanwhile, or is a plain object of a tenant that has a key by now.
            if matches!(head, Err(ChunkError::Unknown { .. })) {
                continue;
            }
            state.objects += 1;
            match head {
                Ok(head) => {
                    let scope = Scope::new(&key.tenant, &key.model_id);
                    index.insert(scope, &IndexEntry::of_head(&head, key.object_digest));
                    state.indexed += 1;
                }
                Err(error) => {
                    tracing::warn!(%error, "an object is left out of the index");
                    state.failed += 1;
                }
            }
            progress(state);
        }
        // What was removed before is not in rows that were all made since.
        if let (None, Some(begun)) = (index.heard_until(), begun) {
            index.set_heard_until(begun);
        }
        index.flush();
        Ok(state)
    }
}
