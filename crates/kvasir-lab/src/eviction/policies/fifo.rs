//! First in, first out.

use kvasir_eviction::{Access, EntryKey, EvictionPolicy, Moment, intrusive_queue::IntrusiveQueue};

/// Evicts in order of insertion, whatever was used since.
#[derive(Debug)]
pub struct Fifo<K> {
    line: IntrusiveQueue<K>,
}

impl<K: EntryKey> Default for Fifo<K> {
    fn default() -> Self {
        Self { line: IntrusiveQueue::default() }
    }
}

impl<K: EntryKey> EvictionPolicy<K> for Fifo<K> {
    fn insert(&mut self, key: K, access: &Access<K>) {
        self.line.put(key, access.bytes, access.now);
    }

    fn touch(&mut self, key: &K, _access: &Access<K>) -> bool {
        self.contains(key)
    }

    fn remove(&mut self, key: &K) -> bool {
        self.line.remove(key)
    }

    fn evict(&mut self, _now: Moment) -> Option<K> {
        self.line.pop()
    }

    fn contains(&self, key: &K) -> bool {
        self.line.contains(key)
    }

    fn len(&self) -> usize {
        self.line.len()
    }

    fn bytes(&self) -> u64 {
        self.line.bytes()
    }
}
