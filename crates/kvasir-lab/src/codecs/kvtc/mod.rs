//! A codec after NVIDIA's KVTC ("KV Cache Transform Coding"): principal components over all layers, keys (un-roped) and
//! values apart, bit widths by dynamic programming, attention sinks exact, Deflate.
//!
//! Where the paper leaves room the choice here is the one that makes it smaller: steps are per component and static (no
//! scales in the object), widths 0–8 bits, one Deflate stream a chunk with one byte a value where that is smaller than packed bits, and no window of recent tokens is kept exact.

mod allocate;
mod calibrate;

use half::f16;
use kvasir_codec::{KvBuffer, rope::Rotation};
use kvasir_types::{LevelError, ModelSpec, Plane};

pub use calibrate::Calibration;

use super::{
    Chunk, Coded, KvCodec, bits,
    deflate::{deflate, inflate},
};
use crate::BenchError;

/// Tokens at the start of a context that stay exact.
pub(super) const SINKS: usize = 4;
/// Bits per element spent before Deflate, one rung each.
const RUNGS: [f64; 9] = [0.04, 0.08, 0.16, 0.3, 0.55, 1.0, 1.7, 2.6, 4.0];

/// Bits and step of every component.
#[derive(Debug, Clone)]
pub(super) struct Rung {
    pub(super) widths: Vec<u8>,
    pub(super) steps: Vec<f32>,
}

/// One plane over all layers.
#[derive(Debug, Clone)]
pub(super) struct PlaneCodec {
    pub(super) plane: Plane,
    pub(super) elements: usize,
    pub(super) mean: Vec<f32>,
    /// `[component][element]`, rounded to 16 bits.
    pub(super) basis: Vec<f32>,
    pub(super) rungs: Vec<Rung>,
}

impl PlaneCodec {
    pub(super) fn rank(&self) -> usize {
        self.basis.len() / self.elements
    }
}

/// The codec, calibrated for a model.
#[derive(Debug, Clone)]
pub struct KvtcLike {
    variant: String,
    planes: Vec<PlaneCodec>,
}

/// Rows of a plane over all layers and heads, keys un-roped: `[token][element]`.
pub(super) fn gather(spec: &ModelSpec, kv: &KvBuffer, first_position: usize, plane: Plane) -> Vec<f32> {
    let tokens = kv.tokens();
    let width: usize =
        spec.layers.iter().map(|l| l.layout.planes()[plane as usize]).map(|(h, d)| h * d).sum();
    let mut rows = vec![0.0; width * tokens];
    let mut start = 0;
    each_head(spec, plane, |layer, head, dim| {
        let rotation = rotation(spec, layer, plane, first_position, tokens);
        let mut own = kv.rows(layer, plane, head).to_vec();
        for (token, row) in own.chunks_exact_mut(dim).enumerate() {
            if let Some(rotation) = &rotation {
                rotation.unrotate(token, row);
            }
            rows[token * width + start..][..dim].copy_from_slice(row);
        }
        start += dim;
    });
    rows
}

/// The inverse of [`gather`].
fn scatter(spec: &ModelSpec, first_position: usize, plane: Plane, rows: &[f32], kv: &mut KvBuffer) {
    let tokens = kv.tokens();
    let width = rows.len() / tokens;
    let mut start = 0;
    each_head(spec, plane, |layer, head, dim| {
        let rotation = rotation(spec, layer, plane, first_position, tokens);
        for (token, row) in kv.rows_mut(layer, plane, head).chunks_exact_mut(dim).enumerate() {
            row.copy_from_slice(&rows[token * width + start..][..dim]);
            if let Some(rotation) = &rotation {
                rotation.rotate(token, row);
            }
        }
        start += dim;
    });
}

fn each_head(spec: &ModelSpec, plane: Plane, mut each: impl FnMut(usize, usize, usize)) {
    for (layer, kv) in spec.layers.iter().enumerate() {
        let (heads, dim) = kv.layout.planes()[plane as usize];
        (0..heads).for_each(|head| each(layer, head, dim));
    }
}

