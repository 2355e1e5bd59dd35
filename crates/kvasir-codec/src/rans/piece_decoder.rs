//! Reading pieces, with the fastest stream decoder that the CPU has.

use std::ops::Range;

use super::{
    bank::TableBank,
    coding::Coding,
    error::PieceError,
    nested_index::refine,
    piece_encoder::states_offset,
    plan::PiecePlan,
    raw,
    stream::{
        RowsAt, StreamBytes, StreamFault, StreamJob, cell::Fit, lane_count, stream_count, stream_range,
    },
};
use crate::arch::{StreamCell, StreamDecoder};

/// Decodes pieces. Every decoder gives the same values and the same errors, bit for bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceDecoder {
    streams: StreamDecoder,
}

impl Default for PieceDecoder {
    fn default() -> Self {
        Self::best()
    }
}

impl PieceDecoder {
    /// The fastest decoder of this CPU.
    pub fn best() -> Self {
        Self { streams: StreamDecoder::best() }
    }

    /// The portable decoder, which the others are compared with.
    pub fn scalar() -> Self {
        Self { streams: StreamDecoder::scalar() }
    }

    /// Every decoder that this CPU can run, the portable one first.
    pub fn available() -> Vec<Self> {
        StreamDecoder::available().into_iter().map(|streams| Self { streams }).collect()
    }

    /// `scalar`, `avx2`, `avx512` or `neon`: for reports and metrics.
    pub fn name(&self) -> &'static str {
        self.streams.name()
    }

    /// Decodes a whole piece. Total: any bytes give values or an error, never a panic. Empty bytes are an
    /// absent piece.
    ///
    /// For [`Coding::Stage`] coefficients `values` is written; for [`Coding::Trit`] it holds the value of the
    /// previous level and is refined in place.
    ///
    /// # Errors
    /// A plan that does not fit, or bytes that this bank and plan cannot have produced. `values` is then unspecified.
    pub fn decode_piece(
        &self,
        bank: &TableBank,
        plan: &PiecePlan<'_>,
        bytes: &[u8],
        values: &mut [i32],
    ) -> Result<(), PieceError> {
        plan.check(bank, values.len())?;
        let mut steps = self.steps(bank, *plan, bytes)?;
        while let Some(range) = steps.next() {
            let mine = &mut values[range.start * plan.tokens..range.end * plan.tokens];
            steps.step(RowsAt::Consecutive, DecodeTarget::wide(mine, plan.tokens))?;
        }
        Ok(())
    }

    /// As [`decode_piece`](Self::decode_piece) if the plan's coefficients are the listed rows of `values`.
    /// The caller checks the plan, and that the rows increase and exist.
    pub(crate) fn decode_rows(
        &self,
        bank: &TableBank,
        plan: &PiecePlan<'_>,
        bytes: &[u8],
        rows: &[usize],
        values: &mut [i32],
    ) -> Result<(), PieceError> {
        let mut steps = self.steps(bank, *plan, bytes)?;
        while steps.next().is_some() {
            steps.step_of(rows, 0, DecodeTarget::wide(values, plan.tokens))?;
        }
        Ok(())
    }

    /// A piece to be decoded step by step, so that decoded values can be used while they are in the cache.
    /// The caller checks the plan.
    pub(crate) fn steps<'a>(
        &self,
        bank: &'a TableBank,
        plan: PiecePlan<'a>,
        bytes: &'a [u8],
    ) -> Result<PieceSteps<'a>, PieceError> {
        let (active, is_raw) = read_active(&plan, bytes)?;
        let streams = if is_raw || active == 0 { Vec::new() } else { split_streams(&plan, active, bytes)? };
        let streams = streams.into_iter();
        Ok(PieceSteps {
            streams_of: self.streams,
            bank,
            plan,
            bytes,
            active,
            is_raw,
            streams,
            index: 0,
            done: 0,
        })
    }
}

