//! Values of the members being processed: only the few rows between the decoded streams and the finished
//! rows, so that they stay in the cache however many coefficients a scope has.

use std::ops::Range;

use crate::{
    direct_rows::bf16_tiles::aligned,
    prepared_scope::PreparedScope,
    rans::{Cell, DecodeTarget, LANES},
};

/// Rows that a window keeps before it moves: as many as a scope of four layers of a plane has. Moving more
/// often cost more than exceeding the second-level cache.
const ROWS: usize = 4096;
/// Cells of a cache line.
const LINE: usize = 64 / size_of::<i16>();

/// Cells between narrow rows: an odd number of whole cache lines, so that the same token of consecutive rows
/// is not in the same few sets of a cache.
pub(super) fn narrow_stride(tokens: usize) -> usize {
    const { assert!(LINE == LANES) };
    (tokens.div_ceil(LINE) | 1) * LINE
}

/// Rows `base..base + held` of a scope's coefficients.
pub(super) struct Window<'a, V> {
    /// Room for all of them, though only the first part is used.
    values: &'a mut [V],
    base: usize,
    /// The first row that was never requested.
    top: usize,
    stride: usize,
    most: i32,
    /// Rows that no level writes, from `top` on; their values are 0.
    gaps: std::iter::Peekable<Box<dyn Iterator<Item = usize> + 'a>>,
}

impl<'a, V: Cell> Window<'a, V> {
    /// An empty window on a scope at a level.
    pub(super) fn new(
        buffer: &'a mut Vec<V>,
        prepared: &'a PreparedScope,
        level: usize,
        stride: usize,
        most: i32,
    ) -> Self {
        // a level writes or refines all that the levels beneath it wrote
        let count = prepared.elements.count();
        let gaps: Box<dyn Iterator<Item = usize>> = Box::new(prepared.levels[level].gaps(count));
        let values = aligned(buffer, count * stride);
        Self { values, base: 0, top: 0, stride, most, gaps: gaps.peekable() }
    }

    /// The first row.
    pub(super) fn base(&self) -> usize {
        self.base
    }

    /// Makes room for the rows below `end`.
    pub(super) fn reach(&mut self, end: usize) {
        if end <= self.top {
            return;
        }
        let (base, stride) = (self.base, self.stride);
        while let Some(row) = self.gaps.next_if(|row| *row < end) {
            self.values[(row - base) * stride..][..stride].fill(V::default());
        }
        self.top = end;
    }

    /// Forgets the rows below `first`, sooner or later.
    pub(super) fn slide(&mut self, first: usize) {
        if first - self.base < ROWS || first > self.top {
            return;
        }
        let (from, to) = ((first - self.base) * self.stride, (self.top - self.base) * self.stride);
        self.values.copy_within(from..to, 0);
        self.base = first;
    }

    /// Some rows.
    pub(super) fn rows(&mut self, rows: Range<usize>) -> &[V] {
        self.reach(rows.end);
        &self.values[(rows.start - self.base) * self.stride..(rows.end - self.base) * self.stride]
    }

    /// All rows, for streams.
    pub(super) fn target(&mut self) -> DecodeTarget<'_, V> {
        let held = (self.top - self.base) * self.stride;
        DecodeTarget { values: &mut self.values[..held], stride: self.stride, most: self.most }
    }
}
