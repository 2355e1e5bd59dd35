//! The workload-aware policy of "KVCache Cache in the Wild" (ATC'25, §5).

use kvasir_eviction::{
    Access, ClassId, EntryKey, EvictionPolicy, Moment,
    limits::{CLASSES_MAX, REUSE_WINDOW_SECONDS},
    reuse_sampler::ReuseSampler,
    table::{List, NONE, Slot, Table},
};

use super::{limits, reuse_window::ReuseWindow};

/// Which terms of the priority are used; the paper's ablation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkloadTerms {
    /// Reuse only counts within the class's expected life.
    pub life: bool,
    /// Evicts later blocks of a request first.
    pub offset: bool,
}

impl WorkloadTerms {
    /// The policy as published.
    pub const FULL: Self = Self { life: true, offset: true };
}

#[derive(Debug, Clone, Copy)]
struct Use {
    class: ClassId,
    last: Moment,
    offset: u32,
}

/// Statistics and queue of one class. The queue is in order of last use, and among the blocks that one request
/// used, later blocks first; so the front is the class's lowest priority.
#[derive(Debug, Clone)]
struct Class {
    queue: List,
    /// The entry linked last and its use, to keep one request's blocks in falling order of offset.
    newest: Slot,
    window: ReuseWindow,
    accesses_until_fit: usize,
    rate: f64,
    life_seconds: f64,
}

/// Evicts the lowest `(ReuseProb_w(t, life), −offset)`, compared lexicographically, where `w` is the class and
/// `t` the time since last use of the entry.
///
/// With an exponential of rate λ fitted to the class's recent reuse times, `ReuseProb_w(t, life)` =
/// `e^(−λt) − e^(−λ(t + life))`: the probability that the reuse falls into the next `life` seconds, `life`
/// being the class's mean time from first to latest use. It falls with `t`, so a class's queue in order of
/// last use is its order of priority and only the queues' fronts are compared: O(#classes) an eviction.
/// A class without samples uses the fit over all classes, and before any sample a mean of the whole window.
#[derive(Debug)]
pub struct Workload<K> {
    table: Table<K, Use>,
    classes: Vec<Class>,
    all: ReuseWindow,
    sampler: ReuseSampler<K, ClassId>,
    terms: WorkloadTerms,
}

impl<K: EntryKey> Workload<K> {
    /// The policy with some of its terms.
    pub fn new(terms: WorkloadTerms) -> Self {
        Self {
            table: Table::default(),
            classes: Vec::new(),
            all: ReuseWindow::default(),
            sampler: ReuseSampler::default(),
            terms,
        }
    }

    /// Index of the class's queue, which is created on first use.
    fn class_index(&mut self, class: ClassId) -> usize {
        let index = if class.index() < CLASSES_MAX { class.index() } else { 0 };
        if index >= self.classes.len() {
            let empty = Class {
                queue: List::EMPTY,
                newest: NONE,
                window: ReuseWindow::default(),
                accesses_until_fit: 0,
                rate: 1.0 / REUSE_WINDOW_SECONDS,
                life_seconds: REUSE_WINDOW_SECONDS,
            };
            self.classes.resize(index + 1, empty);
        }
        index
    }

    fn learn(&mut self, key: K, access: &Access<K>) {
        let class = ClassId::OTHER.max(access.class);
        if let Some(seen) = self.sampler.note(key, class, access.now) {
            let reuse = access.now.seconds_since(seen.last);
            let life = access.now.seconds_since(seen.first);
            let index = self.class_index(seen.class);
            self.classes[index].window.record(access.now, reuse, life);
            self.all.record(access.now, reuse, life);
        }
        let index = self.class_index(class);
        let class = &mut self.classes[index];
        if class.accesses_until_fit == 0 {
            class.accesses_until_fit = limits::REFIT_CLASS_ACCESSES;
            let fit = class.window.fit(access.now).or_else(|| self.all.fit(access.now));
            let life = class.window.life_seconds(access.now).or_else(|| self.all.life_seconds(access.now));
            class.rate = fit.map_or(1.0 / REUSE_WINDOW_SECONDS, |fit| fit.rate);
            class.life_seconds = life.unwrap_or(REUSE_WINDOW_SECONDS);
        }
        class.accesses_until_fit -= 1;
    }

    fn link(&mut self, slot: Slot, access: &Access<K>) {
        let index = self.class_index(access.class);
        let used = Use { class: access.class, last: access.now, offset: access.offset };
        *self.table.meta_mut(slot) = used;
        let class = &mut self.classes[index];
        let successor = match class.newest {
            newest if newest != NONE && self.terms.offset => {
                let before = self.table.meta(newest);
                let same_request = before.last == access.now && before.offset < access.offset;
                if same_request { newest } else { NONE }
            }
            _ => NONE,
        };
        class.queue.insert_before(&mut self.table.slab, slot, successor);
        class.newest = slot;
    }

    fn unlink(&mut self, slot: Slot) {
        let index = self.class_index(self.table.meta(slot).class);
        let class = &mut self.classes[index];
        if class.newest == slot {
            // The request's later blocks are placed before its remaining ones, also if some of its own blocks
            // were evicted for them.
            class.newest = self.table.slab.next(slot);
        }
        class.queue.unlink(&mut self.table.slab, slot);
    }

    fn reuse_probability(&self, class: &Class, idle_seconds: f64) -> f64 {
        let survival = (-class.rate * idle_seconds).exp();
        if self.terms.life { survival * -(-class.rate * class.life_seconds).exp_m1() } else { survival }
    }
}

impl<K: EntryKey> EvictionPolicy<K> for Workload<K> {
    fn insert(&mut self, key: K, access: &Access<K>) {
        if self.touch(&key, access) {
            let slot = self.table.find(&key).expect("touched just now");
            self.unlink(slot);
            self.table.resize(slot, access.bytes);
            self.link(slot, access);
            return;
        }
        self.learn(key, access);
        let used = Use { class: access.class, last: access.now, offset: access.offset };
        let slot = self.table.add(key, access.bytes, used);
        self.link(slot, access);
    }

    fn touch(&mut self, key: &K, access: &Access<K>) -> bool {
        let Some(slot) = self.table.find(key) else { return false };
        self.learn(*key, access);
        self.unlink(slot);
        self.link(slot, access);
        true
    }

    fn remove(&mut self, key: &K) -> bool {
        let Some(slot) = self.table.find(key) else { return false };
        self.unlink(slot);
        self.table.drop_slot(slot);
        true
    }

    fn evict(&mut self, now: Moment) -> Option<K> {
        let mut victim: Option<(f64, u32, Slot)> = None;
        for class in &self.classes {
            let Some(slot) = class.queue.front() else { continue };
            let used = self.table.meta(slot);
            let probability = self.reuse_probability(class, now.seconds_since(used.last));
            let offset = if self.terms.offset { used.offset } else { 0 };
            let lower = victim.is_none_or(|(lowest, farthest, _)| {
                probability < lowest || (probability == lowest && offset > farthest)
            });
            if lower {
                victim = Some((probability, offset, slot));
            }
        }
        let (_, _, slot) = victim?;
        self.unlink(slot);
        Some(self.table.drop_slot(slot))
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
