//! A bounded sample of keys whose uses are observed, whether or not the keys are cached.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;

use super::{
    EntryKey, Moment, limits,
    table::{List, NONE, Table},
};

/// A sampled key's history.
#[derive(Debug, Clone, Copy)]
pub struct KeyHistory<C> {
    /// Class of the last use.
    pub class: C,
    /// First use within the window.
    pub first: Moment,
    /// Last use.
    pub last: Moment,
}

/// Follows the uses of a sample of keys chosen by hash (as in SHARDS, FAST'15), so that the result does not
/// depend on which entries the policy kept. It follows at most [`limits::SAMPLED_KEYS_MAX`] keys: when they do not
/// suffice for a window, the sampler drops half of the hash space.
#[derive(Debug)]
pub struct ReuseSampler<K, C> {
    table: Table<K, KeyHistory<C>>,
    by_last_use: List,
    hasher: FixedState,
    threshold: u64,
}

impl<K: EntryKey, C> Default for ReuseSampler<K, C> {
    fn default() -> Self {
        Self {
            table: Table::default(),
            by_last_use: List::EMPTY,
            hasher: FixedState::with_seed(0x6b76_6173_6972),
            threshold: u64::MAX,
        }
    }
}

impl<K: EntryKey, C: Copy> ReuseSampler<K, C> {
    /// Records a use of `key`. Returns its previous history if the key is sampled and was seen within the
    /// window.
    pub fn note(&mut self, key: K, class: C, now: Moment) -> Option<KeyHistory<C>> {
        let hash = self.hasher.hash_one(key);
        if hash > self.threshold {
            return None;
        }
        let Some(slot) = self.table.find(&key) else {
            // Before it is added: one key too many is one place too many.
            self.make_room(now);
            if hash <= self.threshold {
                let slot = self.table.add(key, 0, KeyHistory { class, first: now, last: now });
                self.by_last_use.push_back(&mut self.table.slab, slot);
            }
            return None;
        };
        let seen = *self.table.meta(slot);
        *self.table.meta_mut(slot) = KeyHistory { class, last: now, ..seen };
        self.by_last_use.move_to_back(&mut self.table.slab, slot);
        Some(seen)
    }

    /// Forgets keys that were not used within the window, then halves the sample while it is full.
    fn make_room(&mut self, now: Moment) {
        while let Some(slot) = self.by_last_use.front() {
            if now.seconds_since(self.table.meta(slot).last) <= limits::REUSE_WINDOW_SECONDS {
                break;
            }
            self.by_last_use.unlink(&mut self.table.slab, slot);
            self.table.drop_slot(slot);
        }
        while self.table.len() >= limits::SAMPLED_KEYS_MAX {
            self.threshold /= 2;
            let mut next = self.by_last_use.front();
            while let Some(slot) = next {
                next = Some(self.table.slab.next(slot)).filter(|next| *next != NONE);
                if self.hasher.hash_one(self.table.key(slot)) > self.threshold {
                    self.by_last_use.unlink(&mut self.table.slab, slot);
                    self.table.drop_slot(slot);
                }
            }
        }
    }

    /// Keys followed.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Every followed key's history, oldest last use first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &KeyHistory<C>> {
        let mut next = self.by_last_use.front();
        std::iter::from_fn(move || {
            let slot = next?;
            next = Some(self.table.slab.next(slot)).filter(|next| *next != NONE);
            Some(self.table.meta(slot))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_slab_has_little_more_than_32_k_places() {
        let mut sampler = ReuseSampler::default();
        for key in 0..40_000u64 {
            assert!(sampler.note(key, 0u16, Moment::default()).is_none());
        }
        assert!(sampler.len() > 10_000 && sampler.len() <= limits::SAMPLED_KEYS_MAX, "{}", sampler.len());
        assert!(sampler.table.slab.capacity() <= 34 * 1024, "{}", sampler.table.slab.capacity());
    }
}