fn rotation(
    spec: &ModelSpec,
    layer: usize,
    plane: Plane,
    first_position: usize,
    tokens: usize,
) -> Option<Rotation> {
    let rope = spec.ropes.get(usize::from(spec.layers[layer].rope.filter(|_| plane == Plane::K)?))?;
    Some(Rotation::new(rope, first_position as u64, tokens))
}

/// `out[i][j] = Σ_k a[i][k] · b[j][k]`: rows of `a` against rows of `b`, both of `inner` entries.
pub(super) fn rows_by_rows(a: &[f32], b: &[f32], inner: usize) -> Vec<f32> {
    use faer::{Accum, MatMut, MatRef, Par, linalg::matmul::matmul};
    let (rows, columns) = (a.len() / inner, b.len() / inner);
    let mut out = vec![0.0; rows * columns];
    matmul(
        MatMut::from_row_major_slice_mut(&mut out, rows, columns),
        Accum::Replace,
        MatRef::from_row_major_slice(a, rows, inner),
        MatRef::from_row_major_slice(b, columns, inner).transpose(),
        1.0,
        Par::Seq,
    );
    out
}

impl PlaneCodec {
    /// Components of rows, `[token][component]`.
    pub(super) fn analyse(&self, rows: &[f32]) -> Vec<f32> {
        let centred: Vec<f32> = rows
            .chunks_exact(self.elements)
            .flat_map(|row| row.iter().zip(&self.mean).map(|(x, m)| x - m))
            .collect();
        rows_by_rows(&centred, &self.basis, self.elements)
    }

    fn synthesise(&self, components: &[f32]) -> Vec<f32> {
        let rank = self.rank();
        let columns: Vec<f32> = (0..self.elements)
            .flat_map(|e| (0..rank).map(move |c| self.basis[c * self.elements + e]))
            .collect();
        let mut rows = rows_by_rows(components, &columns, rank);
        for row in rows.chunks_exact_mut(self.elements) {
            row.iter_mut().zip(&self.mean).for_each(|(x, m)| *x += m);
        }
        rows
    }

    /// Quantised components, `[component][token]` with the sinks left out, each offset to be positive.
    fn quantise(&self, rung: &Rung, components: &[f32], skip: usize) -> Vec<u8> {
        let rank = self.rank();
        let mut out = Vec::new();
        for (c, (&width, &step)) in rung.widths.iter().zip(&rung.steps).enumerate() {
            if width > 0 {
                let half = half_levels(width);
                let column = components.iter().skip(c).step_by(rank).skip(skip);
                out.extend(column.map(|x| ((x / step).round_ties_even().clamp(-half, half) + half) as u8));
            }
        }
        out
    }

    fn dequantise(
        &self,
        rung: &Rung,
        symbols: &mut impl Iterator<Item = u8>,
        tokens: usize,
        skip: usize,
    ) -> Vec<f32> {
        let rank = self.rank();
        let mut components = vec![0.0; rank * tokens];
        for (c, (&width, &step)) in rung.widths.iter().zip(&rung.steps).enumerate() {
            if width > 0 {
                for token in skip..tokens {
                    let q = f32::from(symbols.next().unwrap_or(0)) - half_levels(width);
                    components[token * rank + c] = q * step;
                }
            }
        }
        components
    }
}

/// Steps on either side of zero: `2^width − 1` levels, so that zero is one of them.
pub(super) fn half_levels(width: u8) -> f32 {
    ((1u32 << width >> 1) - u32::from(width > 1)).max(1) as f32
}

/// The smaller of packed bits and one byte per value, both deflated; the first byte says which.
fn entropy_coded(planes: &[(&Rung, Vec<u8>)], tokens: usize) -> Result<Vec<u8>, BenchError> {
    let bytes: Vec<u8> = planes.iter().flat_map(|(_, symbols)| symbols).copied().collect();
    let mut packed = Vec::new();
    for (rung, symbols) in planes {
        let widths = rung.widths.iter().filter(|w| **w > 0);
        for (column, width) in symbols.chunks(tokens.max(1)).zip(widths) {
            bits::pack(column.iter().map(|v| u16::from(*v)), stored_width(*width), &mut packed);
        }
    }
    let (bytes, packed) = (deflate(&bytes)?, deflate(&packed)?);
    let (tag, smaller) = if packed.len() < bytes.len() { (1, packed) } else { (0, bytes) };
    Ok([&[tag][..], &smaller].concat())
}

