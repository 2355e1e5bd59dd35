//! Typed errors of the entropy stage.

use super::{
    coding::Coding,
    constants::{COEFFICIENTS_MAX, PROBABILITY_ONE, STAGE_TABLES_MAX, TRIT_TABLES_MAX, VALUE_MAX},
};

/// A probability table that no stream can be coded with. The profile that holds it is corrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// Frequencies do not sum to [`PROBABILITY_ONE`].
    #[error("frequencies sum to {sum}, not to {PROBABILITY_ONE}")]
    Sum {
        /// Sum found.
        sum: u32,
    },
    /// Bits of an alias entry that must be zero are not.
    #[error("bucket {bucket}: bits that must be zero are set")]
    Reserved {
        /// Bucket index.
        bucket: usize,
    },
    /// A slot names a frequency or an offset that contradicts another slot.
    #[error("slot {slot}: symbol {symbol} at offset {offset} breaks the bijection")]
    Bijection {
        /// Slot index, 0 to 4,095.
        slot: u32,
        /// Symbol it decodes to.
        symbol: usize,
        /// Offset within the symbol's range.
        offset: u32,
    },
    /// Thresholds of a trit context are not `a <= b <= 4096`.
    #[error("trit context {context}: thresholds {a}, {b} are not ordered within 0..=4096")]
    Thresholds {
        /// Context, 0 or 1.
        context: usize,
        /// First threshold.
        a: u16,
        /// Second threshold.
        b: u16,
    },
    /// More tables than a bank holds.
    #[error("{stage} stage and {trit} trit tables: a bank holds {STAGE_TABLES_MAX} and {TRIT_TABLES_MAX}")]
    Count {
        /// Stage tables.
        stage: usize,
        /// Trit tables.
        trit: usize,
    },
    /// A serialised bank of the wrong length.
    #[error("the bank has {actual} bytes, but {expected} according to its counts")]
    Length {
        /// Bytes needed.
        expected: usize,
        /// Bytes found.
        actual: usize,
    },
}

/// A piece that cannot be coded or decoded. Byte offsets count from the start of the piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PieceError {
    /// A plan outside the format's limits.
    #[error(
        "a piece of {coefficients} coefficients × {tokens} tokens is outside 0..={COEFFICIENTS_MAX} × 1..=256"
    )]
    Shape {
        /// Coefficients of the plan.
        coefficients: usize,
        /// Tokens of the plan.
        tokens: usize,
    },
    /// The caller's values do not fit the plan.
    #[error("the plan needs {expected} values, the caller gave {actual}")]
    ValueCount {
        /// Coefficients × tokens.
        expected: usize,
        /// Length of the slice.
        actual: usize,
    },
    /// A coefficient names a table that the bank lacks, or too many trits.
    #[error("coefficient {coefficient}: {coding:?} names tables or trits that the profile does not have")]
    Coding {
        /// Its index in the plan.
        coefficient: usize,
        /// Its coding.
        coding: Coding,
    },
    /// A value beyond the range of the format; such a span must be stored exactly.
    #[error("coefficient {coefficient}, token {token}: |{value}| exceeds {VALUE_MAX}")]
    ValueRange {
        /// Coefficient index.
        coefficient: usize,
        /// Token index in the span.
        token: usize,
        /// The value.
        value: i32,
    },
    /// The piece ends early or late.
    #[error("the piece has {actual} bytes, but its contents need {expected}")]
    Length {
        /// Bytes its contents need.
        expected: usize,
        /// Bytes it has.
        actual: usize,
    },
    /// More active coefficients than the plan has.
    #[error("{actual} active coefficients, but the plan has {expected}")]
    Active {
        /// Coefficients of the plan.
        expected: usize,
        /// Coefficients that the piece claims.
        actual: usize,
    },
    /// Fill that must be zero is not, or a field is out of its range.
    #[error("offset {offset}: field must be at most {limit}, found {actual}")]
    Field {
        /// Byte offset of the field.
        offset: usize,
        /// Largest legal value.
        limit: u32,
        /// Value found.
        actual: u32,
    },
    /// A coder's state outside `[2^15, 2^31)`.
    #[error("offset {offset}: state {state:#x} is outside 0x8000..0x80000000")]
    State {
        /// Byte offset of the state.
        offset: usize,
        /// State found.
        state: u32,
    },
    /// A stream needs more words than it has: corrupt bytes, or coded with another profile.
    #[error(
        "stream {stream}: needs more than its {words} words; the bytes are corrupt or the profile is not the encoder's"
    )]
    Underrun {
        /// Stream index.
        stream: usize,
        /// Words of the stream.
        words: usize,
    },
    /// A stream did not end at the encoder's initial state: corrupt bytes, or coded with another profile.
    #[error(
        "stream {stream} ended with {left} words left and {lanes} lanes in a wrong state; the bytes are corrupt or the profile is not the encoder's"
    )]
    FinalState {
        /// Stream index.
        stream: usize,
        /// Words not consumed.
        left: usize,
        /// Lanes whose state is not [`STATE_MIN`](super::STATE_MIN).
        lanes: usize,
    },
}
