//! Entries in a slab with a key index, and intrusive lists over slabs: the base of every policy.

use std::{collections::HashMap, hash::BuildHasher};

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::EntryKey;

/// Index of a node in a [`Slab`]. Stable until the node is removed, then reused.
pub type Slot = u32;
/// No slot.
pub const NONE: Slot = u32::MAX;
/// A full slab grows by one in this many of its places: twice as many, as a vector takes, would stay half empty.
const GROWTH: usize = 16;
/// Places that a slab grows by at least.
const GROWTH_MIN: usize = 16;
/// Stands for sizes that 32 bits do not hold.
const LARGE: u32 = u32::MAX;

#[derive(Debug)]
struct Node<T> {
    previous: Slot,
    next: Slot,
    value: T,
}

/// Values at stable slots, each in one [`List`] at most.
#[derive(Debug)]
pub struct Slab<T> {
    nodes: Vec<Node<T>>,
    /// The slot that was freed last. `previous` of a free slot is the one that was freed before it.
    free: Slot,
}

impl<T> Slab<T> {
    pub(super) const fn new() -> Self {
        Self { nodes: Vec::new(), free: NONE }
    }

    pub(super) fn add(&mut self, value: T) -> Slot {
        let node = Node { previous: NONE, next: NONE, value };
        if self.free != NONE {
            let slot = self.free;
            let place = &mut self.nodes[slot as usize];
            self.free = place.previous;
            *place = node;
            return slot;
        }
        if self.nodes.len() == self.nodes.capacity() {
            self.nodes.reserve_exact((self.nodes.len() / GROWTH).max(GROWTH_MIN));
        }
        self.nodes.push(node);
        u32::try_from(self.nodes.len() - 1).expect("fewer than 2^32 entries fit in memory")
    }

    /// Frees a slot whose node is in no list. Its value stays readable until the slot is reused.
    pub(super) fn free(&mut self, slot: Slot) {
        let node = &mut self.nodes[slot as usize];
        debug_assert!(node.previous == NONE && node.next == NONE);
        node.previous = self.free;
        self.free = slot;
    }

    pub(super) fn get(&self, slot: Slot) -> &T {
        &self.nodes[slot as usize].value
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> &mut T {
        &mut self.nodes[slot as usize].value
    }

    /// Places that memory is reserved for.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.nodes.capacity()
    }

    /// The node after `slot` in its list, towards the back; [`NONE`] after the last.
    pub fn next(&self, slot: Slot) -> Slot {
        self.nodes[slot as usize].next
    }
}

/// A doubly linked list through the nodes of a [`Slab`]; the front is evicted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct List {
    front: Slot,
    back: Slot,
}

impl List {
    /// A list without members.
    pub const EMPTY: Self = Self { front: NONE, back: NONE };

    /// The member at the front.
    pub fn front(&self) -> Option<Slot> {
        (self.front != NONE).then_some(self.front)
    }

    pub(super) fn back(&self) -> Option<Slot> {
        (self.back != NONE).then_some(self.back)
    }

    /// Whether the list has no members.
    pub fn is_empty(&self) -> bool {
        self.front == NONE
    }

    /// Links `slot`, which is in no list, at the back.
    pub fn push_back<T>(&mut self, slab: &mut Slab<T>, slot: Slot) {
        self.insert_before(slab, slot, NONE);
    }

    /// Links `slot`, which is in no list, in front of `successor` (a member of this list), or at the back for [`NONE`].
    pub fn insert_before<T>(&mut self, slab: &mut Slab<T>, slot: Slot, successor: Slot) {
        let previous = if successor == NONE { self.back } else { slab.nodes[successor as usize].previous };
        let node = &mut slab.nodes[slot as usize];
        debug_assert!(node.previous == NONE && node.next == NONE);
        (node.previous, node.next) = (previous, successor);
        match previous {
            NONE => self.front = slot,
            p => slab.nodes[p as usize].next = slot,
        }
        match successor {
            NONE => self.back = slot,
            s => slab.nodes[s as usize].previous = slot,
        }
    }

    /// Takes `slot`, a member of this list, out of it.
    pub fn unlink<T>(&mut self, slab: &mut Slab<T>, slot: Slot) {
        let node = &mut slab.nodes[slot as usize];
        let (previous, next) = (node.previous, node.next);
        (node.previous, node.next) = (NONE, NONE);
        match previous {
            NONE => self.front = next,
            p => slab.nodes[p as usize].next = next,
        }
        match next {
            NONE => self.back = previous,
            n => slab.nodes[n as usize].previous = previous,
        }
    }

    /// Moves `slot`, a member of this list, to the back.
    pub fn move_to_back<T>(&mut self, slab: &mut Slab<T>, slot: Slot) {
        if self.back != slot {
            self.unlink(slab, slot);
            self.push_back(slab, slot);
        }
    }
}

/// An entry of a tier with per-policy data.
#[derive(Debug)]
pub struct TableEntry<K, M> {
    key: K,
    /// Its size, or [`LARGE`].
    bytes: u32,
    meta: M,
}

/// Entries found by key in O(1). The index has their slots alone and compares the keys in the slab. It is never iterated, so
/// its random seed shows in no decision.
#[derive(Debug)]
pub struct Table<K, M> {
    index: HashTable<Slot>,
    hasher: RandomState,
    /// The entries, which the policy links into its [`List`]s.
    pub slab: Slab<TableEntry<K, M>>,
    bytes: u64,
    /// The sizes that 32 bits do not hold.
    large: HashMap<Slot, u64, RandomState>,
}

