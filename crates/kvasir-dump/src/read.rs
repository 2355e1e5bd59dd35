//! Reads dumps; every byte of the input is untrusted.

use std::{collections::BTreeSet, fs::File, io::Read, path::Path};

use half::{bf16, f16};
use kvasir_codec::KvBuffer;
use kvasir_types::{KvDtype, ModelSpec, Plane};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use super::{DumpError, KvDump, MODEL_SPEC_KEY, TOKENS_NAME, tensor_name};
use crate::limits::{DUMP_BYTES_MAX, DUMP_TOKENS_MAX};

/// Reads a dump.
///
/// # Errors
/// [`DumpError`] naming what is wrong with the file.
pub fn read_dump(path: &Path) -> Result<KvDump, DumpError> {
    let io = |source| DumpError::Io { path: path.display().to_string(), source };
    let file = File::open(path).map_err(io)?;
    let mut bytes = Vec::new();
    // One byte past the limit detects a longer file, even if the length is unknown in advance (a pipe).
    file.take(DUMP_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > DUMP_BYTES_MAX {
        return Err(DumpError::TooLarge { bytes: bytes.len() as u64, max: DUMP_BYTES_MAX });
    }
    parse_dump(&bytes)
}

/// Parses a dump in memory.
///
/// # Errors
/// As [`read_dump`].
pub fn parse_dump(bytes: &[u8]) -> Result<KvDump, DumpError> {
    let (_, header) = SafeTensors::read_metadata(bytes)?;
    let json = header.metadata().as_ref().and_then(|m| m.get(MODEL_SPEC_KEY)).ok_or(DumpError::NoSpec)?;
    let spec: ModelSpec = serde_json::from_str(json).map_err(DumpError::SpecJson)?;
    spec.validate()?;
    let file = SafeTensors::deserialize(bytes)?;
    let tokens = read_tokens(&tensor(&file, TOKENS_NAME)?)?;
    check_names(&file, &spec)?;
    // Every tensor is checked before the buffer is allocated, so its size is bounded by the file's.
    for_each_plane(&spec, |layer, plane, (heads, dim)| {
        check_plane(&file, &tensor_name(layer, plane), &[heads, tokens.len(), dim])
    })?;
    let mut kv = KvBuffer::new(&spec, tokens.len());
    for_each_plane(&spec, |layer, plane, (heads, dim)| {
        let view = tensor(&file, &tensor_name(layer, plane))?;
        let head_bytes = tokens.len() * dim * view.dtype().bitsize() / 8;
        for (head, rows) in (0..heads).zip(view.data().chunks_exact(head_bytes)) {
            let values = kv.rows_mut(layer, plane, head);
            widen(view.dtype(), rows, values);
            check_values(&spec, layer, plane, values)?;
        }
        Ok(())
    })?;
    Ok(KvDump { spec, tokens, kv })
}

/// Checks that every tensor of a plane is one of the spec's: a file with more layers belongs to another
/// model.
fn check_names(file: &SafeTensors<'_>, spec: &ModelSpec) -> Result<(), DumpError> {
    let mut expected = BTreeSet::new();
    for_each_plane(spec, |layer, plane, _| {
        expected.insert(tensor_name(layer, plane));
        Ok(())
    })?;
    let of_plane = |name: &&str| name.starts_with("k.") || name.starts_with("v.");
    match file.names().into_iter().filter(of_plane).find(|name| !expected.contains(*name)) {
        Some(name) => Err(DumpError::Unexpected { name: name.to_owned() }),
        None => Ok(()),
    }
}

/// Visits the planes that have a cache, with `(heads, elements per head)`.
pub(super) fn for_each_plane(
    spec: &ModelSpec,
    mut visit: impl FnMut(usize, Plane, (usize, usize)) -> Result<(), DumpError>,
) -> Result<(), DumpError> {
    for (layer, shape) in spec.layers.iter().enumerate() {
        for (plane, (heads, dim)) in Plane::ALL.into_iter().zip(shape.layout.planes()) {
            if heads > 0 {
                visit(layer, plane, (heads, dim))?;
            }
        }
    }
    Ok(())
}

fn tensor<'a>(file: &SafeTensors<'a>, name: &str) -> Result<TensorView<'a>, DumpError> {
    file.tensor(name).map_err(|_| DumpError::Missing { name: name.to_owned() })
}

fn check_plane(file: &SafeTensors<'_>, name: &str, expected: &[usize]) -> Result<(), DumpError> {
    let view = tensor(file, name)?;
    if view.shape() != expected {
        let (expected, found) = (expected.to_vec(), view.shape().to_vec());
        return Err(DumpError::Shape { name: name.to_owned(), expected, found });
    }
    if !matches!(view.dtype(), Dtype::BF16 | Dtype::F16 | Dtype::F32) {
        let found = format!("{:?}", view.dtype());
        return Err(DumpError::Dtype { name: name.to_owned(), expected: "bf16, f16 or f32", found });
    }
    Ok(())
}

/// Checks that a cache of a 16-bit type holds only values of that type. Others would silently be rounded or
/// become infinite.
fn check_values(spec: &ModelSpec, layer: usize, plane: Plane, values: &[f32]) -> Result<(), DumpError> {
    let narrowed: fn(f32) -> f32 = match spec.kv_dtype {
        KvDtype::Bf16 => |value| bf16::from_f32(value).to_f32(),
        KvDtype::F16 => |value| f16::from_f32(value).to_f32(),
        // Values of 8 bits with scales have no 16-bit type.
        KvDtype::F32 | KvDtype::Fp8E4m3 | KvDtype::Int8 => return Ok(()),
    };
    let foreign = values.iter().find(|value| !value.is_nan() && narrowed(**value) != **value);
    foreign.map_or(Ok(()), |value| {
        Err(DumpError::Value { name: tensor_name(layer, plane), value: *value, kv_dtype: spec.kv_dtype })
    })
}

fn read_tokens(view: &TensorView<'_>) -> Result<Vec<u32>, DumpError> {
    let &[count] = view.shape() else {
        let found = view.shape().to_vec();
        return Err(DumpError::Shape { name: TOKENS_NAME.to_owned(), expected: vec![0], found });
    };
    if !(1..=DUMP_TOKENS_MAX).contains(&count) {
        return Err(DumpError::Tokens { tokens: count, max: DUMP_TOKENS_MAX });
    }
    let (words, _) = view.data().as_chunks::<4>();
    match view.dtype() {
        Dtype::U32 => Ok(words.iter().map(|word| u32::from_le_bytes(*word)).collect()),
        Dtype::I32 => {
            let id = |(index, word): (usize, &[u8; 4])| {
                let token = i32::from_le_bytes(*word);
                u32::try_from(token).map_err(|_| DumpError::NegativeToken { index, token })
            };
            words.iter().enumerate().map(id).collect()
        }
        other => {
            let found = format!("{other:?}");
            Err(DumpError::Dtype { name: TOKENS_NAME.to_owned(), expected: "i32 or u32", found })
        }
    }
}

/// Converts one of the three types that [`check_plane`] accepts.
fn widen(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    fn fill<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
        for (slot, raw) in out.iter_mut().zip(bytes.as_chunks().0) {
            *slot = value(*raw);
        }
    }
    match dtype {
        Dtype::F16 => fill(bytes, out, |raw| f16::from_le_bytes(raw).to_f32()),
        Dtype::BF16 => fill(bytes, out, |raw| bf16::from_le_bytes(raw).to_f32()),
        _ => fill(bytes, out, f32::from_le_bytes),
    }
}
