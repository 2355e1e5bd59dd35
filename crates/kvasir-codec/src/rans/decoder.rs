//! Reading pieces, with the fastest stream decoder that the CPU has.

use std::ops::Range;

use super::{
    bank::TableBank,
    error::PieceError,
    nest::refine,
    piece::states_offset,
    plan::{Coding, PiecePlan},
    raw,
    stream::{RowsAt, StreamBytes, StreamFault, StreamJob, lane_count, stream_count, stream_range},
};
use crate::arch::StreamDecoder;

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

    /// Decodes a whole piece. Total: any bytes give values or an error, never a panic. Empty bytes are an absent piece.
    ///
    /// For [`Coding::Stage`] coefficients `values` is written; for [`Coding::Trit`] it holds the value of the level
    /// before and is refined in place.
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
            steps.step(RowsAt::Consecutive, mine)?;
        }
        Ok(())
    }

    /// As [`decode_piece`](Self::decode_piece) where the plan's coefficients are the listed rows of `values`. The caller checks
    /// the plan and that the rows increase and are there.
    pub(crate) fn decode_rows(
        &self,
        bank: &TableBank,
        plan: &PiecePlan<'_>,
        bytes: &[u8],
        rows: &[usize],
        values: &mut [i32],
    ) -> Result<(), PieceError> {
        let mut steps = self.steps(bank, *plan, bytes)?;
        while steps.step_of(rows, values)?.is_some() {}
        Ok(())
    }

    /// A piece to be decoded step by step, so that what is decoded can be used while it is in the cache. The caller checks
    /// the plan.
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

    /// Decodes the next step's coefficients, which are the listed rows of `values`; `None` at the end.
    pub(crate) fn step_of(&mut self, rows: &[usize], values: &mut [i32]) -> Result<Option<()>, PieceError> {
        let Some(range) = self.next() else { return Ok(None) };
        let rows = &rows[range];
        // a step is never empty
        let (first, after) = (rows[0], rows[rows.len() - 1] + 1);
        let values = &mut values[first * self.plan.tokens..after * self.plan.tokens];
        self.step(RowsAt::listed(rows), values).map(Some)
    }

    /// Decodes the values of the step's coefficients, whose rows these are.
    fn step(&mut self, rows: RowsAt<'_>, values: &mut [i32]) -> Result<(), PieceError> {
        let Some(range) = self.next() else { return Ok(()) };
        assert_eq!(
            values.len(),
            rows.reach(range.len()) * self.plan.tokens,
            "values of the step's coefficients"
        );
        if range.start >= self.active {
            self.inactive(&range, rows, values);
        } else if self.is_raw {
            raw::decode(&self.plan, self.active, self.bytes, rows, values)?;
        } else {
            self.lockstep(rows, values)?;
        }
        self.done = range.end;
        Ok(())
    }

    /// What is behind the active coefficients is as predicted.
    fn inactive(&self, range: &Range<usize>, rows: RowsAt<'_>, values: &mut [i32]) {
        for (c, coding) in self.plan.coefficients[range.clone()].iter().enumerate() {
            let first = rows.row(c) * self.plan.tokens;
            let row = &mut values[first..first + self.plan.tokens];
            match coding {
                Coding::Stage { .. } => row.fill(0),
                Coding::Trit { .. } => row.iter_mut().for_each(|v| *v = refine(*v, 0)),
            }
        }
    }

    /// As many streams as decode in lockstep.
    fn lockstep(&mut self, mut rows: RowsAt<'_>, values: &mut [i32]) -> Result<(), PieceError> {
        let (plan, active, index) = (self.plan, self.active, self.index);
        let streams: Vec<_> = self.streams.by_ref().take(self.streams_of.streams()).collect();
        let lengths: Vec<_> = streams.iter().map(|bytes| bytes.words.len() / 2).collect();
        let last = streams.len().saturating_sub(1);
        let mut rest = values;
        let mut jobs = Vec::with_capacity(streams.len());
        for (i, bytes) in streams.into_iter().enumerate() {
            let codings = &plan.coefficients[stream_range(active, index + i)];
            let reach = if i == last { rest.len() } else { rows.row(codings.len()) * plan.tokens };
            let (values, others) = std::mem::take(&mut rest).split_at_mut(reach);
            let (mine, behind) = rows.split(codings.len());
            jobs.push(StreamJob { codings, rows: mine, bytes, values });
            (rest, rows) = (others, behind);
        }
        self.index += jobs.len();
        for (i, verdict) in self.streams_of.decode(self.bank, plan.tokens, jobs).into_iter().enumerate() {
            verdict.map_err(|fault| fault_error(fault, &plan, active, index + i, lengths[i]))?;
        }
        Ok(())
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

/// Cuts a piece into its streams.
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
