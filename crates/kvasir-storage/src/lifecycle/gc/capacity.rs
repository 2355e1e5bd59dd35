//! Keeps the cold tier within its capacity with the same eviction policies as the hot tier. Eviction is fair between
//! tenants: the largest tenants lose objects down to one common level, and a tenant below an equal share loses none.
//!
//! The replica that lists the whole store chooses, and each replica evicts what is in its own units (see
//! [`victims`](super::victims)).

use std::collections::{BTreeMap, HashMap, HashSet};

use kvasir_eviction::{ClassId, ColdObject, Moment, victims};
use kvasir_store::{StoreError, layout::ChunkKey};
use kvasir_types::{Name, ObjectDigest, SeqHash};
use object_store::ObjectMeta;

use super::{super::Lifecycle, GcPass, StoreTime, record::beginning};
use crate::{index::Scope, lifecycle::work_share::Units, limits, removal::Removal};

/// The objects that the pass has listed and may evict.
#[derive(Debug, Default)]
pub(super) struct CapacityPlan {
    objects: Vec<(ChunkKey, u64, StoreTime)>,
    /// Which of the listed objects these are. Of the others nothing but their bytes is remembered: tombstones are kept for a
    /// day, so there may be more of them than of objects.
    sample: Sample,
    /// Objects that have a tombstone, or get one in this pass.
    excluded: HashSet<ObjectDigest>,
    /// Objects that stay, whatever the policy says.
    spared: HashSet<ObjectDigest>,
    /// Bytes of all listed objects of each tenant, recorded or not.
    held: BTreeMap<Name, u64>,
}

/// An even share of all objects, by their digests: at first all of them.
#[derive(Debug, Default, Clone, Copy)]
struct Sample {
    /// The first digest in it, by its beginning.
    first: u64,
    /// How many of the 2⁶⁴ beginnings are left out.
    left_out: u64,
}

impl Sample {
    fn has(self, object: &ObjectDigest) -> bool {
        u64::from_be_bytes(beginning(object)).wrapping_sub(self.first) <= u64::MAX - self.left_out
    }

    /// Leaves out an eighth of what is left. Returns false if nothing can be left out any more.
    fn shrink(&mut self) -> bool {
        let eighth = (u64::MAX - self.left_out) / 8;
        self.left_out += eighth;
        eighth > 0
    }
}

impl CapacityPlan {
    /// The plan of the pass with this number. If there are too many objects, each pass sees others.
    pub(super) fn of_pass(n: u64) -> Self {
        let first = u64::from_be_bytes(beginning(&ObjectDigest::of(&n.to_le_bytes())));
        Self { sample: Sample { first, left_out: 0 }, ..Self::default() }
    }

    /// Adds a listed object. Of more than `most`, an even share stays recorded.
    fn observe(&mut self, key: &ChunkKey, bytes: u64, stored: StoreTime, most: usize) {
        match self.held.get_mut(&key.tenant) {
            Some(held) => *held += bytes,
            None => drop(self.held.insert(key.tenant.clone(), bytes)),
        }
        while self.objects.len() >= most && self.sample.shrink() {
            let sample = self.sample;
            self.objects.retain(|(key, ..)| sample.has(&key.object_digest));
            self.excluded.retain(|object| sample.has(object));
            self.spared.retain(|object| sample.has(object));
        }
        if self.objects.len() < most && self.sample.has(&key.object_digest) {
            self.objects.push((key.clone(), bytes, stored));
        }
    }

    fn exclude(&mut self, object: ObjectDigest) {
        if self.sample.has(&object) {
            self.excluded.insert(object);
        }
    }

    fn spare(&mut self, object: ObjectDigest) {
        if self.sample.has(&object) {
            self.spared.insert(object);
        }
    }

