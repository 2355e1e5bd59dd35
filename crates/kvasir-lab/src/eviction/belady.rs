//! Belady's MIN per block: evict the block whose next use is last. It needs the future, so only the simulator
//! has it.
//!
//! Blocks of one request have the same next use or, behind the point where requests diverge, a later one;
//! among equals the deepest is evicted first. The remaining blocks are therefore closed under prefixes: this
//! is the optimum under prefix semantics too.

use std::collections::{BTreeSet, HashMap};

use foldhash::fast::RandomState;

/// Never used again.
pub(super) const NEVER: u32 = u32::MAX;

/// For every block access of a trace, in order, the number of the request that uses the block next.
/// Four bytes an access: the only part of the simulator that grows with the trace.
#[derive(Debug, Default)]
pub(super) struct NextUses {
    next: Vec<u32>,
    last_access: HashMap<u64, usize, RandomState>,
}

impl NextUses {
    /// Records that request number `request` uses `block`. Calls must be in trace order.
    pub(super) fn note(&mut self, block: u64, request: u32) {
        let access = self.next.len();
        self.next.push(NEVER);
        if let Some(before) = self.last_access.insert(block, access) {
            self.next[before] = request;
        }
    }

    /// The next uses, one per access.
    pub(super) fn finish(self) -> Vec<u32> {
        self.next
    }
}

/// The MIN policy over blocks of equal size.
#[derive(Debug, Default)]
pub(super) struct Belady {
    next_use: HashMap<u64, (u32, u32), RandomState>,
    order: BTreeSet<(u32, u32, u64)>,
}

impl Belady {
    pub(super) fn contains(&self, block: u64) -> bool {
        self.next_use.contains_key(&block)
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// Takes `block` in, or renews it, knowing that request `next_use` uses it next.
    pub(super) fn put(&mut self, block: u64, next_use: u32, offset: u32) {
        if let Some((next, at)) = self.next_use.insert(block, (next_use, offset)) {
            self.order.remove(&(next, at, block));
        }
        self.order.insert((next_use, offset, block));
    }

    /// Drops the block that is used last; among those of one request, the one deepest in its prefix.
    pub(super) fn evict(&mut self) -> Option<u64> {
        let (_, _, block) = self.order.pop_last()?;
        self.next_use.remove(&block);
        Some(block)
    }
}
