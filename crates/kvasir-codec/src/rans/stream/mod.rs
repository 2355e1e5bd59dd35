//! Streams: at most 128 coefficients × one span, 32 interleaved coders. Lane = token, step = coefficient.
//!
//! Steps run over rows of 32 tokens, within a row over the stream's coefficients, within a coefficient over its stage
//! symbol and its trits. All lanes of a step use the same table.

pub(crate) mod cell;
pub(crate) mod decode;
pub(crate) mod encode;
pub(crate) mod inverted_stage;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "the portable encoder has none"))]
pub(crate) mod simd_tables;

use std::ops::Range;

use super::{
    coding::Coding,
    constants::{LANES, STREAM_COEFFICIENTS_MAX},
};

/// Number of streams of `active` coefficients.
pub(super) fn stream_count(active: usize) -> usize {
    active.div_ceil(STREAM_COEFFICIENTS_MAX)
}

/// Coefficients of stream `index`: split as evenly as possible, so that streams decode in lockstep.
pub(super) fn stream_range(active: usize, index: usize) -> Range<usize> {
    let count = stream_count(active);
    index * active / count..(index + 1) * active / count
}

/// Lanes that carry tokens; the states of the others are not stored.
pub(super) fn lane_count(tokens: usize) -> usize {
    tokens.min(LANES)
}

/// A decoder's input for one stream: little-endian states and words, cut to length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamBytes<'a> {
    /// `lane_count × u32`.
    pub(crate) states: &'a [u8],
    /// `word count × u16`.
    pub(crate) words: &'a [u8],
    /// `words` and the following bytes of the piece: lets SIMD decoders load whole registers near the end.
    pub(crate) readable: &'a [u8],
}

/// Which rows of some values belong to consecutive coefficients of a plan.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RowsAt<'a> {
    /// In sequence.
    Consecutive,
    /// Row `rows[c] - first`; increasing.
    Listed {
        /// One a coefficient.
        rows: &'a [usize],
        /// The position of the first value.
        first: usize,
    },
}

impl<'a> RowsAt<'a> {
    /// Rows of a list, in values that begin with the first of them.
    pub(crate) fn listed(rows: &'a [usize]) -> Self {
        match (rows.first(), rows.last()) {
            (Some(&first), Some(&last)) if last - first + 1 > rows.len() => Self::Listed { rows, first },
            _ => Self::Consecutive,
        }
    }

    /// The row of coefficient `c`.
    #[inline(always)]
    pub(crate) fn row(self, c: usize) -> usize {
        match self {
            Self::Consecutive => c,
            Self::Listed { rows, first } => rows[c] - first,
        }
    }

    /// Rows that `count` coefficients reach over.
    pub(crate) fn reach(self, count: usize) -> usize {
        count.checked_sub(1).map_or(0, |last| self.row(last) + 1)
    }

    /// Those of the first `count` coefficients, and of the others in values that begin with the first of these.
    pub(crate) fn split(self, count: usize) -> (Self, Self) {
        match self {
            Self::Consecutive => (self, self),
            Self::Listed { rows, first } => {
                let (mine, others) = rows.split_at(count);
                let behind = others.first().copied().unwrap_or(first);
                (Self::Listed { rows: mine, first }, Self::Listed { rows: others, first: behind })
            }
        }
    }
}

/// A stream to decode, and its destination.
#[derive(Debug)]
pub(crate) struct StreamJob<'a, V> {
    /// Its coefficients.
    pub(crate) codings: &'a [Coding],
    /// Their rows.
    pub(crate) rows: RowsAt<'a>,
    /// Its bytes.
    pub(crate) bytes: StreamBytes<'a>,
    /// At least `rows.reach(codings.len())` rows: stages are written, trits refined in place.
    pub(crate) values: &'a mut [V],
    /// Values from one row to the next, at least the tokens.
    pub(crate) stride: usize,
    /// Largest magnitude of a stage value that the cells have to hold.
    pub(crate) most: i32,
}

/// Why a stream does not decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamFault {
    /// A state outside `[2^15, 2^31)` at the start.
    State {
        /// Its lane.
        lane: usize,
        /// Its value.
        state: u32,
    },
    /// A word was needed after the last one.
    Underrun,
    /// The end state is not the encoder's initial state.
    Final {
        /// Words left.
        left: usize,
        /// Lanes whose state is not [`STATE_MIN`](super::STATE_MIN).
        lanes: usize,
    },
}
