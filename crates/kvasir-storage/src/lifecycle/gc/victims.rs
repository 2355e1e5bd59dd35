//! What was chosen for eviction in other replicas' units.
//!
//! The replica that lists the whole store chooses what leaves it, and evicts what is in its own units. The rest it writes
//! down, and the owners of these objects evict them: one replica marks fewer objects than many store. Nothing rests on
//! the record. A lost or late one delays evictions, because the next pass that chooses counts what has no tombstone as
//! held, and chooses again. A wrong one costs hits: who evicts looks for pins, as with any decision of its own.

use std::{collections::HashSet, time::Duration};

use bytes::Bytes;
use kvasir_store::{
    StoreError,
    layout::{ChunkKey, Key},
};
use kvasir_types::ObjectDigest;
use object_store::GetOptions;

use super::{
    super::Lifecycle,
    GcPass,
    record::{self, Beginning, beginning},
};
use crate::{index::Scope, limits};

const READING: &str = "reading what was chosen for eviction";
const WRITING: &str = "writing down what was chosen for eviction";
const CAPACITY_BYTES: usize = size_of::<u64>();
/// Longer records are not read.
const RECORD_BYTES_MAX: u64 =
    (CAPACITY_BYTES + limits::COLD_OBJECTS_MAX * size_of::<Beginning>() + record::CHECKSUM_BYTES) as u64;

/// The victims in this replica's units, as far as the pass has listed them.
#[derive(Debug)]
pub(super) struct Victims {
    /// The names of all objects in the record, and their places in it, in the order of names.
    chosen: Vec<(Beginning, u32)>,
    /// Age of the record when the pass began.
    age: Duration,
    /// Those that were listed, with their places and bytes.
    listed: Vec<(u32, ChunkKey, u64)>,
    /// Those that have a tombstone, or get one in this pass.
    excluded: HashSet<ObjectDigest>,
}

impl Victims {
    fn new(chosen: Vec<Beginning>, age: Duration) -> Self {
        let mut chosen: Vec<(Beginning, u32)> = chosen.into_iter().zip(0..).collect();
        chosen.sort_unstable();
        Self { chosen, age, listed: Vec::new(), excluded: HashSet::new() }
    }

    /// The place of an object in the record, if it was chosen.
    fn place(&self, key: &ChunkKey) -> Option<u32> {
        let at = self.chosen.binary_search_by_key(&name_of(key), |(name, _)| *name).ok()?;
        self.chosen.get(at).map(|(_, place)| *place)
    }

    /// Adds a listed object, if it was chosen.
    pub(super) fn observe(&mut self, key: &ChunkKey, bytes: u64) {
        if let Some(place) = self.place(key) {
            self.listed.push((place, key.clone(), bytes));
        }
    }

    /// Excludes an object that has a tombstone, or gets one in this pass.
    pub(super) fn exclude(&mut self, key: &ChunkKey) {
        if self.place(key).is_some() {
            self.excluded.insert(key.object_digest);
        }
    }
}

/// The name of an object in the record. Its digest is not enough: another tenant may have a copy, which was not chosen.
fn name_of(key: &ChunkKey) -> Beginning {
    let scope = Scope::new(&key.tenant, &key.model_id);
    let name = u64::from_be_bytes(beginning(&key.object_digest)) ^ u64::from_be_bytes(*scope.as_bytes());
    name.to_be_bytes()
}

/// The capacity that objects were chosen for, and the objects.
fn encode(capacity: u64, chosen: &[Beginning]) -> Vec<u8> {
    record::finish([capacity.to_le_bytes().as_slice(), chosen.as_flattened()].concat())
}

/// `None` if the record is damaged.
fn decode(record: &[u8]) -> Option<(u64, Vec<Beginning>)> {
    let (capacity, chosen) = record::check(record)?.split_first_chunk::<CAPACITY_BYTES>()?;
    let (chosen, rest): (&[Beginning], _) = chosen.as_chunks();
    rest.is_empty().then(|| (u64::from_le_bytes(*capacity), chosen.to_vec()))
}

