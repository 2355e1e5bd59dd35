//! Least frequently used.

use std::collections::BTreeMap;

use kvasir_eviction::{
    Access, EntryKey, EvictionPolicy, Moment,
    table::{List, NONE, Slot, Table},
};

use super::newcomer::Newcomer;

/// Evicts the entry with the fewest uses since its admission; among equals, the least recently used.
#[derive(Debug)]
pub struct Lfu<K> {
    table: Table<K, u64>,
    /// One queue per number of uses; distinct counts are few, so the map stays small.
    by_uses: BTreeMap<u64, List>,
    newcomer: Newcomer,
}

impl<K: EntryKey> Default for Lfu<K> {
    fn default() -> Self {
        Self { table: Table::default(), by_uses: BTreeMap::new(), newcomer: Newcomer::NOBODY }
    }
}

impl<K: EntryKey> Lfu<K> {
    fn link(&mut self, slot: Slot) {
        let queue = self.by_uses.entry(*self.table.meta(slot)).or_insert(List::EMPTY);
        queue.push_back(&mut self.table.slab, slot);
    }

    fn unlink(&mut self, slot: Slot) {
        let uses = *self.table.meta(slot);
        if let Some(queue) = self.by_uses.get_mut(&uses) {
            queue.unlink(&mut self.table.slab, slot);
            if queue.is_empty() {
                self.by_uses.remove(&uses);
            }
        }
    }

    fn use_once(&mut self, slot: Slot) {
        self.newcomer = Newcomer::NOBODY;
        self.unlink(slot);
        *self.table.meta_mut(slot) += 1;
        self.link(slot);
    }

    /// The first candidate: that with the fewest uses, the newcomer passed over.
    fn first(&self) -> Option<Slot> {
        let mut queues = self.by_uses.values().filter_map(List::front);
        let first = queues.next()?;
        if !self.newcomer.is(first) {
            return Some(first);
        }
        let behind = Some(self.table.slab.next(first)).filter(|next| *next != NONE);
        behind.or_else(|| queues.next()).or(Some(first))
    }

    fn take(&mut self, slot: Slot) -> K {
        self.newcomer.leaves(slot);
        self.unlink(slot);
        self.table.drop_slot(slot)
    }
}

impl<K: EntryKey> EvictionPolicy<K> for Lfu<K> {
    fn insert(&mut self, key: K, access: &Access<K>) {
        if let Some(slot) = self.table.find(&key) {
            self.use_once(slot);
            self.table.resize(slot, access.bytes);
        } else {
            let slot = self.table.add(key, access.bytes, 1);
            self.link(slot);
            self.newcomer = Newcomer::new(slot);
        }
    }

    fn touch(&mut self, key: &K, _access: &Access<K>) -> bool {
        let Some(slot) = self.table.find(key) else { return false };
        self.use_once(slot);
        true
    }

    fn remove(&mut self, key: &K) -> bool {
        let Some(slot) = self.table.find(key) else { return false };
        self.take(slot);
        true
    }

    fn evict(&mut self, _now: Moment) -> Option<K> {
        let slot = self.first()?;
        Some(self.take(slot))
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
