//! Rows in a cache's own type.

use std::{borrow::Cow, ops::Range};

use half::{bf16, f16};
use kvasir_types::KvDtype;

use super::HeadRows;
use crate::e4m3;

/// Rows of consecutive heads and tokens, in the type of a cache
/// ([`ModelSpec::kv_dtype`](kvasir_types::ModelSpec)).
#[derive(Debug, Clone, Copy)]
pub enum Rows<'a> {
    /// bfloat16.
    Bf16(HeadRows<'a, bf16>),
    /// IEEE half.
    F16(HeadRows<'a, f16>),
    /// IEEE single.
    F32(HeadRows<'a, f32>),
    /// FP8 with 4 exponent bits, as bit patterns.
    Fp8E4m3(HeadRows<'a, u8>),
}

macro_rules! of_any_type {
    ($rows:expr, $name:ident => $answer:expr) => {
        match $rows {
            Rows::Bf16($name) => $answer,
            Rows::F16($name) => $answer,
            Rows::F32($name) => $answer,
            Rows::Fp8E4m3($name) => $answer,
        }
    };
}

impl<'a> Rows<'a> {
    /// Type of the values.
    pub const fn dtype(&self) -> KvDtype {
        match self {
            Self::Bf16(_) => KvDtype::Bf16,
            Self::F16(_) => KvDtype::F16,
            Self::F32(_) => KvDtype::F32,
            Self::Fp8E4m3(_) => KvDtype::Fp8E4m3,
        }
    }

    /// Number of heads.
    pub const fn heads(&self) -> usize {
        of_any_type!(self, rows => rows.heads())
    }

    /// Tokens of each head.
    pub const fn tokens(&self) -> usize {
        of_any_type!(self, rows => rows.tokens())
    }

    /// Values per row.
    pub const fn elements(&self) -> usize {
        of_any_type!(self, rows => rows.elements())
    }

    /// Some of the heads and tokens, counted from the first of each. Ranges beyond the end are cut off.
    #[must_use]
    pub fn part(&self, heads: Range<usize>, tokens: Range<usize>) -> Self {
        match self {
            Self::Bf16(rows) => Self::Bf16(rows.part(heads, tokens)),
            Self::F16(rows) => Self::F16(rows.part(heads, tokens)),
            Self::F32(rows) => Self::F32(rows.part(heads, tokens)),
            Self::Fp8E4m3(rows) => Self::Fp8E4m3(rows.part(heads, tokens)),
        }
    }

    /// All values of one head in f32, `[token][element]`.
    ///
    /// # Panics
    /// If there is no such head.
    pub fn head_f32(&self, head: usize) -> Cow<'a, [f32]> {
        match self {
            Self::Bf16(rows) => rows.head(head).iter().map(|x| x.to_f32()).collect(),
            Self::F16(rows) => rows.head(head).iter().map(|x| x.to_f32()).collect(),
            Self::F32(rows) => rows.head(head),
            Self::Fp8E4m3(rows) => rows.head(head).iter().map(|x| e4m3::decode(*x)).collect(),
        }
    }
}
