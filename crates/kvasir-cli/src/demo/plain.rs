//! The two plain formats of the comparison: the cache as it is (f16), and 8-bit integers.
//!
//! Both hold, for every layer, plane and head in order, the rows of all tokens. Each 8-bit row has its own
//! scale (f16, the row's largest magnitude / 127): per-vector symmetric quantisation, as used by LLM serving
//! systems.

use half::f16;
use kvasir_codec::{KvSink, KvSource};
use kvasir_types::{ModelSpec, Plane};

/// A plain format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plain {
    /// f16 little endian.
    Raw,
    /// A scale and 8-bit integers per row.
    Int8,
}

/// A plain cache of the wrong length.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found} bytes arrived, but the cache has {expected}")]
pub struct WrongLength {
    expected: usize,
    found: usize,
}

impl Plain {
    /// Bytes of one row of `dim` elements.
    const fn row_bytes(self, dim: usize) -> usize {
        match self {
            Self::Raw => 2 * dim,
            Self::Int8 => 2 + dim,
        }
    }

    /// Writes `tokens` tokens of `kv`.
    pub fn pack(self, spec: &ModelSpec, tokens: usize, kv: &dyn KvSource) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (layer, plane, head, dim) in heads(spec) {
            let mut rows = vec![0.0; tokens * dim];
            kv.read(layer, plane, head, 0..tokens, &mut rows);
            rows.chunks_exact(dim).for_each(|row| self.pack_row(row, &mut bytes));
        }
        bytes
    }

    fn pack_row(self, row: &[f32], bytes: &mut Vec<u8>) {
        match self {
            Self::Raw => bytes.extend(row.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes())),
            Self::Int8 => {
                let largest = row.iter().fold(0f32, |m, v| m.max(v.abs()));
                let scale = f16::from_f32(largest / 127.0);
                bytes.extend(scale.to_le_bytes());
                let step = scale.to_f32();
                let code =
                    |v: &f32| if step > 0.0 { (v / step).round().clamp(-127.0, 127.0) as i8 } else { 0 };
                bytes.extend(row.iter().map(|v| code(v).cast_unsigned()));
            }
        }
    }

    /// Reads what [`pack`](Self::pack) wrote, into `sink`.
    pub fn unpack(
        self,
        spec: &ModelSpec,
        tokens: usize,
        bytes: &[u8],
        sink: &mut dyn KvSink,
    ) -> Result<(), WrongLength> {
        let expected = tokens * heads(spec).map(|(.., dim)| self.row_bytes(dim)).sum::<usize>();
        if bytes.len() != expected {
            return Err(WrongLength { expected, found: bytes.len() });
        }
        let mut rest = bytes;
        for (layer, plane, head, dim) in heads(spec) {
            let (packed, after) = rest.split_at(tokens * self.row_bytes(dim));
            rest = after;
            let mut rows = Vec::with_capacity(tokens * dim);
            packed.chunks_exact(self.row_bytes(dim)).for_each(|row| self.unpack_row(row, &mut rows));
            sink.write(layer, plane, head, 0, &rows);
        }
        Ok(())
    }

    fn unpack_row(self, packed: &[u8], rows: &mut Vec<f32>) {
        let (pairs, _) = packed.as_chunks::<2>();
        match (self, pairs) {
            (Self::Int8, [scale, ..]) => {
                let step = f16::from_le_bytes(*scale).to_f32();
                rows.extend(packed[2..].iter().map(|b| f32::from(b.cast_signed()) * step));
            }
            (Self::Raw | Self::Int8, pairs) => {
                rows.extend(pairs.iter().map(|pair| f16::from_le_bytes(*pair).to_f32()));
            }
        }
    }
}

/// `(layer, plane, head, elements)` of every head that has a cache, in order.
fn heads(spec: &ModelSpec) -> impl Iterator<Item = (usize, Plane, usize, usize)> + '_ {
    spec.layers.iter().enumerate().flat_map(|(layer, shape)| {
        let planes = Plane::ALL.into_iter().zip(shape.layout.planes());
        planes.flat_map(move |(plane, (heads, dim))| (0..heads).map(move |head| (layer, plane, head, dim)))
    })
}

#[cfg(test)]
mod tests {
    use kvasir_codec::KvBuffer;
    use kvasir_types::{KvDtype, KvLayout, LayerKv, Reuse};
    use proptest::prelude::*;

    use super::*;

    fn spec() -> ModelSpec {
        let layer = |layout| LayerKv { layout, rope: None };
        ModelSpec {
            weights: "toy".into(),
            revision: "1".into(),
            adapter: None,
            kv_dtype: KvDtype::F16,
            ropes: vec![],
            layers: vec![
                layer(KvLayout::Gqa { kv_heads: 2, head_dim: 3 }),
                layer(KvLayout::None),
                layer(KvLayout::Mla { latent: 4, rope_dims: 2 }),
            ],
            thinning: None,
            reuse: Reuse::Prefix,
        }
    }

    proptest! {
        #[test]
        fn raw_is_exact_and_int8_is_within_half_a_step(values in prop::collection::vec(-8f32..8.0, 5 * 18)) {
            let spec = spec();
            let mut kv = KvBuffer::new(&spec, 5);
            for (slot, value) in kv.as_mut_slice().iter_mut().zip(&values) {
                *slot = f16::from_f32(*value).to_f32();
            }
            let back = |plain: Plain| {
                let bytes = plain.pack(&spec, 5, &kv);
                let mut out = KvBuffer::new(&spec, 5);
                plain.unpack(&spec, 5, &bytes, &mut out).map(|()| out)
            };
            prop_assert_eq!(&back(Plain::Raw).expect("unpacks"), &kv);
            let int8 = back(Plain::Int8).expect("unpacks");
            for (a, b) in kv.as_slice().iter().zip(int8.as_slice()) {
                // Half a step of the row's own scale, and the rounding of the scale to f16.
                prop_assert!((a - b).abs() <= 8.0 / 127.0 * 0.5 * 1.01 + 127.0 * 8.0 / 127.0 / 2048.0);
            }
        }
    }

    #[test]
    fn sizes_are_exact_and_checked() {
        let spec = spec();
        let kv = KvBuffer::new(&spec, 7);
        assert_eq!(Plain::Raw.pack(&spec, 7, &kv).len(), 7 * spec.bytes_per_token());
        let int8 = Plain::Int8.pack(&spec, 7, &kv);
        assert_eq!(int8.len(), 7 * (spec.elements_per_token() + 2 * 6), "a byte an element, two a row");
        let mut out = KvBuffer::new(&spec, 7);
        assert!(Plain::Int8.unpack(&spec, 7, &int8[1..], &mut out).is_err());
    }
}
