//! Least recently used.

use super::{Access, EntryKey, EvictionPolicy, Moment, intrusive_queue::IntrusiveQueue};

/// Evicts the least recently used entry.
#[derive(Debug)]
pub struct Lru<K> {
    queue: IntrusiveQueue<K>,
}

impl<K: EntryKey> Default for Lru<K> {
    fn default() -> Self {
        Self { queue: IntrusiveQueue::default() }
    }
}

impl<K: EntryKey> EvictionPolicy<K> for Lru<K> {
    fn insert(&mut self, key: K, access: &Access<K>) {
        self.queue.put(key, access.bytes, access.now);
        self.queue.renew(&key, access.now);
    }

    fn touch(&mut self, key: &K, access: &Access<K>) -> bool {
        self.queue.renew(key, access.now)
    }

    fn remove(&mut self, key: &K) -> bool {
        self.queue.remove(key)
    }

    fn evict(&mut self, _now: Moment) -> Option<K> {
        self.queue.pop()
    }

    fn contains(&self, key: &K) -> bool {
        self.queue.contains(key)
    }

    fn len(&self) -> usize {
        self.queue.len()
    }

    fn bytes(&self) -> u64 {
        self.queue.bytes()
    }
}