    /// The bytes that every tenant may keep; `None` if everything fits. Objects that were not recorded count
    /// for their owners, and of them as large a part leaves as of the others.
    fn level(&mut self, capacity: u64) -> Option<u64> {
        // Bytes of each tenant's recorded objects, and of those that leave.
        let mut recorded: HashMap<&Name, (u64, u64)> = HashMap::new();
        for (key, bytes, _) in &self.objects {
            let (all, leaving) = recorded.entry(&key.tenant).or_default();
            *all += bytes;
            if self.excluded.contains(&key.object_digest) {
                *leaving += bytes;
            }
        }
        for (tenant, (all, leaving)) in recorded {
            if let Some(held) = self.held.get_mut(tenant) {
                *held -= part_of(*held, leaving, all);
            }
        }
        let is_full = self.held.values().sum::<u64>() > capacity;
        is_full.then(|| water_level(self.held.values().copied().collect(), capacity))
    }
}

impl GcPass<'_> {
    /// An object was listed, of a chunk in this pass's units or, in a pass over the whole store, of any. `may_go`: whether it
    /// may be evicted.
    pub(super) fn observe_for_capacity(&mut self, key: &ChunkKey, meta: &ObjectMeta, may_go: bool) {
        if self.observes_capacity() {
            let plan = &mut self.capacity_plan;
            plan.observe(key, meta.size, StoreTime::of(meta), limits::COLD_OBJECTS_MAX);
            if !may_go {
                plan.spare(key.object_digest);
            }
        }
        if may_go && let Some(victims) = &mut self.victims {
            victims.observe(key, meta.size);
        }
    }

    /// A chunk has a tombstone, or gets one in this pass: its bytes will be free without an eviction.
    pub(super) fn exclude_from_capacity(&mut self, key: &ChunkKey) {
        if self.observes_capacity() {
            self.capacity_plan.exclude(key.object_digest);
        }
        if let Some(victims) = &mut self.victims {
            victims.exclude(key);
        }
    }

    fn observes_capacity(&self) -> bool {
        self.lists_all && self.policy.capacity_bytes.is_some()
    }
}

impl Lifecycle {
    /// Chooses the policy's victims, so that the remaining objects fit the capacity, and evicts those in this replica's units.
    pub(super) async fn evict_to_capacity(
        &self,
        pass: &mut GcPass<'_>,
        mut plan: CapacityPlan,
    ) -> Result<(), StoreError> {
        let Some(capacity) = pass.policy.capacity_bytes else { return Ok(()) };
        let chosen = self.choose_victims(pass, &mut plan, capacity).await?;
        let mut units: HashMap<Scope, Units> = HashMap::new();
        let (mut own, mut others) = (Vec::new(), Vec::new());
        for victim in chosen {
            let Some((key, bytes, _)) = plan.objects.get(victim as usize) else { continue };
            let of_model = units
                .entry(Scope::new(&key.tenant, &key.model_id))
                .or_insert_with(|| pass.share.units(&key.tenant, &key.model_id));
            // A dry run counts all: others are not told.
            if pass.policy.dry_run || of_model.contain(&key.seq_hash) {
                own.push((key, *bytes));
            } else {
                others.push(key);
            }
        }
        // First: the others can begin, and an error while this replica evicts costs them nothing.
        self.write_victims(pass, capacity, others).await;
        for (key, bytes) in own {
            self.evict(pass, key, bytes).await?;
        }
        Ok(())
    }

    /// Decides to evict an object, unless its tenant has no action left: then a later pass evicts it.
    pub(super) async fn evict(
        &self,
        pass: &mut GcPass<'_>,
        key: &ChunkKey,
        bytes: u64,
    ) -> Result<(), StoreError> {
        if !pass.tenant_budget.has_remaining(&key.tenant) {
            return Ok(());
        }
        pass.report.evicted += 1;
        pass.report.evicted_bytes += bytes;
        self.mark_deleted(pass, key, Removal::Evicted, None).await
    }

