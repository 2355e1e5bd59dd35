//! Keeps the cold tier within its capacity with the same eviction policies as the hot tier. Eviction is fair between
//! tenants: the largest tenants lose objects down to one common level, and a tenant below an equal share loses none.

use std::collections::{BTreeMap, HashMap, HashSet};

use kvasir_eviction::{ClassId, ColdObject, Moment, victims};
use kvasir_store::{StoreError, layout::ChunkKey};
use kvasir_types::{Name, ObjectDigest, SeqHash};
use object_store::ObjectMeta;

use super::{super::Lifecycle, GcPass, StoreTime};
use crate::{index::Scope, limits, removal::Removal};

/// The objects that the pass has listed and may evict.
#[derive(Debug, Default)]
pub(super) struct CapacityPlan {
    objects: Vec<(ChunkKey, u64, StoreTime)>,
    excluded: HashSet<ObjectDigest>,
    /// Bytes of all listed objects of each tenant, recorded or not.
    held: BTreeMap<Name, u64>,
}

impl CapacityPlan {
    /// Adds a listed object.
    pub(super) fn observe(&mut self, key: &ChunkKey, meta: &ObjectMeta) {
        match self.held.get_mut(&key.tenant) {
            Some(held) => *held += meta.size,
            None => drop(self.held.insert(key.tenant.clone(), meta.size)),
        }
        if self.objects.len() < limits::COLD_OBJECTS_MAX {
            self.objects.push((key.clone(), meta.size, StoreTime::of(meta)));
        }
    }

    /// Excludes an object that has a tombstone, or gets one in this pass.
    pub(super) fn exclude(&mut self, object: ObjectDigest) {
        self.excluded.insert(object);
    }

    /// The bytes that every tenant may keep; `None` if everything fits. Objects that were not recorded count
    /// for their owners.
    fn level(&mut self, capacity: u64) -> Option<u64> {
        let leaving = self.objects.iter().filter(|(key, ..)| self.excluded.contains(&key.object_digest));
        for (key, bytes, _) in leaving {
            if let Some(held) = self.held.get_mut(&key.tenant) {
                *held = held.saturating_sub(*bytes);
            }
        }
        let is_full = self.held.values().sum::<u64>() > capacity;
        is_full.then(|| water_level(self.held.values().copied().collect(), capacity))
    }
}

impl Lifecycle {
    /// Marks the policy's victims as deleted until the remaining objects fit the capacity.
    pub(super) async fn evict_to_capacity(
        &self,
        pass: &mut GcPass<'_>,
        mut plan: CapacityPlan,
    ) -> Result<(), StoreError> {
        let Some(capacity) = pass.policy.capacity_bytes else { return Ok(()) };
        let Some(level) = plan.level(capacity) else { return Ok(()) };
        let CapacityPlan { objects, excluded, held } = plan;
        let numbered: HashMap<(Scope, SeqHash), u32> = objects
            .iter()
            .enumerate()
            .map(|(i, (key, ..))| ((Scope::new(&key.tenant, &key.model_id), key.seq_hash), i as u32))
            .collect();
        let candidates = objects
            .iter()
            .enumerate()
            .filter(|(_, (key, ..))| !excluded.contains(&key.object_digest) && !pass.contexts.may_pin(key));
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
        self.add_uses(pass, &objects, &mut candidates).await?;
        let mut tenants: BTreeMap<&Name, Vec<ColdObject<u32>>> = BTreeMap::new();
        for candidate in candidates {
            let Some((key, ..)) = objects.get(candidate.key as usize) else { continue };
            tenants.entry(&key.tenant).or_default().push(candidate);
        }
        for (tenant, candidates) in tenants {
            let holding = held.get(tenant).copied().unwrap_or(0);
            if holding <= level {
                continue;
            }
            let candidate_bytes: u64 = candidates.iter().map(|object| object.bytes).sum();
            // Pinned objects, and those that were not recorded, leave less for the rest of their tenant, and for
            // no other tenant.
            let allowed = level.saturating_sub(holding.saturating_sub(candidate_bytes));
            for victim in victims(pass.policy.eviction, allowed, &candidates, pass.now.moment()) {
                let Some((key, bytes, _)) = objects.get(victim as usize) else { continue };
                pass.report.evicted += 1;
                pass.report.evicted_bytes += bytes;
                self.mark_deleted(pass, key, Removal::Evicted).await?;
            }
        }
        Ok(())
    }
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
