//! Positions of rows, chosen so that a context's chunks are neighbours: a lookup of 64 chunks is one seek and
//! a short scan, and touches a few pages of a large database instead of 64.
//!
//! A *position* is a lineage and a depth in it. All chunks after one parent have the same position. The first
//! child continues its parent's lineage, one level deeper; a child with an older sibling, or with an unknown
//! parent, begins a new lineage named after the parent. So the rows of a conversation are consecutive, and if
//! a thousand conversations share a beginning, each one is contiguous after it.
//!
//! Correctness does not depend on positions: a chunk whose position is not found is unknown, and the store is
//! asked.

use kvasir_store::cache::BoundedMap;
use kvasir_types::SeqHash;

use super::{scope::Scope, truncated::name};
use crate::limits;

/// The greatest depth; deeper chunks begin a new lineage.
pub(super) const DEPTH_MAX: u32 = (1 << 24) - 1;

/// Names a lineage: its scope, and its name in that.
pub(super) type LineageId = [u8; 16];

/// A position in the order of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowPosition {
    lineage: [u8; 8],
    depth: u32,
}

impl RowPosition {
    pub(super) const BYTES: usize = 8 + 3;

    /// The position of the children of a chunk that begins a lineage, or of a root.
    pub(super) fn under(parent_hash: &[u8; 32]) -> Self {
        Self { lineage: *name(parent_hash), depth: 0 }
    }

    /// The lineage, in a scope.
    pub(super) fn lineage_in(self, scope: Scope) -> LineageId {
        let mut id = [0; 16];
        id[..8].copy_from_slice(scope.as_bytes());
        id[8..].copy_from_slice(&self.lineage);
        id
    }

    pub(super) fn depth(self) -> u32 {
        self.depth
    }

    pub(super) fn deeper(self) -> Self {
        Self { depth: self.depth + 1, ..self }
    }

    /// The position of the children of a chunk at this position.
    pub(super) fn of_children(self, seq_hash: &SeqHash, continues: bool) -> Self {
        if continues { self.deeper() } else { Self::under(seq_hash.as_bytes()) }
    }

    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let [_, depth @ ..] = self.depth.to_be_bytes();
        bytes[..8].copy_from_slice(&self.lineage);
        bytes[8..].copy_from_slice(&depth);
        bytes
    }
}

/// The positions of the children of recently seen chunks. Bounded, and lost with the process: a chunk whose
/// parent is not in it begins a lineage.
#[derive(Debug)]
pub(super) struct PositionCache(BoundedMap<(Scope, [u8; 32]), RowPosition>);

impl PositionCache {
    pub(super) fn new() -> Self {
        Self(BoundedMap::new(limits::INDEX_POSITIONS_MAX, None))
    }

    pub(super) fn known(&self, scope: Scope, hash: &[u8; 32]) -> Option<RowPosition> {
        self.0.get(&(scope, *hash))
    }

    /// The position of new children of `parent_hash`.
    pub(super) fn after(&self, scope: Scope, parent_hash: &[u8; 32]) -> RowPosition {
        self.known(scope, parent_hash).unwrap_or(RowPosition::under(parent_hash))
    }

    /// Records the position of the children of the chunk that ends with `hash`. The first record is kept.
    pub(super) fn record(&self, scope: Scope, hash: &SeqHash, children: RowPosition) {
        if self.known(scope, hash.as_bytes()).is_none() {
            self.0.insert((scope, *hash.as_bytes()), children);
        }
    }
}
