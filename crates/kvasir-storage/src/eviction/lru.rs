//! Least recently used.

use super::{
    Access, EntryKey, EvictionPolicy, Moment,
    table::{List, Table},
};

/// Evicts the entry whose last use lies furthest back.
#[derive(Debug)]
pub struct Lru<K> {
    table: Table<K, ()>,
    queue: List,
}

impl<K: EntryKey> Default for Lru<K> {
    fn default() -> Self {
        Self { table: Table::new(), queue: List::EMPTY }
    }
}

impl<K: EntryKey> EvictionPolicy<K> for Lru<K> {
    fn insert(&mut self, key: K, access: &Access<K>) {
        if let Some(slot) = self.table.find(&key) {
            self.queue.unlink(&mut self.table.slab, slot);
            self.table.resize(slot, access.bytes);
            self.queue.push_back(&mut self.table.slab, slot);
        } else {
            let slot = self.table.add(key, access.bytes, ());
            self.queue.push_back(&mut self.table.slab, slot);
        }
    }

    fn touch(&mut self, key: &K, _access: &Access<K>) -> bool {
        let Some(slot) = self.table.find(key) else { return false };
        self.queue.move_to_back(&mut self.table.slab, slot);
        true
    }

    fn remove(&mut self, key: &K) -> bool {
        let Some(slot) = self.table.find(key) else { return false };
        self.queue.unlink(&mut self.table.slab, slot);
        self.table.drop_slot(slot);
        true
    }

    fn evict(&mut self, _now: Moment) -> Option<K> {
        let slot = self.queue.front()?;
        self.queue.unlink(&mut self.table.slab, slot);
        Some(self.table.drop_slot(slot))
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
