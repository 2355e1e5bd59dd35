//! Time to live, renewed by use.

use kvasir_eviction::{Access, EntryKey, EvictionPolicy, Moment, intrusive_queue::IntrusiveQueue};

/// Entries expire a fixed time after their last use, as in the prompt caches of hosted LLMs. When space is
/// short, the entry that would expire first is evicted.
#[derive(Debug)]
pub struct Ttl<K> {
    line: IntrusiveQueue<K>,
    ttl_seconds: f64,
}

impl<K: EntryKey> Ttl<K> {
    /// Entries live `ttl_seconds` after their last use.
    pub fn new(ttl_seconds: f64) -> Self {
        Self { line: IntrusiveQueue::default(), ttl_seconds }
    }

    /// Removes and returns an entry that must no longer be served at `now`.
    ///
    /// When the clock has jumped back, entries dated in the future do not expire before it catches up.
    pub fn expire(&mut self, now: Moment) -> Option<K> {
        let since = self.line.front_since()?;
        if now.seconds_since(since) < self.ttl_seconds {
            return None;
        }
        self.line.pop()
    }
}

impl<K: EntryKey> EvictionPolicy<K> for Ttl<K> {
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
