//! Rotary embeddings, undone before the transform and redone after it (FORMAT.md "RoPE").
//!
//! The phase of a pair is `position × frequency mod 2^64` in units of `2^-64` turn: exact. Sine and cosine are
//! normative f32 polynomials of its top 32 bits, multiplied and added in the order written here and never
//! fused, so that every implementation gets the same bits.

use kvasir_types::{Pairing, Rope};

/// `(π/2)^n / n!` for odd n: the Taylor series of `sin(π x / 2)`; below 2e-9 off for |x| ≤ 1/2.
pub const SIN: [f32; 5] = [1.570_796_4, -0.645_964_1, 0.079_692_63, -0.004_681_754, 0.000_160_441_18];
/// As [`SIN`] for even n and the cosine; below 3e-8 off.
pub const COS: [f32; 5] = [1.0, -1.233_700_5, 0.253_669_5, -0.020_863_48, 0.000_919_260_3];

/// 2^-30: no nonzero sine or cosine is smaller. The remainder of a quarter turn is a multiple of that, and
/// its sine is larger than it.
#[cfg_attr(not(any(test, target_arch = "x86_64")), allow(dead_code, reason = "others round by hand"))]
pub(crate) const LEAST_TURN: f32 = 1.0 / (1u32 << 30) as f32;

/// Sine and cosine of a phase given by the top 32 bits of its fraction of a turn.
#[inline]
pub fn sin_cos(phase: u32) -> (f32, f32) {
    // The nearest quarter turn, and its remainder: -2^29 ≤ rest < 2^29 in units of 2^-32 turn.
    let quarter = phase.wrapping_add(1 << 29) >> 30;
    let rest = phase.wrapping_sub(quarter << 30).cast_signed();
    let x = rest as f32 * (1.0 / (1u32 << 30) as f32);
    let u = x * x;
    let sin = x * (SIN[0] + u * (SIN[1] + u * (SIN[2] + u * (SIN[3] + u * SIN[4]))));
    let cos = COS[0] + u * (COS[1] + u * (COS[2] + u * (COS[3] + u * COS[4])));
    // (sin, cos), (cos, −sin), (−sin, −cos), (−cos, sin) by quarter: a swap and two signs, without a branch
    let (swapped, other) = if quarter & 1 == 0 { (sin, cos) } else { (cos, sin) };
    let negate = |x: f32, bit: u32| f32::from_bits(x.to_bits() ^ (bit & 2) << 30);
    (negate(swapped, quarter), negate(other, quarter + 1))
}

/// Sines and cosines of a rope for a run of positions, shared by all heads that use it.
#[derive(Debug, Clone)]
pub struct Rotation {
    pairing: Pairing,
    offset: usize,
    pairs: usize,
    factor: f32,
    /// `[token][pair]` of (sin, cos).
    table: Vec<(f32, f32)>,
}

impl Rotation {
    /// The rotations of `rope` at `tokens` positions from `first` on, modulo 2^64.
    pub fn new(rope: &Rope, first: u64, tokens: usize) -> Self {
        let angles = |position: u64| {
            rope.freqs.iter().map(move |freq| sin_cos((position.wrapping_mul(*freq) >> 32) as u32))
        };
        Self {
            pairing: rope.pairing,
            offset: rope.offset as usize,
            pairs: rope.freqs.len(),
            factor: rope.attention_factor,
            table: (0..tokens as u64).flat_map(|token| angles(first.wrapping_add(token))).collect(),
        }
    }

    /// Tokens covered.
    pub fn tokens(&self) -> usize {
        self.table.len().checked_div(self.pairs).unwrap_or(0)
    }

    /// Rotates a row of token `token` and applies the attention factor: the result is the engine's cached
    /// row.
    pub fn rotate(&self, token: usize, row: &mut [f32]) {
        self.turn(token, row, |x, y, (sin, cos)| {
            ((x * cos - y * sin) * self.factor, (y * cos + x * sin) * self.factor)
        });
    }

    /// The inverse of [`rotate`](Self::rotate), up to f32 rounding.
    pub fn unrotate(&self, token: usize, row: &mut [f32]) {
        let inverse = 1.0 / self.factor;
        self.turn(token, row, |x, y, (sin, cos)| {
            ((x * cos + y * sin) * inverse, (y * cos - x * sin) * inverse)
        });
    }

