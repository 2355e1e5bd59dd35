//! Small bounded caches.

use std::{collections::HashMap, hash::Hash, time::Duration};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Values, and with a time to live the time of their insertion: reading the clock is most of an insertion's
/// cost.
type Generation<K, V> = HashMap<K, (Option<Instant>, V), RandomState>;

/// The young generation and the old one.
#[derive(Debug)]
struct Generations<K, V> {
    young: Generation<K, V>,
    old: Generation<K, V>,
    /// Number of dropped generations.
    dropped: u64,
}

impl<K, V> Default for Generations<K, V> {
    fn default() -> Self {
        Self { young: Generation::default(), old: Generation::default(), dropped: 0 }
    }
}

/// A bounded map with approximate LRU: two generations of half the capacity each. Used entries move to the
/// young one; when that is full, the old one is dropped. With a time to live, older entries count as absent.
#[derive(Debug)]
pub struct BoundedMap<K, V> {
    generations: Mutex<Generations<K, V>>,
    half: usize,
    ttl: Option<Duration>,
}

impl<K: Hash + Eq + Clone, V: Clone> BoundedMap<K, V> {
    /// A map of at most `capacity` entries, each of which lives for `ttl`, if set.
    pub fn new(capacity: usize, ttl: Option<Duration>) -> Self {
        Self { generations: Mutex::default(), half: (capacity / 2).max(1), ttl }
    }

    /// The value of a key.
    pub fn get(&self, key: &K) -> Option<V> {
        let mut generations = self.generations.lock();
        let Generations { young, old, .. } = &mut *generations;
        let (since, value) = young.get(key).or_else(|| old.get(key))?.clone();
        if self.ttl.zip(since).is_some_and(|(ttl, since)| since.elapsed() >= ttl) {
            young.remove(key);
            old.remove(key);
            return None;
        }
        if let Some(entry) = old.remove(key) {
            generations.insert_young(self.half, key.clone(), entry);
        }
        Some(value)
    }

    /// Whether a key has a value.
    pub fn contains(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    /// Inserts a value, replacing any existing one.
    pub fn insert(&self, key: K, value: V) {
        self.insert_aged(key, (self.ttl.map(|_| Instant::now()), value));
    }

    /// Like [`insert`](Self::insert), for a value learned at `since`, when its time to live began.
    pub fn insert_since(&self, key: K, value: V, since: Instant) {
        self.insert_aged(key, (self.ttl.map(|_| since), value));
    }

    fn insert_aged(&self, key: K, entry: (Option<Instant>, V)) {
        let mut generations = self.generations.lock();
        generations.old.remove(&key);
        generations.insert_young(self.half, key, entry);
    }

    /// Removes a key.
    pub fn remove(&self, key: &K) {
        let mut generations = self.generations.lock();
        generations.young.remove(key);
        generations.old.remove(key);
    }

    /// All keys and values, in no order.
    pub fn all(&self) -> Vec<(K, V)> {
        let generations = self.generations.lock();
        let Generations { young, old, .. } = &*generations;
        let is_alive =
            |since: &Option<Instant>| self.ttl.zip(*since).is_none_or(|(ttl, since)| since.elapsed() < ttl);
        let entries = young.iter().chain(old).filter(|(_, (since, _))| is_alive(since));
        entries.map(|(key, (_, value))| (key.clone(), value.clone())).collect()
    }

    /// How often entries were dropped so far to stay within the capacity.
    pub fn dropped(&self) -> u64 {
        self.generations.lock().dropped
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        let generations = self.generations.lock();
        generations.young.len() + generations.old.len()
    }
}

impl<K: Hash + Eq, V> Generations<K, V> {
    fn insert_young(&mut self, half: usize, key: K, entry: (Option<Instant>, V)) {
        let Self { young, old, dropped } = self;
        if young.len() >= half && !young.contains_key(&key) {
            // Reuse its table: a new one would be reallocated half a dozen times while growing.
            std::mem::swap(young, old);
            *dropped += u64::from(!young.is_empty());
            young.clear();
        }
        young.insert(key, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_bounded_and_keeps_what_is_used() {
        let map = BoundedMap::new(100, None);
        map.insert(0, 0);
        assert_eq!(map.dropped(), 0);
        for i in 1..10_000 {
            map.insert(i, i);
            assert_eq!(map.get(&0), Some(0), "used all the time");
        }
        assert!(map.len() <= 100);
        let all = map.all();
        assert!(all.len() == map.len() && all.contains(&(0, 0)) && all.contains(&(9_999, 9_999)));
        assert!((200..=206).contains(&map.dropped()), "of 49 each, beside what is used: {}", map.dropped());
    }

    #[tokio::test(start_paused = true)]
    async fn entries_end_with_their_time() {
        let map = BoundedMap::new(10, Some(Duration::from_secs(1)));
        map.insert("k", ());
        tokio::time::advance(Duration::from_millis(999)).await;
        assert!(map.contains(&"k") && map.all() == [("k", ())]);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(map.all(), []);
        assert!(!map.contains(&"k"), "reading does not renew it");
        map.insert_since("k", (), Instant::now() - Duration::from_millis(600));
        tokio::time::advance(Duration::from_millis(400)).await;
        assert!(!map.contains(&"k"), "it was learnt a second ago");
        map.insert("k", ());
        map.remove(&"k");
        assert!(!map.contains(&"k"));
    }
}
