//! AVX2: 32 lanes are four registers; a stage table is four registers, looked up by `vpermd` and a blend.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "register intrinsics share one proof: the CPU feature"
)]

use std::arch::x86_64::{
    __m256i, _mm_loadu_si128, _mm256_add_epi32, _mm256_and_si256, _mm256_andnot_si256, _mm256_blendv_epi8,
    _mm256_blendv_ps, _mm256_castps_si256, _mm256_castsi256_ps, _mm256_cmpeq_epi32, _mm256_cmpgt_epi32,
    _mm256_cvtepu16_epi32, _mm256_loadu_si256, _mm256_movemask_ps, _mm256_mullo_epi32, _mm256_or_si256,
    _mm256_permutevar8x32_epi32, _mm256_set1_epi32, _mm256_setr_epi32, _mm256_setzero_si256,
    _mm256_sign_epi32, _mm256_slli_epi32, _mm256_srli_epi32, _mm256_storeu_si256, _mm256_sub_epi32,
};

use crate::{
    arch::kernel::{Kernel, REFILL_BYTES},
    rans::{
        ESCAPE, LANES, LONG_ESCAPE, PROBABILITY_BITS, PROBABILITY_ONE, STATE_MIN, alias::Buckets,
        trit::TritTable,
    },
};

const SLOT_MASK: i32 = PROBABILITY_ONE as i32 - 1;
const PROBABILITY_SHIFT: i32 = PROBABILITY_BITS as i32;
/// Registers of 32 lanes.
const REGISTERS: usize = LANES / 8;

/// `SPREAD[mask][lane]`: which of the next words lane takes, if its bit is set.
static SPREAD: [[u32; 8]; 256] = spread();

const fn spread() -> [[u32; 8]; 256] {
    let mut table = [[0; 8]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut lane, mut word) = (0, 0);
        while lane < 8 {
            table[mask][lane] = word;
            word += (mask >> lane & 1) as u32;
            lane += 1;
        }
        mask += 1;
    }
    table
}

/// Four registers of 8 lanes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kernel8;

/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn load<T>(lanes: &[T; LANES]) -> [__m256i; REGISTERS] {
    const { assert!(size_of::<T>() == 4) };
    let at = lanes.as_ptr().cast::<__m256i>();
    // SAFETY: 32 × 4 bytes are four registers; unaligned loads.
    unsafe {
        [
            _mm256_loadu_si256(at),
            _mm256_loadu_si256(at.add(1)),
            _mm256_loadu_si256(at.add(2)),
            _mm256_loadu_si256(at.add(3)),
        ]
    }
}

/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn store<T>(registers: [__m256i; REGISTERS], lanes: &mut [T; LANES]) {
    const { assert!(size_of::<T>() == 4) };
    let at = lanes.as_mut_ptr().cast::<__m256i>();
    for (i, register) in registers.into_iter().enumerate() {
        // SAFETY: 32 × 4 bytes are four registers; unaligned stores.
        unsafe { _mm256_storeu_si256(at.add(i), register) };
    }
}

/// A table of 16 words: lookup by the low four bits of `index`, the fourth moved to the sign by the caller.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn lookup(halves: [__m256i; 2], index: __m256i, fourth: __m256i) -> __m256i {
    // SAFETY: register operations only.
    unsafe {
        let low = _mm256_permutevar8x32_epi32(halves[0], index);
        let high = _mm256_permutevar8x32_epi32(halves[1], index);
        let (low, high) = (_mm256_castsi256_ps(low), _mm256_castsi256_ps(high));
        _mm256_castps_si256(_mm256_blendv_ps(low, high, _mm256_castsi256_ps(fourth)))
    }
}

