//! Small bounded caches.

use std::{collections::HashMap, fmt, hash::Hash, time::Duration};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Values, and with a time to live the time of their insertion: reading the clock is most of an insertion's
/// cost.
type Generation<K, V> = HashMap<K, (Option<Instant>, V), RandomState>;

/// Entries of a batch under one lock: nobody waits for a whole long one.
const BATCH_ENTRIES: usize = 64;

/// The young generation and the old one.
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
pub struct BoundedMap<K, V> {
    generations: Mutex<Generations<K, V>>,
    half: usize,
    ttl: Option<Duration>,
}

/// Without the entries: some are salts and keys.
impl<K, V> fmt::Debug for BoundedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundedMap").field("half", &self.half).field("ttl", &self.ttl).finish_non_exhaustive()
    }
}

impl<K: Hash + Eq + Clone, V: Clone> BoundedMap<K, V> {
    /// A map of at most `capacity` entries, each of which lives for `ttl`, if set.
    pub fn new(capacity: usize, ttl: Option<Duration>) -> Self {
        Self { generations: Mutex::default(), half: (capacity / 2).max(1), ttl }
    }

    /// The value of a key.
    pub fn get(&self, key: &K) -> Option<V> {
        self.generations.lock().use_value(self.half, self.ttl, key).cloned()
    }

    /// Whether a key has a value.
    pub fn contains(&self, key: &K) -> bool {
        self.generations.lock().use_key(self.half, self.ttl, key)
    }

    /// Uses the values of several keys. A key without one gets `value` of its index among them. Neither may use the map: it
    /// is locked.
    pub fn keep_all(&self, keys: impl IntoIterator<Item = K>, mut value: impl FnMut(usize) -> V) {
        let since = self.ttl.map(|_| Instant::now());
        let mut keys = keys.into_iter().enumerate().peekable();
        while keys.peek().is_some() {
            let mut generations = self.generations.lock();
            for (index, key) in keys.by_ref().take(BATCH_ENTRIES) {
                if !generations.use_key(self.half, self.ttl, &key) {
                    generations.insert_young(self.half, key, (since, value(index)));
                }
            }
        }
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
        self.generations.lock().replace(self.half, key, entry);
    }

    /// Like [`insert`](Self::insert), for several values in their order. `entries` may not use the map: it is locked.
    pub fn insert_all(&self, entries: impl IntoIterator<Item = (K, V)>) {
        let since = self.ttl.map(|_| Instant::now());
        let mut entries = entries.into_iter().peekable();
        while entries.peek().is_some() {
            let mut generations = self.generations.lock();
            for (key, value) in entries.by_ref().take(BATCH_ENTRIES) {
                generations.replace(self.half, key, (since, value));
            }
        }
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
    /// The value of a key, which moves to the young generation; none if its time has passed.
    fn use_value(&mut self, half: usize, ttl: Option<Duration>, key: &K) -> Option<&V> {
        if !self.use_key(half, ttl, key) {
            return None;
        }
        self.young.get(key).map(|(_, value)| value)
    }

    /// Like [`use_value`](Self::use_value), for whether there is one.
    fn use_key(&mut self, half: usize, ttl: Option<Duration>, key: &K) -> bool {
        let is_over =
            |since: Option<Instant>| ttl.zip(since).is_some_and(|(ttl, since)| since.elapsed() >= ttl);
        if let Some((since, _)) = self.young.get(key) {
            let is_over = is_over(*since);
            if is_over {
                self.young.remove(key);
            }
            return !is_over;
        }
        let Some((key, entry)) = self.old.remove_entry(key) else { return false };
        let is_over = is_over(entry.0);
        if !is_over {
            self.insert_young(half, key, entry);
        }
        !is_over
    }

    fn replace(&mut self, half: usize, key: K, entry: (Option<Instant>, V)) {
        self.old.remove(&key);
        self.insert_young(half, key, entry);
    }

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

    #[test]
    fn entries_are_not_printed() {
        let map = BoundedMap::new(2, None);
        map.insert("tenant", "salt-5b1f");
        assert!(!format!("{map:?}").contains("5b1f"), "{map:?}");
    }

    /// Whatever the order of calls, a batch leaves what the same calls one by one leave.
    #[test]
    fn batches_are_what_single_calls_are() {
        let (batched, single) = (BoundedMap::new(300, None), BoundedMap::new(300, None));
        for round in 0..20u64 {
            // More than fit under one lock; some known, some not.
            let keys = || (0..3 * BATCH_ENTRIES as u64 + 7).map(move |key| key * (round % 3 + 1));
            batched.insert_all(keys().map(|key| (key, round)));
            keys().for_each(|key| single.insert(key, round));
            batched.keep_all(keys().map(|key| key + 5), |index| index as u64);
            for (index, key) in keys().map(|key| key + 5).enumerate() {
                if single.get(&key).is_none() {
                    single.insert(key, index as u64);
                }
            }
            let sorted = |map: &BoundedMap<u64, u64>| {
                let mut all = map.all();
                all.sort_unstable();
                all
            };
            assert_eq!(sorted(&batched), sorted(&single));
            assert_eq!((batched.dropped(), batched.len() <= 300), (single.dropped(), true));
        }
        assert!(batched.dropped() > 0);
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
        map.insert_all([("k", ()), ("l", ())]);
        tokio::time::advance(Duration::from_secs(1)).await;
        map.keep_all(["k"], |_| ());
        assert!(map.contains(&"k") && !map.contains(&"l"), "one was over and is there anew");
    }
}
