//! Rebuilds the hot index from the objects in the store.

use futures::{TryStreamExt, future};
use kvasir_store::{StoreError, layout::Key};

use super::{Lifecycle, ProgressAnswer};
use crate::{
    error::ChunkError,
    index::{IndexEntry, Scope},
    limits,
};

/// Progress of a rebuild.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RebuildProgress {
    /// Chunk objects found.
    pub objects: u64,
    /// Of these, objects now in the index.
    pub indexed: u64,
    /// Of these, unreadable or corrupt ones; they stay misses.
    pub failed: u64,
}

impl Lifecycle {
    /// Lists the whole store and indexes every intact chunk object, under traffic. Only adds; reads detect
    /// objects that are gone from the store. `progress` is called after each object, and may stop it.
    ///
    /// # Errors
    /// [`StoreError::Request`] if the listing fails. Failures of single objects are counted.
    pub async fn rebuild_index<N: ProgressAnswer>(
        &self,
        mut progress: impl FnMut(RebuildProgress) -> N,
    ) -> Result<RebuildProgress, StoreError> {
        let begun = self.bucket.now_ms();
        let listed = self.bucket.list_long(&self.bucket.layout().tenants_prefix(), "listing the store");
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
            // An object with a tombstone is being deleted.
            let Some(head) = head else { continue };
            // It was removed in the meantime, or is a plain object of a tenant that has since received a key.
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
                    tracing::warn!(%error, "an object cannot be indexed");
                    state.failed += 1;
                }
            }
            if !progress(state).goes_on() {
                index.flush();
                return Ok(state);
            }
        }
        // Earlier removals cannot be missing from rows that were all added since.
        if let (None, Some(begun)) = (index.heard_until(), begun) {
            index.set_heard_until(begun);
        }
        index.flush();
        Ok(state)
    }
}