/// A piece that is decoded a few streams at a time: their dependency chains overlap.
pub(crate) struct PieceSteps<'a> {
    streams_of: StreamDecoder,
    bank: &'a TableBank,
    plan: PiecePlan<'a>,
    bytes: &'a [u8],
    active: usize,
    is_raw: bool,
    streams: std::vec::IntoIter<StreamBytes<'a>>,
    index: usize,
    done: usize,
}

impl PieceSteps<'_> {
    /// Coefficients of the next step, as indices into the plan; `None` at the end.
    pub(crate) fn next(&self) -> Option<Range<usize>> {
        let count = self.plan.coefficients.len();
        let end = match () {
            () if self.is_raw && self.done == 0 => self.active,
            () if self.done < self.active => {
                let at_once = self.streams_of.streams().min(self.streams.len());
                stream_range(self.active, self.index + at_once.saturating_sub(1)).end
            }
            () => count,
        };
        (self.done < count).then_some(self.done..end)
    }

    /// Decodes the next step's coefficients, which are the listed rows; `target` begins with row `base`.
    pub(crate) fn step_of<V: StreamCell>(
        &mut self,
        rows: &[usize],
        base: usize,
        DecodeTarget { values, stride, most }: DecodeTarget<'_, V>,
    ) -> Result<Fit, PieceError> {
        let Some(range) = self.next() else { return Ok(Fit::Held) };
        let rows = &rows[range];
        // a step is never empty
        let (first, after) = (rows[0] - base, rows[rows.len() - 1] + 1 - base);
        let values = &mut values[first * stride..after * stride];
        self.step(RowsAt::listed(rows), DecodeTarget { values, stride, most })
    }

    /// Decodes the values of the step's coefficients into these rows.
    fn step<V: StreamCell>(
        &mut self,
        rows: RowsAt<'_>,
        target: DecodeTarget<'_, V>,
    ) -> Result<Fit, PieceError> {
        let Some(range) = self.next() else { return Ok(Fit::Held) };
        let DecodeTarget { values, stride, most } = target;
        assert_eq!(values.len(), rows.reach(range.len()) * stride, "values of the step's coefficients");
        let fit = if range.start >= self.active {
            self.inactive(&range, rows, (values, stride))
        } else if self.is_raw {
            raw::decode(&self.plan, self.active, self.bytes, rows, (values, stride, most))?
        } else {
            self.lockstep(rows, DecodeTarget { values, stride, most })?
        };
        self.done = range.end;
        Ok(fit)
    }

    /// Coefficients after the active ones are as predicted.
    fn inactive<V: StreamCell>(
        &self,
        range: &Range<usize>,
        rows: RowsAt<'_>,
        (values, stride): (&mut [V], usize),
    ) -> Fit {
        for (c, coding) in self.plan.coefficients[range.clone()].iter().enumerate() {
            let first = rows.row(c) * stride;
            for cell in &mut values[first..first + self.plan.tokens] {
                let value = match coding {
                    Coding::Stage { .. } => 0,
                    Coding::Trit { .. } => refine(cell.get(), 0),
                };
                let Some(held) = V::of(value, i32::MAX) else { return Fit::TooWide };
                *cell = held;
            }
        }
        Fit::Held
    }

    /// As many streams as decode in lockstep.
    fn lockstep<V: StreamCell>(
        &mut self,
        mut rows: RowsAt<'_>,
        DecodeTarget { values, stride, most }: DecodeTarget<'_, V>,
    ) -> Result<Fit, PieceError> {
        let (plan, active, index) = (self.plan, self.active, self.index);
        let streams: Vec<_> = self.streams.by_ref().take(self.streams_of.streams()).collect();
        let lengths: Vec<_> = streams.iter().map(|bytes| bytes.words.len() / 2).collect();
        let last = streams.len().saturating_sub(1);
        let mut rest = values;
        let mut jobs = Vec::with_capacity(streams.len());
        for (i, bytes) in streams.into_iter().enumerate() {
            let codings = &plan.coefficients[stream_range(active, index + i)];
            let reach = if i == last { rest.len() } else { rows.row(codings.len()) * stride };
            let (values, others) = std::mem::take(&mut rest).split_at_mut(reach);
            let (mine, behind) = rows.split(codings.len());
            jobs.push(StreamJob { codings, rows: mine, bytes, values, stride, most });
            (rest, rows) = (others, behind);
        }
        self.index += jobs.len();
        for (i, verdict) in self.streams_of.decode(self.bank, plan.tokens, jobs).into_iter().enumerate() {
            match verdict {
                Ok(Fit::Held) => {}
                Ok(Fit::TooWide) => return Ok(Fit::TooWide),
                Err(fault) => return Err(fault_error(fault, &plan, active, index + i, lengths[i])),
            }
        }
        Ok(Fit::Held)
    }
}

