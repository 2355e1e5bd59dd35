//! AVX-512: 32 lanes are two registers; a stage table is two registers, looked up by `vpermd`.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "register intrinsics share one proof: the CPU feature"
)]

use std::arch::x86_64::{
    __m512i, __mmask16, _mm256_loadu_si256, _mm512_add_epi32, _mm512_and_si512, _mm512_cmpeq_epi32_mask,
    _mm512_cmpge_epu32_mask, _mm512_cmplt_epi32_mask, _mm512_cmplt_epu32_mask, _mm512_cvtepu16_epi32,
    _mm512_loadu_si512, _mm512_mask_add_epi32, _mm512_mask_blend_epi32, _mm512_mask_cmpge_epu32_mask,
    _mm512_mask_or_epi32, _mm512_mask_srli_epi32, _mm512_mask_sub_epi32, _mm512_mask_test_epi32_mask,
    _mm512_maskz_expand_epi32, _mm512_maskz_set1_epi32, _mm512_maskz_srli_epi32, _mm512_mullo_epi32,
    _mm512_or_si512, _mm512_permutexvar_epi32, _mm512_set1_epi32, _mm512_setzero_si512, _mm512_slli_epi32,
    _mm512_srli_epi32, _mm512_storeu_si512, _mm512_sub_epi32, _mm512_test_epi32_mask, _mm512_zextsi256_si512,
};

use crate::{
    arch::kernel::{Kernel, REFILL_BYTES},
    rans::{
        ESCAPE, LANES, LONG_ESCAPE, PROBABILITY_BITS, PROBABILITY_ONE, STATE_MIN, alias::Buckets,
        trit::TritTable,
    },
};

pub(super) const SLOT_MASK: i32 = PROBABILITY_ONE as i32 - 1;

/// Two registers of 16 lanes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kernel16;

/// # Safety
/// AVX-512F.
#[inline(always)]
pub(super) unsafe fn load<T>(lanes: &[T; LANES]) -> [__m512i; 2] {
    const { assert!(size_of::<T>() == 4) };
    let at = lanes.as_ptr().cast::<__m512i>();
    // SAFETY: 32 × 4 bytes are two registers; unaligned loads.
    unsafe { [_mm512_loadu_si512(at), _mm512_loadu_si512(at.add(1))] }
}

/// # Safety
/// AVX-512F.
#[inline(always)]
pub(super) unsafe fn store<T>(registers: [__m512i; 2], lanes: &mut [T; LANES]) {
    const { assert!(size_of::<T>() == 4) };
    let at = lanes.as_mut_ptr().cast::<__m512i>();
    // SAFETY: 32 × 4 bytes are two registers; unaligned stores.
    unsafe {
        _mm512_storeu_si512(at, registers[0]);
        _mm512_storeu_si512(at.add(1), registers[1]);
    }
}

/// One half of a stage step: new states, values, escapes.
///
/// # Safety
/// AVX-512F.
#[inline(always)]
unsafe fn stage_half(a: __m512i, b: __m512i, x: __m512i) -> (__m512i, __m512i, u32) {
    // SAFETY: register operations only.
    unsafe {
        let bucket = _mm512_srli_epi32::<8>(x); // vpermd uses the low four bits
        let (own, other) = (_mm512_permutexvar_epi32(bucket, a), _mm512_permutexvar_epi32(bucket, b));
        let r = _mm512_and_si512(x, _mm512_set1_epi32(255));
        let q = _mm512_srli_epi32::<PROBABILITY_BITS>(x);
        let above = _mm512_cmpge_epu32_mask(r, _mm512_srli_epi32::<PROBABILITY_BITS>(own));
        let word = _mm512_mask_blend_epi32(above, own, other);
        let less_one = _mm512_and_si512(word, _mm512_set1_epi32(SLOT_MASK));
        let offset = _mm512_add_epi32(r, _mm512_maskz_srli_epi32::<20>(above, other));
        let symbol = _mm512_mask_srli_epi32::<12>(bucket, above, other);
        let symbol = _mm512_and_si512(symbol, _mm512_set1_epi32(15));
        let escapes = _mm512_cmpeq_epi32_mask(symbol, _mm512_set1_epi32(ESCAPE as i32));
        let scaled = _mm512_add_epi32(_mm512_mullo_epi32(less_one, q), q);
        let next = _mm512_add_epi32(scaled, offset);
        (next, _mm512_sub_epi32(symbol, _mm512_set1_epi32(7)), escapes.into())
    }
}

/// One half of a trit step: new states, refined values.
///
/// # Safety
/// AVX-512F.
#[inline(always)]
unsafe fn trit_half(ranges: __m512i, x: __m512i, value: __m512i) -> (__m512i, __m512i) {
    // SAFETY: register operations only.
    unsafe {
        let (one, zero) = (_mm512_set1_epi32(1), _mm512_setzero_si512());
        let nonzero = _mm512_test_epi32_mask(value, value);
        let context = _mm512_maskz_set1_epi32(nonzero, 4);
        let a = _mm512_permutexvar_epi32(context, ranges);
        let b = _mm512_permutexvar_epi32(_mm512_or_si512(context, _mm512_set1_epi32(3)), ranges);
        let slot = _mm512_and_si512(x, _mm512_set1_epi32(SLOT_MASK));
        let index = _mm512_mask_add_epi32(context, _mm512_cmpge_epu32_mask(slot, a), context, one);
        let index = _mm512_mask_add_epi32(index, _mm512_cmpge_epu32_mask(slot, b), index, one);
        let range = _mm512_permutexvar_epi32(index, ranges);
        let frequency = _mm512_and_si512(range, _mm512_set1_epi32(0xffff));
        let offset = _mm512_sub_epi32(slot, _mm512_srli_epi32::<16>(range));
        let scaled = _mm512_mullo_epi32(frequency, _mm512_srli_epi32::<PROBABILITY_BITS>(x));
        let digit = _mm512_sub_epi32(_mm512_and_si512(index, _mm512_set1_epi32(3)), one);
        let digit = _mm512_mask_sub_epi32(digit, _mm512_cmplt_epi32_mask(value, zero), zero, digit);
        let tripled = _mm512_add_epi32(value, _mm512_slli_epi32::<1>(value));
        (_mm512_add_epi32(scaled, offset), _mm512_add_epi32(tripled, digit))
    }
}

