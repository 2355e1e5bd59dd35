//! ARC (Megiddo and Modha, FAST'03): recency and frequency share the capacity, and returning keys move the
//! split.

use kvasir_eviction::{
    Access, EntryKey, EvictionPolicy, Moment,
    intrusive_queue::IntrusiveQueue,
    table::{List, Slot, Table},
};

/// Keeps entries used once in one list (T1) and entries used again in another (T2). Each list has a history
/// of as many keys as the capacity (B1, B2). A return from a history moves the target size of T1 in favour of
/// its list.
#[derive(Debug)]
pub struct Arc<K> {
    /// Whether the entry is in T2.
    table: Table<K, bool>,
    lists: [List; 2],
    lens: [usize; 2],
    histories: [IntrusiveQueue<K>; 2],
    /// Entries that T1 should have.
    target: usize,
    entries_max: usize,
    /// The last admitted entry, for which the paper makes room first: its list, and whether it came from B2.
    newcomer: Option<(usize, bool)>,
}

impl<K: EntryKey> Arc<K> {
    /// For a tier of `capacity` entries.
    pub fn new(capacity: u64) -> Self {
        Self {
            table: Table::default(),
            lists: [List::EMPTY; 2],
            lens: [0; 2],
            histories: [IntrusiveQueue::default(), IntrusiveQueue::default()],
            target: 0,
            entries_max: usize::try_from(capacity).unwrap_or(usize::MAX),
            newcomer: None,
        }
    }

    fn link(&mut self, slot: Slot) {
        let list = usize::from(*self.table.meta(slot));
        self.lists[list].push_back(&mut self.table.slab, slot);
        self.lens[list] += 1;
    }

    fn unlink(&mut self, slot: Slot) {
        let list = usize::from(*self.table.meta(slot));
        self.lists[list].unlink(&mut self.table.slab, slot);
        self.lens[list] -= 1;
    }

    /// The list that a key enters, by the history that has it; moves the target.
    fn recall(&mut self, key: &K) -> (usize, bool) {
        let [once, again] = self.histories.each_ref().map(|history| history.len().max(1));
        if self.histories[0].remove(key) {
            self.target = (self.target + (again / once).max(1)).min(self.entries_max);
            (1, false)
        } else if self.histories[1].remove(key) {
            self.target = self.target.saturating_sub((once / again).max(1));
            (1, true)
        } else {
            (0, false)
        }
    }

    fn trim_histories(&mut self) {
        let room = |used: usize, entries_max: usize| entries_max.saturating_sub(used);
        while self.histories[0].len() > room(self.lens[0], self.entries_max) {
            self.histories[0].pop();
        }
        let others = self.table.len() + self.histories[0].len();
        while self.histories[1].len() > room(others, self.entries_max.saturating_mul(2)) {
            self.histories[1].pop();
        }
    }
}

impl<K: EntryKey> EvictionPolicy<K> for Arc<K> {
    fn insert(&mut self, key: K, access: &Access<K>) {
        if self.touch(&key, access) {
            let slot = self.table.find(&key).expect("touched just now");
            self.table.resize(slot, access.bytes);
            return;
        }
        let (list, from_frequent) = self.recall(&key);
        let slot = self.table.add(key, access.bytes, list == 1);
        self.link(slot);
        self.newcomer = Some((list, from_frequent));
    }

    fn touch(&mut self, key: &K, _access: &Access<K>) -> bool {
        let Some(slot) = self.table.find(key) else { return false };
        self.newcomer = None;
        self.unlink(slot);
        *self.table.meta_mut(slot) = true;
        self.link(slot);
        true
    }

    fn remove(&mut self, key: &K) -> bool {
        let Some(slot) = self.table.find(key) else { return false };
        self.newcomer = None;
        self.unlink(slot);
        self.table.drop_slot(slot);
        true
    }

    fn evict(&mut self, now: Moment) -> Option<K> {
        let newcomer = self.newcomer.take();
        let without =
            |list: usize| self.lens[list] - usize::from(newcomer.is_some_and(|(its, _)| its == list));
        let (once, again) = (without(0), without(1));
        let over =
            once > self.target || (once == self.target && newcomer.is_some_and(|(_, frequent)| frequent));
        let list = match (once, again) {
            (0, 0) => usize::from(self.lens[0] == 0),
            (0, _) => 1,
            (_, 0) => 0,
            _ => usize::from(!over),
        };
        let slot = self.lists[list].front()?;
        self.unlink(slot);
        let bytes = self.table.bytes_of(slot);
        let key = self.table.drop_slot(slot);
        self.histories[list].put(key, bytes, now);
        self.trim_histories();
        Some(key)
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
