//! The entry that a policy does not evict for its own sake.

use kvasir_eviction::table::{NONE, Slot};

/// The most recently admitted entry, until another is used.
///
/// A tier admits an entry and then asks the policy for a victim. LFU, GDSF, SIEVE and S3-FIFO were published
/// as making room first, so that the newcomer is not a candidate. If it were, SIEVE and LFU would get stuck
/// once everything else was used: each newcomer would be the only unused entry and would be evicted
/// immediately, forever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Newcomer(Slot);

impl Newcomer {
    pub(super) const NOBODY: Self = Self(NONE);

    pub(super) const fn new(slot: Slot) -> Self {
        Self(slot)
    }

    pub(super) fn is(self, slot: Slot) -> bool {
        self.0 == slot
    }

    pub(super) fn slot(self) -> Option<Slot> {
        (self.0 != NONE).then_some(self.0)
    }

    /// The slot is given back.
    pub(super) fn leaves(&mut self, slot: Slot) {
        if self.is(slot) {
            *self = Self::NOBODY;
        }
    }
}