/// One half of the escapes' first bits: new states, values, lanes with more to come.
///
/// # Safety
/// AVX-512F.
#[inline(always)]
unsafe fn escape_half(set: __mmask16, x: __m512i, values: __m512i) -> (__m512i, __m512i, u32) {
    // SAFETY: register operations only.
    unsafe {
        let short = _mm512_and_si512(x, _mm512_set1_epi32(0xff));
        let long = _mm512_mask_cmpge_epu32_mask(set, short, _mm512_set1_epi32(LONG_ESCAPE as i32));
        let negative = _mm512_mask_test_epi32_mask(set, short, _mm512_set1_epi32(1));
        let magnitude = _mm512_srli_epi32::<1>(short);
        let values = _mm512_mask_blend_epi32(set, values, magnitude);
        let values = _mm512_mask_sub_epi32(values, negative, _mm512_setzero_si512(), magnitude);
        (_mm512_mask_srli_epi32::<8>(x, set, x), values, long.into())
    }
}

impl Kernel for Kernel16 {
    type Registers = [__m512i; 2];
    const STREAMS: usize = 3;

    #[inline(always)]
    unsafe fn load(lanes: &[u32; LANES]) -> Self::Registers {
        // SAFETY: the caller's promise.
        unsafe { load(lanes) }
    }

    #[inline(always)]
    unsafe fn store(registers: Self::Registers, lanes: &mut [u32; LANES]) {
        // SAFETY: the caller's promise.
        unsafe { store(registers, lanes) }
    }

    #[inline(always)]
    unsafe fn load_values(values: &[i32; LANES]) -> Self::Registers {
        // SAFETY: the caller's promise.
        unsafe { load(values) }
    }

    #[inline(always)]
    unsafe fn store_values(registers: Self::Registers, values: &mut [i32; LANES]) {
        // SAFETY: the caller's promise.
        unsafe { store(registers, values) }
    }

    #[inline(always)]
    unsafe fn stage(buckets: &Buckets, states: Self::Registers) -> (Self::Registers, Self::Registers, u32) {
        // SAFETY: each array is 64 bytes.
        let (a, b) = unsafe {
            (_mm512_loadu_si512(buckets.a.as_ptr().cast()), _mm512_loadu_si512(buckets.b.as_ptr().cast()))
        };
        // SAFETY: the caller's promise.
        let (low, high) = unsafe { (stage_half(a, b, states[0]), stage_half(a, b, states[1])) };
        ([low.0, high.0], [low.1, high.1], low.2 | high.2 << 16)
    }

    #[inline(always)]
    unsafe fn trit(
        table: &TritTable,
        states: Self::Registers,
        values: Self::Registers,
    ) -> (Self::Registers, Self::Registers) {
        // SAFETY: 32 bytes; indices stay below 8.
        let ranges = unsafe { _mm512_zextsi256_si512(_mm256_loadu_si256(table.ranges().as_ptr().cast())) };
        // SAFETY: the caller's promise.
        let (low, high) =
            unsafe { (trit_half(ranges, states[0], values[0]), trit_half(ranges, states[1], values[1])) };
        ([low.0, high.0], [low.1, high.1])
    }

    #[inline(always)]
    unsafe fn escape(
        states: Self::Registers,
        values: Self::Registers,
        set: u32,
    ) -> (Self::Registers, Self::Registers, u32) {
        // SAFETY: the caller's promise.
        let (low, high) = unsafe {
            (
                escape_half(set as u16, states[0], values[0]),
                escape_half((set >> 16) as u16, states[1], values[1]),
            )
        };
        ([low.0, high.0], [low.1, high.1], low.2 | high.2 << 16)
    }

    #[inline(always)]
    unsafe fn refill(states: Self::Registers, words: &[u8; REFILL_BYTES]) -> (Self::Registers, usize) {
        let [low, high] = states;
        // SAFETY: 32 bytes from offset 0, and from an offset of at most 32.
        unsafe {
            let least = _mm512_set1_epi32(STATE_MIN as i32);
            let (m0, m1) = (_mm512_cmplt_epu32_mask(low, least), _mm512_cmplt_epu32_mask(high, least));
            let first = 2 * m0.count_ones() as usize;
            let taken = first + 2 * m1.count_ones() as usize;
            let at = |offset| _mm512_cvtepu16_epi32(_mm256_loadu_si256(words.as_ptr().add(offset).cast()));
            let (w0, w1) = (_mm512_maskz_expand_epi32(m0, at(0)), _mm512_maskz_expand_epi32(m1, at(first)));
            let fill = |x, m, w| _mm512_mask_or_epi32(x, m, _mm512_slli_epi32::<16>(x), w);
            ([fill(low, m0, w0), fill(high, m1, w1)], taken)
        }
    }
}