/// The destination of values.
#[derive(Debug)]
pub(crate) struct DecodeTarget<'a, V> {
    /// Rows of coefficients.
    pub(crate) values: &'a mut [V],
    /// Values from one row to the next, at least the tokens.
    pub(crate) stride: usize,
    /// Largest magnitude of a stage value that the cells have to hold.
    pub(crate) most: i32,
}

impl<'a> DecodeTarget<'a, i32> {
    /// Rows of wide cells, in sequence.
    pub(crate) fn wide(values: &'a mut [i32], tokens: usize) -> Self {
        Self { values, stride: tokens, most: i32::MAX }
    }
}

/// Decodes a whole piece with [`PieceDecoder::best`].
///
/// # Errors
/// As [`PieceDecoder::decode_piece`].
pub fn decode_piece(
    bank: &TableBank,
    plan: &PiecePlan<'_>,
    bytes: &[u8],
    values: &mut [i32],
) -> Result<(), PieceError> {
    PieceDecoder::best().decode_piece(bank, plan, bytes, values)
}

/// The number of active coefficients, and whether the piece is raw.
pub(super) fn read_active(plan: &PiecePlan<'_>, bytes: &[u8]) -> Result<(usize, bool), PieceError> {
    if bytes.is_empty() {
        return Ok((0, false));
    }
    let field = bytes.first_chunk().ok_or(PieceError::Length { expected: 2, actual: bytes.len() })?;
    let field = u16::from_le_bytes(*field);
    let (active, is_raw) = (usize::from(field & !raw::RAW_FLAG), field & raw::RAW_FLAG != 0);
    if (1..=plan.coefficients.len()).contains(&active) {
        Ok((active, is_raw))
    } else {
        Err(PieceError::Active { expected: plan.coefficients.len(), actual: active })
    }
}

/// Splits a piece into its streams.
pub(super) fn split_streams<'b>(
    plan: &PiecePlan<'_>,
    active: usize,
    bytes: &'b [u8],
) -> Result<Vec<StreamBytes<'b>>, PieceError> {
    let count = stream_count(active);
    let state_bytes = lane_count(plan.tokens) * 4;
    let states_at = states_offset(count);
    let words_at = states_at + count * state_bytes;
    let short = |expected| PieceError::Length { expected, actual: bytes.len() };
    let head = bytes.get(..states_at).ok_or(short(words_at))?;
    let lengths =
        head[2..2 + 2 * count].as_chunks().0.iter().map(|b| usize::from(u16::from_le_bytes(*b)) * 2);
    let expected = words_at + lengths.clone().sum::<usize>();
    if bytes.len() != expected {
        return Err(short(expected));
    }
    if let Some(fill) = (2 + 2 * count..states_at).find(|&i| head[i] != 0) {
        return Err(PieceError::Field { offset: fill, limit: 0, actual: head[fill].into() });
    }
    let (states, mut words) = bytes[states_at..].split_at(count * state_bytes);
    let stream = |(states, length)| {
        let readable = words;
        let (mine, rest) = words.split_at(length);
        words = rest;
        StreamBytes { states, words: mine, readable }
    };
    Ok(states.chunks_exact(state_bytes).zip(lengths).map(stream).collect())
}

