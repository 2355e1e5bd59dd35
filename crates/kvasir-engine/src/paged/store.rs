//! Elements of one (layer, plane) in the model's KV type.

use half::{bf16, f16, slice::HalfFloatSliceExt};
use kvasir_client::pages::Rows;
use kvasir_codec::HeadRows;
use kvasir_types::KvDtype;

use crate::error::PagedError;

/// A growing array of elements.
#[derive(Debug)]
pub(super) enum PlaneStore {
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    F32(Vec<f32>),
}

impl PlaneStore {
    pub(super) fn new(dtype: KvDtype) -> Result<Self, PagedError> {
        match dtype {
            KvDtype::F16 => Ok(Self::F16(Vec::new())),
            KvDtype::Bf16 => Ok(Self::Bf16(Vec::new())),
            KvDtype::F32 => Ok(Self::F32(Vec::new())),
            KvDtype::Fp8E4m3 | KvDtype::Int8 => Err(PagedError::Dtype { dtype }),
        }
    }

    pub(super) fn grow(&mut self, elements: usize) {
        match self {
            Self::F16(v) => v.resize(v.len() + elements, f16::ZERO),
            Self::Bf16(v) => v.resize(v.len() + elements, bf16::ZERO),
            Self::F32(v) => v.resize(v.len() + elements, 0.0),
        }
    }

    /// Reads `out.len()` elements from `start` on.
    pub(super) fn read(&self, start: usize, out: &mut [f32]) {
        let range = start..start + out.len();
        match self {
            Self::F16(v) => v[range].convert_to_f32_slice(out),
            Self::Bf16(v) => v[range].convert_to_f32_slice(out),
            Self::F32(v) => out.copy_from_slice(&v[range]),
        }
    }

    /// Writes `values` from `start` on, rounded to nearest even.
    pub(super) fn write(&mut self, start: usize, values: &[f32]) {
        let range = start..start + values.len();
        match self {
            Self::F16(v) => v[range].convert_from_f32_slice(values),
            Self::Bf16(v) => v[range].convert_from_f32_slice(values),
            Self::F32(v) => v[range].copy_from_slice(values),
        }
    }

    /// `values` in the type of this one, rounded to nearest even.
    pub(super) fn rounded(&self, values: &[f32]) -> Self {
        let mut rounded = match self {
            Self::F16(_) => Self::F16(Vec::new()),
            Self::Bf16(_) => Self::Bf16(Vec::new()),
            Self::F32(_) => Self::F32(Vec::new()),
        };
        rounded.grow(values.len());
        rounded.write(0, values);
        rounded
    }

    /// Elements `[token][head][element]` as rows; `None` if there are fewer.
    pub(super) fn rows(&self, [heads, tokens, elements]: [usize; 3]) -> Option<Rows<'_>> {
        let (shape, token_stride) = ([heads, tokens, elements], heads * elements);
        match self {
            Self::F16(v) => HeadRows::strided(v, shape, elements, token_stride).map(Rows::F16),
            Self::Bf16(v) => HeadRows::strided(v, shape, elements, token_stride).map(Rows::Bf16),
            Self::F32(v) => HeadRows::strided(v, shape, elements, token_stride).map(Rows::F32),
        }
    }

    /// Copies rows of the same type to the position `start` of the first row, with strides in elements;
    /// `false` for rows of another type.
    pub(super) fn copy_rows(
        &mut self,
        start: usize,
        rows: Rows<'_>,
        head_stride: usize,
        token_stride: usize,
    ) -> bool {
        match (self, rows) {
            (Self::F16(v), Rows::F16(rows)) => rows.copy_to(&mut v[start..], head_stride, token_stride),
            (Self::Bf16(v), Rows::Bf16(rows)) => rows.copy_to(&mut v[start..], head_stride, token_stride),
            (Self::F32(v), Rows::F32(rows)) => rows.copy_to(&mut v[start..], head_stride, token_stride),
            (Self::F16(_) | Self::Bf16(_) | Self::F32(_), _) => return false,
        }
        true
    }

    /// `elements` elements from `start` on, as raw bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self, start: usize, elements: usize) -> Vec<u8> {
        let range = start..start + elements;
        match self {
            Self::F16(v) => v[range].iter().flat_map(|x| x.to_ne_bytes()).collect(),
            Self::Bf16(v) => v[range].iter().flat_map(|x| x.to_ne_bytes()).collect(),
            Self::F32(v) => v[range].iter().flat_map(|x| x.to_ne_bytes()).collect(),
        }
    }

    pub(super) fn copy_within(&mut self, from: usize, to: usize, elements: usize) {
        match self {
            Self::F16(v) => v.copy_within(from..from + elements, to),
            Self::Bf16(v) => v.copy_within(from..from + elements, to),
            Self::F32(v) => v.copy_within(from..from + elements, to),
        }
    }
}
