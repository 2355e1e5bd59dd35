//! A sample of the stored chunks.

use std::collections::BTreeMap;

use futures::TryStreamExt;
use kvasir_api::ChunkSample;
use kvasir_store::layout::Key;
use kvasir_types::{ModelId, Name, ObjectDigest, SeqHash};

use super::Reads;
use crate::error::CatalogError;

const OPERATION: &str = "listing a model's chunks for a sample";

impl Reads {
    /// The chunks of a model with the smallest hashes, at most `count`; removed ones are left out, and not
    /// replaced by others.
    ///
    /// # Errors
    /// [`CatalogError::UnknownModel`], [`Store`](CatalogError::Store).
    pub async fn sample(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        count: usize,
    ) -> Result<ChunkSample, CatalogError> {
        self.catalog.model(tenant, model_id).await?;
        let layout = self.bucket.layout();
        // A folder's files are listed in any order, so all of them are considered.
        let is_sorted = self.bucket.lists_in_order();
        let mut stored: BTreeMap<SeqHash, BTreeMap<ObjectDigest, u64>> = BTreeMap::new();
        let mut listing = self.bucket.list(&layout.model_chunks_prefix(tenant, model_id), OPERATION);
        while let Some((key, meta)) = listing.try_next().await? {
            let Key::Chunk(key) = key else { continue };
            let stored_at_ms = u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or(0);
            stored.entry(key.seq_hash).or_default().insert(key.object_digest, stored_at_ms);
            if stored.len() > count {
                stored.pop_last();
                if is_sorted {
                    break;
                }
            }
        }
        // Chunks stored in the meantime have no tombstone: their names were not in use.
        let mut listing = self.bucket.list(&layout.model_tombstones_prefix(tenant, model_id), OPERATION);
        while let Some((key, _)) = listing.try_next().await? {
            let Key::Tombstone(key) = key else { continue };
            if is_sorted && stored.last_key_value().is_none_or(|(last, _)| key.seq_hash > *last) {
                break;
            }
            if let Some(objects) = stored.get_mut(&key.seq_hash) {
                objects.remove(&key.object_digest);
            }
        }
        // Of a chunk's objects the first counts: the others are of the same text.
        let first = |(chunk, objects): (_, BTreeMap<_, u64>)| Some((chunk, objects.into_values().min()?));
        let (chunks, stored_at_ms) = stored.into_iter().filter_map(first).unzip();
        Ok(ChunkSample { chunks, stored_at_ms })
    }
}
