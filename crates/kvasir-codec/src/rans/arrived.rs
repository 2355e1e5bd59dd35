//! Pieces of which only the beginning is there: rows of 32 tokens decode as soon as their words have arrived.

use std::ops::Range;

use super::{
    bank::TableBank,
    decoder::{PieceDecoder, fault_error, read_active},
    error::PieceError,
    limits::LANES,
    piece::states_offset,
    plan::PiecePlan,
    stream::{StreamBytes, StreamFault, decode::Lanes, lane_count, stream_count, stream_range},
};

/// Rows of a stream that are decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrivedRows {
    /// Coefficients of the stream, as indices into the plan.
    pub coefficients: Range<usize>,
    /// Leading tokens of the span whose values are there.
    pub tokens: usize,
}

impl PieceDecoder {
    /// Decodes what the first bytes of a piece say, `values` as in [`decode_piece`](Self::decode_piece); values of other rows are
    /// left as they were. Streams lie one behind the other, so all but one of those that began are complete.
    ///
    /// Nothing of this was covered by a checksum: it is for work that can be thrown away when the whole piece turns out to be
    /// damaged. Raw pieces have no rows before they are complete.
    ///
    /// # Errors
    /// As [`decode_piece`](Self::decode_piece), but for lengths: a prefix may end anywhere.
    pub fn decode_arrived(
        &self,
        bank: &TableBank,
        plan: &PiecePlan<'_>,
        prefix: &[u8],
        values: &mut [i32],
    ) -> Result<Vec<ArrivedRows>, PieceError> {
        plan.check(bank, values.len())?;
        if prefix.len() < 2 {
            return Ok(Vec::new());
        }
        let (active, is_raw) = read_active(plan, prefix)?;
        let count = stream_count(active);
        let state_bytes = lane_count(plan.tokens) * 4;
        let states_at = states_offset(count);
        let mut words_at = states_at + count * state_bytes;
        if is_raw || prefix.len() < words_at {
            return Ok(Vec::new());
        }
        let mut arrived = Vec::new();
        for (stream, length) in prefix[2..2 + 2 * count].as_chunks().0.iter().enumerate() {
            let length = usize::from(u16::from_le_bytes(*length)) * 2;
            // whole words; the next may be cut
            let there = prefix.len().saturating_sub(words_at).min(length) & !1;
            let words = prefix.get(words_at..words_at + there).unwrap_or_default();
            let states = &prefix[states_at + stream * state_bytes..][..state_bytes];
            let coefficients = stream_range(active, stream);
            let range = coefficients.start * plan.tokens..coefficients.end * plan.tokens;
            let bytes = StreamBytes { states, words, readable: words };
            let tokens = rows(bank, plan, &coefficients, bytes, there == length, &mut values[range])
                .map_err(|fault| fault_error(fault, plan, active, stream, length / 2))?;
            arrived.push(ArrivedRows { coefficients, tokens });
            words_at += length;
            if there < length {
                break;
            }
        }
        Ok(arrived)
    }
}

/// Decodes rows until the words run out; tokens decoded.
fn rows(
    bank: &TableBank,
    plan: &PiecePlan<'_>,
    coefficients: &Range<usize>,
    bytes: StreamBytes<'_>,
    complete: bool,
    values: &mut [i32],
) -> Result<usize, StreamFault> {
    let mut lanes = Lanes::new(bytes)?;
    let mut row: Vec<i32> = Vec::with_capacity(coefficients.len() * LANES);
    for first in (0..plan.tokens).step_by(LANES) {
        let valid = LANES.min(plan.tokens - first);
        row.clear();
        values.chunks_exact(plan.tokens).for_each(|all| row.extend(&all[first..first + valid]));
        for (coding, row) in plan.coefficients[coefficients.clone()].iter().zip(row.chunks_exact_mut(valid)) {
            match lanes.cells(bank, *coding, row, i32::MAX) {
                Err(StreamFault::Underrun) if !complete => return Ok(first),
                other => {
                    other?;
                }
            }
        }
        // only whole rows are given: a refinement must not be applied twice
        for (all, row) in values.chunks_exact_mut(plan.tokens).zip(row.chunks_exact(valid)) {
            all[first..first + valid].copy_from_slice(row);
        }
    }
    if complete {
        lanes.finish()?;
    }
    Ok(plan.tokens)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rans::{AliasTable, Coding, TritTable, encode_piece};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn every_prefix_gives_the_rows_it_holds(
            coefficients in 1usize..200, tokens in 1usize..100, refine in any::<bool>(), seed in any::<u32>(),
        ) {
            let value = |i: usize| ((seed ^ i as u32).wrapping_mul(0x9e37_79b1) >> 28) as i32 - 8;
            let stage = AliasTable::from_counts(&[3, 3, 4, 5, 6, 8, 9, 20, 9, 8, 6, 5, 4, 3, 3, 2]);
            let trit = TritTable::from_counts(&[[30, 40, 30], [45, 33, 22]]);
            let bank = TableBank::new(vec![stage], vec![trit]).unwrap();
            let coding = match refine {
                false => Coding::Stage { table: 0, trits: 0, trit_table: 0 },
                true => Coding::Trit { table: 0 },
            };
            let codings = vec![coding; coefficients];
            let plan = PiecePlan { coefficients: &codings, tokens };
            let values: Vec<i32> = (0..coefficients * tokens).map(value).collect();
            let before: Vec<i32> = values.iter().map(|v| crate::rans::coarsen(*v)).collect();
            let mut piece = Vec::new();
            encode_piece(&bank, &plan, &values, &mut piece).unwrap();
            let mut most = 0;
            for end in (0..=piece.len()).step_by(1 + piece.len() / 40).chain([piece.len()]) {
                let mut out = before.clone();
                let arrived = PieceDecoder::scalar().decode_arrived(&bank, &plan, &piece[..end], &mut out).unwrap();
                let count: usize = arrived.iter().map(|rows| rows.coefficients.len() * rows.tokens).sum();
                prop_assert!(count >= most || end == piece.len());
                most = count;
                for (index, out) in out.iter().enumerate() {
                    let (coefficient, token) = (index / tokens, index % tokens);
                    let there = arrived.iter().any(|r| r.coefficients.contains(&coefficient) && token < r.tokens);
                    prop_assert_eq!(*out, if there { values[index] } else { before[index] });
                }
            }
            let mut whole = before.clone();
            PieceDecoder::scalar().decode_piece(&bank, &plan, &piece, &mut whole).unwrap();
            prop_assert_eq!(whole, values);
        }
    }
}
