//! Removal: by request, and the tombstones of all who remove.

use std::collections::BTreeSet;

use futures::TryStreamExt;
use kvasir_store::{
    StoreError,
    layout::{ChunkKey, Key},
};
use kvasir_types::{ModelId, Name, SeqHash};
use object_store::PutPayload;

use super::Lifecycle;
use crate::{
    changes::journal::JournalEntry, error::ChunkError, index::Scope, removal::Removal,
    transitions::Transition,
};

impl Lifecycle {
    /// Removes one object of a chunk: hidden from lookups now, gone after the grace. Idempotent. Durable in the journal when
    /// it returns, so that the other replicas learn it whatever happens to this one.
    ///
    /// # Errors
    /// [`ChunkError::Unknown`], [`Store`](ChunkError::Store): then it may be sent again.
    pub async fn remove(&self, key: &ChunkKey) -> Result<(), ChunkError> {
        self.reads.stored_bytes(key).await?;
        let dropped = self.changes.dropped_removals();
        self.write_tombstone(key, Removal::Removed).await?;
        Ok(self.changes.append_removals(dropped).await?)
    }

    /// Removes all objects of a chunk, as [`remove`](Self::remove) does. Gives how many there were.
    ///
    /// # Errors
    /// [`ChunkError::Unknown`], [`Store`](ChunkError::Store): then it may be sent again.
    pub async fn remove_chunk(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        seq_hash: &SeqHash,
    ) -> Result<usize, ChunkError> {
        let prefix = self.bucket.layout().chunk_prefix(tenant, model_id, seq_hash);
        let mut listing = self.bucket.list(&prefix, "listing a chunk's objects");
        let dropped = self.changes.dropped_removals();
        let mut objects = BTreeSet::new();
        while let Some((key, _)) = listing.try_next().await? {
            if let Key::Chunk(key) = key {
                objects.insert(key.object_digest);
            }
        }
        let removed = objects.len();
        // A replica that has not heard of it may still offer an object that only has its tombstone left.
        objects.extend(self.reads.tombstones().of_chunk(tenant, model_id, seq_hash).await?);
        for object_digest in objects {
            let (tenant, model_id, seq_hash) = (tenant.clone(), *model_id, *seq_hash);
            let key = ChunkKey { tenant, model_id, seq_hash, object_digest };
            self.write_tombstone(&key, Removal::Removed).await?;
        }
        self.changes.append_removals(dropped).await?;
        let unknown = ChunkError::Unknown { seq_hash: *seq_hash, object_digest: None };
        if removed == 0 { Err(unknown) } else { Ok(removed) }
    }

    /// Writes an object's tombstone, forgets the object, and announces the removal.
    pub(super) async fn write_tombstone(&self, key: &ChunkKey, reason: Removal) -> Result<(), StoreError> {
        let path = self.bucket.path(&Key::Tombstone(key.clone()));
        let payload = || PutPayload::from_static(reason.as_str().as_bytes());
        const WRITING: &str = "writing a tombstone";
        // The first one counts: a later one must not make an object younger. But a removal by request ends reads under way, so it
        // takes the place of one that does not.
        if !self.bucket.create(&path, payload(), WRITING).await? && !reason.is_the_collectors() {
            let there = self.reads.tombstones().reason_at(&path).await?;
            if there.is_none_or(Removal::is_the_collectors) {
                self.bucket.put(&path, payload(), WRITING).await?;
            }
        }
        self.bucket.reached(Transition::TombstoneWritten);
        self.announce_removed(key, reason);
        Ok(())
    }

    /// Forgets an object and tells the other replicas.
    pub(super) fn announce_removed(&self, key: &ChunkKey, reason: Removal) {
        self.reads.forget_removed(Scope::new(&key.tenant, &key.model_id), key.object_digest, reason);
        let ChunkKey { tenant, model_id, seq_hash, object_digest } = key.clone();
        self.changes.publish(JournalEntry::Removed { tenant, model_id, seq_hash, object_digest, reason });
    }
}
