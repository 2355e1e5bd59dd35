//! What replicas serve, for the one that chooses what is evicted from the store.
//!
//! A replica sees its own lookups and reads alone, in a cluster those of its routes. So each writes down, at the start of
//! each of its passes, what it has served and how long ago, and the one that chooses reads what all have written. A
//! record that is lost, old or wrong costs hits and nothing else.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use futures::TryStreamExt;
use kvasir_eviction::ColdObject;
use kvasir_store::{
    StoreError,
    layout::{ChunkKey, Key},
};

use super::{
    super::Lifecycle,
    GcPass, StoreTime,
    record::{self, Beginning, beginning},
};
use crate::{index::Scope, limits};

const READING: &str = "reading what replicas have served";

/// An object, and for how many seconds it was not used when the record was written.
type Use = (Beginning, u32);

const USE_BYTES: usize = size_of::<Beginning>() + size_of::<u32>();
/// Longer records are not read.
const RECORD_BYTES_MAX: u64 = (limits::USES_MAX * USE_BYTES + record::CHECKSUM_BYTES) as u64;

/// Uses in the order of digests.
fn encode(mut uses: Vec<Use>) -> Vec<u8> {
    uses.sort_unstable();
    let mut record = Vec::with_capacity(uses.len() * USE_BYTES + record::CHECKSUM_BYTES);
    for (object, unused_s) in uses {
        record.extend(object);
        record.extend(unused_s.to_le_bytes());
    }
    record::finish(record)
}

/// `None` if the record is damaged.
fn decode(record: &[u8]) -> Option<impl Iterator<Item = Use>> {
    let (uses, rest) = record::check(record)?.as_chunks::<USE_BYTES>();
    rest.is_empty().then(|| {
        let parts = |of: &[u8; USE_BYTES]| {
            let [a, b, c, d, e, f, g, h, unused_s @ ..] = *of;
            ([a, b, c, d, e, f, g, h], u32::from_le_bytes(unused_s))
        };
        uses.iter().map(parts)
    })
}

impl Lifecycle {
    /// Writes down what this replica has served, if the store has a capacity. Without the uses of sealed tenants, which
    /// would tell readers of the bucket what these use.
    pub(super) async fn write_uses(&self, pass: &GcPass<'_>) -> Result<(), StoreError> {
        if pass.policy.dry_run || pass.policy.capacity_bytes.is_none() {
            return Ok(());
        }
        let uses = self.reads.index().uses();
        if uses.is_empty() {
            return Ok(());
        }
        let models = self.models().await?;
        let plain = models.iter().filter(|(tenant, _)| !self.bucket.seals(tenant));
        let plain: HashSet<Scope> = plain.map(|(tenant, model_id)| Scope::new(tenant, model_id)).collect();
        let uses = uses.into_iter().filter(|((scope, _), _)| plain.contains(scope));
        let uses = uses.map(|((_, object), last)| {
            (beginning(&object), u32::try_from(last.at.elapsed().as_secs()).unwrap_or(u32::MAX))
        });
        let path = self.bucket.path(&Key::GcUses(self.changes.replica().clone()));
        self.bucket.put(&path, encode(uses.collect()).into(), "writing down what was served").await
    }

    /// Dates candidates for eviction by what other replicas have served, and deletes records that are too old.
    pub(super) async fn add_uses(
        &self,
        pass: &GcPass<'_>,
        objects: &[(ChunkKey, u64, StoreTime)],
        candidates: &mut [ColdObject<u32>],
    ) -> Result<(), StoreError> {
        let places = candidates.iter().enumerate().filter_map(|(place, candidate)| {
            let (key, ..) = objects.get(candidate.key as usize)?;
            Some((beginning(&key.object_digest), place))
        });
        let places: HashMap<Beginning, usize> = places.collect();
        let mut records = self.bucket.list(&self.bucket.layout().uses_prefix(), READING);
        while let Some((key, meta)) = records.try_next().await? {
            let Key::GcUses(replica) = key else { continue };
            if pass.now.age(&meta) >= limits::USES_KEPT {
                if !pass.policy.dry_run {
                    self.bucket.delete(&meta.location).await?;
                }
                continue;
            }
            if replica == *self.changes.replica() || meta.size > RECORD_BYTES_MAX {
                continue;
            }
            let Some(record) = self.bucket.get(&meta.location, READING).await? else { continue };
            let Some(uses) = decode(&record) else {
                tracing::warn!(%replica, "the record of what a replica has served is damaged: eviction does without it");
                continue;
            };
            let written = StoreTime::of(&meta);
            for (object, unused_s) in uses {
                if let Some(candidate) = places.get(&object).and_then(|place| candidates.get_mut(*place)) {
                    let used = written.before(Duration::from_secs(unused_s.into())).moment();
                    candidate.last_read = candidate.last_read.max(used);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_record_says_what_was_written_or_nothing(
            uses in prop::collection::vec(any::<Use>(), 0..20),
            bit in any::<prop::sample::Index>(),
        ) {
            let mut record = encode(uses.clone());
            let mut sorted = uses;
            sorted.sort_unstable();
            prop_assert_eq!(decode(&record).map(Iterator::collect::<Vec<_>>), Some(sorted));
            let bit = bit.index(record.len() * 8);
            record[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(decode(&record).is_none());
        }

        #[test]
        fn no_record_panics(record in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = decode(&record).map(Iterator::count);
        }
    }
}