impl Lifecycle {
    /// Writes down what the owners of other units are to evict, of each tenant worst first, also if it is nothing: what was
    /// written before no longer holds. One replica alone has nobody to write for.
    pub(super) async fn write_victims(&self, pass: &GcPass<'_>, capacity: u64, chosen: Vec<&ChunkKey>) {
        if pass.policy.dry_run || pass.share.is_whole() {
            return;
        }
        let path = self.bucket.path(&Key::GcVictims);
        let chosen: Vec<Beginning> = chosen.into_iter().map(name_of).collect();
        let record = encode(capacity, &chosen);
        if let Err(error) = self.bucket.put(&path, record.into(), WRITING).await {
            tracing::warn!(%error, "what was chosen for eviction could not be written down: its owners learn of it from the next pass over the whole store");
        }
    }

    /// What another replica has chosen for eviction; `None` if this one chooses itself.
    pub(super) async fn read_victims(&self, pass: &GcPass<'_>) -> Option<Victims> {
        let capacity = pass.policy.capacity_bytes.filter(|_| !pass.lists_all)?;
        self.victims_for(pass, capacity).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "what was chosen for eviction cannot be read: this pass evicts nothing");
            None
        })
    }

    async fn victims_for(&self, pass: &GcPass<'_>, capacity: u64) -> Result<Option<Victims>, StoreError> {
        let (path, failed) = (self.bucket.path(&Key::GcVictims), StoreError::request(READING));
        let Some(found) = self.bucket.open_object(&path, GetOptions::default(), READING).await? else {
            return Ok(None);
        };
        let (age, is_too_long) = (pass.now.age(&found.meta), found.meta.size > RECORD_BYTES_MAX);
        let record = if is_too_long { Bytes::new() } else { found.bytes().await.map_err(failed)? };
        let Some((chosen_for, chosen)) = decode(&record) else {
            let reason = "its length or its checksum is wrong".to_owned();
            return Err(StoreError::Damaged { what: "the record of what was chosen for eviction", reason });
        };
        // Whoever wrote it may not have heard yet that the setting was changed.
        let is_valid = chosen_for == capacity && !chosen.is_empty();
        Ok(is_valid.then(|| Victims::new(chosen, age)))
    }

    /// Evicts what another replica has chosen in this one's units, unless this one has served it since. Deletions of the
    /// pass come first: they may need all actions of a tenant, and free what was evicted before. If too few actions are left
    /// for all, the worst go, and what follows a chunk goes before it.
    pub(super) async fn evict_chosen(&self, pass: &mut GcPass<'_>) -> Result<(), StoreError> {
        let Some(Victims { age, mut listed, excluded, .. }) = pass.victims.take() else { return Ok(()) };
        listed.sort_unstable_by_key(|(place, ..)| *place);
        for (_, key, bytes) in listed {
            let age = age + pass.started.elapsed();
            if age >= limits::VICTIMS_AGE_MAX {
                tracing::warn!(
                    ?age,
                    "what was chosen for eviction is too old to be evicted: has no replica listed the whole store?"
                );
                break;
            }
            if excluded.contains(&key.object_digest) || self.is_used_within(&key, age) {
                continue;
            }
            if self.may_pin(pass, &key).await? {
                pass.report.pinned += 1;
                continue;
            }
            self.evict(pass, &key, bytes).await?;
        }
        Ok(())
    }

    /// Whether this replica has served an object within the last `time`.
    fn is_used_within(&self, key: &ChunkKey, time: Duration) -> bool {
        let used = self.reads.index().last_use(Scope::new(&key.tenant, &key.model_id), key.object_digest);
        used.is_some_and(|used| used.at.elapsed() <= time + limits::STORE_DATE_UNIT)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::{Epoch, GcPolicy, StoreTime, testing::storage},
        *,
    };
    use crate::WorkShare;

    fn key(n: u8) -> ChunkKey {
        ChunkKey {
            tenant: "t".parse().expect("a name"),
            model_id: [1; 32].into(),
            seq_hash: [n; 32].into(),
            object_digest: [n; 32].into(),
        }
    }

    fn share() -> WorkShare {
        WorkShare::of(vec![("a".to_owned(), 1.0), ("b".to_owned(), 1.0)], 0, false)
    }

    /// A record is of use for a day and for its capacity, and says nothing of another tenant's copy. What a tenant has no
    /// action left for is neither evicted nor counted.
    #[tokio::test]
    async fn a_record_that_no_longer_holds_evicts_nothing() {
        let (storage, share, key) = (storage().await, share(), key(2));
        let now = storage.store().now_ms().expect("was probed");
        let policy = |capacity: u64| GcPolicy { capacity_bytes: Some(capacity), ..GcPolicy::default() };
        let full = policy(100);
        let chooses = GcPass::new(&full, &share, Epoch { n: 0, begun: StoreTime(now), lists_all: true });
        storage.lifecycle().write_victims(&chooses, 100, vec![&key]).await;
        let evicted = async |age: Duration, capacity: u64, taken: u32| {
            let (policy, begun) = (policy(capacity), StoreTime(now + age.as_millis() as i64));
            let mut pass = GcPass::new(&policy, &share, Epoch { n: 1, begun, lists_all: false });
            assert!((0..taken).all(|_| pass.tenant_budget.try_take(&key.tenant)));
            pass.victims = storage.lifecycle().read_victims(&pass).await;
            if let Some(victims) = &mut pass.victims {
                let copy = ChunkKey { tenant: "other".parse().expect("a name"), ..key.clone() };
                for key in [&key, &copy] {
                    victims.observe(key, 7);
                }
            }
            storage.lifecycle().evict_chosen(&mut pass).await.expect("decides");
            (pass.report.evicted, pass.report.evicted_bytes)
        };
        let hour = Duration::from_secs(3600);
        assert_eq!(evicted(hour, 100, 0).await, (1, 7));
        assert_eq!(evicted(limits::VICTIMS_AGE_MAX - hour, 100, 0).await, (1, 7));
        assert_eq!(evicted(limits::VICTIMS_AGE_MAX + hour, 100, 0).await, (0, 0));
        assert_eq!(evicted(hour, 101, 0).await, (0, 0));
        assert_eq!(evicted(hour, 100, limits::GC_TENANT_ACTIONS_MIN).await, (0, 0));
    }

    /// Also what follows a chunk goes before it.
    #[tokio::test]
    async fn where_too_few_actions_are_left_the_worst_go() {
        let (storage, share) = (storage().await, share());
        let policy = GcPolicy { capacity_bytes: Some(100), ..GcPolicy::default() };
        let begun = StoreTime(storage.store().now_ms().expect("was probed"));
        let chooses = GcPass::new(&policy, &share, Epoch { n: 0, begun, lists_all: true });
        let worst_first = [9, 1, 5].map(key);
        storage.lifecycle().write_victims(&chooses, 100, worst_first.iter().collect()).await;
        let mut pass = GcPass::new(&policy, &share, Epoch { n: 1, begun, lists_all: false });
        pass.victims = storage.lifecycle().read_victims(&pass).await;
        let victims = pass.victims.as_mut().expect("a record");
        [1, 5, 9].map(key).iter().for_each(|key| victims.observe(key, 7));
        let taken = limits::GC_TENANT_ACTIONS_MIN - 2;
        assert!((0..taken).all(|_| pass.tenant_budget.try_take(&worst_first[0].tenant)));
        storage.lifecycle().evict_chosen(&mut pass).await.expect("decides");
        storage.lifecycle().carry_out(&mut pass).await.expect("marks");
        let mut marked = Vec::new();
        for key in &worst_first {
            marked.push(storage.reads().tombstones().has(key).await.expect("asks"));
        }
        assert_eq!((pass.report.evicted, marked), (2, vec![true, true, false]));
    }

    proptest! {
        #[test]
        fn a_record_says_what_was_written_or_nothing(
            capacity in any::<u64>(),
            chosen in prop::collection::vec(any::<Beginning>(), 0..20),
            bit in any::<prop::sample::Index>(),
        ) {
            let mut record = encode(capacity, &chosen);
            prop_assert_eq!(decode(&record), Some((capacity, chosen)));
            let bit = bit.index(record.len() * 8);
            record[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(decode(&record).is_none());
        }

        /// What a checksum covers is whole objects, or damaged as well.
        #[test]
        fn no_record_panics(record in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = decode(&record);
            let bytes_of_objects = record.len().checked_sub(CAPACITY_BYTES);
            let is_whole = bytes_of_objects.is_some_and(|bytes| bytes.is_multiple_of(size_of::<Beginning>()));
            prop_assert_eq!(decode(&record::finish(record)).is_some(), is_whole);
        }
    }
}