    /// Replaces every pair of a row, given the pair's sine and cosine, in loops that a compiler can vectorise.
    fn turn(&self, token: usize, row: &mut [f32], turned: impl Fn(f32, f32, (f32, f32)) -> (f32, f32)) {
        let angles = &self.table[token * self.pairs..(token + 1) * self.pairs];
        let row = &mut row[self.offset..self.offset + 2 * self.pairs];
        match self.pairing {
            Pairing::Half => {
                let (first, second) = row.split_at_mut(self.pairs);
                for ((x, y), angle) in first.iter_mut().zip(second).zip(angles) {
                    (*x, *y) = turned(*x, *y, *angle);
                }
            }
            Pairing::Interleaved => {
                for ([x, y], angle) in row.as_chunks_mut::<2>().0.iter_mut().zip(angles) {
                    (*x, *y) = turned(*x, *y, *angle);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rope(pairing: Pairing, offset: u32, pairs: usize, factor: f32) -> Rope {
        let plain = Rope::plain(pairing, 2 * pairs, 10_000.0);
        Rope { offset, attention_factor: factor, ..plain }
    }

    #[test]
    fn no_sine_is_smaller_than_said_but_0() {
        for quarter in 0..4u32 {
            assert!([0.0, -0.0].contains(&sin_cos(quarter << 30).0) || quarter % 2 == 1);
            for near in (0..64).chain((0..29).map(|bit| 1 << bit)) {
                for phase in [(quarter << 30).wrapping_add(near), (quarter << 30).wrapping_sub(near)] {
                    let (sin, cos) = sin_cos(phase);
                    let smaller = |x: f32| x != 0.0 && x.abs() < LEAST_TURN;
                    assert!(!smaller(sin) && !smaller(cos), "{phase}: {sin} {cos}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn sin_cos_is_accurate(phase in any::<u32>()) {
            let turn = f64::from(phase) / 2f64.powi(32) * std::f64::consts::TAU;
            let (sin, cos) = sin_cos(phase);
            prop_assert!((f64::from(sin) - turn.sin()).abs() < 2e-7, "sin {sin} {}", turn.sin());
            prop_assert!((f64::from(cos) - turn.cos()).abs() < 2e-7, "cos {cos} {}", turn.cos());
        }

        #[test]
        fn unrotate_inverts_rotate(
            interleaved in any::<bool>(), offset in 0u32..4, pairs in 1usize..17, factor in 0.5f32..2.0,
            position in 0u64..10_000_000, seed in -100i32..100,
        ) {
            let pairing = if interleaved { Pairing::Interleaved } else { Pairing::Half };
            let rotation = Rotation::new(&rope(pairing, offset, pairs, factor), position, 2);
            let dim = offset as usize + 2 * pairs + 3;
            let row: Vec<f32> = (0..dim).map(|i| (i as f32 * 0.37 + seed as f32).sin() * 3.0).collect();
            let mut turned = row.clone();
            rotation.rotate(1, &mut turned);
            prop_assert_eq!(&turned[..offset as usize], &row[..offset as usize]);
            prop_assert_eq!(&turned[dim - 3..], &row[dim - 3..]);
            rotation.unrotate(1, &mut turned);
            for (x, y) in row.iter().zip(&turned) {
                prop_assert!((x - y).abs() < 1e-5, "{x} {y}");
            }
        }
    }

    /// The rotation a Hugging Face Llama makes, in f64, at a position no f32 phase would survive.
    #[test]
    fn it_is_the_rotation_engines_make() {
        let position = 1_234_567u64;
        for pairing in [Pairing::Half, Pairing::Interleaved] {
            let rotation = Rotation::new(&rope(pairing, 0, 4, 1.0), position, 1);
            let row: Vec<f32> = (0..8).map(|i| i as f32 - 3.5).collect();
            let mut turned = row.clone();
            rotation.rotate(0, &mut turned);
            for i in 0..4 {
                let (a, b) = if pairing == Pairing::Half { (i, i + 4) } else { (2 * i, 2 * i + 1) };
                let angle = position as f64 * 10_000f64.powf(-(i as f64) / 4.0);
                let (x, y) = (f64::from(row[a]), f64::from(row[b]));
                assert!((f64::from(turned[a]) - (x * angle.cos() - y * angle.sin())).abs() < 1e-4);
                assert!((f64::from(turned[b]) - (y * angle.cos() + x * angle.sin())).abs() < 1e-4);
            }
        }
    }
}