    /// The places of the policy's victims among the plan's objects, of each tenant worst first.
    async fn choose_victims(
        &self,
        pass: &GcPass<'_>,
        plan: &mut CapacityPlan,
        capacity: u64,
    ) -> Result<Vec<u32>, StoreError> {
        let Some(level) = plan.level(capacity) else { return Ok(Vec::new()) };
        let CapacityPlan { objects, excluded, spared, held, .. } = &*plan;
        let numbered: HashMap<(Scope, SeqHash), u32> = objects
            .iter()
            .enumerate()
            .map(|(i, (key, ..))| ((Scope::new(&key.tenant, &key.model_id), key.seq_hash), i as u32))
            .collect();
        let may_go = |key: &ChunkKey| {
            let is_out = excluded.contains(&key.object_digest) || spared.contains(&key.object_digest);
            !is_out && !pass.contexts.may_pin(key)
        };
        let candidates = objects.iter().enumerate().filter(|(_, (key, ..))| may_go(key));
        let mut candidates: Vec<_> = candidates
            .map(|(i, (key, bytes, stored))| {
                let scope = Scope::new(&key.tenant, &key.model_id);
                let entry = self.reads.index().entry(scope, key.object_digest);
                let parent =
                    entry.as_ref().and_then(|e| numbered.get(&(scope, e.parent_hash.into())).copied());
                let used = self.reads.index().last_use(scope, key.object_digest);
                let read = used.map(|used| pass.now.before(used.at.elapsed()));
                ColdObject {
                    key: i as u32,
                    bytes: *bytes,
                    stored: stored.moment(),
                    last_read: read.map_or(stored.moment(), |read| read.moment().max(stored.moment())),
                    class: used.map_or(ClassId::OTHER, |used| used.class),
                    offset: entry.map_or(0, |e| u32::try_from(e.row.first_position).unwrap_or(u32::MAX)),
                    parent,
                }
            })
            .collect();
        self.add_uses(pass, objects, &mut candidates).await?;
        let mut tenants: BTreeMap<&Name, Vec<ColdObject<u32>>> = BTreeMap::new();
        for candidate in candidates {
            let Some((key, ..)) = objects.get(candidate.key as usize) else { continue };
            tenants.entry(&key.tenant).or_default().push(candidate);
        }
        let mut chosen = Vec::new();
        for (tenant, candidates) in tenants {
            let holding = held.get(tenant).copied().unwrap_or(0);
            if holding <= level {
                continue;
            }
            let candidate_bytes: u64 = candidates.iter().map(|object| object.bytes).sum();
            // Pinned and spared objects, and those that were not recorded, leave less for the rest of their tenant, and for
            // no other tenant.
            let allowed = level.saturating_sub(holding.saturating_sub(candidate_bytes));
            chosen.extend(victims(pass.policy.eviction, allowed, &candidates, pass.now.moment()));
        }
        Ok(chosen)
    }
}

/// `whole` · `part` / `of`, where `part` is at most `of`.
fn part_of(whole: u64, part: u64, of: u64) -> u64 {
    (u128::from(whole) * u128::from(part) / u128::from(of.max(1))) as u64
}

/// The bytes that every tenant may keep, so that together they fit `capacity`: an equal share, and more as
/// far as others hold less.
fn water_level(mut holdings: Vec<u64>, capacity: u64) -> u64 {
    holdings.sort_unstable();
    let (mut rest, count) = (capacity, holdings.len() as u64);
    for (holding, before) in holdings.into_iter().zip(0..) {
        let equal_part = rest / (count - before);
        if holding > equal_part {
            return equal_part;
        }
        rest -= holding;
    }
    u64::MAX
}

impl StoreTime {
    pub(super) fn moment(self) -> Moment {
        Moment::from_millis(u64::try_from(self.0).unwrap_or(0))
    }

