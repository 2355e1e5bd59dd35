//! Exact pieces: attention sinks and spans that hold values no quantiser takes (FORMAT.md "Exact pieces").
//!
//! `u8 mode (0: verbatim) · u8 0 · u16 tokens · [member][token][element]` in the model's KV type; the first
//! `tokens` tokens of the span are exact.

use half::{bf16, f16};
use kvasir_types::KvDtype;

use crate::EncodeError;

/// Bytes before the values.
const HEAD_BYTES: usize = 4;

/// How a value is stored: the model's own type, or the smallest float that holds all its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExactDtype {
    Bf16,
    F16,
    F32,
}

impl ExactDtype {
    /// Every e4m3 value is an f16; dequantised int8 values are whatever their scales made them.
    pub(crate) fn of(dtype: KvDtype) -> Self {
        match dtype {
            KvDtype::Bf16 => Self::Bf16,
            KvDtype::F16 | KvDtype::Fp8E4m3 => Self::F16,
            KvDtype::F32 | KvDtype::Int8 => Self::F32,
        }
    }

    fn narrowed(self, value: f32) -> f32 {
        match self {
            Self::Bf16 => bf16::from_f32(value).to_f32(),
            Self::F16 => f16::from_f32(value).to_f32(),
            Self::F32 => value,
        }
    }

    /// Whether the type has this value.
    pub(crate) fn holds(self, value: f32) -> bool {
        value.is_nan() || self.narrowed(value) == value
    }

    fn bytes(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

/// The piece that holds `rows`, `[member][token][element]` of `tokens` tokens.
///
/// # Errors
/// [`EncodeError::Value`]: the type would make a finite value infinite.
pub(crate) fn encode(
    dtype: ExactDtype,
    tokens: usize,
    rows: impl Iterator<Item = f32>,
) -> Result<Vec<u8>, EncodeError> {
    let mut piece = vec![0, 0];
    piece.extend_from_slice(&(tokens as u16).to_le_bytes());
    for value in rows {
        match dtype {
            ExactDtype::Bf16 => piece.extend_from_slice(&bf16::from_f32(value).to_le_bytes()),
            ExactDtype::F16 => piece.extend_from_slice(&f16::from_f32(value).to_le_bytes()),
            ExactDtype::F32 => piece.extend_from_slice(&value.to_le_bytes()),
        }
        if value.is_finite() && !dtype.narrowed(value).is_finite() {
            return Err(EncodeError::Value { value: value.to_string() });
        }
    }
    Ok(piece)
}

/// The number of exact tokens and their values as stored, `[member][token][element]`; `None` if the piece is
/// malformed.
pub(crate) fn split(
    dtype: ExactDtype,
    elements: usize,
    span_tokens: usize,
    piece: &[u8],
) -> Option<(usize, &[u8])> {
    let (head, body) = piece.split_first_chunk::<HEAD_BYTES>()?;
    let [0, 0, low, high] = *head else { return None };
    let tokens = usize::from(u16::from_le_bytes([low, high]));
    let fits = tokens > 0 && tokens <= span_tokens && body.len() == tokens * elements * dtype.bytes();
    fits.then_some((tokens, body))
}

/// Stored values as floats.
pub(crate) fn values(dtype: ExactDtype, body: &[u8]) -> Vec<f32> {
    match dtype {
        ExactDtype::Bf16 => body.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        ExactDtype::F16 => body.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        ExactDtype::F32 => body.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
    }
}
