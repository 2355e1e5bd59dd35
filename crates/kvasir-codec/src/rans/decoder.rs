//! Reading pieces, with the fastest stream decoder that the CPU has.

use super::{
    bank::TableBank,
    error::PieceError,
    nest::refine,
    piece::states_offset,
    plan::{Coding, PiecePlan},
    raw,
    stream::{StreamBytes, StreamFault, StreamJob, lane_count, stream_count, stream_range},
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

    /// `scalar`, `avx2` or `avx512`: for reports and metrics.
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
        let (active, is_raw) = read_active(plan, bytes)?;
        let (coded, rest) = values.split_at_mut(active * plan.tokens);
        for (coding, row) in plan.coefficients[active..].iter().zip(rest.chunks_exact_mut(plan.tokens)) {
            match coding {
                Coding::Stage { .. } => row.fill(0),
                Coding::Trit { .. } => row.iter_mut().for_each(|v| *v = refine(*v, 0)),
            }
        }
        match (active, is_raw) {
            (0, _) => Ok(()),
            (_, true) => raw::decode(plan, active, bytes, coded),
            (_, false) => self.decode_streams(bank, plan, active, bytes, coded),
        }
    }

    /// Two streams at a time: their dependency chains overlap.
    fn decode_streams(
        &self,
        bank: &TableBank,
        plan: &PiecePlan<'_>,
        active: usize,
        bytes: &[u8],
        mut values: &mut [i32],
    ) -> Result<(), PieceError> {
        let mut jobs = Vec::with_capacity(stream_count(active));
        for (index, bytes) in split_streams(plan, active, bytes)?.into_iter().enumerate() {
            let codings = &plan.coefficients[stream_range(active, index)];
            let (mine, others) = values.split_at_mut(codings.len() * plan.tokens);
            values = others;
            jobs.push(StreamJob { codings, bytes, values: mine });
        }
        let mut jobs = jobs.into_iter();
        let mut index = 0;
        while let Some(first) = jobs.next() {
            let words = |job: &StreamJob<'_>| job.bytes.words.len() / 2;
            let lengths = [words(&first), jobs.as_slice().first().map_or(0, words)];
            let verdicts = match jobs.next() {
                Some(second) => self.streams.decode_pair(bank, plan.tokens, [first, second]),
                None => [self.streams.decode_one(bank, plan.tokens, first), Ok(())],
            };
            for (i, verdict) in verdicts.into_iter().enumerate() {
                verdict.map_err(|fault| fault_error(fault, plan, active, index + i, lengths[i]))?;
            }
            index += 2;
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

fn fault_error(
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
