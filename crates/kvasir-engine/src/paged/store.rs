//! Elements of one (layer, plane) in the model's KV type, read and written as f32 rows.

use half::{bf16, f16, slice::HalfFloatSliceExt};
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

    pub(super) fn copy_within(&mut self, from: usize, to: usize, elements: usize) {
        match self {
            Self::F16(v) => v.copy_within(from..from + elements, to),
            Self::Bf16(v) => v.copy_within(from..from + elements, to),
            Self::F32(v) => v.copy_within(from..from + elements, to),
        }
    }
}
