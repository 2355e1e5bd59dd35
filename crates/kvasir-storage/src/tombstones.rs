//! Tombstones: what hides an object from then on, and who may take one away again.

use std::collections::HashSet;

use futures::TryStreamExt;
use kvasir_types::{ModelId, Name, ObjectDigest, SeqHash};
use object_store::{ObjectStoreExt, PutMode, PutPayload, path::Path};

use crate::{
    Storage, StorageError,
    index::Scope,
    journal::JournalEntry,
    layout::{ChunkKey, Key},
    removal::Removal,
    transitions::Transition,
};

impl Storage {
    /// Whether an object has a tombstone.
    pub(crate) async fn has_tombstone(&self, key: &ChunkKey) -> Result<bool, StorageError> {
        let path = self.store.layout.path(&Key::Tombstone(key.clone()));
        match self.store.store.head(&path).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(StorageError::store("asking for a tombstone")(error)),
        }
    }

    /// The objects of a chunk that have tombstones: one listing, however many there are.
    pub(crate) async fn removed_objects(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        seq_hash: &SeqHash,
    ) -> Result<HashSet<ObjectDigest>, StorageError> {
        let prefix = self.store.layout.tombstones_prefix(tenant, model_id, seq_hash);
        let mut listing = self.store.store.list(Some(&prefix));
        let failed = StorageError::store("listing a chunk's tombstones");
        let mut removed = HashSet::new();
        while let Some(meta) = listing.try_next().await.map_err(&failed)? {
            if let Some(Key::Tombstone(key)) = self.store.layout.parse(&meta.location) {
                removed.insert(key.object_digest);
            }
        }
        Ok(removed)
    }

    /// Why the tombstone at `path` is there; none where it is not, or says nothing that is known here.
    pub(crate) async fn removal_at(&self, path: &Path) -> Result<Option<Removal>, StorageError> {
        let failed = StorageError::store("reading a tombstone");
        match self.store.store.get(path).await {
            Ok(found) => {
                let text = found.bytes().await.map_err(failed)?;
                Ok(str::from_utf8(&text).ok().and_then(Removal::parse))
            }
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// Writes an object's tombstone, forgets the object, and announces the removal.
    pub(crate) async fn write_tombstone(&self, key: &ChunkKey, reason: Removal) -> Result<(), StorageError> {
        let path = self.store.layout.path(&Key::Tombstone(key.clone()));
        let payload = PutPayload::from_static(reason.as_str().as_bytes());
        let failed = StorageError::store("writing a tombstone");
        // The first one counts: a later one must not make an object younger.
        match self.store.store.put_opts(&path, payload, PutMode::Create.into()).await {
            Ok(_) => {}
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                // But what was asked for is never lifted.
                let there = self.removal_at(&path).await?;
                if !reason.is_the_collectors() && there.is_none_or(Removal::is_the_collectors) {
                    let payload = PutPayload::from_static(reason.as_str().as_bytes());
                    self.store.store.put(&path, payload).await.map_err(failed)?;
                }
            }
            Err(error) => return Err(failed(error)),
        }
        self.reached(Transition::TombstoneWritten);
        self.forget(Scope::new(&key.tenant, &key.model_id), key.object_digest);
        let ChunkKey { tenant, model_id, seq_hash, object_digest } = key.clone();
        let entry = JournalEntry::Removed { tenant, model_id, seq_hash, object_digest, reason };
        self.announce(&entry, &self.journal.replica).await;
        self.journal.push(entry);
        Ok(())
    }
}
