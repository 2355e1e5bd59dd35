//! Pieces of which only the beginning is there: rows of 32 tokens decode as soon as their words are. A property of the format that
//! no decoder uses yet, shown by a decoder of prefixes over the scalar lanes.

use std::ops::Range;

use proptest::prelude::*;

use super::{
    AliasTable, PieceEncoder, TritTable,
    bank::TableBank,
    coarsen,
    coding::Coding,
    constants::LANES,
    encode_piece,
    error::PieceError,
    piece_decoder::{PieceDecoder, fault_error, read_active},
    piece_encoder::states_offset,
    plan::PiecePlan,
    stream::{StreamBytes, StreamFault, decode::LaneDecoder, lane_count, stream_count, stream_range},
};

#[path = "../../tests/common/few_values.rs"]
mod few_values;

/// Rows of a stream that are decoded.
struct PrefixRows {
    /// Coefficients of the stream, as indices into the plan.
    coefficients: Range<usize>,
    /// Leading tokens of the span whose values are there.
    tokens: usize,
}

/// Decodes what the first bytes of a piece say, `values` as in [`PieceDecoder::decode_piece`]; values of other rows are left as
/// they were. Streams lie one behind the other, so all but one of those that began are complete. Raw pieces have no rows before
/// they are complete.
fn decode_prefix(
    bank: &TableBank,
    plan: &PiecePlan<'_>,
    prefix: &[u8],
    values: &mut [i32],
) -> Result<Vec<PrefixRows>, PieceError> {
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
    let mut decoded = Vec::new();
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
        decoded.push(PrefixRows { coefficients, tokens });
        words_at += length;
        if there < length {
            break;
        }
    }
    Ok(decoded)
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
    let mut lanes = LaneDecoder::new(bytes)?;
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
        let before: Vec<i32> = values.iter().map(|v| coarsen(*v)).collect();
        let mut piece = Vec::new();
        encode_piece(&bank, &plan, &values, &mut piece).unwrap();
        let mut most = 0;
        for end in (0..=piece.len()).step_by(1 + piece.len() / 40).chain([piece.len()]) {
            let mut out = before.clone();
            let decoded = decode_prefix(&bank, &plan, &piece[..end], &mut out).unwrap();
            let count: usize = decoded.iter().map(|rows| rows.coefficients.len() * rows.tokens).sum();
            prop_assert!(count >= most || end == piece.len());
            most = count;
            for (index, out) in out.iter().enumerate() {
                let (coefficient, token) = (index / tokens, index % tokens);
                let there = decoded.iter().any(|r| r.coefficients.contains(&coefficient) && token < r.tokens);
                prop_assert_eq!(*out, if there { values[index] } else { before[index] });
            }
        }
        let mut whole = before.clone();
        PieceDecoder::scalar().decode_piece(&bank, &plan, &piece, &mut whole).unwrap();
        prop_assert_eq!(whole, values);
    }
}

/// The start of a piece is a piece that can be decoded so far: every coding, escapes of both lengths, a partial row. Small enough
/// for Miri (README, "What is tested").
#[test]
fn few_values_come_back_in_part() {
    let (bank, values) = (few_values::bank(), few_values::values());
    let plan = PiecePlan { coefficients: &few_values::CODINGS, tokens: few_values::TOKENS };
    let mut piece = Vec::new();
    PieceEncoder::scalar().encode_piece(&bank, &plan, &values, &mut piece).expect("in range");
    let mut rows = Vec::new();
    for end in [0, 1, 40, piece.len() / 2, piece.len() * 9 / 10, piece.len()] {
        let mut back = few_values::before(&values);
        let decoded = decode_prefix(&bank, &plan, &piece[..end], &mut back).expect("a prefix");
        let tokens = decoded.first().map_or(0, |rows| rows.tokens);
        let same = |t: usize| {
            (0..plan.coefficients.len()).all(|c| back[c * plan.tokens + t] == values[c * plan.tokens + t])
        };
        assert!((0..tokens).all(same), "{end}");
        rows.push(tokens);
    }
    assert!(rows.is_sorted() && rows.last() == Some(&few_values::TOKENS), "{rows:?}");
}