impl<K, M> Default for Table<K, M> {
    fn default() -> Self {
        Self {
            index: HashTable::new(),
            hasher: RandomState::default(),
            slab: Slab::new(),
            bytes: 0,
            large: HashMap::default(),
        }
    }
}

impl<K: EntryKey, M> Table<K, M> {
    /// Entries present.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether it has no entries.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Sum of the entries' sizes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The slot of `key`, if it is present.
    pub fn find(&self, key: &K) -> Option<Slot> {
        let hash = self.hasher.hash_one(key);
        self.index.find(hash, |slot| self.slab.get(*slot).key == *key).copied()
    }

    /// Adds an entry that is not present, unlinked.
    pub fn add(&mut self, key: K, bytes: u64, meta: M) -> Slot {
        debug_assert!(self.find(&key).is_none());
        let slot = self.slab.add(TableEntry { key, bytes: 0, meta });
        self.set_size(slot, bytes);
        let Self { index, hasher, slab, .. } = self;
        index.insert_unique(hasher.hash_one(key), slot, |other| hasher.hash_one(slab.get(*other).key));
        self.bytes = self.bytes.saturating_add(bytes);
        slot
    }

    /// Forgets an entry that is in no list.
    pub fn drop_slot(&mut self, slot: Slot) -> K {
        let key = self.drop_key(slot);
        self.slab.free(slot);
        key
    }

    /// Forgets the key and the size of an entry. Its slot stays taken until [`Slab::free`].
    pub(super) fn drop_key(&mut self, slot: Slot) -> K {
        self.bytes = self.bytes.saturating_sub(self.bytes_of(slot));
        self.set_size(slot, 0);
        let key = self.key(slot);
        if let Ok(found) = self.index.find_entry(self.hasher.hash_one(key), |other| *other == slot) {
            found.remove();
        }
        key
    }

    /// Changes the size of an entry.
    pub fn resize(&mut self, slot: Slot, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(self.bytes_of(slot)).saturating_add(bytes);
        self.set_size(slot, bytes);
    }

    fn set_size(&mut self, slot: Slot, bytes: u64) {
        let small = u32::try_from(bytes).ok().filter(|bytes| *bytes != LARGE);
        let entry = self.slab.get_mut(slot);
        if entry.bytes == LARGE {
            self.large.remove(&slot);
        }
        entry.bytes = small.unwrap_or(LARGE);
        if small.is_none() {
            self.large.insert(slot, bytes);
        }
    }

    pub(super) fn key(&self, slot: Slot) -> K {
        self.slab.get(slot).key
    }

    /// The size of an entry.
    pub fn bytes_of(&self, slot: Slot) -> u64 {
        match self.slab.get(slot).bytes {
            LARGE => self.large.get(&slot).copied().unwrap_or(0),
            bytes => u64::from(bytes),
        }
    }

    /// The policy's data of an entry.
    pub fn meta(&self, slot: Slot) -> &M {
        &self.slab.get(slot).meta
    }

    /// The policy's data of an entry, to change.
    pub fn meta_mut(&mut self, slot: Slot) -> &mut M {
        &mut self.slab.get_mut(slot).meta
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sizes around those that 32 bits hold, and any.
    fn sizes() -> impl Strategy<Value = u64> {
        let edge = u64::from(LARGE);
        prop_oneof![0..100u64, edge - 2..edge + 3, 0..1u64 << 40]
    }

    proptest! {
        /// Against a plain map, with keys that come back to reused slots.
        #[test]
        fn keys_and_sizes_are_exact(ops in prop::collection::vec((0..30u64, prop::option::of(sizes())), 0..300)) {
            let (mut table, mut model) = (Table::default(), HashMap::<u64, u64>::new());
            for (key, change) in ops {
                match (table.find(&key), change) {
                    (Some(slot), Some(bytes)) => table.resize(slot, bytes),
                    (Some(slot), None) => prop_assert_eq!(table.drop_slot(slot), key),
                    (None, Some(bytes)) => _ = table.add(key, bytes, ()),
                    (None, None) => {}
                }
                match change {
                    Some(bytes) => _ = model.insert(key, bytes),
                    None => _ = model.remove(&key),
                }
                prop_assert_eq!((table.len(), table.bytes()), (model.len(), model.values().sum::<u64>()));
                for key in 0..30 {
                    let found = table.find(&key).map(|slot| table.bytes_of(slot));
                    prop_assert_eq!(found, model.get(&key).copied());
                }
                let large = model.values().filter(|bytes| **bytes >= u64::from(LARGE)).count();
                prop_assert_eq!(table.large.len(), large);
            }
        }
    }

    #[test]
    fn a_slab_has_few_places_more_than_entries() {
        let mut table = Table::default();
        for key in 0..50_000u64 {
            table.add(key, 1, ());
            let (places, entries) = (table.slab.capacity(), key as usize + 1);
            assert!(places <= entries + (entries / GROWTH).max(GROWTH_MIN), "{places} places for {entries}");
        }
        let places = table.slab.capacity();
        for key in 0..50_000u64 {
            let slot = table.find(&key).expect("was added");
            table.drop_slot(slot);
            table.add(50_000 + key, 1, ());
        }
        assert_eq!(table.slab.capacity(), places, "freed places are used again");
    }
}
