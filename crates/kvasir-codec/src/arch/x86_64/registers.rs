//! Eight or sixteen lanes of `f32` and `i32`.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "register intrinsics share one proof: the CPU feature"
)]

use std::arch::x86_64::*;

use half::bf16;

use super::transposes;
use crate::direct_rows::bf16_tiles::Lane;

/// The bit that makes a NaN in bf16 quiet.
const QUIET: i32 = 0x40;

/// A register of floats and one of integers, and the operations on them that rows need.
///
/// # Safety
/// Every method requires a CPU with the features of the registers, and pointers to `LANES` values. The methods are
/// `inline(always)`, so that they become part of an entry point compiled for these features.
pub(super) trait Registers: Copy {
    /// Floats.
    type Float: Copy;
    /// Integers.
    type Int: Copy;
    /// Lanes of a register; divides 16.
    const LANES: usize;

    unsafe fn load(at: *const f32) -> Self::Float;
    /// From 16 bits each.
    unsafe fn load_narrow(at: *const i16) -> Self::Int;
    unsafe fn store_i(at: *mut i32, x: Self::Int);
    unsafe fn load_i(at: *const i32) -> Self::Int;
    unsafe fn splat_i(x: i32) -> Self::Int;
    /// `sum` plus the products of both halves of words, modulo 2^32.
    unsafe fn add_products(sum: Self::Int, a: Self::Int, b: Self::Int) -> Self::Int;
    unsafe fn splat(x: f32) -> Self::Float;
    unsafe fn add(a: Self::Float, b: Self::Float) -> Self::Float;
    unsafe fn sub(a: Self::Float, b: Self::Float) -> Self::Float;
    unsafe fn mul(a: Self::Float, b: Self::Float) -> Self::Float;
    /// `a · b + c`, rounded once.
    unsafe fn fused(a: Self::Float, b: Self::Float, c: Self::Float) -> Self::Float;
    unsafe fn store(at: *mut f32, x: Self::Float);
    /// `x - off` if `sign` is positive, and `x + off` if it is negative.
    unsafe fn towards_zero(x: Self::Float, off: Self::Float, sign: Self::Int) -> Self::Float;
    unsafe fn to_float(a: Self::Int) -> Self::Float;
    /// To the nearest, ties to even.
    unsafe fn round(a: Self::Float) -> Self::Int;
    /// Two numbers as bf16 in one word: nearest, ties to even, denormals kept, NaN quiet.
    unsafe fn halves(low: Self::Float, high: Self::Float) -> Self::Int;
    /// To 16 bits each; beyond them anything.
    unsafe fn store_narrow(at: *mut i16, x: Self::Int);
    /// Nothing.
    unsafe fn nought() -> Self::Int;
    /// The larger of `most` and the bits of a magnitude, lane by lane; NaN is larger than all numbers.
    unsafe fn largest(most: Self::Int, x: Self::Float) -> Self::Int;
    /// Whether everything that [`largest`](Self::largest) returned is at most the bits of `most`.
    unsafe fn all_within(largest: Self::Int, most: f32) -> bool;
    /// Rows of 16 tokens from words of two neighbouring elements; whole lines bypass the cache if possible.
    unsafe fn transpose<const PAST_CACHE: bool>(words: &[Lane<u32>], elements: usize, rows: &mut [bf16]);
    /// Lanes of 16 tokens from their rows.
    unsafe fn lanes(rows: &[f32], lanes: &mut [Lane<f32>]);
}

/// AVX2.
#[derive(Clone, Copy)]
pub(super) struct Eight;

/// AVX-512F.
#[derive(Clone, Copy)]
pub(super) struct Sixteen;

/// Methods that are one expression over intrinsics.
macro_rules! operations {
    ($($name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)? = $body:expr;)+) => {
        $(
            #[inline(always)]
            unsafe fn $name($($arg: $type),*) $(-> $out)? {
                // SAFETY: the caller's promise.
                unsafe { $body }
            }
        )+
    };
}

impl Registers for Eight {
    type Float = __m256;
    type Int = __m256i;
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn transpose<const PAST_CACHE: bool>(words: &[Lane<u32>], elements: usize, rows: &mut [bf16]) {
        // SAFETY: the caller's promise.
        unsafe { transposes::rows_256::<PAST_CACHE>(words, elements, rows) }
    }

