//! Remembers how often evicted entries had been used, in bounded memory.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;

use super::{EntryKey, limits};

/// Places per set: a quarter of a cache line.
const WAYS: usize = 8;
/// Bits of a place that hold the uses; the others are a part of the key's hash.
const USES_BITS: u32 = 5;
/// More uses than this are remembered as this many.
const USES_MAX: u16 = (1 << USES_BITS) - 1;

/// The uses of entries that were evicted, newest first within sets chosen by hash. A key that is new is taken for one of
/// them once in 256 times: its uses are then a guess, as those of any new key are.
///
/// It has [`limits::REMEMBERED_PER_ENTRY`] places of 2 bytes for each entry that the tier had at an eviction. It forgets
/// everything when the number of entries doubles: a tier whose entries keep their size does not come to that, because
/// it evicts nothing before it is full.
#[derive(Debug)]
pub(super) struct UseMemory {
    sets: Vec<[u16; WAYS]>,
    hasher: FixedState,
}

impl Default for UseMemory {
    fn default() -> Self {
        Self { sets: Vec::new(), hasher: FixedState::with_seed(0x6765_7374_6572_6e00) }
    }
}

impl UseMemory {
    /// Remembers the uses of `key`, which is leaving a tier of `entries`. Forgets the oldest of its set.
    pub(super) fn remember<K: EntryKey>(&mut self, key: K, uses: u32, entries: usize) {
        let sets = entries.saturating_mul(limits::REMEMBERED_PER_ENTRY).div_ceil(WAYS);
        if sets >= 2 * self.sets.len() {
            self.sets = vec![[0; WAYS]; sets.max(1)];
        }
        let (set, tag) = self.place(key);
        let set = &mut self.sets[set];
        set.copy_within(..WAYS - 1, 1);
        set[0] = tag | uses.clamp(1, USES_MAX.into()) as u16;
    }

    /// The remembered uses of `key`, which is coming back: they are forgotten here. 0 if there are none.
    pub(super) fn recall<K: EntryKey>(&mut self, key: K) -> u32 {
        if self.sets.is_empty() {
            return 0;
        }
        let (set, tag) = self.place(key);
        let set = &mut self.sets[set];
        let is_key = |place: &u16| *place != 0 && *place & !USES_MAX == tag;
        let Some(way) = set.iter().position(is_key) else { return 0 };
        let uses = u32::from(set[way] & USES_MAX);
        set.copy_within(way + 1.., way);
        set[WAYS - 1] = 0;
        uses
    }

    /// The set of a key, and its mark there.
    fn place<K: EntryKey>(&self, key: K) -> (usize, u16) {
        let hash = self.hasher.hash_one(key);
        // The upper half of the hash, scaled to the number of sets; the lower half is independent of it.
        let set = ((hash >> 32) * self.sets.len() as u64) >> 32;
        (set as usize, hash as u16 & !USES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// With one set, it is a queue of the last evicted.
        #[test]
        fn a_set_remembers_the_last_evicted(ops in prop::collection::vec((0..20u64, prop::option::of(0..100u32)), 0..200)) {
            let mut memory = UseMemory::default();
            let mut model: Vec<(u64, u32)> = Vec::new();
            for (key, evicted_after) in ops {
                let known = model.iter().position(|(known, _)| *known == key);
                prop_assert_eq!(memory.recall(key), known.map_or(0, |at| model.remove(at).1));
                if let Some(uses) = evicted_after {
                    memory.remember(key, uses, 1);
                    model.insert(0, (key, uses.clamp(1, USES_MAX.into())));
                    model.truncate(WAYS);
                }
            }
            prop_assert!(memory.sets.len() <= 1);
        }
    }

    #[test]
    fn it_remembers_a_few_per_entry_and_no_more() {
        let mut memory = UseMemory::default();
        let (entries, evicted) = (1_000, 100_000u64);
        (0..evicted).for_each(|key| memory.remember(key, 3, entries));
        let places = entries * limits::REMEMBERED_PER_ENTRY;
        assert_eq!(memory.sets.len() * WAYS, places);
        let half = places as u64 / 2;
        let recent = (evicted - half..evicted).filter(|key| memory.recall(*key) == 3).count();
        assert!(recent as u64 * 10 > half * 9, "{recent} of the {half} evicted last");
        let strangers = (evicted..2 * evicted).filter(|key| memory.recall(*key) > 0).count();
        assert!(strangers < 1_000, "{strangers} new keys of 100,000 are taken for others");
    }

    #[test]
    fn a_tier_of_more_entries_remembers_more() {
        let mut memory = UseMemory::default();
        (0..100).for_each(|key| memory.remember(key, 2, 10));
        assert_eq!(memory.sets.len(), 10);
        (0..100u64).for_each(|key| memory.remember(key, 2, 19));
        assert_eq!(memory.sets.len(), 10);
        memory.remember(7u64, 9, 20);
        assert_eq!((memory.sets.len(), memory.recall(7u64), memory.recall(8u64)), (20, 9, 0));
    }
}
