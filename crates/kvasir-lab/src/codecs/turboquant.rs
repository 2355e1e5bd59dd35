//! A codec after TurboQuant (Zandieh et al., arXiv 2504.19874), the variant for the squared error: each head vector is
//! divided by its norm and rotated at random. Its elements are then close to Gaussian whatever the model, and each is rounded to
//! the nearest of the few values that suit a Gaussian best. No calibration.
//!
//! Norms take 16 bits, and the rotation follows from a seed. There is no second stage (signs of the residual, for inner
//! products), and no channels are set apart.

use std::{collections::BTreeMap, f64::consts::TAU};

use half::f16;
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

use super::{Chunk, Coded, KvCodec, bits, by_tensor, kvtc::rows_by_rows, over};
use crate::BenchError;

/// The best positive values for a Gaussian in 2, 3 and 4 bits (Max, "Quantizing for Minimum Distortion", 1960). At the 64
/// elements of a head here, those of the exact distribution have an error that is at most 0.6 % smaller.
const CODEBOOKS: [&[f32]; 3] = [
    &[0.4528, 1.5104],
    &[0.2451, 0.7560, 1.3439, 2.1520],
    &[0.1284, 0.3881, 0.6568, 0.9424, 1.2562, 1.6181, 2.0690, 2.7326],
];

/// The codec, swept over its bits: a value takes 2, 3 or 4, and a head vector 16 more.
#[derive(Debug, Clone, Copy)]
pub struct TurboquantLike;

/// Draws from a Gaussian (Box and Muller); the same seed gives the same ones.
pub(super) fn gaussian(seed: u64) -> impl FnMut() -> f64 {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut uniform = move || (f64::from(rng.next_u32()) + 0.5) / 2f64.powi(32);
    move || (-2.0 * uniform().ln()).sqrt() * (TAU * uniform()).cos()
}

/// A random rotation, the same one for every head vector of a length.
#[derive(Debug)]
struct Rotation {
    dim: usize,
    /// Orthonormal rows.
    forth: Vec<f32>,
    /// Its transpose.
    back: Vec<f32>,
}

impl Rotation {
    /// Gaussian rows, made orthonormal one by one (Gram and Schmidt).
    fn new(dim: usize) -> Self {
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let mut draw = gaussian(dim as u64);
        let mut rows: Vec<Vec<f64>> = Vec::with_capacity(dim);
        for _ in 0..dim {
            let mut row: Vec<f64> = (0..dim).map(|_| draw()).collect();
            // Twice: rounding leaves a little of the other rows the first time.
            for other in rows.iter().chain(&rows) {
                let along = dot(&row, other);
                row.iter_mut().zip(other).for_each(|(x, y)| *x -= along * y);
            }
            let norm = dot(&row, &row).sqrt();
            row.iter_mut().for_each(|x| *x /= norm);
            rows.push(row);
        }
        let forth = rows.iter().flatten().map(|x| *x as f32).collect();
        let back = (0..dim).flat_map(|column| rows.iter().map(move |row| row[column] as f32)).collect();
        Self { dim, forth, back }
    }

    /// What one unit of a codebook is in a vector of this norm.
    fn unit(&self, norm: f16) -> f32 {
        norm.to_f32() / (self.dim as f32).sqrt()
    }

    /// For every head vector its norm and its symbols.
    fn encode(&self, codebook: &[f32], rows: &[f32]) -> Vec<u8> {
        let turned = rows_by_rows(rows, &self.forth, self.dim);
        let mut out = Vec::new();
        for (row, turned) in rows.chunks_exact(self.dim).zip(turned.chunks_exact(self.dim)) {
            let norm = f16::from_f32(row.iter().map(|x| x * x).sum::<f32>().sqrt());
            out.extend_from_slice(&norm.to_le_bytes());
            let symbols = turned.iter().map(|x| nearest(codebook, over(*x, self.unit(norm))));
            bits::pack(symbols, width(codebook), &mut out);
        }
        out
    }

    fn decode(&self, codebook: &[f32], bytes: &[u8], rows: &mut [f32]) {
        let mut turned = Vec::with_capacity(rows.len());
        for stored in bytes.chunks_exact(2 + bits::packed_bytes(self.dim, width(codebook))) {
            let unit = self.unit(f16::from_le_bytes([stored[0], stored[1]]));
            let symbols = bits::unpack(&stored[2..], width(codebook)).take(self.dim);
            turned.extend(symbols.map(|symbol| value(codebook, symbol) * unit));
        }
        rows.copy_from_slice(&rows_by_rows(&turned, &self.back, self.dim));
    }
}

/// Bits of a symbol: a sign, and which of the positive values.
fn width(codebook: &[f32]) -> u32 {
    1 + codebook.len().ilog2()
}

fn nearest(codebook: &[f32], x: f32) -> u16 {
    let is_above = |pair: &&[f32]| x.abs() > 0.5 * (pair[0] + pair[1]);
    let index = codebook.windows(2).take_while(is_above).count();
    (usize::from(x < 0.0) * codebook.len() + index) as u16
}

fn value(codebook: &[f32], symbol: u16) -> f32 {
    let (symbol, count) = (usize::from(symbol), codebook.len());
    if symbol < count { codebook[symbol] } else { -codebook[symbol - count] }
}

impl KvCodec for TurboquantLike {
    fn name(&self) -> &'static str {
        "turboquant_like"
    }

    fn levels(&self) -> usize {
        CODEBOOKS.len()
    }

    fn code(&self, chunk: &Chunk<'_>) -> Result<Vec<Coded>, BenchError> {
        let mut rotations = BTreeMap::new();
        let level = |codebook: &&[f32]| {
            by_tensor(chunk, |rows, dim| {
                let rotation = rotations.entry(dim).or_insert_with(|| Rotation::new(dim));
                let stored = rotation.encode(codebook, rows);
                rotation.decode(codebook, &stored, rows);
                stored.len()
            })
        };
        Ok(CODEBOOKS.iter().map(level).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotations_are_orthonormal_and_turn_back() {
        for dim in [8, 64, 80] {
            let rotation = Rotation::new(dim);
            let products = rows_by_rows(&rotation.forth, &rotation.forth, dim);
            for (index, product) in products.iter().enumerate() {
                let expected = if index % (dim + 1) == 0 { 1.0 } else { 0.0 };
                assert!((product - expected).abs() < 1e-5, "{dim}: {product} at {index}");
            }
            let mut draw = gaussian(7);
            let rows: Vec<f32> = (0..3 * dim).map(|_| draw() as f32).collect();
            let turned = rows_by_rows(&rows, &rotation.forth, dim);
            assert!(rows.iter().zip(&turned).any(|(x, y)| (x - y).abs() > 0.5), "{dim}: it turns");
            let back = rows_by_rows(&turned, &rotation.back, dim);
            assert!(rows.iter().zip(&back).all(|(x, y)| (x - y).abs() < 1e-4), "{dim}");
        }
    }
}
