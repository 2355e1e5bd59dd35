//! Entries in a slab with a key index, and intrusive lists over slabs: the base of every policy.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::EntryKey;

/// Index of a node in a [`Slab`]. Stable until the node is removed, then reused.
pub type Slot = u32;
/// No slot.
pub const NONE: Slot = u32::MAX;

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
    free: Vec<Slot>,
}

impl<T> Slab<T> {
    pub(super) const fn new() -> Self {
        Self { nodes: Vec::new(), free: Vec::new() }
    }

    pub(super) fn add(&mut self, value: T) -> Slot {
        let node = Node { previous: NONE, next: NONE, value };
        if let Some(slot) = self.free.pop() {
            self.nodes[slot as usize] = node;
            slot
        } else {
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1).expect("fewer than 2^32 entries fit in memory")
        }
    }

    /// Frees a slot whose node is in no list. Its value stays readable until the slot is reused.
    pub(super) fn free(&mut self, slot: Slot) {
        debug_assert!(self.nodes[slot as usize].previous == NONE && self.nodes[slot as usize].next == NONE);
        self.free.push(slot);
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
    pub(super) key: K,
    pub(super) bytes: u64,
    pub(super) meta: M,
}

/// Entries found by key in O(1). The map is never iterated, so its random seed shows in no decision.
#[derive(Debug)]
pub struct Table<K, M> {
    index: HashMap<K, Slot, RandomState>,
    /// The entries, which the policy links into its [`List`]s.
    pub slab: Slab<TableEntry<K, M>>,
    bytes: u64,
}

impl<K, M> Default for Table<K, M> {
    fn default() -> Self {
        Self { index: HashMap::default(), slab: Slab::new(), bytes: 0 }
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
        self.index.get(key).copied()
    }

    /// Adds an entry that is not present, unlinked.
    pub fn add(&mut self, key: K, bytes: u64, meta: M) -> Slot {
        let slot = self.slab.add(TableEntry { key, bytes, meta });
        let before = self.index.insert(key, slot);
        debug_assert!(before.is_none());
        self.bytes = self.bytes.saturating_add(bytes);
        slot
    }

    /// Forgets an entry that is in no list.
    pub fn drop_slot(&mut self, slot: Slot) -> K {
        let TableEntry { key, bytes, .. } = *self.slab.get(slot);
        self.bytes = self.bytes.saturating_sub(bytes);
        self.index.remove(&key);
        self.slab.free(slot);
        key
    }

    /// Changes the size of an entry.
    pub fn resize(&mut self, slot: Slot, bytes: u64) {
        let entry = self.slab.get_mut(slot);
        self.bytes = self.bytes.saturating_sub(entry.bytes).saturating_add(bytes);
        entry.bytes = bytes;
    }

    pub(super) fn key(&self, slot: Slot) -> K {
        self.slab.get(slot).key
    }

    /// The size of an entry.
    pub fn bytes_of(&self, slot: Slot) -> u64 {
        self.slab.get(slot).bytes
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
