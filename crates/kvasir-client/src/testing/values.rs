//! Rows of a cache's type with arbitrary bit patterns: only bitwise copies preserve them.

use half::{bf16, f16, slice::HalfBitsSliceExt};
use kvasir_codec::HeadRows;
use kvasir_types::KvDtype;
use rand::{RngExt as _, rngs::StdRng};

use crate::pages::Rows;

/// Random rows.
pub(super) struct RandomRows {
    values: Values,
    /// Heads, tokens, elements.
    shape: [usize; 3],
    head_stride: usize,
    token_stride: usize,
}

enum Values {
    Bf16(Vec<u16>),
    F16(Vec<u16>),
    F32(Vec<f32>),
    Bits8(Vec<u8>),
}

impl RandomRows {
    /// Rows of `[heads, tokens, elements]`, with heads or tokens outermost, with or without gaps.
    pub(super) fn new(dtype: KvDtype, [heads, tokens, elements]: [usize; 3], random: &mut StdRng) -> Self {
        let row = elements + random.random_range(0..3);
        let (head_stride, token_stride) =
            if random.random() { (row, row * heads) } else { (row * tokens, row) };
        let count = row * heads * tokens;
        let values = match dtype {
            KvDtype::Bf16 => Values::Bf16((0..count).map(|_| random.random()).collect()),
            KvDtype::F16 => Values::F16((0..count).map(|_| random.random()).collect()),
            KvDtype::F32 => Values::F32((0..count).map(|_| f32::from_bits(random.random())).collect()),
            KvDtype::Fp8E4m3 | KvDtype::Int8 => Values::Bits8((0..count).map(|_| random.random()).collect()),
        };
        Self { values, shape: [heads, tokens, elements], head_stride, token_stride }
    }

    pub(super) fn rows(&self) -> Rows<'_> {
        match &self.values {
            Values::Bf16(values) => Rows::Bf16(self.strided(values.reinterpret_cast::<bf16>())),
            Values::F16(values) => Rows::F16(self.strided(values.reinterpret_cast::<f16>())),
            Values::F32(values) => Rows::F32(self.strided(values)),
            Values::Bits8(values) => Rows::Fp8E4m3(self.strided(values)),
        }
    }

    fn strided<'a, T: Copy>(&self, values: &'a [T]) -> HeadRows<'a, T> {
        HeadRows::strided(values, self.shape, self.head_stride, self.token_stride)
            .expect("there are as many values as the strides reach")
    }

    /// The bytes of one row.
    pub(super) fn bytes(&self, head: usize, token: usize) -> Vec<u8> {
        match self.rows() {
            Rows::Bf16(rows) => rows.row(head, token).iter().flat_map(|x| x.to_ne_bytes()).collect(),
            Rows::F16(rows) => rows.row(head, token).iter().flat_map(|x| x.to_ne_bytes()).collect(),
            Rows::F32(rows) => rows.row(head, token).iter().flat_map(|x| x.to_ne_bytes()).collect(),
            Rows::Fp8E4m3(rows) => rows.row(head, token).to_vec(),
        }
    }
}
