//! Rows of a direct scope: coefficient = element, so reconstruction, transposition and scaling are one pass.
//!
//! The arithmetic is that of [`reconstruct`](crate::levels::reconstruct) and of the transform's last step, in the
//! same order: an integer, exact in `f32`, times the gain, plus the mean, never fused.

pub(crate) mod bf16_tiles;
pub(crate) mod quantise_tiles;

use self::{
    bf16_tiles::{Bf16Rows, RotationTable, RowScratch, bf16_tile},
    quantise_tiles::{QuantiseTarget, QuantiserSteps},
};
use crate::{arch::RowKernel, levels::ratio, rans::Cell};

/// Tokens and elements of the square that kernels transpose together.
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

    /// The amount subtracted from the magnitude of a nonzero value, in finest steps.
    pub(crate) fn towards_zero(&self, element: usize) -> i32 {
        self.off(self.shifts[element])
    }

    /// The same for a shift.
    #[inline(always)]
    pub(crate) fn off(&self, shift: u8) -> i32 {
        (i32::from(shift) * self.ratio() + 128) >> 8
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

/// Quantised values of a head, `[element][token]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuantisedRows<'a, V> {
    /// `stride` of every element.
    pub(crate) values: &'a [V],
    /// Values from one element to the next, at least the tokens.
    pub(crate) stride: usize,
    /// Tokens.
    pub(crate) tokens: usize,
}

impl<V> QuantisedRows<'_, V> {
    fn check(&self, scaling: &Scaling<'_>, rows: &Bf16Rows<'_>) {
        let elements = scaling.elements();
        assert_eq!(scaling.shifts.len(), elements);
        assert!(self.tokens <= self.stride && self.values.len() == elements * self.stride);
        assert_eq!(rows.rows.len(), elements * self.tokens);
    }
}

/// As [`scale_rows`], then rotated by `rotation`, rounded to bf16. The values must fit 16 bits in finest
/// steps too.
pub(crate) fn bf16_rows(
    kernel: RowKernel,
    scaling: &Scaling<'_>,
    rotation: Option<&RotationTable>,
    values: QuantisedRows<'_, i16>,
    rows: Bf16Rows<'_>,
    scratch: &mut RowScratch,
) {
    values.check(scaling, &rows);
    kernel.bf16_rows(scaling, rotation, values, rows, scratch);
}

/// As [`bf16_rows`], by the portable kernel, of any values.
pub(crate) fn bf16_rows_portable<V: Cell>(
    scaling: &Scaling<'_>,
    rotation: Option<&RotationTable>,
    values: QuantisedRows<'_, V>,
    rows: Bf16Rows<'_>,
    scratch: &mut RowScratch,
) {
    values.check(scaling, &rows);
    let Bf16Rows { rows, .. } = rows;
    for (tile, rows) in rows.chunks_mut(TILE * scaling.elements()).enumerate() {
        bf16_tile(scaling, rotation, (values, tile), rows, scratch);
    }
}

