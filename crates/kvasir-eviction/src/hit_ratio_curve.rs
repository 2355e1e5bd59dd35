//! Estimates the hit ratio of a tier of another size with small copies of it that see a sample of the
//! accesses.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;

use super::{
    Access, EntryKey, Moment, PolicyKind,
    eviction_index::{EvictionIndex, TenantIndex},
    limits,
};

/// Capacities of the copies, as multiples of the tier's.
pub const CURVE_SCALES: [f64; 4] = [0.5, 1.0, 2.0, 4.0];

/// Estimates the hit ratio of the tier if it were smaller or larger.
///
/// A sample of the accesses, chosen by hash of the entry's group, is replayed through copies of the tier. The
/// capacity of a copy is scaled down by the share of the sample (miniature simulation: Waldspurger et al.,
/// "Cache Modeling and Optimization using Miniature Simulations", USENIX ATC 2017, section 3). The copies run
/// the tier's policy and tenants' shares. The sample starts with all accesses and is halved whenever the largest
/// copy would exceed [`limits::CURVE_ENTRIES_MAX`] entries. A surplus or deficit of accesses in the sample is
/// counted as uses of the few hottest entries, which every copy holds (SHARDS-adj, section 3.2 of the same).
#[derive(Debug)]
pub struct HitRatioCurve<K> {
    capacity: u64,
    group_of: fn(&K) -> u64,
    hasher: FixedState,
    /// The sample is one in two to the power of this.
    halvings: u32,
    copies: [EvictionIndex<K>; CURVE_SCALES.len()],
    counts: Counts,
}

/// Bytes requested recently; older ones count less, by [`limits::REUSE_WINDOW_SECONDS`].
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    at: Moment,
    /// In all.
    asked: f64,
    /// Of the sample, in multiples that make up for its size.
    sampled: f64,
    /// The part of them that each copy held.
    found: [f64; CURVE_SCALES.len()],
}

impl Counts {
    fn age(&mut self, now: Moment) {
        let keep = (-now.seconds_since(self.at) / limits::REUSE_WINDOW_SECONDS).exp();
        self.at = now;
        self.asked *= keep;
        self.sampled *= keep;
        self.found.iter_mut().for_each(|found| *found *= keep);
    }
}

impl<K: EntryKey> HitRatioCurve<K> {
    /// The curve of a tier of `capacity` bytes. Entries of one group are in the sample together: those that depend on each other
    /// most.
    pub fn new(kind: PolicyKind, capacity: u64, tenant_share_max: f64, group_of: fn(&K) -> u64) -> Self {
        let copy = |scale: f64| EvictionIndex::new(kind, (capacity as f64 * scale) as u64, tenant_share_max);
        Self {
            capacity,
            group_of,
            // Not the one that the policies sample by.
            hasher: FixedState::with_seed(0x6375_7276_6500),
            halvings: 0,
            copies: CURVE_SCALES.map(copy),
            counts: Counts::default(),
        }
    }

    /// Records an access to an entry, whether or not the tier has it. An access that `asks` for the entry
    /// counts; one by a writer only admits the entry.
    pub fn note(&mut self, tenant: TenantIndex, key: K, access: &Access<K>, asks: bool) {
        let bytes = if asks { access.bytes as f64 } else { 0.0 };
        if asks {
            self.counts.age(access.now);
            self.counts.asked += bytes;
        }
        if !self.samples(&key) {
            return;
        }
        // A parent outside the sample is not treated as missing.
        let access = Access { parent: access.parent.filter(|parent| self.samples(parent)), ..*access };
        let weighed = bytes * f64::from(self.halvings).exp2();
        self.counts.sampled += weighed;
        for (copy, found) in self.copies.iter_mut().zip(&mut self.counts.found) {
            if copy.contains(&key) {
                copy.touch(&key, &access);
                *found += weighed;
            } else {
                copy.insert(tenant, key, &access);
            }
        }
        if self.copies.iter().any(|copy| copy.len() > limits::CURVE_ENTRIES_MAX) {
            self.halve();
        }
    }

    /// Forgets an entry that its owner deleted.
    pub fn remove(&mut self, key: &K) {
        if self.samples(key) {
            for copy in &mut self.copies {
                copy.remove(key);
            }
        }
    }

    /// The share of the recently requested bytes that a tier would find, at each of [`CURVE_SCALES`]; `None`
    /// before the first request.
    pub fn hit_ratios(&self) -> Option<[f64; CURVE_SCALES.len()]> {
        let Counts { asked, sampled, found, .. } = self.counts;
        let ratio = |found: f64| ((found + asked - sampled) / asked).clamp(0.0, 1.0);
        (asked > 0.0).then(|| found.map(ratio))
    }

    fn samples(&self, key: &K) -> bool {
        is_sampled(self.hasher.hash_one((self.group_of)(key)), self.halvings)
    }

