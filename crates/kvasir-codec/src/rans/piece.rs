//! Writing pieces: streams of at most 128 coefficients × 256 tokens with their lengths and states, or the raw fallback.
//!
//! `u16 n_active · u16 words[streams] · fill to 4 · u32 state[streams][lanes] · u16 words[]`, `lanes = min(32, tokens)`.

use super::{
    bank::TableBank,
    error::PieceError,
    limits::{STREAM_WORDS_MAX, VALUE_MAX},
    nest::digit,
    plan::{Coding, PiecePlan},
    raw,
    stream::{
        encode::{Backward, EncodeJob, EncodedStream},
        lane_count, stream_count, stream_range,
    },
};
use crate::arch::StreamEncoder;

/// Encodes pieces. Every encoder gives the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceEncoder {
    streams: StreamEncoder,
}

impl Default for PieceEncoder {
    fn default() -> Self {
        Self::best()
    }
}

impl PieceEncoder {
    /// The fastest encoder of this CPU.
    pub fn best() -> Self {
        Self { streams: StreamEncoder::best() }
    }

    /// The portable encoder, which the others are compared with.
    pub fn scalar() -> Self {
        Self { streams: StreamEncoder::scalar() }
    }

    /// Every encoder that this CPU can run, the portable one first.
    pub fn available() -> Vec<Self> {
        StreamEncoder::available().into_iter().map(|streams| Self { streams }).collect()
    }

    /// `scalar` or `avx512`: for reports and metrics.
    pub fn name(&self) -> &'static str {
        self.streams.name()
    }

    /// Appends the bytes of a piece to `out`; nothing where every value is as predicted, which is an *absent* piece.
    ///
    /// `values[c * plan.tokens + t]` is the value of coefficient `c` at token `t` *at this piece's level*; for
    /// [`Coding::Trit`] the digit is derived from it, and the decoder has to know its [`coarsen`](super::coarsen)ed
    /// value. Raw where a value cannot be coded or raw is smaller.
    ///
    /// # Errors
    /// A plan that does not fit the bank or the values, or a value beyond [`VALUE_MAX`]. `out` is then as it was.
    pub fn encode_piece(
        &self,
        bank: &TableBank,
        plan: &PiecePlan<'_>,
        values: &[i32],
        out: &mut Vec<u8>,
    ) -> Result<(), PieceError> {
        plan.check(bank, values.len())?;
        check_range(plan, values)?;
        let active = active_count(plan, values);
        if active == 0 {
            return Ok(());
        }
        let (widths, raw_bytes) = raw::measure(plan, active, values);
        match self.encode_streams(bank, plan, active, values) {
            Some(streams) if coded_bytes(plan, &streams) <= raw_bytes => {
                write_streams(plan, active, &streams, out);
            }
            _ => raw::encode(plan, &widths, values, out),
        }
        Ok(())
    }

    /// `None` where a value cannot be coded or a stream's length does not fit its field.
    fn encode_streams(
        &self,
        bank: &TableBank,
        plan: &PiecePlan<'_>,
        active: usize,
        values: &[i32],
    ) -> Option<Vec<EncodedStream>> {
        let mut words = Backward::new();
        let stream = |index| {
            let range = stream_range(active, index);
            let values = &values[range.start * plan.tokens..range.end * plan.tokens];
            let job = EncodeJob { bank, codings: &plan.coefficients[range], tokens: plan.tokens, values };
            let stream = self.streams.encode(job, &mut words).ok()?;
            (stream.words.len() <= STREAM_WORDS_MAX).then_some(stream)
        };
        (0..stream_count(active)).map(stream).collect()
    }
}

/// Encodes a piece with [`PieceEncoder::best`].
///
/// # Errors
/// As [`PieceEncoder::encode_piece`].
pub fn encode_piece(
    bank: &TableBank,
    plan: &PiecePlan<'_>,
    values: &[i32],
    out: &mut Vec<u8>,
) -> Result<(), PieceError> {
    PieceEncoder::best().encode_piece(bank, plan, values, out)
}

fn check_range(plan: &PiecePlan<'_>, values: &[i32]) -> Result<(), PieceError> {
    let beyond = |v: &i32| v.unsigned_abs() > VALUE_MAX as u32;
    // without an early exit, so that it vectorises
    if values.iter().fold(0, |most, v| v.unsigned_abs().max(most)) <= VALUE_MAX as u32 {
        return Ok(());
    }
    let index = values.iter().position(beyond).unwrap_or_default();
    let (coefficient, token) = (index / plan.tokens, index % plan.tokens);
    Err(PieceError::ValueRange { coefficient, token, value: values[index] })
}

/// Coefficients up to the last one that this piece changes.
fn active_count(plan: &PiecePlan<'_>, values: &[i32]) -> usize {
    let rows = plan.coefficients.iter().zip(values.chunks_exact(plan.tokens));
    let changes = |(coding, row): (&Coding, &[i32])| match coding {
        Coding::Stage { .. } => row.iter().any(|&v| v != 0),
        Coding::Trit { .. } => row.iter().any(|&v| digit(v) != 0),
    };
    rows.rev().position(changes).map_or(0, |unchanged| plan.coefficients.len() - unchanged)
}

/// Offset of the states in a piece of `streams` streams.
pub(super) fn states_offset(streams: usize) -> usize {
    (2 + 2 * streams).next_multiple_of(4)
}

fn coded_bytes(plan: &PiecePlan<'_>, streams: &[EncodedStream]) -> usize {
    let words: usize = streams.iter().map(|stream| stream.words.len()).sum();
    states_offset(streams.len()) + streams.len() * lane_count(plan.tokens) * 4 + words * 2
}

fn write_streams(plan: &PiecePlan<'_>, active: usize, streams: &[EncodedStream], out: &mut Vec<u8>) {
    let start = out.len();
    out.reserve(coded_bytes(plan, streams));
    out.extend_from_slice(&(active as u16).to_le_bytes()); // at most COEFFICIENTS_MAX
    for stream in streams {
        out.extend_from_slice(&(stream.words.len() as u16).to_le_bytes()); // at most STREAM_WORDS_MAX
    }
    out.resize(start + states_offset(streams.len()), 0);
    for state in streams.iter().flat_map(|stream| &stream.states[..lane_count(plan.tokens)]) {
        out.extend_from_slice(&state.to_le_bytes());
    }
    for word in streams.iter().flat_map(|stream| &stream.words) {
        out.extend_from_slice(&word.to_le_bytes());
    }
}
