//! First in, first out.

use super::{
    Access, EntryKey, EvictionPolicy, Moment,
    table::{List, Table},
};

/// Evicts in order of insertion, whatever was used since.
#[derive(Debug)]
pub struct Fifo<K> {
    table: Table<K, ()>,
    queue: List,
}

impl<K: EntryKey> Default for Fifo<K> {
    fn default() -> Self {
        Self { table: Table::new(), queue: List::EMPTY }
    }
}

impl<K: EntryKey> EvictionPolicy<K> for Fifo<K> {
    fn insert(&mut self, key: K, access: &Access<K>) {
        if let Some(slot) = self.table.find(&key) {
            self.table.resize(slot, access.bytes);
        } else {
            let slot = self.table.add(key, access.bytes, ());
            self.queue.push_back(&mut self.table.slab, slot);
        }
    }

    fn touch(&mut self, key: &K, _access: &Access<K>) -> bool {
        self.contains(key)
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
