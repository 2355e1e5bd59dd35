//! What engines store by a flag: values of a narrow float type under scales.
//!
//! A tensor is a chunk's keys or values of one layer, and its scale follows from its own largest value, so that none is cut
//! off. Those of vLLM's `kv_cache_dtype=fp8` are constants of the checkpoint, or 1.

use kvasir_codec::e4m3;

use super::{Chunk, Coded, KvCodec, bits, by_tensor, over};
use crate::BenchError;

/// The largest value of e4m3.
const E4M3_MAX: f32 = 448.0;
/// The magnitudes of e2m1 by their patterns (OCP Microscaling Formats 1.0).
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
/// The largest of them.
const E2M1_MAX: f32 = 6.0;
/// Values under one e4m3 scale of NVFP4.
const BLOCK: usize = 16;

/// How values are stored.
#[derive(Debug, Clone, Copy)]
pub enum ScaledFloats {
    /// e4m3 values under one f32 scale a tensor: 8 bits.
    Fp8,
    /// e2m1 values, an e4m3 scale for every 16 of a head, one f32 scale a tensor: 4.5 bits.
    Nvfp4,
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0f32, |most, x| most.max(x.abs()))
}

/// A tensor's scale, then its values.
fn to_fp8(rows: &[f32]) -> Vec<u8> {
    let scale = largest(rows) / E4M3_MAX;
    let values = rows.iter().map(|x| e4m3::encode(over(*x, scale)));
    scale.to_le_bytes().into_iter().chain(values).collect()
}

fn from_fp8(bytes: &[u8], rows: &mut [f32]) {
    let Some((scale, values)) = bytes.split_first_chunk::<4>() else { return };
    let scale = f32::from_le_bytes(*scale);
    rows.iter_mut().zip(values).for_each(|(x, value)| *x = e4m3::decode(*value) * scale);
}

/// The pattern of the nearest value of e2m1, the even one of two; beyond ±6 that of ±6.
fn to_e2m1(value: f32) -> u16 {
    let (magnitude, sign) = (value.abs(), u16::from(value.is_sign_negative()) << 3);
    let is_above = |below: &usize| {
        let tie = 0.5 * (E2M1[*below] + E2M1[below + 1]);
        magnitude > tie || (magnitude == tie && below % 2 == 1)
    };
    sign | (0..E2M1.len() - 1).take_while(is_above).count() as u16
}

fn from_e2m1(pattern: u16) -> f32 {
    let magnitude = E2M1[usize::from(pattern & 7)];
    if pattern & 8 == 0 { magnitude } else { -magnitude }
}

/// A tensor's scale, then for every block of a head vector its scale and its values. `rows` are head vectors of `dim` values.
fn to_nvfp4(rows: &[f32], dim: usize) -> Vec<u8> {
    let tensor = largest(rows) / (E2M1_MAX * E4M3_MAX);
    let mut out = tensor.to_le_bytes().to_vec();
    for block in rows.chunks_exact(dim).flat_map(|row| row.chunks(BLOCK)) {
        let scale = e4m3::encode(over(largest(block) / E2M1_MAX, tensor));
        let step = e4m3::decode(scale) * tensor;
        out.push(scale);
        bits::pack(block.iter().map(|x| to_e2m1(over(*x, step))), 4, &mut out);
    }
    out
}

fn from_nvfp4(bytes: &[u8], dim: usize, rows: &mut [f32]) {
    let Some((tensor, mut rest)) = bytes.split_first_chunk::<4>() else { return };
    let tensor = f32::from_le_bytes(*tensor);
    for block in rows.chunks_exact_mut(dim).flat_map(|row| row.chunks_mut(BLOCK)) {
        let (stored, after) = rest.split_at(1 + bits::packed_bytes(block.len(), 4));
        let step = e4m3::decode(stored[0]) * tensor;
        let values = bits::unpack(&stored[1..], 4);
        block.iter_mut().zip(values).for_each(|(x, pattern)| *x = from_e2m1(pattern) * step);
        rest = after;
    }
}

