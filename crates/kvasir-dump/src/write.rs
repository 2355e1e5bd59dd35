//! Writes dumps; tensors are converted one at a time while the file is written.

use std::{borrow::Cow, collections::HashMap, path::Path};

use half::{bf16, f16};
use kvasir_codec::KvSource;
use kvasir_types::{KvDtype, ModelSpec, Plane};
use safetensors::{Dtype, View};

use super::{DumpError, MODEL_SPEC_KEY, TOKENS_NAME, read::for_each_plane, tensor_name};

/// Element type of a dump's planes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DumpDtype {
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
    /// IEEE single.
    F32,
}

impl DumpDtype {
    /// The type that holds a model's cached values exactly.
    pub const fn of(dtype: KvDtype) -> Self {
        match dtype {
            KvDtype::Bf16 => Self::Bf16,
            KvDtype::F16 => Self::F16,
            KvDtype::F32 | KvDtype::Fp8E4m3 | KvDtype::Int8 => Self::F32,
        }
    }
}

/// Writes a dump of `tokens` and their `kv`, in `dtype` rounded to nearest even.
///
/// # Errors
/// [`DumpError::Format`] when the file cannot be written.
pub fn write_dump(
    path: &Path,
    spec: &ModelSpec,
    tokens: &[u32],
    kv: &dyn KvSource,
    dtype: DumpDtype,
) -> Result<(), DumpError> {
    let json = serde_json::to_string(spec).map_err(DumpError::SpecJson)?;
    let metadata = HashMap::from([(MODEL_SPEC_KEY.to_owned(), json)]);
    let mut views = vec![(TOKENS_NAME.to_owned(), DumpView::Tokens { tokens, shape: [tokens.len()] })];
    for_each_plane(spec, |layer, plane, (heads, dim)| {
        let shape = [heads, tokens.len(), dim];
        views.push((tensor_name(layer, plane), DumpView::Plane { kv, layer, plane, shape, dtype }));
        Ok(())
    })?;
    Ok(safetensors::serialize_to_file(views, Some(metadata), path)?)
}

enum DumpView<'a> {
    Tokens { tokens: &'a [u32], shape: [usize; 1] },
    Plane { kv: &'a dyn KvSource, layer: usize, plane: Plane, shape: [usize; 3], dtype: DumpDtype },
}

impl View for DumpView<'_> {
    fn dtype(&self) -> Dtype {
        match self {
            Self::Tokens { .. } => Dtype::U32,
            Self::Plane { dtype: DumpDtype::Bf16, .. } => Dtype::BF16,
            Self::Plane { dtype: DumpDtype::F16, .. } => Dtype::F16,
            Self::Plane { dtype: DumpDtype::F32, .. } => Dtype::F32,
        }
    }

    fn shape(&self) -> &[usize] {
        match self {
            Self::Tokens { shape, .. } => shape,
            Self::Plane { shape, .. } => shape,
        }
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Tokens { tokens, .. } => tokens.iter().flat_map(|t| t.to_le_bytes()).collect(),
            &Self::Plane { kv, layer, plane, shape: [heads, tokens, dim], dtype } => {
                let mut bytes = Vec::with_capacity(self.data_len());
                let mut rows = vec![0.0; tokens * dim];
                for head in 0..heads {
                    kv.read(layer, plane, head, 0..tokens, &mut rows);
                    narrow(dtype, &rows, &mut bytes);
                }
                bytes.into()
            }
        }
    }

    fn data_len(&self) -> usize {
        self.shape().iter().product::<usize>() * self.dtype().bitsize() / 8
    }
}

fn narrow(dtype: DumpDtype, values: &[f32], out: &mut Vec<u8>) {
    match dtype {
        DumpDtype::F16 => out.extend(values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes())),
        DumpDtype::Bf16 => out.extend(values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes())),
        DumpDtype::F32 => out.extend(values.iter().flat_map(|v| v.to_le_bytes())),
    }
}
