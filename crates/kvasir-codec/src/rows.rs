//! Rows of a direct scope: coefficient = element, so reconstruction, transposition and scaling are one pass.
//!
//! The arithmetic is that of [`reconstruct`](crate::levels::reconstruct) and of the transform's last step, in the
//! same order: an integer, exact in `f32`, times the gain, plus the mean, never fused.

use crate::{arch::RowKernel, levels::ratio};

/// Tokens and elements of the square that kernels transpose at once.
pub(crate) const TILE: usize = 16;

/// How the quantised values of consecutive elements of one head become numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scaling<'a> {
    /// Levels above the finest.
    pub(crate) up: u32,
    /// Centroid shift of every element.
    pub(crate) shifts: &'a [u8],
    /// Finest step of the head.
    pub(crate) gain: f32,
    /// Static mean of every element.
    pub(crate) mean: &'a [f32],
}

impl Scaling<'_> {
    /// Elements.
    pub(crate) fn elements(&self) -> usize {
        self.mean.len()
    }

    /// Finest steps in a step of the level.
    pub(crate) fn ratio(&self) -> i32 {
        ratio(self.up)
    }

    /// What is taken off the magnitude of a value that is not zero, in finest steps.
    pub(crate) fn towards_zero(&self, element: usize) -> i32 {
        (i32::from(self.shifts[element]) * self.ratio() + 128) >> 8
    }
}

/// `rows[token][element]` from `values[element][token]`.
pub(crate) fn scale_rows(
    kernel: RowKernel,
    scaling: &Scaling<'_>,
    tokens: usize,
    values: &[i32],
    rows: &mut [f32],
) {
    let elements = scaling.elements();
    assert_eq!(scaling.shifts.len(), elements);
    assert_eq!(values.len(), elements * tokens);
    assert_eq!(rows.len(), elements * tokens);
    kernel.scale_rows(scaling, tokens, values, rows);
}

/// The portable kernel: tokens `from.1..`, elements `from.0..`, tile by tile, so that neither side strides far.
pub(crate) fn scale_rows_portable(
    scaling: &Scaling<'_>,
    tokens: usize,
    values: &[i32],
    rows: &mut [f32],
    (element_range, token_range): (std::ops::Range<usize>, std::ops::Range<usize>),
) {
    let (elements, ratio) = (scaling.elements(), scaling.ratio());
    for first in token_range.clone().step_by(TILE) {
        let last = token_range.end.min(first + TILE);
        for element in element_range.clone() {
            let (towards_zero, mean) = (scaling.towards_zero(element), scaling.mean[element]);
            for token in first..last {
                let q = values[element * tokens + token];
                let steps = q.wrapping_mul(ratio).wrapping_sub(q.signum() * towards_zero);
                rows[token * elements + element] = steps as f32 * scaling.gain + mean;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::levels::reconstruct;

    proptest! {
        #[test]
        fn every_kernel_gives_the_bits_of_the_definition(
            (elements, tokens) in (1usize..70, 1usize..70), up in 0u32..8, gain in -3.0f32..3.0, seed in any::<i32>(),
        ) {
            let value = |i: usize| (seed.wrapping_mul(i as i32 | 1).wrapping_mul(0x9e37_79b1u32 as i32)) >> (i % 32);
            let values: Vec<i32> = (0..elements * tokens).map(value).collect();
            let shifts: Vec<u8> = (0..elements).map(|e| value(e) as u8).collect();
            let mean: Vec<f32> = (0..elements).map(|e| value(e + 7) as f32 * 1e-6).collect();
            let scaling = Scaling { up, shifts: &shifts, gain, mean: &mean };
            let expected = |token: usize, element: usize| {
                let steps = reconstruct(values[element * tokens + token], up, shifts[element]) as f32;
                (steps * gain + mean[element]).to_bits()
            };
            for kernel in RowKernel::available() {
                let mut rows = vec![0.0; elements * tokens];
                scale_rows(kernel, &scaling, tokens, &values, &mut rows);
                for (index, row) in rows.iter().enumerate() {
                    prop_assert_eq!(row.to_bits(), expected(index / elements, index % elements));
                }
            }
        }
    }
}