/// One bit has three levels here (a sign and a zero), so it takes two.
fn stored_width(width: u8) -> u32 {
    u32::from(width.max(2))
}

fn entropy_decoded(bytes: &[u8], rungs: &[&Rung], tokens: usize) -> Result<Vec<u8>, BenchError> {
    let Some((tag, body)) = bytes.split_first() else { return Ok(Vec::new()) };
    let plain = inflate(body)?;
    if *tag == 0 {
        return Ok(plain);
    }
    let (mut out, mut rest) = (Vec::new(), &plain[..]);
    for width in rungs.iter().flat_map(|rung| &rung.widths).filter(|w| **w > 0) {
        let cut = bits::packed_bytes(tokens, stored_width(*width)).min(rest.len());
        let (column, after) = rest.split_at(cut);
        out.extend(bits::unpack(column, stored_width(*width)).take(tokens).map(|v| v as u8));
        rest = after;
    }
    Ok(out)
}

impl KvtcLike {
    fn code_rung(
        &self,
        chunk: &Chunk<'_>,
        rung: usize,
        components: &[Vec<f32>],
    ) -> Result<Coded, BenchError> {
        let tokens = chunk.tokens.len();
        let skip = SINKS.saturating_sub(chunk.first_position).min(tokens);
        let rungs: Vec<&Rung> = self.planes.iter().map(|plane| &plane.rungs[rung]).collect();
        let symbols: Vec<(&Rung, Vec<u8>)> = self
            .planes
            .iter()
            .zip(components)
            .map(|(plane, x)| (&plane.rungs[rung], plane.quantise(&plane.rungs[rung], x, skip)))
            .collect();
        let stored = entropy_coded(&symbols, tokens - skip)?;
        let mut back = entropy_decoded(&stored, &rungs, tokens - skip)?.into_iter();
        let mut kv = KvBuffer::new(chunk.spec, tokens);
        let mut sink_bytes = 0;
        for plane in &self.planes {
            let x = plane.dequantise(&plane.rungs[rung], &mut back, tokens, skip);
            scatter(chunk.spec, chunk.first_position, plane.plane, &plane.synthesise(&x), &mut kv);
            sink_bytes += 2 * skip * plane.elements;
        }
        if back.next().is_some() {
            return Err(BenchError::OwnBytes { codec: "kvtc_like", what: "symbols remain after the end" });
        }
        exact_sinks(chunk, skip, &mut kv);
        Ok(Coded { bytes: (stored.len() + sink_bytes) as u64, error: LevelError::UNKNOWN, kv })
    }
}

/// Puts the sinks in place as 16 bits keep them.
fn exact_sinks(chunk: &Chunk<'_>, sinks: usize, kv: &mut KvBuffer) {
    for plane in Plane::ALL {
        each_head(chunk.spec, plane, |layer, head, dim| {
            let exact = &chunk.kv.rows(layer, plane, head)[..sinks * dim];
            let own = &mut kv.rows_mut(layer, plane, head)[..sinks * dim];
            own.iter_mut().zip(exact).for_each(|(own, x)| *own = f16::from_f32(*x).to_f32());
        });
    }
}

impl KvCodec for KvtcLike {
    fn name(&self) -> &'static str {
        "kvtc_like"
    }

    fn variant(&self) -> &str {
        &self.variant
    }

    fn levels(&self) -> usize {
        RUNGS.len()
    }

    fn profile_bytes(&self) -> u64 {
        let of_plane = |plane: &PlaneCodec| 2 * (plane.basis.len() + plane.mean.len()) + 4 * plane.rank();
        self.planes.iter().map(|plane| of_plane(plane) as u64).sum()
    }

    fn code(&self, chunk: &Chunk<'_>) -> Result<Vec<Coded>, BenchError> {
        let gathered = |plane: &PlaneCodec| {
            plane.analyse(&gather(chunk.spec, chunk.kv, chunk.first_position, plane.plane))
        };
        let components: Vec<_> = self.planes.iter().map(gathered).collect();
        (0..RUNGS.len()).map(|rung| self.code_rung(chunk, rung, &components)).collect()
    }
}
