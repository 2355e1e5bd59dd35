//! S3-FIFO (Yang et al., SOSP'23): a small queue filters one-hit wonders, a ghost queue remembers them.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::RandomState;

use kvasir_eviction::{
    Access, EntryKey, EvictionPolicy, Moment,
    table::{List, Slot, Table},
};

use super::{limits, newcomer::Newcomer};

#[derive(Debug, Clone, Copy)]
struct Place {
    uses: u8,
    in_main: bool,
}

/// Keys that were evicted from the small queue, oldest first.
#[derive(Debug)]
struct Ghosts<K> {
    /// Sequence number of the live ghost of a key; older queue entries of it are stale.
    live: HashMap<K, u64, RandomState>,
    queue: VecDeque<(K, u64)>,
    sequence: u64,
}

impl<K: EntryKey> Ghosts<K> {
    fn remember(&mut self, key: K, entries_max: usize) {
        self.sequence += 1;
        self.live.insert(key, self.sequence);
        self.queue.push_back((key, self.sequence));
        // Stale queue entries count too, so memory is bounded whatever the pattern of returns.
        while self.queue.len() > entries_max {
            let Some((old, sequence)) = self.queue.pop_front() else { break };
            if self.live.get(&old) == Some(&sequence) {
                self.live.remove(&old);
            }
        }
    }

    fn recall(&mut self, key: &K) -> bool {
        self.live.remove(key).is_some()
    }
}

/// New entries enter a small FIFO (10 % of the capacity). Those used again there, or remembered as ghosts,
/// move to the main FIFO, where each of up to three uses gains another round.
#[derive(Debug)]
pub struct S3Fifo<K> {
    table: Table<K, Place>,
    small: List,
    small_bytes: u64,
    main: List,
    ghosts: Ghosts<K>,
    small_bytes_max: u64,
    newcomer: Newcomer,
}

impl<K: EntryKey> S3Fifo<K> {
    /// For a tier of `capacity` bytes.
    pub fn new(capacity: u64) -> Self {
        let ghosts = Ghosts { live: HashMap::default(), queue: VecDeque::new(), sequence: 0 };
        let small_bytes_max = capacity / limits::S3FIFO_SMALL_DIVISOR;
        Self {
            table: Table::default(),
            small: List::EMPTY,
            small_bytes: 0,
            main: List::EMPTY,
            ghosts,
            small_bytes_max,
            newcomer: Newcomer::NOBODY,
        }
    }

    fn link(&mut self, slot: Slot) {
        if self.table.meta(slot).in_main {
            self.main.push_back(&mut self.table.slab, slot);
        } else {
            self.small.push_back(&mut self.table.slab, slot);
            self.small_bytes = self.small_bytes.saturating_add(self.table.bytes_of(slot));
        }
    }

    fn unlink(&mut self, slot: Slot) {
        if self.table.meta(slot).in_main {
            self.main.unlink(&mut self.table.slab, slot);
        } else {
            self.small.unlink(&mut self.table.slab, slot);
            self.small_bytes = self.small_bytes.saturating_sub(self.table.bytes_of(slot));
        }
    }

    fn take(&mut self, slot: Slot) -> K {
        self.newcomer.leaves(slot);
        self.unlink(slot);
        self.table.drop_slot(slot)
    }

    fn evict_small(&mut self) -> Option<K> {
        while let Some(slot) = self.small.front() {
            if self.table.meta(slot).uses > 1 {
                self.unlink(slot);
                *self.table.meta_mut(slot) = Place { uses: 0, in_main: true };
                self.link(slot);
            } else {
                let entries_max = self.table.len().max(limits::GHOST_ENTRIES_MIN);
                let key = self.take(slot);
                self.ghosts.remember(key, entries_max);
                return Some(key);
            }
        }
        None
    }

    fn evict_main(&mut self) -> Option<K> {
        // Ends: every round lowers a use count.
        loop {
            let slot = self.main.front()?;
            let place = self.table.meta_mut(slot);
            if place.uses == 0 {
                return Some(self.take(slot));
            }
            place.uses -= 1;
            self.main.move_to_back(&mut self.table.slab, slot);
        }
    }

    /// A victim, the newcomer being in no queue.
    fn evict_another(&mut self) -> Option<K> {
        if self.small_bytes >= self.small_bytes_max || self.main.is_empty() {
            self.evict_small().or_else(|| self.evict_main())
        } else {
            self.evict_main().or_else(|| self.evict_small())
        }
    }
}

impl<K: EntryKey> EvictionPolicy<K> for S3Fifo<K> {
    fn insert(&mut self, key: K, access: &Access<K>) {
        if let Some(slot) = self.table.find(&key) {
            self.unlink(slot);
            self.table.resize(slot, access.bytes);
            self.link(slot);
            self.touch(&key, access);
            return;
        }
        let in_main = self.ghosts.recall(&key);
        let slot = self.table.add(key, access.bytes, Place { uses: 0, in_main });
        self.link(slot);
        self.newcomer = Newcomer::new(slot);
    }

    fn touch(&mut self, key: &K, _access: &Access<K>) -> bool {
        let Some(slot) = self.table.find(key) else { return false };
        self.newcomer = Newcomer::NOBODY;
        let place = self.table.meta_mut(slot);
        place.uses = (place.uses + 1).min(limits::S3FIFO_USES_MAX);
        true
    }

    fn remove(&mut self, key: &K) -> bool {
        let Some(slot) = self.table.find(key) else { return false };
        self.take(slot);
        true
    }

    fn evict(&mut self, _now: Moment) -> Option<K> {
        let beside = self.newcomer.slot().filter(|_| self.table.len() > 1);
        let Some(newcomer) = beside else { return self.evict_another() };
        self.unlink(newcomer);
        let victim = self.evict_another();
        self.link(newcomer);
        victim
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
