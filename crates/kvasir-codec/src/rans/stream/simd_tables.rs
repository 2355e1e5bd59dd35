//! Look-up tables of SIMD encoders, in registers. There is no table of slots, because 8 KiB per stage table
//! would not stay in a core's cache.

use super::inverted_stage::InvertedStage;
use crate::rans::{
    constants::{ALPHABET, ESCAPE, LANES, PROBABILITY_ONE},
    nested_index::{coarsen, digit},
    trit::TritTable,
};

/// Consecutive slots that are also consecutive in their symbol: at most two per bucket of the alias table.
const PIECES: usize = 2 * ALPHABET;

/// A stage table inverted: by index of a symbol, which is coded as an escape if its frequency is 0, and by
/// piece. In separate cache lines, and few of them: a bank of these fills a core's nearest cache.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub(crate) struct StageEncoding {
    /// The start of an index's slots in the order of symbols, then frequencies.
    pub(crate) symbols: [u16; 2 * ALPHABET],
    /// See [`reciprocal`].
    pub(crate) reciprocals: [f32; ALPHABET],
    /// The starts of pieces in the order of symbols, increasing.
    pub(crate) piece_starts: [u16; PIECES],
    /// From an index in the order of symbols to its slot, modulo 2^16.
    pub(crate) piece_shifts: [u16; PIECES],
}

impl StageEncoding {
    pub(crate) fn new(table: &InvertedStage) -> Self {
        let code = |i: usize| table.codes[i % ALPHABET] as usize;
        let mut piece_starts = [u16::MAX; PIECES];
        let mut piece_shifts = [0; PIECES];
        let shift = |index: usize| table.slots[index].wrapping_sub(index as u16);
        let begins = |index: &usize| *index == 0 || shift(*index) != shift(*index - 1);
        let pieces = (0..PROBABILITY_ONE as usize).filter(begins);
        for ((start, to), index) in piece_starts.iter_mut().zip(&mut piece_shifts).zip(pieces) {
            (*start, *to) = (index as u16, shift(index));
        }
        let words = [&table.starts, &table.frequencies];
        Self {
            symbols: std::array::from_fn(|i| words[i / ALPHABET][code(i)] as u16), // at most 4096
            reciprocals: std::array::from_fn(|i| reciprocal(table.frequencies[code(i)])),
            piece_starts,
            piece_shifts,
        }
    }

    /// The start of the escape's slots: all symbols coded as an escape share it.
    #[inline(always)]
    pub(crate) fn escape_start(&self) -> u16 {
        self.symbols[ESCAPE]
    }

    /// Whether there is an escape.
    #[inline(always)]
    pub(crate) fn escapes(&self) -> bool {
        self.symbols[ALPHABET + ESCAPE] > 0
    }
}

/// A trit table by values from -4 to 4: the digit and the context of a refined value.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub(crate) struct TritEncoding {
    /// Starts by value modulo 32, frequencies 16 further on; what says whether all of them are positive is at 8.
    pub(crate) symbols: [u16; LANES],
    /// By value modulo 16; see [`reciprocal`].
    pub(crate) reciprocals: [f32; 16],
}

impl TritEncoding {
    pub(crate) fn new(table: &TritTable) -> Self {
        let (mut symbols, mut reciprocals) = ([0; LANES], [0.0; 16]);
        symbols[Self::COMPLETE] = 1;
        for value in -4..=4 {
            let (coarse, digit) = (coarsen(value), digit(value));
            let folded = if coarse < 0 { -digit } else { digit };
            let (start, frequency) = table.range(TritTable::context(coarse), folded);
            let at = value.rem_euclid(32) as usize;
            symbols[at] = start as u16; // at most 4096, here and below
            symbols[(at + 16) % 32] = frequency as u16;
            reciprocals[at % 16] = reciprocal(frequency);
            symbols[Self::COMPLETE] &= u16::from(frequency > 0);
        }
        Self { symbols, reciprocals }
    }

    const COMPLETE: usize = 8;

    /// Whether every digit can be coded.
    #[inline(always)]
    pub(crate) fn is_complete(&self) -> bool {
        self.symbols[Self::COMPLETE] > 0
    }
}

/// A little above 1 / frequency, so that a product with a state below `f · 2^19` never is below the quotient, and less than 1/4 above.
fn reciprocal(frequency: u32) -> f32 {
    ((1.0 + 2f64.powi(-22)) / f64::from(frequency.max(1))) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rans::{alias::AliasTable, constants::PROBABILITY_BITS};

    #[test]
    fn pieces_give_every_slot() {
        for seed in 0..200u64 {
            let counts = std::array::from_fn(|s| {
                (seed + 1).wrapping_mul(s as u64 * s as u64 + 7) % (1 << (seed % 13))
            });
            let table = InvertedStage::new(&AliasTable::from_counts(&counts));
            let encoding = StageEncoding::new(&table);
            for index in 0..PROBABILITY_ONE as u16 {
                let piece = encoding.piece_starts.partition_point(|start| *start <= index) - 1;
                let slot = index.wrapping_add(encoding.piece_shifts[piece]);
                assert_eq!(slot, table.slots[usize::from(index)], "{seed} {index}");
            }
        }
    }

    /// At the ends of what a quotient is, for every frequency: with the roundings of the kernel.
    #[test]
    fn quotients_are_right_or_one_too_large() {
        for frequency in 1..=PROBABILITY_ONE {
            let below = frequency << (31 - PROBABILITY_BITS);
            for quotient in [1, 2, 3, 0x7ff, 0x8000, 0x7_fffe, 0x7_ffff] {
                for state in
                    [frequency * quotient - 1, frequency * quotient, frequency * quotient + frequency - 1]
                {
                    if state < below {
                        let estimate = (state as f32 * reciprocal(frequency)) as u32;
                        let exact = state / frequency;
                        assert!(
                            estimate == exact || estimate == exact + 1,
                            "{state} / {frequency}: {estimate}"
                        );
                    }
                }
            }
        }
    }
}