/// Eight lanes of a stage step: new states, values, escapes.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn stage_part(a: [__m256i; 2], b: [__m256i; 2], x: __m256i) -> (__m256i, __m256i, u32) {
    // SAFETY: register operations only.
    unsafe {
        let bucket = _mm256_srli_epi32::<8>(x); // vpermd uses the low three bits
        let fourth = _mm256_slli_epi32::<20>(x); // bit 11 to the sign
        let (own, other) = (lookup(a, bucket, fourth), lookup(b, bucket, fourth));
        let r = _mm256_and_si256(x, _mm256_set1_epi32(255));
        let q = _mm256_srli_epi32::<PROBABILITY_SHIFT>(x);
        let below = _mm256_cmpgt_epi32(_mm256_srli_epi32::<PROBABILITY_SHIFT>(own), r);
        let word = _mm256_blendv_epi8(other, own, below);
        let less_one = _mm256_and_si256(word, _mm256_set1_epi32(SLOT_MASK));
        let offset = _mm256_add_epi32(r, _mm256_andnot_si256(below, _mm256_srli_epi32::<20>(other)));
        let symbol = _mm256_blendv_epi8(_mm256_srli_epi32::<12>(other), bucket, below);
        let symbol = _mm256_and_si256(symbol, _mm256_set1_epi32(15));
        let escapes = _mm256_cmpeq_epi32(symbol, _mm256_set1_epi32(ESCAPE as i32));
        let escapes = _mm256_movemask_ps(_mm256_castsi256_ps(escapes)) as u32;
        let scaled = _mm256_add_epi32(_mm256_mullo_epi32(less_one, q), q);
        (_mm256_add_epi32(scaled, offset), _mm256_sub_epi32(symbol, _mm256_set1_epi32(7)), escapes)
    }
}

/// Eight lanes of a trit step: new states, refined values.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn trit_part(table: &TritTable, ranges: __m256i, x: __m256i, value: __m256i) -> (__m256i, __m256i) {
    let ([a0, b0], [a1, b1]) = (table.thresholds(0), table.thresholds(1));
    let (a0, b0, a1, b1) = (i32::from(a0) - 1, i32::from(b0) - 1, i32::from(a1) - 1, i32::from(b1) - 1);
    // SAFETY: register operations only.
    unsafe {
        let is_zero = _mm256_cmpeq_epi32(value, _mm256_setzero_si256());
        let a = _mm256_blendv_epi8(_mm256_set1_epi32(a1), _mm256_set1_epi32(a0), is_zero);
        let b = _mm256_blendv_epi8(_mm256_set1_epi32(b1), _mm256_set1_epi32(b0), is_zero);
        let slot = _mm256_and_si256(x, _mm256_set1_epi32(SLOT_MASK));
        let index = _mm256_andnot_si256(is_zero, _mm256_set1_epi32(4));
        // a true comparison is -1
        let steps = _mm256_add_epi32(_mm256_cmpgt_epi32(slot, a), _mm256_cmpgt_epi32(slot, b));
        let range = _mm256_permutevar8x32_epi32(ranges, _mm256_sub_epi32(index, steps));
        let frequency = _mm256_and_si256(range, _mm256_set1_epi32(0xffff));
        let offset = _mm256_sub_epi32(slot, _mm256_srli_epi32::<16>(range));
        let scaled = _mm256_mullo_epi32(frequency, _mm256_srli_epi32::<PROBABILITY_SHIFT>(x));
        let digit = _mm256_sub_epi32(_mm256_set1_epi32(-1), steps);
        // negated where the value is negative, kept where it is zero
        let digit = _mm256_sign_epi32(digit, _mm256_or_si256(value, _mm256_set1_epi32(1)));
        let tripled = _mm256_add_epi32(value, _mm256_slli_epi32::<1>(value));
        (_mm256_add_epi32(scaled, offset), _mm256_add_epi32(tripled, digit))
    }
}

