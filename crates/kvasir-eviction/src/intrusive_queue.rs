//! A queue of entries with the next victim at the front, shared by FIFO, LRU and TTL.

use super::{
    EntryKey, Moment,
    table::{List, Table},
};

/// A queue of entries, each with the moment at which it was last sent to the back.
#[derive(Debug)]
pub struct IntrusiveQueue<K> {
    table: Table<K, Moment>,
    queue: List,
}

impl<K> Default for IntrusiveQueue<K> {
    fn default() -> Self {
        Self { table: Table::default(), queue: List::EMPTY }
    }
}

impl<K: EntryKey> IntrusiveQueue<K> {
    /// Adds a new entry at the back; a present entry takes the new size and keeps its position.
    pub fn put(&mut self, key: K, bytes: u64, now: Moment) {
        if let Some(slot) = self.table.find(&key) {
            self.table.resize(slot, bytes);
        } else {
            let slot = self.table.add(key, bytes, now);
            self.queue.push_back(&mut self.table.slab, slot);
        }
    }

    /// Moves an entry to the back; returns whether it is present.
    pub fn renew(&mut self, key: &K, now: Moment) -> bool {
        let Some(slot) = self.table.find(key) else { return false };
        *self.table.meta_mut(slot) = now;
        self.queue.move_to_back(&mut self.table.slab, slot);
        true
    }

    /// Forgets an entry; whether it was there.
    pub fn remove(&mut self, key: &K) -> bool {
        let Some(slot) = self.table.find(key) else { return false };
        self.queue.unlink(&mut self.table.slab, slot);
        self.table.drop_slot(slot);
        true
    }

    /// Takes the entry in front.
    pub fn pop(&mut self) -> Option<K> {
        let slot = self.queue.front()?;
        self.queue.unlink(&mut self.table.slab, slot);
        Some(self.table.drop_slot(slot))
    }

    /// When the entry in front was last sent to the back.
    pub fn front_since(&self) -> Option<Moment> {
        self.queue.front().map(|slot| *self.table.meta(slot))
    }

    /// When an entry was last moved to the back; `None` if it is not present.
    pub fn since(&self, key: &K) -> Option<Moment> {
        self.table.find(key).map(|slot| *self.table.meta(slot))
    }

    /// Whether the entry is present.
    pub fn contains(&self, key: &K) -> bool {
        self.table.find(key).is_some()
    }

    /// Entries present.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether it has no entries.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Sum of the entries' sizes.
    pub fn bytes(&self) -> u64 {
        self.table.bytes()
    }
}