    pub(super) fn before(self, age: std::time::Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(age.as_millis()).unwrap_or(i64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MANY: u64 = 20_000;

    /// One of [`MANY`] objects in the order of a listing.
    fn key(n: u64) -> ChunkKey {
        let mut seq_hash = [0; 32];
        seq_hash[..8].copy_from_slice(&(n * (u64::MAX / MANY)).to_be_bytes());
        ChunkKey {
            tenant: "t".parse().expect("a name"),
            model_id: [1; 32].into(),
            seq_hash: seq_hash.into(),
            object_digest: ObjectDigest::of(&n.to_le_bytes()),
        }
    }

    /// The plan of a pass that lists so many objects of 10 bytes, and can choose among 1,000. Every second one leaves.
    fn listed(pass: u64, objects: u64) -> CapacityPlan {
        let mut plan = CapacityPlan::of_pass(pass);
        for key in (0..objects).map(key) {
            plan.observe(&key, 10, StoreTime(0), 1_000);
        }
        (0..objects).step_by(2).for_each(|n| plan.exclude(key(n).object_digest));
        plan
    }

    /// The first ones would all be of one unit, and of its owner alone.
    #[test]
    fn of_too_many_objects_each_pass_sees_an_even_share() {
        let [one, other] = [1, 2].map(|pass| {
            let mut plan = listed(pass, MANY / 2);
            (MANY / 2..MANY).for_each(|n| plan.observe(&key(n), 10, StoreTime(0), 1_000));
            let CapacityPlan { objects, sample, excluded, .. } = plan;
            assert!((800..=1_000).contains(&objects.len()), "{} objects", objects.len());
            assert!(!excluded.is_empty() && excluded.iter().all(|object| sample.has(object)));
            let seen: Vec<_> = objects.into_iter().map(|(key, ..)| key).collect();
            let in_sample = (0..MANY).map(key).filter(|key| sample.has(&key.object_digest));
            assert!(in_sample.eq(seen.iter().cloned()), "all that belong to the share");
            for digit in 0..16 {
                let of_unit = seen.iter().filter(|key| key.seq_hash.as_bytes()[0] >> 4 == digit).count();
                assert!(of_unit > 20, "{of_unit} of {} are of unit {digit}", seen.len());
            }
            seen
        });
        assert_ne!(one, other);
        assert_eq!(listed(1, 1_000).objects.len(), 1_000, "all that fit are seen");
    }

    /// Otherwise others would be evicted in place of what is on its way out.
    #[test]
    fn what_leaves_is_not_held_whether_it_is_seen_or_not() {
        let is_full = |objects, capacity| listed(1, objects).level(capacity).is_some();
        assert!(!is_full(1_000, 5_000) && is_full(1_000, 4_999));
        // About 100,000 bytes stay.
        assert!(!is_full(MANY, 120_000) && is_full(MANY, 80_000));
    }

    /// A tenant of which nothing was recorded takes nothing from a small one of which all was.
    #[test]
    fn what_is_not_recorded_counts_for_its_owner() {
        let (small, large): (Name, Name) = ("a".parse().expect("a name"), "z".parse().expect("a name"));
        let (seq_hash, object_digest) = ([2; 32].into(), [3; 32].into());
        let key = ChunkKey { tenant: small.clone(), model_id: [1; 32].into(), seq_hash, object_digest };
        let mut plan = CapacityPlan {
            objects: vec![(key, 10, StoreTime(0))],
            held: [(small, 10), (large, 1_000)].into(),
            ..CapacityPlan::default()
        };
        assert_eq!(plan.level(100), Some(90));
        assert_eq!(plan.level(1_010), None);
    }

    proptest! {
        /// Everything fits, no space remains that a tenant could have kept, and no tenant below an equal
        /// share loses objects.
        #[test]
        fn the_level_is_fair_and_tight(holdings in prop::collection::vec(0u64..1_000, 1..12), capacity in 0u64..6_000) {
            let level = water_level(holdings.clone(), capacity);
            let kept: u64 = holdings.iter().map(|holding| (*holding).min(level)).sum();
            let (all, count) = (holdings.iter().sum::<u64>(), holdings.len() as u64);
            prop_assert!(kept <= capacity);
            prop_assert!(kept == all || kept + count > capacity, "{kept} of {all}, level {level}");
            prop_assert!(kept == all || level >= capacity / count);
        }
    }
}