/// Eight lanes of the escapes' first bits: new states, values, lanes with more to come.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn escape_part(set: u32, x: __m256i, values: __m256i) -> (__m256i, __m256i, u32) {
    // SAFETY: register operations only.
    unsafe {
        let bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        let set = _mm256_and_si256(_mm256_set1_epi32(set as i32), bits);
        let set = _mm256_cmpeq_epi32(set, bits);
        let short = _mm256_and_si256(x, _mm256_set1_epi32(0xff));
        let long = _mm256_cmpgt_epi32(short, _mm256_set1_epi32(LONG_ESCAPE as i32 - 1));
        let long = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_and_si256(long, set))) as u32;
        // 1 or -1, from the lowest bit
        let one = _mm256_set1_epi32(1);
        let sign = _mm256_sub_epi32(one, _mm256_slli_epi32::<1>(_mm256_and_si256(short, one)));
        let signed = _mm256_sign_epi32(_mm256_srli_epi32::<1>(short), sign);
        let next = _mm256_blendv_epi8(x, _mm256_srli_epi32::<8>(x), set);
        (next, _mm256_blendv_epi8(values, signed, set), long)
    }
}

impl Kernel for Kernel8 {
    type Registers = [__m256i; REGISTERS];
    const STREAMS: usize = 2;

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
        // SAFETY: each array is 64 bytes, two registers.
        let (a, b) = unsafe {
            let (a, b) = (buckets.a.as_ptr().cast::<__m256i>(), buckets.b.as_ptr().cast::<__m256i>());
            (
                [_mm256_loadu_si256(a), _mm256_loadu_si256(a.add(1))],
                [_mm256_loadu_si256(b), _mm256_loadu_si256(b.add(1))],
            )
        };
        let (mut next, mut values, mut escapes) = (states, states, 0);
        for i in 0..REGISTERS {
            let part;
            // SAFETY: the caller's promise.
            (next[i], values[i], part) = unsafe { stage_part(a, b, states[i]) };
            escapes |= part << (8 * i);
        }
        (next, values, escapes)
    }

    #[inline(always)]
    unsafe fn trit(
        table: &TritTable,
        states: Self::Registers,
        values: Self::Registers,
    ) -> (Self::Registers, Self::Registers) {
        // SAFETY: 32 bytes.
        let ranges = unsafe { _mm256_loadu_si256(table.ranges().as_ptr().cast()) };
        let (mut next, mut refined) = (states, values);
        for i in 0..REGISTERS {
            // SAFETY: the caller's promise.
            (next[i], refined[i]) = unsafe { trit_part(table, ranges, states[i], values[i]) };
        }
        (next, refined)
    }

    #[inline(always)]
    unsafe fn escape(
        mut states: Self::Registers,
        mut values: Self::Registers,
        set: u32,
    ) -> (Self::Registers, Self::Registers, u32) {
        let mut long = 0;
        for i in 0..REGISTERS {
            let part;
            // SAFETY: the caller's promise.
            (states[i], values[i], part) = unsafe { escape_part(set >> (8 * i), states[i], values[i]) };
            long |= part << (8 * i);
        }
        (states, values, long)
    }

    #[inline(always)]
    unsafe fn refill(mut states: Self::Registers, words: &[u8; REFILL_BYTES]) -> (Self::Registers, usize) {
        let mut taken = 0;
        for x in &mut states {
            // SAFETY: 16 bytes from an offset of at most 3 × 16; `SPREAD` rows are one register.
            unsafe {
                let low = _mm256_cmpgt_epi32(_mm256_set1_epi32(STATE_MIN as i32), *x);
                let mask = _mm256_movemask_ps(_mm256_castsi256_ps(low)) as usize;
                let next = _mm256_cvtepu16_epi32(_mm_loadu_si128(words.as_ptr().add(taken).cast()));
                let order = _mm256_loadu_si256(SPREAD[mask & 255].as_ptr().cast());
                let next = _mm256_permutevar8x32_epi32(next, order);
                *x = _mm256_blendv_epi8(*x, _mm256_or_si256(_mm256_slli_epi32::<16>(*x), next), low);
                taken += 2 * mask.count_ones() as usize;
            }
        }
        (states, taken)
    }
}
