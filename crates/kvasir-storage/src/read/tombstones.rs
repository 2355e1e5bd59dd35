//! Tombstones, for readers and writers: an object with one is not offered, and its name is not written again.

use std::{collections::BTreeSet, sync::Arc};

use futures::TryStreamExt;
use kvasir_store::{
    StoreError,
    layout::{ChunkKey, Key},
};
use kvasir_types::{ModelId, Name, ObjectDigest, SeqHash};
use object_store::path::Path;

use crate::{bucket::Bucket, removal::Removal};

/// The tombstones in the bucket.
#[derive(Debug)]
pub(crate) struct Tombstones {
    bucket: Arc<Bucket>,
}

impl Tombstones {
    pub(crate) fn new(bucket: Arc<Bucket>) -> Self {
        Self { bucket }
    }

    /// Whether an object has a tombstone.
    pub(crate) async fn has(&self, key: &ChunkKey) -> Result<bool, StoreError> {
        let path = self.bucket.path(&Key::Tombstone(key.clone()));
        Ok(self.bucket.head(&path, "checking a tombstone").await?.is_some())
    }

    /// The objects of a chunk that have one, in the order of their names, with a single listing.
    pub(crate) async fn of_chunk(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        seq_hash: &SeqHash,
    ) -> Result<BTreeSet<ObjectDigest>, StoreError> {
        let prefix = self.bucket.layout().tombstones_prefix(tenant, model_id, seq_hash);
        let mut listing = self.bucket.list(&prefix, "listing a chunk's tombstones");
        let mut removed = BTreeSet::new();
        while let Some((key, _)) = listing.try_next().await? {
            if let Key::Tombstone(key) = key {
                removed.insert(key.object_digest);
            }
        }
        Ok(removed)
    }

    /// The reason of an object's tombstone, like [`reason_at`](Self::reason_at) its path.
    pub(crate) async fn reason(&self, key: &ChunkKey) -> Result<Option<Removal>, StoreError> {
        self.reason_at(&self.bucket.path(&Key::Tombstone(key.clone()))).await
    }

    /// The reason of the tombstone at `path`; `None` if there is none, or the reason is unknown.
    pub(crate) async fn reason_at(&self, path: &Path) -> Result<Option<Removal>, StoreError> {
        let text = self.bucket.get(path, "reading a tombstone").await?;
        Ok(text.and_then(|text| Removal::parse(str::from_utf8(&text).ok()?)))
    }
}
