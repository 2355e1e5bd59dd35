//! AVX2: 32 lanes are four registers; a stage table is four registers, looked up by `vpermd` and a blend.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "register intrinsics share one proof: the CPU feature"
)]

use std::arch::x86_64::*;

use crate::{
    arch::kernel::{Kernel, REFILL_BYTES, one_by_one},
    rans::{
        ESCAPE, LANES, LONG_ESCAPE, PROBABILITY_BITS, PROBABILITY_ONE, STATE_MIN, buckets::UPPER_SHIFT,
        trit::TritTable, u16_lanes::StepTable,
    },
};

const SLOT_MASK: i32 = PROBABILITY_ONE as i32 - 1;
const PROBABILITY_SHIFT: i32 = PROBABILITY_BITS as i32;
const UPPER: i32 = UPPER_SHIFT as i32;
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

/// Eight lanes of a stage step: new states, symbols.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn stage_part(own: [__m256i; 2], other: [__m256i; 2], x: __m256i) -> (__m256i, __m256i) {
    // SAFETY: register operations only.
    unsafe {
        let bucket = _mm256_srli_epi32::<8>(x); // vpermd uses the low three bits
        let fourth = _mm256_slli_epi32::<20>(x); // bit 11 to the sign
        let (own, other) = (lookup(own, bucket, fourth), lookup(other, bucket, fourth));
        let r = _mm256_and_si256(x, _mm256_set1_epi32(255));
        let q = _mm256_srli_epi32::<PROBABILITY_SHIFT>(x);
        let below = _mm256_cmpgt_epi32(_mm256_srli_epi32::<UPPER>(own), r);
        let word = _mm256_blendv_epi8(other, own, below);
        let less_one = _mm256_and_si256(word, _mm256_set1_epi32(SLOT_MASK));
        let offset = _mm256_add_epi32(r, _mm256_andnot_si256(below, _mm256_srli_epi32::<UPPER>(word)));
        let symbol = _mm256_and_si256(_mm256_srli_epi32::<PROBABILITY_SHIFT>(word), _mm256_set1_epi32(15));
        let scaled = _mm256_mullo_epi32(less_one, q);
        (_mm256_add_epi32(scaled, _mm256_add_epi32(q, offset)), symbol)
    }
}

/// One bit for each of the lanes, of 16 bits, that are all ones.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn set_of([a, b]: [__m256i; 2]) -> u32 {
    // SAFETY: register operations only.
    unsafe {
        let bytes = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi16(a, b));
        _mm256_movemask_epi8(bytes) as u32
    }
}

/// Lanes in order of 16 bits each: 16 in a register.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn narrowed(x: [__m256i; REGISTERS]) -> [__m256i; 2] {
    // SAFETY: register operations only.
    unsafe {
        // packing works within halves of registers
        let ordered = |a, b| _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(a, b));
        [ordered(x[0], x[1]), ordered(x[2], x[3])]
    }
}