    operations! {
        load(at: *const f32) -> __m256 = _mm256_loadu_ps(at);
        load_narrow(at: *const i16) -> __m256i = _mm256_cvtepi16_epi32(_mm_loadu_si128(at.cast()));
        store_i(at: *mut i32, x: __m256i) = _mm256_storeu_si256(at.cast(), x);
        load_i(at: *const i32) -> __m256i = _mm256_loadu_si256(at.cast());
        splat_i(x: i32) -> __m256i = _mm256_set1_epi32(x);
        add_products(sum: __m256i, a: __m256i, b: __m256i) -> __m256i =
            _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
        splat(x: f32) -> __m256 = _mm256_set1_ps(x);
        add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
        sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b);
        mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
        fused(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
        store(at: *mut f32, x: __m256) = _mm256_storeu_ps(at, x);
        towards_zero(x: __m256, off: __m256, sign: __m256i) -> __m256 = {
            // a positive or negative `off`, or nothing
            let negative = _mm256_and_ps(_mm256_castsi256_ps(sign), _mm256_set1_ps(-0.0));
            let zero = _mm256_castsi256_ps(_mm256_cmpeq_epi32(sign, _mm256_setzero_si256()));
            _mm256_sub_ps(x, _mm256_andnot_ps(zero, _mm256_or_ps(off, negative)))
        };
        to_float(a: __m256i) -> __m256 = _mm256_cvtepi32_ps(a);
        round(a: __m256) -> __m256i = _mm256_cvtps_epi32(a);
        halves(low: __m256, high: __m256) -> __m256i = {
            let (below, above) = (_mm256_castps_si256(low), _mm256_castps_si256(high));
            let one = _mm256_set1_epi32(1);
            let half = _mm256_set1_epi32(0x7fff);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(below), one);
            let mut lower = _mm256_srli_epi32::<16>(_mm256_add_epi32(_mm256_add_epi32(below, half), odd));
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(above), one);
            let mut upper = _mm256_add_epi32(_mm256_add_epi32(above, half), odd);
            if _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_UNORD_Q>(low, high)) != 0 {
                let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(low, low));
                let quiet = _mm256_or_si256(_mm256_srli_epi32::<16>(below), _mm256_set1_epi32(QUIET));
                lower = _mm256_blendv_epi8(lower, quiet, nan);
                let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(high, high));
                upper = _mm256_blendv_epi8(upper, _mm256_or_si256(above, _mm256_set1_epi32(QUIET << 16)), nan);
            }
            _mm256_blend_epi16::<0b1010_1010>(lower, upper)
        };
        lanes(rows: &[f32], lanes: &mut [Lane<f32>]) = transposes::lanes_256(rows, lanes);
        store_narrow(at: *mut i16, x: __m256i) = {
            let packed = _mm256_permute4x64_epi64::<0b00_00_10_00>(_mm256_packs_epi32(x, x));
            _mm_storeu_si128(at.cast(), _mm256_castsi256_si128(packed))
        };
        nought() -> __m256i = _mm256_setzero_si256();
        largest(most: __m256i, x: __m256) -> __m256i = {
            let magnitude = _mm256_castps_si256(_mm256_andnot_ps(_mm256_set1_ps(-0.0), x));
            _mm256_max_epi32(most, magnitude)
        };
        all_within(largest: __m256i, most: f32) -> bool = {
            let most = _mm256_set1_epi32(most.to_bits().cast_signed());
            _mm256_movemask_epi8(_mm256_cmpgt_epi32(largest, most)) == 0
        };
    }
}

impl Registers for Sixteen {
    type Float = __m512;
    type Int = __m512i;
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn transpose<const PAST_CACHE: bool>(words: &[Lane<u32>], elements: usize, rows: &mut [bf16]) {
        // SAFETY: the caller's promise.
        unsafe { transposes::rows_512::<PAST_CACHE>(words, elements, rows) }
    }

    operations! {
        load(at: *const f32) -> __m512 = _mm512_loadu_ps(at);
        load_narrow(at: *const i16) -> __m512i = _mm512_cvtepi16_epi32(_mm256_loadu_si256(at.cast()));
        store_i(at: *mut i32, x: __m512i) = _mm512_storeu_si512(at.cast(), x);
        load_i(at: *const i32) -> __m512i = _mm512_loadu_si512(at.cast());
        splat_i(x: i32) -> __m512i = _mm512_set1_epi32(x);
        add_products(sum: __m512i, a: __m512i, b: __m512i) -> __m512i =
            _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
        splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        fused(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        store(at: *mut f32, x: __m512) = _mm512_storeu_ps(at, x);
        towards_zero(x: __m512, off: __m512, sign: __m512i) -> __m512 = {
            // off | (sign & the sign bit)
            let off = _mm512_ternarylogic_epi32::<0xf8>(
                _mm512_castps_si512(off), sign, _mm512_set1_epi32(i32::MIN));
            _mm512_mask_sub_ps(x, _mm512_test_epi32_mask(sign, sign), x, _mm512_castsi512_ps(off))
        };
        to_float(a: __m512i) -> __m512 = _mm512_cvtepi32_ps(a);
        round(a: __m512) -> __m512i = _mm512_cvtps_epi32(a);
        halves(low: __m512, high: __m512) -> __m512i = {
            let (below, above) = (_mm512_castps_si512(low), _mm512_castps_si512(high));
            let one = _mm512_set1_epi32(1);
            let half = _mm512_set1_epi32(0x7fff);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(below), one);
            let mut lower = _mm512_srli_epi32::<16>(_mm512_add_epi32(_mm512_add_epi32(below, half), odd));
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(above), one);
            let mut upper = _mm512_add_epi32(_mm512_add_epi32(above, half), odd);
            if _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(low, high) != 0 {
                let quiet = _mm512_set1_epi32(QUIET);
                let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(low, low);
                lower = _mm512_mask_or_epi32(lower, nan, _mm512_srli_epi32::<16>(below), quiet);
                let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(high, high);
                upper = _mm512_mask_or_epi32(upper, nan, above, _mm512_slli_epi32::<16>(quiet));
            }
            // (upper & mask) | lower
            _mm512_ternarylogic_epi32::<0xea>(upper, _mm512_set1_epi32(!0xffff), lower)
        };
        lanes(rows: &[f32], lanes: &mut [Lane<f32>]) = transposes::lanes_512(rows, lanes);
        store_narrow(at: *mut i16, x: __m512i) = _mm256_storeu_si256(at.cast(), _mm512_cvtepi32_epi16(x));
        nought() -> __m512i = _mm512_setzero_si512();
        largest(most: __m512i, x: __m512) -> __m512i =
            _mm512_max_epi32(most, _mm512_castps_si512(_mm512_abs_ps(x)));
        all_within(largest: __m512i, most: f32) -> bool =
            _mm512_cmpgt_epi32_mask(largest, _mm512_set1_epi32(most.to_bits().cast_signed())) == 0;
    }
}
