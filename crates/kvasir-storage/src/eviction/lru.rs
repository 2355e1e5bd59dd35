//! Least recently used.

use super::{Access, EntryKey, EvictionPolicy, Moment, line::Line};

/// Evicts the entry whose last use lies furthest back.
#[derive(Debug)]
pub struct Lru<K> {
    line: Line<K>,
}

impl<K: EntryKey> Default for Lru<K> {
    fn default() -> Self {
        Self { line: Line::new() }
    }
}

impl<K: EntryKey> EvictionPolicy<K> for Lru<K> {
    fn insert(&mut self, key: K, access: &Access<K>) {
        self.line.put(key, access.bytes, access.now);
        self.line.renew(&key, access.now);
    }

    fn touch(&mut self, key: &K, access: &Access<K>) -> bool {
        self.line.renew(key, access.now)
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
