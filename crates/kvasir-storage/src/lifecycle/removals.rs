//! Removal by request.

use std::collections::BTreeSet;

use futures::TryStreamExt;
use kvasir_store::layout::{ChunkKey, Key, ListedKey};
use kvasir_types::{ModelId, Name, ObjectDigest, ObjectKey, SeqHash};

use super::Lifecycle;
use crate::{
    error::{ChunkError, ObjectError},
    removal::Removal,
};

impl Lifecycle {
    /// Removes one object of a chunk: hidden from lookups at once, deleted after the grace. Idempotent.
    /// Durable in the journal when it returns, so that the other replicas learn of it whatever happens to
    /// this one.
    ///
    /// # Errors
    /// [`ChunkError::Unknown`], [`Store`](ChunkError::Store): then the request may be sent again.
    pub async fn remove(&self, key: &ChunkKey) -> Result<(), ChunkError> {
        self.reads.stored_bytes(key).await?;
        let dropped = self.changes.dropped_removals();
        self.changes.write_tombstone(key, Removal::Removed).await?;
        Ok(self.changes.append_removals(dropped).await?)
    }

    /// Removes the object under a key, like [`remove`](Self::remove).
    ///
    /// # Errors
    /// [`ObjectError::Unknown`], [`Chunk`](ObjectError::Chunk): then the request may be sent again.
    pub async fn remove_object(
        &self,
        tenant: &Name,
        namespace: &Name,
        key: &ObjectKey,
    ) -> Result<(), ObjectError> {
        let mut was_there = false;
        // A salt that this replica has not heard of names objects as well.
        self.catalog.load_salt_rotations(tenant, namespace).await?;
        for name in self.catalog.object_names(tenant, namespace, key).await? {
            match self.remove_chunk(tenant, &ModelId::OPAQUE, &name).await {
                Ok(removed) => {
                    was_there = true;
                    if !self.bucket.seals(tenant) {
                        self.delete_listed(tenant, namespace, key, removed).await;
                    }
                }
                Err(ChunkError::Unknown { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if was_there { Ok(()) } else { Err(ObjectError::Unknown { key: key.clone() }) }
    }

    /// Deletes the markers of removed objects. The collector deletes remaining ones.
    async fn delete_listed(
        &self,
        tenant: &Name,
        namespace: &Name,
        key: &ObjectKey,
        objects: BTreeSet<ObjectDigest>,
    ) {
        for object_digest in objects {
            let (tenant, namespace, key) = (tenant.clone(), namespace.clone(), key.clone());
            let listed = Key::Listed(ListedKey { tenant, namespace, key, object_digest });
            if let Err(error) = self.bucket.delete(&self.bucket.path(&listed)).await {
                tracing::warn!(%error, "the marker of a removed object could not be deleted; the collector will delete it");
            }
        }
    }

    /// Removes all objects of a chunk, like [`remove`](Self::remove). Returns the removed ones.
    ///
    /// # Errors
    /// [`ChunkError::Unknown`], [`Store`](ChunkError::Store): then the request may be sent again.
    pub async fn remove_chunk(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        seq_hash: &SeqHash,
    ) -> Result<BTreeSet<ObjectDigest>, ChunkError> {
        let prefix = self.bucket.layout().chunk_prefix(tenant, model_id, seq_hash);
        let mut listing = self.bucket.list(&prefix, "listing a chunk's objects");
        let dropped = self.changes.dropped_removals();
        let mut objects = BTreeSet::new();
        while let Some((key, _)) = listing.try_next().await? {
            if let Key::Chunk(key) = key {
                objects.insert(key.object_digest);
            }
        }
        let removed = objects.clone();
        // A replica that has not learned of it may still offer an object that only has its tombstone left.
        objects.extend(self.reads.tombstones().of_chunk(tenant, model_id, seq_hash).await?);
        for object_digest in objects {
            let (tenant, model_id, seq_hash) = (tenant.clone(), *model_id, *seq_hash);
            let key = ChunkKey { tenant, model_id, seq_hash, object_digest };
            self.changes.write_tombstone(&key, Removal::Removed).await?;
        }
        self.changes.append_removals(dropped).await?;
        let unknown = ChunkError::Unknown { seq_hash: *seq_hash, object_digest: None };
        if removed.is_empty() { Err(unknown) } else { Ok(removed) }
    }
}
