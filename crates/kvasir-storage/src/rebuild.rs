//! Building the hot index anew from what the store holds.

use futures::TryStreamExt;

use crate::{Storage, StorageError, chunks::entry_of, index::Scope, layout::Key, limits};

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

impl Storage {
    /// Lists the whole store and indexes every sound chunk object, under traffic. Adds; what is gone from the store is
    /// found out by reads.
    ///
    /// # Errors
    /// [`StorageError::Store`] when the listing fails. Single objects that fail are counted.
    pub async fn rebuild_index(
        &self,
        mut progress: impl FnMut(RebuildProgress),
    ) -> Result<RebuildProgress, StorageError> {
        let begun = self.store.now_ms();
        let prefix = self.store.layout.tenants_prefix();
        let listed = self.store.store.list(Some(&prefix));
        let keys =
            listed.map_err(StorageError::store("listing the store")).try_filter_map(|meta| async move {
                Ok(match self.store.layout.parse(&meta.location) {
                    Some(Key::Chunk(key)) => Some(key),
                    _ => None,
                })
            });
        let mut heads = std::pin::pin!(
            keys.map_ok(|key| async move {
                let head = match self.has_tombstone(&key).await {
                    Ok(true) => None,
                    Ok(false) => Some(self.read_head(&key).await),
                    Err(error) => Some(Err(error)),
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
            if matches!(head, Err(StorageError::UnknownChunk { .. })) {
                continue;
            }
            state.objects += 1;
            match head {
                Ok(head) => {
                    let scope = Scope::new(&key.tenant, &key.model_id);
                    self.index.insert(scope, &entry_of(&head, key.object_digest));
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
        if let (None, Some(begun)) = (self.index.heard_until(), begun) {
            self.index.set_heard_until(begun);
        }
        self.index.flush();
        Ok(state)
    }
}