/// Quantises a head's `rows[token][element]`; `false` if a value is out of range.
pub(crate) fn quantise_rows(
    kernel: RowKernel,
    steps: &QuantiserSteps<'_>,
    rotation: Option<&RotationTable>,
    tokens: usize,
    rows: &[f32],
    mut to: QuantiseTarget<'_>,
    scratch: &mut RowScratch,
) -> bool {
    let elements = steps.mean.len();
    assert_eq!(rows.len(), elements * tokens);
    match &to {
        QuantiseTarget::Wide(values) => assert_eq!(values.len(), rows.len()),
        QuantiseTarget::Narrow(blocks, first) => {
            assert!(blocks.tokens() == tokens && first + elements <= blocks.rows());
        }
    }
    kernel.quantise_rows(steps, rotation, tokens, rows, &mut to, scratch)
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
    use half::bf16;
    use proptest::prelude::*;

    use kvasir_types::{Pairing, Rope};

    use super::{bf16_tiles::aligned, *};
    use crate::{levels::reconstruct, rans::blocks::Blocks, rope::Rotation};

    proptest! {
        /// Rounding of the f32 rows, rotated by the rotation of the f32 path.
        #[test]
        fn every_kernel_gives_the_f32_rows_rounded(
            (elements, tokens) in (1usize..150, 1usize..200), up in 0u32..3, pairs in 0usize..70,
            interleaved in any::<bool>(), seed in any::<i32>(), first in any::<u64>(), spread in 0u32..15,
        ) {
            // every other time rows of whole cache lines
            let elements = if seed % 2 == 0 { elements.next_multiple_of(32) } else { elements };
            // half of the heads do not turn
            let pairs = pairs.saturating_sub(35).min(elements / 2);
            let stride = tokens + seed.unsigned_abs() as usize % 40;
            let value = |i: usize| (seed.wrapping_mul(i as i32 | 1).wrapping_mul(0x9e37_79b1u32 as i32)) >> (i % 32);
            // mostly within what is looked up, and whatever fits 16 bits in finest steps
            let narrow = |i: usize| (value(i) >> (17 + if i.is_multiple_of(9) { 0 } else { spread })) / ratio(up);
            let values: Vec<i32> = (0..elements * tokens).map(narrow).collect();
            let cells: Vec<i16> = (0..elements * stride)
                .map(|i| values.get(i / stride * tokens + i % stride).filter(|_| i % stride < tokens).map_or(-1, |v| *v as i16))
                .collect();
            let shifts: Vec<u8> = (0..elements).map(|e| value(e) as u8 & 127).collect();
            let mean: Vec<f32> = (0..elements).map(|e| value(e + 7) as f32 * 1e-6).collect();
            // tiny gains reach denormals, huge ones infinity and NaN
            let gain = [1e-3, 1e-42, 1e35][seed.unsigned_abs() as usize % 3];
            let scaling = Scaling { up, shifts: &shifts, gain, mean: &mean };
            let pairing = if interleaved { Pairing::Interleaved } else { Pairing::Half };
            let plain = Rope::plain(pairing, 2 * pairs.max(1), 10_000.0);
            let rope = Rope { offset: (elements - 2 * pairs) as u32, attention_factor: 1.5, ..plain };
            let rotated = pairs > 0;
            let mut expected = vec![0.0; values.len()];
            scale_rows(RowKernel::available()[0], &scaling, tokens, &values, &mut expected);
            if rotated {
                let rotation = Rotation::new(&rope, first, tokens);
                expected.chunks_exact_mut(elements).enumerate().for_each(|(t, row)| rotation.rotate(t, row));
            }
            let rotation = rotated.then(|| RotationTable::new(&rope, first, tokens));
            // at a cache line's beginning, or 16 bytes behind it
            let at = if up % 2 == 0 { 0 } else { 8 };
            let check = |name: &str, make: &mut dyn FnMut(Bf16Rows<'_>), past_cache: bool| {
                let mut buffer = Vec::new();
                let rows = &mut aligned(&mut buffer, values.len() + 8)[at..][..values.len()];
                make(Bf16Rows { rows: &mut *rows, past_cache });
                for (index, (row, expected)) in rows.iter().zip(&expected).enumerate() {
                    let expected = bf16::from_f32(*expected);
                    // the sign of a NaN is the machine's
                    let same = row.to_bits() == expected.to_bits() || (row.is_nan() && expected.is_nan());
                    prop_assert!(same, "{name} {index}: {row} {expected}");
                }
                Ok(())
            };
            let quantised = QuantisedRows { values: &cells[..], stride, tokens };
            for (kernel, past_cache) in RowKernel::available().into_iter().flat_map(|k| [(k, false), (k, true)]) {
                let mut make = |rows: Bf16Rows<'_>| {
                    bf16_rows(kernel, &scaling, rotation.as_ref(), quantised, rows, &mut RowScratch::default());
                };
                check(kernel.name(), &mut make, past_cache)?;
            }
            let wide = QuantisedRows { values: &values[..], stride: tokens, tokens };
            let mut make = |rows: Bf16Rows<'_>| {
                bf16_rows_portable(&scaling, rotation.as_ref(), wide, rows, &mut RowScratch::default());
            };
            check("wide", &mut make, false)?;
        }
    }

    proptest! {
        #[test]
        fn every_kernel_quantises_alike_to_rows_and_to_blocks(
            (elements, tokens) in (1usize..150, 1usize..100), pairs in 0usize..70, masked in 0usize..40,
            interleaved in any::<bool>(), seed in any::<i32>(), before in 0usize..130,
        ) {
            let pairs = pairs.saturating_sub(35).min(elements / 2);
            let value = |i: usize| (seed.wrapping_mul(i as i32 | 1).wrapping_mul(0x9e37_79b1u32 as i32)) >> (i % 32);
            let rows: Vec<f32> = (0..elements * tokens).map(|i| (value(i) >> 20) as f32 * 1.37).collect();
            let mean: Vec<f32> = (0..elements).map(|e| (value(e + 7) >> 24) as f32).collect();
            // sometimes too large for blocks, sometimes for rows
            let inverse = [1.0, 4.0, 1e5][seed.unsigned_abs() as usize % 3];
            let steps = QuantiserSteps { mean: &mean, inverse, masked };
            let pairing = if interleaved { Pairing::Interleaved } else { Pairing::Half };
            let plain = Rope::plain(pairing, 2 * pairs.max(1), 10_000.0);
            let rope = Rope { offset: (elements - 2 * pairs) as u32, ..plain };
            let rotation = (pairs > 0).then(|| RotationTable::new(&rope, 5, tokens));
            let quantised = |kernel, to: QuantiseTarget<'_>| {
                quantise_rows(kernel, &steps, rotation.as_ref(), tokens, &rows, to, &mut RowScratch::default())
            };
            let mut expected = vec![0; rows.len()];
            let within = quantised(RowKernel::portable(), QuantiseTarget::Wide(&mut expected));
            let most = expected.iter().map(|q| q.unsigned_abs()).max();
            for kernel in RowKernel::available() {
                let mut values = vec![0; rows.len()];
                prop_assert_eq!(quantised(kernel, QuantiseTarget::Wide(&mut values)), within, "{}", kernel.name());
                prop_assert!(!within || values == expected, "{}", kernel.name());
                let mut blocks = Blocks::default();
                blocks.reset(before + elements, tokens);
                let narrow = quantised(kernel, QuantiseTarget::Narrow(&mut blocks, before));
                // what is just above the largest rounds to it
                prop_assert!(!narrow || most <= Some(Blocks::MOST as u32), "{}", kernel.name());
                prop_assert!(narrow || most >= Some(Blocks::MOST as u32), "{}", kernel.name());
                for (element, expected) in expected.chunks_exact(tokens).enumerate().filter(|_| narrow) {
                    let mut row = vec![0; tokens];
                    blocks.write(before + element, 0, &mut row);
                    prop_assert_eq!(row, expected, "{} {}", kernel.name(), element);
                }
            }
        }
    }

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
