//! Values of a span in the form for wide encoders: 16 bits each, 32 tokens of a coefficient contiguous, and
//! the coefficients of a stream in sequence. Every level reads them in order and computes its values in
//! registers.

use super::constants::{LANES, STREAM_COEFFICIENTS_MAX};

/// Rows stored together: those of a stream if a piece has all of them.
const GROUP: usize = STREAM_COEFFICIENTS_MAX;

/// One coefficient's values of 32 tokens, a cache line.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C, align(64))]
pub(crate) struct Block(pub(crate) [i16; LANES]);

/// Values `[group of rows][block of tokens][row][token]`; those after the last token or row are arbitrary.
#[derive(Debug, Clone, Default)]
pub(crate) struct Blocks {
    rows: usize,
    tokens: usize,
    /// Blocks per row.
    per_row: usize,
    values: Vec<Block>,
}

/// 2^15 / 3 and 2^15 / 9, rounded up by 1/3 and 1/9. For values of 15 bits that is less than the
/// distance between a quotient and a tie, which an odd divisor never produces.
pub(crate) const THIRD: i16 = 10_923;
/// See [`THIRD`].
pub(crate) const NINTH: i16 = 3_641;

/// A product of fractions, rounded.
#[inline(always)]
fn scaled(value: i16, by: i16) -> i16 {
    ((i32::from(value) * i32::from(by) + (1 << 14)) >> 15) as i16
}

/// As [`coarser_by`](crate::levels::coarser_by), of values up to [`Blocks::MOST`].
#[inline(always)]
pub(crate) fn coarser(mut value: i16, up: u32) -> i16 {
    for _ in 0..up / 2 {
        value = scaled(value, NINTH);
    }
    if up % 2 == 1 { scaled(value, THIRD) } else { value }
}

impl Blocks {
    /// Largest magnitude of a value.
    pub(crate) const MOST: i32 = (1 << 14) - 1;

    /// Allocates space for rows; old values stay in place.
    pub(crate) fn reset(&mut self, rows: usize, tokens: usize) {
        (self.rows, self.tokens, self.per_row) = (rows, tokens, tokens.div_ceil(LANES));
        let count = rows.next_multiple_of(GROUP) * self.per_row;
        self.values.resize(count.max(self.values.len()), Block([0; LANES]));
    }

    /// Stores `[row][token]` values; `false` if one is too large.
    pub(crate) fn fill(&mut self, tokens: usize, values: &[i32]) -> bool {
        self.reset(values.len() / tokens, tokens);
        values.chunks_exact(tokens).enumerate().all(|(row, values)| self.fill_row(row, values))
    }

    /// Stores a row's values; `false` if one is too large.
    pub(crate) fn fill_row(&mut self, row: usize, values: &[i32]) -> bool {
        let most = values.iter().fold(0, |most, value| value.unsigned_abs().max(most));
        for (block, values) in values.chunks(LANES).enumerate() {
            let at = self.at(row, block);
            let to = self.values[at].0.iter_mut();
            to.zip(values).for_each(|(to, value)| *to = *value as i16);
        }
        most <= Self::MOST as u32
    }

    /// Rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Tokens.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// The position of a block.
    #[inline(always)]
    pub(crate) fn at(&self, row: usize, block: usize) -> usize {
        (row / GROUP * self.per_row + block) * GROUP + row % GROUP
    }

    /// A block; `None` if there is none.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "the portable encoder takes rows"))]
    #[inline(always)]
    pub(crate) fn get(&self, row: usize, block: usize) -> Option<&Block> {
        self.values.get(self.at(row, block))
    }

    /// All blocks, as [`at`](Self::at) counts them.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [Block] {
        &mut self.values
    }

    /// Writes a row's values `up` levels up to the start of `out`.
    #[inline(always)]
    pub(crate) fn write(&self, row: usize, up: u32, out: &mut [i32]) {
        for (block, out) in out.chunks_mut(LANES).enumerate() {
            let values = &self.values[self.at(row, block)].0;
            for (out, value) in out.iter_mut().zip(values) {
                *out = coarser(*value, up).into();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::levels::coarser_by;

    #[test]
    fn products_of_fractions_are_coarser_values() {
        for value in -Blocks::MOST..=Blocks::MOST {
            for up in 0..8 {
                assert_eq!(i32::from(coarser(value as i16, up)), coarser_by(value, up), "{value} {up}");
            }
        }
    }

    #[test]
    fn blocks_give_what_they_took() {
        for (rows, tokens) in [(1, 1), (3, 31), (130, 32), (257, 33), (128, 256), (5, 200)] {
            let values: Vec<i32> = (0..rows * tokens).map(|i| (i as i32 * 7919) % 16_383).collect();
            let mut blocks = Blocks::default();
            assert!(blocks.fill(tokens, &values));
            let mut row = vec![0; tokens];
            for (index, values) in values.chunks_exact(tokens).enumerate() {
                blocks.write(index, 0, &mut row);
                assert_eq!(row, values, "{rows} × {tokens}");
            }
        }
        assert!(!Blocks::default().fill(1, &[Blocks::MOST + 1]));
    }
}
