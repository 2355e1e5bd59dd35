//! Rows of rotated heads, 32 tokens at once: the numbers of frequent values are looked up before the
//! rotation, and the CPU's conversion rounds them.
//!
//! That conversion flushes denormals to zero, while FORMAT.md keeps them. So it is used only for heads that
//! cannot have any: a number of at least [`LEAST`] times a sine or cosine of at least [`LEAST_TURN`] is a
//! multiple of 2^-113, and so are sums of such products; a factor of at least [`LEAST_FACTOR`] leaves them
//! normal. Zeros stay zeros in both.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "register intrinsics share one proof: the CPU feature"
)]

use std::{arch::x86_64::*, mem::transmute, ops::Range};

use half::bf16;

use super::{
    registers::{Registers, Sixteen},
    unrotated_rows::{HALF, TOKENS, number, rounded, squares},
};
use crate::{
    direct_rows::{
        QuantisedRows, Scaling, TILE,
        bf16_tiles::{Lane, RotationTable},
    },
    rope::LEAST_TURN,
};

/// 2^-60: the smallest number that is not zero.
const LEAST: f32 = f32::from_bits((127 - 60) << 23);
/// 2^-8.
const LEAST_FACTOR: f32 = f32::from_bits((127 - 8) << 23);

const _: () = assert!(LEAST * LEAST_TURN * f32::EPSILON * LEAST_FACTOR >= f32::MIN_POSITIVE);

/// Proof of AVX512-BF16, in addition to the requirements of [`Sixteen`].
#[derive(Clone, Copy)]
pub(super) struct Bf16Conversion(());

/// A head at some tokens, and the data to convert its values to numbers.
struct RotatedHead<'a> {
    scaling: &'a Scaling<'a>,
    offs: &'a [f32],
    rotation: &'a RotationTable,
    values: QuantisedRows<'a, i16>,
    /// Numbers of values 0 to 15 and -16 to -1 of every element.
    numbers: &'a [[Lane<u32>; 2]],
}

impl Bf16Conversion {
    /// `None` if the CPU lacks it.
    pub(super) fn new() -> Option<Self> {
        std::arch::is_x86_feature_detected!("avx512bf16").then_some(Self(()))
    }

    /// bf16 rows of as many tokens as fill registers. Returns their number; 0 if a number may not be normal.
    /// Elements are whole tiles of 32.
    ///
    /// # Safety
    /// AVX-512F, BW, VL; `values` hold `stride`, `rows` `tokens` of each of `scaling.elements()`, which 32 divides; there are as
    /// many `offs`; the pairs of `rotation` are elements.
    pub(super) unsafe fn rows<const PAST_CACHE: bool>(
        self,
        (scaling, offs): (&Scaling<'_>, &[f32]),
        rotation: &RotationTable,
        values: QuantisedRows<'_, i16>,
        rows: &mut [bf16],
        scratch: &mut Vec<Lane<u32>>,
    ) -> usize {
        /// # Safety
        /// As [`Bf16Conversion::rows`], and AVX512-BF16.
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
        unsafe fn entry<const PAST_CACHE: bool>(
            (scaling, offs): (&Scaling<'_>, &[f32]),
            rotation: &RotationTable,
            values: QuantisedRows<'_, i16>,
            rows: &mut [bf16],
            scratch: &mut Vec<Lane<u32>>,
        ) -> usize {
            let count = scaling.elements();
            debug_assert!(count.is_multiple_of(2 * TILE) && offs.len() == count);
            scratch.resize(3 * count, Lane::default());
            let (halves, numbers) = scratch.split_at_mut(count);
            let numbers = numbers.as_chunks_mut().0;
            let mut normal = rotation.factor().abs() >= LEAST_FACTOR;
            for (element, (numbers, off)) in numbers.iter_mut().zip(offs).enumerate() {
                // SAFETY: the caller's promise, here and below.
                normal &= unsafe { look_up(scaling, *off, element, numbers) };
            }
            if !normal {
                return 0;
            }
            let head = RotatedHead { scaling, offs, rotation, values, numbers };
            let whole = values.tokens / TOKENS * TOKENS;
            let rotated = rotation.offset()..rotation.offset() + 2 * rotation.pairs();
            for (block, rows) in rows[..whole * count].chunks_exact_mut(TOKENS * count).enumerate() {
                // SAFETY: as above.
                unsafe {
                    head.rotated(block, halves);
                    head.others(block, rotated.clone(), halves);
                    squares::<PAST_CACHE>(halves, rows);
                }
            }
            whole
        }
        // SAFETY: `self` exists, so `new` saw the feature; else the caller's promise.
        unsafe { entry::<PAST_CACHE>((scaling, offs), rotation, values, rows, scratch) }
    }
}

/// Fills the numbers of an element's frequent values; `false` if one is neither zero nor at least [`LEAST`].
///
/// # Safety
/// AVX-512F; the element is one.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn look_up(scaling: &Scaling<'_>, off: f32, element: usize, numbers: &mut [Lane<u32>; 2]) -> bool {
    let low = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let high = _mm512_sub_epi32(low, _mm512_set1_epi32(HALF.into()));
    let mut normal = true;
    for (values, numbers) in [low, high].into_iter().zip(numbers) {
        // SAFETY: the caller's promise; 64 bytes.
        unsafe {
            let x = number(scaling, off, element, values);
            normal &= !tiny(x);
            _mm512_storeu_si512(numbers.as_mut_ptr().cast(), _mm512_castps_si512(x));
        }
    }
    normal
}

/// Whether one is neither zero nor at least [`LEAST`]; NaN is not tiny.
#[inline]
#[target_feature(enable = "avx512f")]
fn tiny(x: __m512) -> bool {
    let below = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(_mm512_abs_ps(x), _mm512_set1_ps(LEAST));
    _mm512_mask_cmp_ps_mask::<_CMP_NEQ_OQ>(below, x, _mm512_setzero_ps()) != 0
}

/// Two registers of numbers as bf16, in order.
///
/// # Safety
/// AVX512-BF16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn converted([low, high]: [__m512; 2]) -> __m512i {
    // SAFETY: registers of one size.
    unsafe { transmute(_mm512_cvtne2ps_pbh(high, low)) }
}

