//! What SIMD encoders look up, in registers: no table of slots, which with 8 KiB a stage table would not stay in a core's cache.

use super::encode::EncodeTable;
use crate::rans::{
    limits::{ALPHABET, LANES, PROBABILITY_ONE},
    trit::TritTable,
};

/// Consecutive slots that are consecutive in their symbol, too: at most two a bucket of the alias table.
const PIECES: usize = 2 * ALPHABET;

/// A stage table inverted: by symbol, and by piece.
#[derive(Debug, Clone)]
pub(crate) struct StageEncoding {
    /// The symbol that codes one, as in [`EncodeTable`]; twice.
    pub(crate) codes: [u16; LANES],
    /// Where a symbol's slots begin in the order of symbols; twice.
    pub(crate) starts: [u16; LANES],
    /// Twice.
    pub(crate) frequencies: [u16; LANES],
    /// See [`reciprocal`].
    pub(crate) reciprocals: [f32; ALPHABET],
    /// Where pieces begin in the order of symbols, increasing.
    pub(crate) piece_starts: [u16; PIECES],
    /// From an index in the order of symbols to its slot, modulo 2^16.
    pub(crate) piece_shifts: [u16; PIECES],
}

impl StageEncoding {
    pub(crate) fn new(table: &EncodeTable) -> Self {
        let twice = |words: &[u32; ALPHABET]| std::array::from_fn(|i| words[i % ALPHABET] as u16); // at most 4096
        let mut piece_starts = [u16::MAX; PIECES];
        let mut piece_shifts = [0; PIECES];
        let shift = |index: usize| table.slots[index].wrapping_sub(index as u16);
        let begins = |index: &usize| *index == 0 || shift(*index) != shift(*index - 1);
        let pieces = (0..PROBABILITY_ONE as usize).filter(begins);
        for ((start, to), index) in piece_starts.iter_mut().zip(&mut piece_shifts).zip(pieces) {
            (*start, *to) = (index as u16, shift(index));
        }
        Self {
            codes: twice(&table.codes),
            starts: twice(&table.starts),
            frequencies: twice(&table.frequencies),
            reciprocals: table.frequencies.map(reciprocal),
            piece_starts,
            piece_shifts,
        }
    }
}

/// A trit table by `4 context + digit + 1`, as [`TritTable::ranges`] has it.
#[derive(Debug, Clone)]
pub(crate) struct TritEncoding {
    pub(crate) starts: [u16; LANES],
    pub(crate) frequencies: [u16; LANES],
    /// See [`reciprocal`].
    pub(crate) reciprocals: [f32; 16],
}

impl TritEncoding {
    pub(crate) fn new(table: &TritTable) -> Self {
        let range = |i: usize| table.ranges()[i % 8];
        Self {
            starts: std::array::from_fn(|i| (range(i) >> 16) as u16),
            frequencies: std::array::from_fn(|i| range(i) as u16),
            reciprocals: std::array::from_fn(|i| reciprocal(range(i) & 0xffff)),
        }
    }
}

/// A little above 1 / frequency, so that a product with a state below `f · 2^19` never is below the quotient, and less than 1/4 above.
fn reciprocal(frequency: u32) -> f32 {
    ((1.0 + 2f64.powi(-22)) / f64::from(frequency.max(1))) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rans::{alias::AliasTable, limits::PROBABILITY_BITS};

    #[test]
    fn pieces_give_every_slot() {
        for seed in 0..200u64 {
            let counts = std::array::from_fn(|s| {
                (seed + 1).wrapping_mul(s as u64 * s as u64 + 7) % (1 << (seed % 13))
            });
            let table = EncodeTable::new(&AliasTable::from_counts(&counts));
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
