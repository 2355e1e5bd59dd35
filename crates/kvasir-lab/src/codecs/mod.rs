//! The codecs of other systems, and ours, behind one trait.

mod arithmetic;
mod bits;
mod deflate;
mod kvtc;
mod lmcache;
mod named;
mod object;
mod plain;
mod scaled_floats;
mod turboquant;
mod uniform;

pub use deflate::SymbolsThroughDeflate;
pub use kvtc::{Calibration, KvtcLike};
pub use lmcache::Lmcache;
pub use named::ByName;
pub use object::{ProfileCodec, Sweep};
pub use plain::{Plain, Storage, Zeros};
pub use scaled_floats::ScaledFloats;
pub use turboquant::TurboquantLike;
pub use uniform::Uniform;

use kvasir_codec::KvBuffer;
use kvasir_types::{LevelError, ModelSpec, Plane};

use crate::{Chunk, Coded, KvCodec};

/// Rows of one layer and plane with their heads concatenated, `[token][head × element]`: other systems call
/// these channels.
pub(crate) fn channels(spec: &ModelSpec, kv: &KvBuffer, layer: usize, plane: Plane) -> Vec<f32> {
    let (heads, dim) = spec.layers[layer].layout.planes()[plane as usize];
    let (width, tokens) = (heads * dim, kv.tokens());
    let mut rows = vec![0.0; width * tokens];
    for head in 0..heads {
        for (token, row) in kv.rows(layer, plane, head).chunks_exact(dim).enumerate() {
            rows[token * width + head * dim..][..dim].copy_from_slice(row);
        }
    }
    rows
}

/// The inverse of [`channels`].
pub(crate) fn set_channels(spec: &ModelSpec, kv: &mut KvBuffer, layer: usize, plane: Plane, rows: &[f32]) {
    let (heads, dim) = spec.layers[layer].layout.planes()[plane as usize];
    let width = heads * dim;
    for head in 0..heads {
        for (token, row) in kv.rows_mut(layer, plane, head).chunks_exact_mut(dim).enumerate() {
            row.copy_from_slice(&rows[token * width + head * dim..][..dim]);
        }
    }
}

/// Every layer and plane that has KV, with its channels.
pub(crate) fn planes(spec: &ModelSpec) -> impl Iterator<Item = (usize, Plane, usize)> + '_ {
    let of_layer = |layer: usize| {
        let widths = spec.layers[layer].layout.planes().map(|(heads, dim)| heads * dim);
        Plane::ALL.into_iter().zip(widths).map(move |(plane, width)| (layer, plane, width))
    };
    (0..spec.layers.len()).flat_map(of_layer).filter(|(.., width)| *width > 0)
}

/// A chunk of which each layer and plane is a tensor of its own. `through` gets the head vectors of one, side by side, and their
/// length; it replaces them by what a reader gets, and returns the bytes in between. Readers round to the cache's type.
fn by_tensor(chunk: &Chunk<'_>, mut through: impl FnMut(&mut [f32], usize) -> usize) -> Coded {
    let mut kv = KvBuffer::new(chunk.spec, chunk.tokens.len());
    let mut bytes = 0;
    for (layer, plane, _) in planes(chunk.spec) {
        let (_, dim) = chunk.spec.layers[layer].layout.planes()[plane as usize];
        let mut rows = channels(chunk.spec, chunk.kv, layer, plane);
        bytes += through(&mut rows, dim);
        rows.iter_mut().for_each(|x| *x = plain::rounded(chunk.spec.kv_dtype, *x));
        set_channels(chunk.spec, &mut kv, layer, plane, &rows);
    }
    Coded { bytes: bytes as u64, error: LevelError::UNKNOWN, kv }
}

/// A value in units of a scale, which is 0 only where all values are.
fn over(value: f32, scale: f32) -> f32 {
    if scale > 0.0 { value / scale } else { 0.0 }
}

#[cfg(test)]
mod tests;
