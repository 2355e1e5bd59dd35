//! LeCaR (Vietri et al., HotStorage'18): LRU and LFU, chosen by weights that regret moves.

use std::collections::{BTreeSet, HashMap};

use foldhash::fast::RandomState;
use kvasir_eviction::{
    Access, EntryKey, EvictionPolicy, Moment,
    intrusive_queue::IntrusiveQueue,
    table::{Slot, Table},
};

use super::{draws::Draws, limits};

#[derive(Debug, Clone, Copy)]
struct Use {
    uses: u64,
    /// Number of the last use.
    last: u64,
}

/// A random draw selects LRU or LFU for each eviction. A miss on an entry that one of them evicted recently
/// lowers the weight of that policy, the more so the more recent the eviction. The draws come from a fixed
/// seed.
#[derive(Debug)]
pub struct LeCar<K> {
    table: Table<K, Use>,
    by_last_use: BTreeSet<(u64, Slot)>,
    by_uses: BTreeSet<(u64, u64, Slot)>,
    /// The entries that LRU and LFU evicted, with the time in accesses.
    histories: [IntrusiveQueue<K>; 2],
    /// The uses of the entries in the histories, which they keep when they come back.
    remembered: HashMap<K, u64, RandomState>,
    weights: [f64; 2],
    capacity: u64,
    clock: u64,
    newcomer: Option<Slot>,
    draws: Draws,
}

impl<K: EntryKey> LeCar<K> {
    /// For a tier of `capacity` entries.
    pub fn new(capacity: u64) -> Self {
        Self {
            table: Table::default(),
            by_last_use: BTreeSet::new(),
            by_uses: BTreeSet::new(),
            histories: [IntrusiveQueue::default(), IntrusiveQueue::default()],
            remembered: HashMap::default(),
            weights: [0.5; 2],
            capacity: capacity.max(1),
            clock: 0,
            newcomer: None,
            draws: Draws::default(),
        }
    }

    fn rank(&mut self, slot: Slot, uses: u64) {
        self.clock += 1;
        *self.table.meta_mut(slot) = Use { uses, last: self.clock };
        self.by_last_use.insert((self.clock, slot));
        self.by_uses.insert((uses, self.clock, slot));
    }

    fn unrank(&mut self, slot: Slot) {
        let Use { uses, last } = *self.table.meta(slot);
        self.by_last_use.remove(&(last, slot));
        self.by_uses.remove(&(uses, last, slot));
    }

    /// Regret: the policy that evicted the requested key loses weight. Returns the key's uses until then, 0 if
    /// no history has it.
    fn regret(&mut self, key: &K) -> u64 {
        for expert in 0..2 {
            let Some(evicted) = self.histories[expert].since(key) else { continue };
            let age = self.clock.saturating_sub(evicted.as_micros()) as f64;
            let discount = limits::LECAR_DISCOUNT_BASE.powf(age / self.capacity as f64);
            self.weights[expert] *= (-limits::LECAR_LEARNING_RATE * discount).exp();
            self.histories[expert].remove(key);
        }
        let sum: f64 = self.weights.iter().sum();
        self.weights = self.weights.map(|weight| (weight / sum).clamp(0.01, 0.99));
        self.remembered.remove(key).unwrap_or(0)
    }
}

impl<K: EntryKey> EvictionPolicy<K> for LeCar<K> {
    fn insert(&mut self, key: K, access: &Access<K>) {
        if self.touch(&key, access) {
            let slot = self.table.find(&key).expect("touched just now");
            self.table.resize(slot, access.bytes);
            return;
        }
        let uses = self.regret(&key) + 1;
        let slot = self.table.add(key, access.bytes, Use { uses, last: 0 });
        self.rank(slot, uses);
        self.newcomer = Some(slot);
    }

    fn touch(&mut self, key: &K, _access: &Access<K>) -> bool {
        let Some(slot) = self.table.find(key) else { return false };
        self.newcomer = None;
        self.unrank(slot);
        let uses = self.table.meta(slot).uses + 1;
        self.rank(slot, uses);
        true
    }

    fn remove(&mut self, key: &K) -> bool {
        let Some(slot) = self.table.find(key) else { return false };
        self.newcomer = None;
        self.unrank(slot);
        self.table.drop_slot(slot);
        true
    }

    fn evict(&mut self, _now: Moment) -> Option<K> {
        let newcomer = self.newcomer.take();
        let other = |slot: &Slot| Some(*slot) != newcomer;
        let oldest = self.by_last_use.iter().map(|(_, slot)| *slot);
        let rarest = self.by_uses.iter().map(|(.., slot)| *slot);
        let victims = [
            oldest.clone().find(other).or(oldest.clone().next())?,
            rarest.clone().find(other).or(rarest.clone().next())?,
        ];
        let expert = usize::from(self.draws.unit() >= self.weights[0]);
        let slot = victims[expert];
        let uses = self.table.meta(slot).uses;
        self.unrank(slot);
        let key = self.table.drop_slot(slot);
        // If both agree, neither is to blame.
        if victims[0] != victims[1] {
            self.histories[expert].put(key, 1, Moment::from_micros(self.clock));
            self.remembered.insert(key, uses);
            if self.histories[expert].len() as u64 > self.capacity
                && let Some(oldest) = self.histories[expert].pop()
            {
                self.remembered.remove(&oldest);
            }
        }
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

#[cfg(test)]
mod tests {
    use kvasir_eviction::ClassId;

    use super::*;

    #[test]
    fn an_entry_that_comes_back_has_its_uses() {
        let mut policy = LeCar::new(10);
        let access = Access::new(Moment::default(), ClassId::OTHER);
        // Key 1 is used least recently, key 2 least often.
        [1u64, 1, 1, 1, 1, 2, 2, 2].into_iter().for_each(|key| policy.insert(key, &access));
        policy.weights = [1.0, 0.0];
        assert_eq!(policy.evict(access.now), Some(1));
        policy.insert(1, &access);
        let order: Vec<u64> = policy.by_uses.iter().map(|(uses, ..)| *uses).collect();
        assert_eq!(order, [3, 6], "key 1 is behind key 2");
    }
}
