//! Trit tables: two contexts of three digits, two thresholds each; 8 bytes.

use super::{constants::PROBABILITY_ONE, error::TableError, frequencies::normalise};

/// Frequencies of the digits `-1, 0, 1` of a refinement, given that the coarser value is zero (context 0) or
/// not (context 1, in which the digit is counted away from zero: a negative value's digit is negated).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TritTable {
    /// `thresholds[context] = [a, b]`: slots below `a` mean -1, below `b` mean 0, the others 1.
    thresholds: [[u16; 2]; 2],
    /// `start << 16 | frequency` at `4 context + digit + 1`, the second threshold at `4 context + 3`: the
    /// table of a SIMD decoder. The first threshold is the first range, because that one starts at 0.
    ranges: [u32; 8],
}

impl TritTable {
    /// Serialised size.
    pub const BYTES: usize = 8;

    /// The table whose thresholds are given per context.
    ///
    /// # Errors
    /// [`TableError::Thresholds`] unless `a <= b <= 4096` in both contexts.
    pub fn new(thresholds: [[u16; 2]; 2]) -> Result<Self, TableError> {
        for (context, &[a, b]) in thresholds.iter().enumerate() {
            if a > b || u32::from(b) > PROBABILITY_ONE {
                return Err(TableError::Thresholds { context, a, b });
            }
        }
        Ok(Self::of(thresholds))
    }

    fn of(thresholds: [[u16; 2]; 2]) -> Self {
        let mut table = Self { thresholds, ranges: [0; 8] };
        for (context, folded) in [(0, -1), (0, 0), (0, 1), (1, -1), (1, 0), (1, 1)] {
            let (start, frequency) = table.range(context, folded);
            table.ranges[4 * context + (folded + 1) as usize] = start << 16 | frequency;
        }
        for context in [0, 1] {
            table.ranges[4 * context + 3] = u32::from(thresholds[context][1]);
        }
        table
    }

    /// Packed starts and frequencies, and thresholds.
    pub(crate) fn ranges(&self) -> &[u32; 8] {
        &self.ranges
    }

    /// Digit (folded), start, and frequency of slot `0..4096` in a context. The next state depends on loads,
    /// not on choices.
    #[inline(always)]
    pub(super) fn slot(&self, context: usize, slot: u32) -> (i32, u32, u32) {
        let at = 4 * (context & 1);
        let index = usize::from(slot >= self.ranges[at]) + usize::from(slot >= self.ranges[at + 3]);
        let range = self.ranges[at + index];
        (index as i32 - 1, range >> 16, range & 0xffff)
    }

    /// A table that nothing is decoded with.
    pub(crate) const NONE: Self = Self { thresholds: [[0; 2]; 2], ranges: [0; 8] };

    /// The table that fits `counts[context][digit + 1]` best; every digit stays codable.
    pub fn from_counts(counts: &[[u64; 3]; 2]) -> Self {
        let thresholds = counts.map(|c| {
            let [minus, zero, _] = normalise(&c, &[1; 3]);
            [minus as u16, (minus + zero) as u16] // at most 4096
        });
        Self::of(thresholds)
    }

    /// Reads a serialised table: `u16 a0, b0, a1, b1`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self, TableError> {
        let at = |i: usize| u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]);
        Self::new([[at(0), at(1)], [at(2), at(3)]])
    }

    /// The serialised table.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let [[a0, b0], [a1, b1]] = self.thresholds;
        let mut out = [0; Self::BYTES];
        for (pair, value) in out.chunks_exact_mut(2).zip([a0, b0, a1, b1]) {
            pair.copy_from_slice(&value.to_le_bytes());
        }
        out
    }

    /// Context of a coarser value: 0 if it is zero, else 1.
    pub fn context(coarse: i32) -> usize {
        usize::from(coarse != 0)
    }

    /// The two thresholds of a context.
    pub fn thresholds(&self, context: usize) -> [u16; 2] {
        self.thresholds[context]
    }

    /// Start and frequency of folded digit `-1..=1` in a context.
    pub fn range(&self, context: usize, folded: i32) -> (u32, u32) {
        let [a, b] = self.thresholds[context].map(u32::from);
        match folded {
            ..=-1 => (0, a),
            0 => (a, b - a),
            1.. => (b, PROBABILITY_ONE - b),
        }
    }
}
