//! SIEVE (Zhang et al., NSDI'24): lazy promotion, quick demotion, one queue and a hand.

use kvasir_eviction::{
    Access, EntryKey, EvictionPolicy, Moment,
    table::{List, NONE, Slot, Table},
};

use super::newcomer::Newcomer;

/// Moves a hand from the oldest to the newest entry and then from the oldest again; visited entries are
/// spared once, in place. New entries are added at the newest end, and are not candidates for the space that
/// they need themselves.
#[derive(Debug)]
pub struct Sieve<K> {
    /// Whether the entry was used since the hand last passed.
    table: Table<K, bool>,
    queue: List,
    /// Start of the next walk; [`NONE`] is the front (the oldest).
    hand: Slot,
    newcomer: Newcomer,
}

impl<K: EntryKey> Default for Sieve<K> {
    fn default() -> Self {
        Self { table: Table::default(), queue: List::EMPTY, hand: NONE, newcomer: Newcomer::NOBODY }
    }
}

impl<K: EntryKey> Sieve<K> {
    fn take(&mut self, slot: Slot) -> K {
        if self.hand == slot {
            self.hand = self.table.slab.next(slot);
        }
        self.newcomer.leaves(slot);
        self.queue.unlink(&mut self.table.slab, slot);
        self.table.drop_slot(slot)
    }
}

impl<K: EntryKey> EvictionPolicy<K> for Sieve<K> {
    fn insert(&mut self, key: K, access: &Access<K>) {
        if self.touch(&key, access) {
            let slot = self.table.find(&key).expect("touched just now");
            self.table.resize(slot, access.bytes);
        } else {
            let slot = self.table.add(key, access.bytes, false);
            self.queue.push_back(&mut self.table.slab, slot);
            self.newcomer = Newcomer::new(slot);
        }
    }

    fn touch(&mut self, key: &K, _access: &Access<K>) -> bool {
        let Some(slot) = self.table.find(key) else { return false };
        self.newcomer = Newcomer::NOBODY;
        *self.table.meta_mut(slot) = true;
        true
    }

    fn remove(&mut self, key: &K) -> bool {
        let Some(slot) = self.table.find(key) else { return false };
        self.take(slot);
        true
    }

    fn evict(&mut self, _now: Moment) -> Option<K> {
        // Ends: every step but the one past the newcomer clears a mark, and the first without one stops it.
        loop {
            let slot = if self.hand == NONE { self.queue.front()? } else { self.hand };
            if self.newcomer.is(slot) && self.table.len() > 1 {
                self.hand = self.table.slab.next(slot);
            } else if *self.table.meta(slot) {
                *self.table.meta_mut(slot) = false;
                self.hand = self.table.slab.next(slot);
            } else {
                self.hand = slot;
                let victim = self.take(slot);
                // The oldest entry follows the newest one from before the newcomer.
                if self.newcomer.is(self.hand) {
                    self.hand = NONE;
                }
                return Some(victim);
            }
        }
    }

    fn contains(&self, key: &K) -> bool {
        self.table.find(key).is_some()
    }

    fn len(&self) -> usize {
        self.table.len()
    }

    fn bytes(&self) -> u64 {
        self.table.bytes()
    }
}
