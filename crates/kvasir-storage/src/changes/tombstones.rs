//! Writing of tombstones: by requests, by the collector, and by a writer that gives way.

use kvasir_store::{
    StoreError,
    layout::{ChunkKey, Key},
};
use object_store::PutPayload;

use super::{Changes, journal::JournalEntry};
use crate::{index::Scope, removal::Removal, transitions::Transition};

impl Changes {
    /// Writes an object's tombstone, drops the object, and announces the removal.
    pub(crate) async fn write_tombstone(&self, key: &ChunkKey, reason: Removal) -> Result<(), StoreError> {
        let path = self.bucket.path(&Key::Tombstone(key.clone()));
        let payload = || PutPayload::from_static(reason.as_str().as_bytes());
        const WRITING: &str = "writing a tombstone";
        // The first tombstone counts: a later one must not reset the object's age. But a removal by request
        // ends running reads, so it replaces one that does not.
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

    /// Drops an object and informs the other replicas.
    pub(crate) fn announce_removed(&self, key: &ChunkKey, reason: Removal) {
        self.reads.forget_removed(Scope::new(&key.tenant, &key.model_id), key.object_digest, reason);
        let ChunkKey { tenant, model_id, seq_hash, object_digest } = key.clone();
        self.publish(JournalEntry::Removed { tenant, model_id, seq_hash, object_digest, reason });
    }
}