/// The reverse.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn widened([a, b]: [__m256i; 2]) -> [__m256i; REGISTERS] {
    // SAFETY: register operations only.
    unsafe {
        let low = |x| _mm256_cvtepi16_epi32(_mm256_castsi256_si128(x));
        let high = |x| _mm256_cvtepi16_epi32(_mm256_extracti128_si256::<1>(x));
        [low(a), high(a), low(b), high(b)]
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

/// Eight lanes of the escapes' first bits: new states, values, and the lanes whose escape continues.
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

impl Kernel8 {
    /// # Safety
    /// AVX2.
    #[inline(always)]
    unsafe fn refined(
        table: &TritTable,
        coders: [__m256i; REGISTERS],
        values: [__m256i; REGISTERS],
    ) -> ([__m256i; REGISTERS], [__m256i; REGISTERS]) {
        // SAFETY: 32 bytes.
        let ranges = unsafe { _mm256_loadu_si256(table.ranges().as_ptr().cast()) };
        let (mut next, mut refined) = (coders, values);
        for i in 0..REGISTERS {
            // SAFETY: the caller's promise.
            (next[i], refined[i]) = unsafe { trit_part(table, ranges, coders[i], values[i]) };
        }
        (next, refined)
    }
}

type Coders = <Kernel8 as Kernel>::Coders;
type Values = <Kernel8 as Kernel>::Values;

impl Kernel8 {
    /// A stage step before its refill.
    ///
    /// # Safety
    /// As [`Kernel`].
    #[inline(always)]
    unsafe fn stage(StepTable { buckets, .. }: &StepTable, coders: Coders) -> (Coders, Values, u32) {
        // SAFETY: each array is 64 bytes, two registers.
        let (own, other) = unsafe {
            let own = buckets.own.as_ptr().cast::<__m256i>();
            let other = buckets.other.as_ptr().cast::<__m256i>();
            (
                [_mm256_loadu_si256(own), _mm256_loadu_si256(own.add(1))],
                [_mm256_loadu_si256(other), _mm256_loadu_si256(other.add(1))],
            )
        };
        let (mut next, mut symbols) = (coders, coders);
        for i in 0..REGISTERS {
            // SAFETY: the caller's promise.
            (next[i], symbols[i]) = unsafe { stage_part(own, other, coders[i]) };
        }
        // SAFETY: register operations only.
        unsafe {
            let [a, b] = narrowed(symbols);
            let escape = _mm256_set1_epi16(ESCAPE as i16);
            let (first, second) = (_mm256_cmpeq_epi16(a, escape), _mm256_cmpeq_epi16(b, escape));
            let escapes = if _mm256_testz_si256(_mm256_or_si256(first, second), _mm256_set1_epi16(-1)) == 1 {
                0
            } else {
                set_of([first, second])
            };
            let seven = _mm256_set1_epi16(7);
            (next, [_mm256_sub_epi16(a, seven), _mm256_sub_epi16(b, seven)], escapes)
        }
    }

    /// A trit step before its refill.
    ///
    /// # Safety
    /// As [`Kernel`].
    #[inline(always)]
    unsafe fn trit(StepTable { trit, .. }: &StepTable, coders: Coders, values: Values) -> (Coders, Values) {
        // SAFETY: the caller's promise.
        unsafe {
            let (coders, values) = Self::refined(trit, coders, widened(values));
            (coders, narrowed(values))
        }
    }

    /// Refills the lanes below the minimum state, in lane order; returns the bytes taken.
    ///
    /// # Safety
    /// As [`Kernel`].
    #[inline(always)]
    unsafe fn refill(mut states: Coders, words: &[u8; REFILL_BYTES]) -> (Coders, usize) {
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

impl Kernel for Kernel8 {
    type Coders = [__m256i; REGISTERS];
    type Values = [__m256i; 2];
    const STREAMS: usize = 2;

    #[inline(always)]
    unsafe fn load(lanes: &[u32; LANES]) -> Self::Coders {
        // SAFETY: the caller's promise.
        unsafe { load(lanes) }
    }

    #[inline(always)]
    unsafe fn store(coders: Self::Coders, lanes: &mut [u32; LANES]) {
        // SAFETY: the caller's promise.
        unsafe { store(coders, lanes) }
    }

    #[inline(always)]
    unsafe fn load_values(values: &[i16; LANES]) -> Self::Values {
        let at = values.as_ptr().cast::<__m256i>();
        // SAFETY: 32 × 2 bytes are two registers; unaligned loads.
        unsafe { [_mm256_loadu_si256(at), _mm256_loadu_si256(at.add(1))] }
    }

    #[inline(always)]
    unsafe fn store_values(values: Self::Values, out: &mut [i16; LANES]) {
        let at = out.as_mut_ptr().cast::<__m256i>();
        // SAFETY: 32 × 2 bytes are two registers; unaligned stores.
        unsafe {
            _mm256_storeu_si256(at, values[0]);
            _mm256_storeu_si256(at.add(1), values[1]);
        }
    }

    #[inline(always)]
    unsafe fn store_wide(values: Self::Values, out: &mut [i32; LANES]) {
        // SAFETY: the caller's promise.
        unsafe { store(widened(values), out) }
    }

    one_by_one!();

    #[inline(always)]
    unsafe fn trit_wide(
        StepTable { trit, .. }: &StepTable,
        coders: Self::Coders,
        values: &mut [i32; LANES],
    ) -> Self::Coders {
        // SAFETY: the caller's promise.
        unsafe {
            let (coders, refined) = Self::refined(trit, coders, load(values));
            store(refined, values);
            coders
        }
    }

    #[inline(always)]
    unsafe fn escape(
        mut coders: Self::Coders,
        values: Self::Values,
        set: u32,
    ) -> (Self::Coders, Self::Values, u32) {
        // SAFETY: the caller's promise, here and below.
        let mut values = unsafe { widened(values) };
        let mut long = 0;
        for i in 0..REGISTERS {
            let part;
            // SAFETY: as above.
            (coders[i], values[i], part) = unsafe { escape_part(set >> (8 * i), coders[i], values[i]) };
            long |= part << (8 * i);
        }
        // SAFETY: as above.
        (coders, unsafe { narrowed(values) }, long)
    }
}
