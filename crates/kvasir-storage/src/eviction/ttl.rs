//! Time to live, renewed by use.

use super::{
    Access, EntryKey, EvictionPolicy, Moment,
    table::{List, Slot, Table},
};

/// Entries expire a fixed time after their last use, as prompt caches of hosted LLMs do; when space is short
/// the one that would expire first goes.
#[derive(Debug)]
pub struct Ttl<K> {
    table: Table<K, Moment>,
    queue: List,
    ttl_seconds: f64,
}

impl<K: EntryKey> Ttl<K> {
    /// Entries live `ttl_seconds` after their last use.
    pub fn new(ttl_seconds: f64) -> Self {
        Self { table: Table::new(), queue: List::EMPTY, ttl_seconds }
    }

    fn renew(&mut self, slot: Slot, now: Moment) {
        *self.table.meta_mut(slot) = now;
        self.queue.move_to_back(&mut self.table.slab, slot);
    }
}

impl<K: EntryKey> EvictionPolicy<K> for Ttl<K> {
    fn insert(&mut self, key: K, access: &Access<K>) {
        if let Some(slot) = self.table.find(&key) {
            self.queue.unlink(&mut self.table.slab, slot);
            self.table.resize(slot, access.bytes);
            self.queue.push_back(&mut self.table.slab, slot);
            self.renew(slot, access.now);
        } else {
            let slot = self.table.add(key, access.bytes, access.now);
            self.queue.push_back(&mut self.table.slab, slot);
        }
    }

    fn touch(&mut self, key: &K, access: &Access<K>) -> bool {
        let Some(slot) = self.table.find(key) else { return false };
        self.renew(slot, access.now);
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

    /// When the clock has jumped back, entries dated in the future do not expire before it catches up.
    fn expire(&mut self, now: Moment) -> Option<K> {
        let slot = self.queue.front()?;
        if now.seconds_since(*self.table.meta(slot)) < self.ttl_seconds {
            return None;
        }
        self.evict(now)
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
