//! SIEVE (Zhang et al., NSDI'24): lazy promotion, quick demotion, one queue and a hand.

use super::{
    Access, EntryKey, EvictionPolicy, Moment,
    table::{List, NONE, Slot, Table},
};

/// Walks a hand from the oldest to the newest entry; visited entries are spared once, in place.
#[derive(Debug)]
pub struct Sieve<K> {
    /// Whether the entry was used since the hand last passed.
    table: Table<K, bool>,
    queue: List,
    /// Where the next walk starts; [`NONE`] is the front (the oldest).
    hand: Slot,
}

impl<K: EntryKey> Default for Sieve<K> {
    fn default() -> Self {
        Self { table: Table::new(), queue: List::EMPTY, hand: NONE }
    }
}

impl<K: EntryKey> Sieve<K> {
    fn take(&mut self, slot: Slot) -> K {
        if self.hand == slot {
            self.hand = self.table.slab.next(slot);
        }
        self.queue.unlink(&mut self.table.slab, slot);
        self.table.drop_slot(slot)
    }
}

impl<K: EntryKey> EvictionPolicy<K> for Sieve<K> {
    fn insert(&mut self, key: K, access: &Access<K>) {
        if let Some(slot) = self.table.find(&key) {
            *self.table.meta_mut(slot) = true;
            self.table.resize(slot, access.bytes);
        } else {
            let slot = self.table.add(key, access.bytes, false);
            self.queue.push_back(&mut self.table.slab, slot);
        }
    }

    fn touch(&mut self, key: &K, _access: &Access<K>) -> bool {
        let Some(slot) = self.table.find(key) else { return false };
        *self.table.meta_mut(slot) = true;
        true
    }

    fn remove(&mut self, key: &K) -> bool {
        let Some(slot) = self.table.find(key) else { return false };
        self.take(slot);
        true
    }

    fn evict(&mut self, _now: Moment) -> Option<K> {
        // Ends: every step clears a mark, and a walk over unmarked entries stops at the first.
        loop {
            let slot = if self.hand == NONE { self.queue.front()? } else { self.hand };
            if *self.table.meta(slot) {
                *self.table.meta_mut(slot) = false;
                self.hand = self.table.slab.next(slot);
            } else {
                self.hand = slot;
                return Some(self.take(slot));
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
