//! Pieces: streams of at most 128 coefficients × 256 tokens, their lengths and states, or the raw fallback.

use super::{PieceError, PiecePlan, TableBank};

/// Appends the bytes of a piece to `out`.
///
/// `values[c * plan.tokens + t]` is the value of coefficient `c` at token `t` *at this piece's level*; for
/// [`Coding::Trit`](super::Coding::Trit) the digit is derived from it, and the decoder has to know its
/// [`coarsen`](super::coarsen)ed value. Falls back to the raw representation where a value is out of the coder's range or raw is smaller.
///
/// # Errors
/// A plan that does not fit the bank or the values, or a value beyond [`VALUE_MAX`](super::VALUE_MAX). `out` is then as it was.
pub fn encode_piece(
    bank: &TableBank,
    plan: &PiecePlan<'_>,
    values: &[i32],
    out: &mut Vec<u8>,
) -> Result<(), PieceError> {
    plan.check(bank, values.len())?;
    let _ = out;
    todo!()
}

/// Decodes a whole piece. Total: any bytes give values or an error, never a panic.
///
/// For [`Coding::Stage`](super::Coding::Stage) coefficients `values` is written; for [`Coding::Trit`](super::Coding::Trit) it holds the
/// value of the level before and is refined in place.
///
/// # Errors
/// A plan that does not fit, or bytes that this bank and plan cannot have produced. `values` is then unspecified.
pub fn decode_piece(
    bank: &TableBank,
    plan: &PiecePlan<'_>,
    bytes: &[u8],
    values: &mut [i32],
) -> Result<(), PieceError> {
    plan.check(bank, values.len())?;
    let _ = bytes;
    todo!()
}
