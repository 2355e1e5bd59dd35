//! The outline of a piece, for decoders that read its streams elsewhere: in parallel, or on a device.

use std::ops::Range;

use super::{
    bank::TableBank,
    error::PieceError,
    piece_decoder::{read_active, split_streams},
    plan::PiecePlan,
    raw,
    stream::stream_range,
};

/// The parts of a piece. Byte ranges count from the start of the piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PieceParts {
    /// Nothing is coded: every value is as predicted.
    Absent,
    /// Interleaved streams.
    Coded(Vec<StreamParts>),
    /// Fixed-width values of the first `active` coefficients of the plan.
    Raw {
        /// Coefficients with a width.
        active: usize,
        /// One width a coefficient, checked.
        widths: Range<usize>,
        /// The values' bits; exactly as many as the widths require.
        bits: Range<usize>,
    },
}

/// One stream of a piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamParts {
    /// Coefficients, as indices into the plan.
    pub coefficients: Range<usize>,
    /// `min(32, tokens)` states of 4 bytes, not yet checked.
    pub states: Range<usize>,
    /// Words of 2 bytes.
    pub words: Range<usize>,
}

/// Outlines a piece. It checks everything about the piece's shape, but not the contents of its streams.
/// Total, as [`decode_piece`](super::decode_piece).
///
/// # Errors
/// As [`decode_piece`](super::decode_piece), except for errors that only decoding detects: states, words,
/// digits.
pub fn piece_parts(bank: &TableBank, plan: &PiecePlan<'_>, bytes: &[u8]) -> Result<PieceParts, PieceError> {
    plan.check(bank, plan.value_count())?;
    let (active, is_raw) = read_active(plan, bytes)?;
    if active == 0 {
        return Ok(PieceParts::Absent);
    }
    if is_raw {
        let bits = 2 + raw::check(plan, active, bytes)?.len()..bytes.len();
        return Ok(PieceParts::Raw { active, widths: 2..bits.start, bits });
    }
    let streams = split_streams(plan, active, bytes)?;
    // States of all streams, then words of all streams, up to the end.
    let words_bytes: usize = streams.iter().map(|stream| stream.words.len()).sum();
    let state_bytes: usize = streams.iter().map(|stream| stream.states.len()).sum();
    let mut words_at = bytes.len() - words_bytes;
    let mut states_at = words_at - state_bytes;
    let part = |(index, stream): (usize, &super::stream::StreamBytes<'_>)| {
        let states = states_at..states_at + stream.states.len();
        let words = words_at..words_at + stream.words.len();
        (states_at, words_at) = (states.end, words.end);
        StreamParts { coefficients: stream_range(active, index), states, words }
    };
    Ok(PieceParts::Coded(streams.iter().enumerate().map(part).collect()))
}