impl KvCodec for ScaledFloats {
    fn name(&self) -> &'static str {
        match self {
            Self::Fp8 => "fp8",
            Self::Nvfp4 => "nvfp4",
        }
    }

    fn levels(&self) -> usize {
        1
    }

    fn code(&self, chunk: &Chunk<'_>) -> Result<Vec<Coded>, BenchError> {
        let through = |rows: &mut [f32], dim: usize| {
            let stored = match self {
                Self::Fp8 => to_fp8(rows),
                Self::Nvfp4 => to_nvfp4(rows, dim),
            };
            match self {
                Self::Fp8 => from_fp8(&stored, rows),
                Self::Nvfp4 => from_nvfp4(&stored, dim, rows),
            }
            stored.len()
        };
        Ok(vec![by_tensor(chunk, through)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e2m1_takes_the_nearest_value_and_the_even_one_of_two() {
        for (pattern, magnitude) in (0..).zip(E2M1) {
            assert_eq!((to_e2m1(magnitude), to_e2m1(-magnitude)), (pattern, pattern | 8));
            assert_eq!((from_e2m1(pattern), from_e2m1(pattern | 8)), (magnitude, -magnitude));
        }
        let near = |value: f32| from_e2m1(to_e2m1(value));
        let ties: [(f32, f32); 7] =
            [(0.25, 0.0), (0.75, 1.0), (1.25, 1.0), (1.75, 2.0), (2.5, 2.0), (3.5, 4.0), (5.0, 4.0)];
        for ((tie, even), values) in ties.into_iter().zip(E2M1.windows(2)) {
            assert_eq!((near(tie), near(-tie)), (even, -even), "{tie}");
            assert_eq!([near(tie.next_down()), near(tie.next_up())], values, "{tie}");
        }
        assert_eq!((near(7.5), near(-1e9)), (6.0, -6.0));
    }

    #[test]
    fn fp8_is_a_scale_and_the_nearest_values() {
        // The largest value is e4m3's, so the scale is 1. Two values are ties, of which the even one is taken.
        let mut rows = [448f32, 1.0625, 1.1875, -0.3, 0.0];
        let stored = to_fp8(&rows);
        from_fp8(&stored, &mut rows);
        assert_eq!((stored.len(), rows), (4 + 5, [448.0, 1.0, 1.25, -0.3125, 0.0]));
        let mut zeros = [0f32; 3];
        from_fp8(&to_fp8(&[0.0; 3]), &mut zeros);
        assert_eq!(zeros, [0.0; 3]);
    }

    #[test]
    fn nvfp4_is_a_scale_for_every_16_values_of_a_head_and_one_for_all() {
        // Two head vectors of two blocks. The largest value is 6 × 448, so the tensor's scale is 1.
        let (mut rows, mut expected) = ([0f32; 64], [0f32; 64]);
        // A block's scale of 448, one of 1, and one of 1.875, which is nearest to 11 / 6.
        rows[..3].copy_from_slice(&[2688.0, 560.0, -672.0]);
        expected[..3].copy_from_slice(&[2688.0, 448.0, -672.0]);
        rows[16..24].copy_from_slice(&[6.0, 0.25, 0.75, 2.5, 3.5, 5.0, -1.6, -6.0]);
        expected[16..24].copy_from_slice(&[6.0, 0.0, 1.0, 2.0, 4.0, 4.0, -1.5, -6.0]);
        (rows[32], expected[32]) = (11.0, 11.25);
        let stored = to_nvfp4(&rows, 32);
        from_nvfp4(&stored, 32, &mut rows);
        assert_eq!((stored.len(), rows), (4 + 4 * (1 + 8), expected));
        // The last block of a head is not filled up with the next head's values.
        let mut zeros = [0f32; 48];
        let stored = to_nvfp4(&zeros, 24);
        from_nvfp4(&stored, 24, &mut zeros);
        assert_eq!((stored.len(), zeros), (4 + 2 * (1 + 8 + 1 + 4), [0.0; 48]));
    }
}
