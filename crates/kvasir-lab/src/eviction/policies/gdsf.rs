//! Greedy-Dual-Size-Frequency (Cherkasova 1998).

use std::collections::BTreeSet;

use kvasir_eviction::{
    Access, EntryKey, EvictionPolicy, Moment,
    table::{Slot, Table},
};

use super::newcomer::Newcomer;

#[derive(Debug, Clone, Copy)]
struct Worth {
    uses: u64,
    cost: f64,
    /// Key in the order: (bits of the non-negative priority, sequence number of the last use).
    rank: (u64, u64),
}

/// Evicts the lowest `inflation + uses × cost ÷ bytes`. The inflation is the priority of the last victim, so
/// that formerly popular entries age out. Cost is the stated worth (1 if there is none).
#[derive(Debug)]
pub struct Gdsf<K> {
    table: Table<K, Worth>,
    order: BTreeSet<(u64, u64, Slot)>,
    inflation: f64,
    sequence: u64,
    newcomer: Newcomer,
}

impl<K: EntryKey> Default for Gdsf<K> {
    fn default() -> Self {
        Self {
            table: Table::default(),
            order: BTreeSet::new(),
            inflation: 0.0,
            sequence: 0,
            newcomer: Newcomer::NOBODY,
        }
    }
}

impl<K: EntryKey> Gdsf<K> {
    fn rank(&mut self, slot: Slot) {
        let bytes = self.table.bytes_of(slot).max(1) as f64;
        self.sequence += 1;
        let worth = self.table.meta_mut(slot);
        let priority = self.inflation + worth.uses as f64 * worth.cost / bytes;
        // Bits of non-negative floats order like the floats.
        worth.rank = (priority.to_bits(), self.sequence);
        self.order.insert((worth.rank.0, worth.rank.1, slot));
    }

    fn unrank(&mut self, slot: Slot) {
        let rank = self.table.meta(slot).rank;
        self.order.remove(&(rank.0, rank.1, slot));
    }

    fn use_once(&mut self, slot: Slot, access: &Access<K>) {
        self.newcomer = Newcomer::NOBODY;
        self.unrank(slot);
        let worth = self.table.meta_mut(slot);
        worth.uses += 1;
        worth.cost = cost_of(access);
        self.rank(slot);
    }
}

fn cost_of<K>(access: &Access<K>) -> f64 {
    let worth = f64::from(access.worth);
    if worth.is_finite() && worth > 0.0 { worth } else { 1.0 }
}

impl<K: EntryKey> EvictionPolicy<K> for Gdsf<K> {
    fn insert(&mut self, key: K, access: &Access<K>) {
        if let Some(slot) = self.table.find(&key) {
            self.table.resize(slot, access.bytes);
            self.use_once(slot, access);
        } else {
            let worth = Worth { uses: 1, cost: cost_of(access), rank: (0, 0) };
            let slot = self.table.add(key, access.bytes, worth);
            self.rank(slot);
            self.newcomer = Newcomer::new(slot);
        }
    }

    fn touch(&mut self, key: &K, access: &Access<K>) -> bool {
        let Some(slot) = self.table.find(key) else { return false };
        self.use_once(slot, access);
        true
    }

    fn remove(&mut self, key: &K) -> bool {
        let Some(slot) = self.table.find(key) else { return false };
        self.unrank(slot);
        self.newcomer.leaves(slot);
        self.table.drop_slot(slot);
        true
    }

    fn evict(&mut self, _now: Moment) -> Option<K> {
        let newcomer = self.newcomer;
        let victim = self.order.iter().find(|(.., slot)| !newcomer.is(*slot)).or_else(|| self.order.first());
        let (priority_bits, _, slot) = *victim?;
        self.unrank(slot);
        self.newcomer.leaves(slot);
        self.inflation = f64::from_bits(priority_bits);
        if let Some(newcomer) = self.newcomer.slot() {
            // It is admitted after the victim was evicted.
            self.unrank(newcomer);
            self.rank(newcomer);
        }
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
