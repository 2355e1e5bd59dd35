//! Eight or sixteen lanes of `f32` and `i32`.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "register intrinsics share one proof: the CPU feature"
)]

use std::arch::x86_64::*;

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
    unsafe fn store(at: *mut f32, x: Self::Float);
    unsafe fn load_i(at: *const i32) -> Self::Int;
    unsafe fn store_i(at: *mut i32, x: Self::Int);
    unsafe fn splat(x: f32) -> Self::Float;
    unsafe fn splat_i(x: i32) -> Self::Int;
    unsafe fn add(a: Self::Float, b: Self::Float) -> Self::Float;
    unsafe fn sub(a: Self::Float, b: Self::Float) -> Self::Float;
    unsafe fn mul(a: Self::Float, b: Self::Float) -> Self::Float;
    unsafe fn add_i(a: Self::Int, b: Self::Int) -> Self::Int;
    unsafe fn sub_i(a: Self::Int, b: Self::Int) -> Self::Int;
    unsafe fn mul_i(a: Self::Int, b: Self::Int) -> Self::Int;
    unsafe fn and_i(a: Self::Int, b: Self::Int) -> Self::Int;
    unsafe fn or_i(a: Self::Int, b: Self::Int) -> Self::Int;
    unsafe fn shl16(a: Self::Int) -> Self::Int;
    unsafe fn shr16(a: Self::Int) -> Self::Int;
    /// `x` times the sign of `sign`: −1, 0 or 1.
    unsafe fn with_sign(x: Self::Int, sign: Self::Int) -> Self::Int;
    unsafe fn to_float(a: Self::Int) -> Self::Float;
    /// To the nearest, ties to even.
    unsafe fn round(a: Self::Float) -> Self::Int;
    unsafe fn bits(a: Self::Float) -> Self::Int;
    /// `yes` where `x` is not a number, else `no`.
    unsafe fn where_nan(x: Self::Float, yes: Self::Int, no: Self::Int) -> Self::Int;
    /// Whether every magnitude is at most `most`; NaN is not.
    unsafe fn all_within(x: Self::Float, most: Self::Float) -> bool;
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

    operations! {
        load(at: *const f32) -> __m256 = _mm256_loadu_ps(at);
        store(at: *mut f32, x: __m256) = _mm256_storeu_ps(at, x);
        load_i(at: *const i32) -> __m256i = _mm256_loadu_si256(at.cast());
        store_i(at: *mut i32, x: __m256i) = _mm256_storeu_si256(at.cast(), x);
        splat(x: f32) -> __m256 = _mm256_set1_ps(x);
        splat_i(x: i32) -> __m256i = _mm256_set1_epi32(x);
        add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
        sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b);
        mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
        add_i(a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi32(a, b);
        sub_i(a: __m256i, b: __m256i) -> __m256i = _mm256_sub_epi32(a, b);
        mul_i(a: __m256i, b: __m256i) -> __m256i = _mm256_mullo_epi32(a, b);
        and_i(a: __m256i, b: __m256i) -> __m256i = _mm256_and_si256(a, b);
        or_i(a: __m256i, b: __m256i) -> __m256i = _mm256_or_si256(a, b);
        shl16(a: __m256i) -> __m256i = _mm256_slli_epi32::<16>(a);
        shr16(a: __m256i) -> __m256i = _mm256_srli_epi32::<16>(a);
        with_sign(x: __m256i, sign: __m256i) -> __m256i = _mm256_sign_epi32(x, sign);
        to_float(a: __m256i) -> __m256 = _mm256_cvtepi32_ps(a);
        round(a: __m256) -> __m256i = _mm256_cvtps_epi32(a);
        bits(a: __m256) -> __m256i = _mm256_castps_si256(a);
        where_nan(x: __m256, yes: __m256i, no: __m256i) -> __m256i =
            _mm256_blendv_epi8(no, yes, _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x)));
        all_within(x: __m256, most: __m256) -> bool = {
            let magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0), x);
            _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_LE_OQ>(magnitude, most)) == 0xff
        };
    }
}

impl Registers for Sixteen {
    type Float = __m512;
    type Int = __m512i;
    const LANES: usize = 16;

    operations! {
        load(at: *const f32) -> __m512 = _mm512_loadu_ps(at);
        store(at: *mut f32, x: __m512) = _mm512_storeu_ps(at, x);
        load_i(at: *const i32) -> __m512i = _mm512_loadu_si512(at.cast());
        store_i(at: *mut i32, x: __m512i) = _mm512_storeu_si512(at.cast(), x);
        splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        splat_i(x: i32) -> __m512i = _mm512_set1_epi32(x);
        add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        add_i(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
        sub_i(a: __m512i, b: __m512i) -> __m512i = _mm512_sub_epi32(a, b);
        mul_i(a: __m512i, b: __m512i) -> __m512i = _mm512_mullo_epi32(a, b);
        and_i(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
        or_i(a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
        shl16(a: __m512i) -> __m512i = _mm512_slli_epi32::<16>(a);
        shr16(a: __m512i) -> __m512i = _mm512_srli_epi32::<16>(a);
        with_sign(x: __m512i, sign: __m512i) -> __m512i = {
            let zero = _mm512_setzero_si512();
            let kept = _mm512_maskz_mov_epi32(_mm512_cmpgt_epi32_mask(sign, zero), x);
            _mm512_mask_sub_epi32(kept, _mm512_cmplt_epi32_mask(sign, zero), zero, x)
        };
        to_float(a: __m512i) -> __m512 = _mm512_cvtepi32_ps(a);
        round(a: __m512) -> __m512i = _mm512_cvtps_epi32(a);
        bits(a: __m512) -> __m512i = _mm512_castps_si512(a);
        where_nan(x: __m512, yes: __m512i, no: __m512i) -> __m512i =
            _mm512_mask_blend_epi32(_mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x), no, yes);
        all_within(x: __m512, most: __m512) -> bool =
            _mm512_cmp_ps_mask::<_CMP_LE_OQ>(_mm512_abs_ps(x), most) == 0xffff;
    }
}