pub(super) fn fault_error(
    fault: StreamFault,
    plan: &PiecePlan<'_>,
    active: usize,
    stream: usize,
    words: usize,
) -> PieceError {
    match fault {
        StreamFault::State { lane, state } => {
            let index = stream * lane_count(plan.tokens) + lane;
            PieceError::State { offset: states_offset(stream_count(active)) + index * 4, state }
        }
        StreamFault::Underrun => PieceError::Underrun { stream, words },
        StreamFault::Final { left, lanes } => PieceError::FinalState { stream, left, lanes },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rans::{AliasTable, Cell as _, TritTable, coarsen, encode_piece, narrow_most};

    proptest! {
        /// Narrow cells of any stride hold the same values as wide ones, on every path, or report that they
        /// cannot.
        #[test]
        fn narrow_cells_are_wide_ones(
            coefficients in 1usize..400, tokens in 1usize..100, pad in 0usize..40, seed in any::<u32>(), mix in 0u32..5,
            rare in 0u32..9, trits in 0u8..3,
        ) {
            let random = |i: usize| (seed ^ i as u32).wrapping_mul(0x9e37_79b1).rotate_left(seed % 32).wrapping_mul(0x85eb_ca6b);
            let stage = AliasTable::from_counts(&[3, 3, 4, 5, 6, 8, 9, 20, 9, 8, 6, 5, 4, 3, 3, 2]);
            let flat = AliasTable::from_counts(&[0, 0, 0, 1, 0, 0, 0, 4000, 0, 0, 0, 0, 0, 0, 0, 9]);
            let table = TritTable::from_counts(&[[30, 40, 30], [45, 33, 22]]);
            let bank = TableBank::new(vec![stage, flat], vec![table]).unwrap();
            let coding = |c: usize| match (mix, random(c) % 40) {
                (0, _) | (2, 0..20) | (3, 0..38) => Coding::Stage { table: (c % 2) as u8, trits: 0, trit_table: 0 },
                (4, 0..20) => Coding::Stage { table: 0, trits, trit_table: 0 },
                _ => Coding::Trit { table: 0 },
            };
            let codings: Vec<_> = (0..coefficients).map(coding).collect();
            let plan = PiecePlan { coefficients: &codings, tokens };
            let value = |i: usize| {
                let spread = if random(i) % 97 < rare { 14 } else { 28 };
                (random(i + 7) as i32) >> spread
            };
            let most = narrow_most(u32::from(trits) + 2).unwrap();
            // values refined by trits were bounded at their stage
            let bounded = |i: usize| match codings[i / tokens] {
                Coding::Stage { .. } => value(i),
                Coding::Trit { .. } => value(i).clamp(-3 * most, 3 * most),
            };
            let values: Vec<i32> = (0..coefficients * tokens).map(bounded).collect();
            let before = |i: usize| match codings[i / tokens] {
                Coding::Stage { .. } => 0,
                Coding::Trit { .. } => coarsen(values[i]),
            };
            let mut piece = Vec::new();
            encode_piece(&bank, &plan, &values, &mut piece).unwrap();
            let held = values.iter().enumerate().all(|(i, v)| {
                let coding = codings[i / tokens];
                i16::of(*v, coding.bound(most)).is_some() && i16::of(before(i), i32::MAX).is_some()
            });
            let stride = tokens + pad;
            for decoder in PieceDecoder::available() {
                let cell = |i: usize| if i % stride < tokens { before(i / stride * tokens + i % stride) } else { -77 };
                let mut cells: Vec<i16> = (0..coefficients * stride).map(|i| cell(i) as i16).collect();
                let mut steps = decoder.steps(&bank, plan, &piece).unwrap();
                let mut fit = Fit::Held;
                while let Some(range) = steps.next() {
                    let values = &mut cells[range.start * stride..range.end * stride];
                    let target = DecodeTarget { values, stride, most };
                    if steps.step(RowsAt::Consecutive, target).unwrap() == Fit::TooWide {
                        fit = Fit::TooWide;
                        break;
                    }
                }
                prop_assert_eq!(fit == Fit::Held, held, "{}", decoder.name());
                if !held {
                    continue;
                }
                for (i, cell) in cells.iter().enumerate() {
                    let expected = if i % stride < tokens { values[i / stride * tokens + i % stride] } else { -77 };
                    prop_assert_eq!(i32::from(*cell), expected, "{} {}", decoder.name(), i);
                }
            }
        }
    }

    /// Symbols that have all slots occur among others, in stages and in either context of trits.
    #[test]
    fn certain_symbols_take_nothing() {
        let stage = AliasTable::from_counts(&[3, 3, 4, 5, 6, 8, 9, 20, 9, 8, 6, 5, 4, 3, 3, 2]);
        let certain =
            AliasTable::from_frequencies(&std::array::from_fn(|s| 4096 * u16::from(s == 7))).unwrap();
        let trits = [[[1000, 3000], [900, 2000]], [[0, 4096], [900, 2000]], [[1000, 3000], [0, 4096]]];
        let trits = trits.map(|thresholds| TritTable::new(thresholds).unwrap());
        let bank = TableBank::new(vec![stage, certain], trits.to_vec()).unwrap();
        let tokens = 70;
        let coding = |c: usize| match c % 7 {
            0 | 3 => Coding::Stage { table: 0, trits: 0, trit_table: 0 },
            1 => Coding::Stage { table: 1, trits: 0, trit_table: 0 },
            2 => Coding::Stage { table: 1, trits: 1, trit_table: 0 },
            other => Coding::Trit { table: (other - 4) as u8 },
        };
        // the context that is certain has digits of 0
        let value = |c: usize, t: usize| match (c % 7, (c * 31 + t * 17) % 13) {
            (0 | 3, v) => v as i32 - 6,
            (1, _) => 0,
            (2, v) => v as i32 % 3 - 1,
            (5, v @ 0..2) => 3 * v as i32,
            (6, v @ 2..) => 3 * (v as i32 - 6),
            (_, v @ 0..2) => v as i32,
            (_, v) => v as i32 + 1,
        };
        let codings: Vec<_> = (0..300).map(coding).collect();
        let plan = PiecePlan { coefficients: &codings, tokens };
        let values: Vec<i32> = (0..300 * tokens).map(|i| value(i / tokens, i % tokens)).collect();
        let mut piece = Vec::new();
        encode_piece(&bank, &plan, &values, &mut piece).unwrap();
        assert_eq!(read_active(&plan, &piece), Ok((300, false)));
        for decoder in PieceDecoder::available() {
            let known = |(i, &v): (usize, &i32)| match codings[i / tokens] {
                Coding::Stage { .. } => 0,
                Coding::Trit { .. } => coarsen(v),
            };
            let mut wide: Vec<i32> = values.iter().enumerate().map(known).collect();
            let mut cells: Vec<i16> = wide.iter().map(|v| *v as i16).collect();
            decoder.decode_piece(&bank, &plan, &piece, &mut wide).unwrap();
            assert!(wide == values, "{}", decoder.name());
            let mut steps = decoder.steps(&bank, plan, &piece).unwrap();
            while let Some(range) = steps.next() {
                let values = &mut cells[range.start * tokens..range.end * tokens];
                let target = DecodeTarget { values, stride: tokens, most: 1000 };
                assert_eq!(steps.step(RowsAt::Consecutive, target), Ok(Fit::Held));
            }
            assert!(cells.iter().zip(&values).all(|(cell, v)| i32::from(*cell) == *v), "{}", decoder.name());
        }
    }
}