    fn halve(&mut self) {
        self.halvings += 1;
        let Self { capacity, group_of, hasher, halvings, copies, .. } = self;
        let keep = |key: &K| is_sampled(hasher.hash_one(group_of(key)), *halvings);
        for (copy, scale) in copies.iter_mut().zip(CURVE_SCALES) {
            copy.narrow((*capacity as f64 * scale / f64::from(*halvings).exp2()) as u64, keep);
        }
    }
}

/// Whether a hash is in a sample of one in two to the power of `halvings`.
fn is_sampled(hash: u64, halvings: u32) -> bool {
    hash.leading_zeros() >= halvings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClassId;

    /// Keys of a Zipf-like law over `keys`, from a local generator.
    fn zipf(keys: u64, count: usize) -> impl Iterator<Item = u64> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        (0..count).map(move |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let share = (state >> 11) as f64 / (1_u64 << 53) as f64;
            ((keys as f64).powf(share) - 1.0) as u64
        })
    }

    fn access(at: usize, bytes: u64) -> Access<u64> {
        Access::new(Moment::from_millis(at as u64), ClassId::OTHER).bytes(bytes)
    }

    /// The estimate at each scale is the hit ratio of a whole tier of that size.
    #[test]
    fn the_estimate_is_what_a_tier_of_that_size_finds() {
        for kind in PolicyKind::ALL {
            let capacity = 4_000_000;
            let mut curve = HitRatioCurve::new(kind, capacity, 1.0, |key: &u64| *key);
            let mut tiers =
                CURVE_SCALES.map(|scale| EvictionIndex::new(kind, (capacity as f64 * scale) as u64, 1.0));
            let (mut asked, mut found) = (0_u64, [0_u64; CURVE_SCALES.len()]);
            for (at, key) in zipf(400_000, 400_000).enumerate() {
                let access = access(at, 50 + key % 100);
                curve.note(0, key, &access, true);
                asked += access.bytes;
                for (tier, found) in tiers.iter_mut().zip(&mut found) {
                    if tier.contains(&key) {
                        tier.touch(&key, &access);
                        *found += access.bytes;
                    } else {
                        tier.insert(0, key, &access);
                    }
                }
            }
            assert!(curve.halvings > 2, "{kind}: it samples");
            let ratios = curve.hit_ratios().expect("much was asked for");
            for (scale, (estimated, found)) in CURVE_SCALES.iter().zip(ratios.iter().zip(found)) {
                let real = found as f64 / asked as f64;
                assert!((estimated - real).abs() < 0.03, "{kind} at {scale}: {estimated} for {real}");
            }
            assert!(ratios.is_sorted() && ratios[0] < ratios[3], "{kind}: {ratios:?}");
        }
    }

    #[test]
    fn who_writes_an_entry_does_not_ask_for_it() {
        let mut curve = HitRatioCurve::new(PolicyKind::Lru, 1_000, 1.0, |key: &u64| *key);
        curve.note(0, 1, &access(1, 100), false);
        assert_eq!(curve.hit_ratios(), None);
        curve.note(0, 1, &access(2, 100), true);
        assert_eq!(curve.hit_ratios(), Some([1.0; 4]));
        curve.remove(&1);
        curve.note(0, 1, &access(2, 100), true);
        assert_eq!(curve.hit_ratios(), Some([0.5; 4]));
    }

    /// Equal accesses leave equal copies, in whatever order the copies forget entries that are no longer sampled.
    #[test]
    fn equal_accesses_give_equal_curves() {
        let history = || {
            let mut curve = HitRatioCurve::new(PolicyKind::Adaptive, 400_000, 1.0, |key: &u64| *key);
            let mut held = Vec::new();
            for (at, leaf) in zipf(20_000, 60_000).enumerate() {
                // A tree: up to eight blocks follow each of the first ones, and each of the second ones.
                let blocks = [leaf / 64, 1_000_000 + leaf / 8, 2_000_000 + leaf];
                for (offset, block) in blocks.into_iter().enumerate() {
                    let parent = offset.checked_sub(1).map(|before| blocks[before]);
                    held.push(curve.copies.each_ref().map(|copy| copy.contains(&block)));
                    curve.note(0, block, &access(at, 100).at(offset as u32, parent), true);
                }
            }
            assert!(curve.halvings > 0);
            held
        };
        let (one, other) = (history(), history());
        assert!(one == other);
    }

    /// Memory stays bounded with an endless stream of keys, and with keys that no copy admits.
    #[test]
    fn memory_is_bounded() {
        let mut curve = HitRatioCurve::new(PolicyKind::Adaptive, u64::MAX / 8, 1.0, |key: &u64| *key);
        let mut none = HitRatioCurve::new(PolicyKind::Adaptive, 0, 1.0, |key: &u64| *key);
        for at in 0..200_000 {
            curve.note(0, at as u64, &access(at, 1), true);
            none.note(0, at as u64, &access(at, 1), true);
        }
        assert!(curve.copies[3].len() <= limits::CURVE_ENTRIES_MAX && curve.halvings >= 4);
        assert_eq!(none.hit_ratios(), Some([0.0; 4]));
    }
}