impl RotatedHead<'_> {
    /// The numbers of 32 tokens of an element, and whether all are normal or zero.
    ///
    /// # Safety
    /// As [`Bf16Conversion::rows`]; the element and the block are there.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn element(&self, element: usize, block: usize) -> ([__m512; 2], bool) {
        debug_assert!(element < self.numbers.len() && (block + 1) * TOKENS <= self.values.tokens);
        // SAFETY: the caller's promise.
        unsafe {
            let at = self.values.values.as_ptr().add(element * self.values.stride + block * TOKENS);
            let (low, high) = (Sixteen::load_narrow(at), Sixteen::load_narrow(at.add(TILE)));
            let index = _mm512_add_epi16(_mm512_loadu_si512(at.cast()), _mm512_set1_epi16(HALF));
            if _mm512_cmpge_epu16_mask(index, _mm512_set1_epi16(2 * HALF)) != 0 {
                let off = *self.offs.get_unchecked(element);
                let x = [number(self.scaling, off, element, low), number(self.scaling, off, element, high)];
                return (x, !(tiny(x[0]) || tiny(x[1])));
            }
            // five bits of a value select the entry
            let [positive, negative] = self.numbers.get_unchecked(element);
            let (positive, negative) =
                (_mm512_loadu_ps(positive.as_ptr().cast()), _mm512_loadu_ps(negative.as_ptr().cast()));
            let low = _mm512_permutex2var_ps(positive, low, negative);
            ([low, _mm512_permutex2var_ps(positive, high, negative)], true)
        }
    }

    /// Halves of the elements that are rotated.
    ///
    /// # Safety
    /// As [`Bf16Conversion::rows`]; the block is there, and as many `halves` as elements.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn rotated(&self, block: usize, halves: &mut [Lane<u32>]) {
        let factor = self.rotation.factor();
        let (first, second) = (self.rotation.of_tile(2 * block), self.rotation.of_tile(2 * block + 1));
        for (pair, rotation) in first.iter().zip(second).enumerate() {
            let (a, b) = self.rotation.pair(pair);
            // SAFETY: the caller's promise.
            unsafe {
                let ((x, normal_x), (y, normal_y)) = (self.element(a, block), self.element(b, block));
                let (mut rotated_x, mut rotated_y) = (x, y);
                for (half, [sin, cos]) in [rotation.0, rotation.1].into_iter().enumerate() {
                    let (s, c) = (_mm512_loadu_ps(sin.as_ptr()), _mm512_loadu_ps(cos.as_ptr()));
                    let (xc, ys) = (_mm512_mul_ps(x[half], c), _mm512_mul_ps(y[half], s));
                    let (yc, xs) = (_mm512_mul_ps(y[half], c), _mm512_mul_ps(x[half], s));
                    (rotated_x[half], rotated_y[half]) = (_mm512_sub_ps(xc, ys), _mm512_add_ps(yc, xs));
                    if factor != 1.0 {
                        let factor = _mm512_set1_ps(factor);
                        rotated_x[half] = _mm512_mul_ps(rotated_x[half], factor);
                        rotated_y[half] = _mm512_mul_ps(rotated_y[half], factor);
                    }
                }
                let (x, y) = if normal_x & normal_y {
                    (converted(rotated_x), converted(rotated_y))
                } else {
                    (rounded(rotated_x), rounded(rotated_y))
                };
                _mm512_storeu_si512(halves.as_mut_ptr().add(a).cast(), x);
                _mm512_storeu_si512(halves.as_mut_ptr().add(b).cast(), y);
            }
        }
    }

    /// Halves of the elements that are not.
    ///
    /// # Safety
    /// As [`rotated`](Self::rotated).
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn others(&self, block: usize, rotated: Range<usize>, halves: &mut [Lane<u32>]) {
        for element in (0..rotated.start).chain(rotated.end..halves.len()) {
            // SAFETY: the caller's promise.
            unsafe {
                let (x, normal) = self.element(element, block);
                let x = if normal { converted(x) } else { rounded(x) };
                _mm512_storeu_si512(halves.as_mut_ptr().add(element).cast(), x);
            }
        }
    }
}
