//! Rows of heads that are not rotated: a value of an element always gives the same number, so the few
//! frequent values are looked up, already rounded, 32 tokens at once.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "register intrinsics share one proof: the CPU feature"
)]

use std::arch::x86_64::*;

use half::bf16;

use super::{
    registers::{Registers, Sixteen},
    transposes,
};
use crate::direct_rows::{QuantisedRows, Scaling, TILE, bf16_tiles::Lane};

/// Values that are looked up: `-HALF..HALF`.
pub(super) const HALF: i16 = 16;
/// Tokens of a register of values.
pub(super) const TOKENS: usize = 32;

/// The numbers of an element's frequent values, in the low halves as bf16.
///
/// # Safety
/// AVX-512F, BW.
#[inline(always)]
unsafe fn table(scaling: &Scaling<'_>, off: f32, element: usize) -> __m512i {
    // SAFETY: register operations only; the element is the caller's promise.
    unsafe {
        let low = _mm512_setr_epi32(-16, -15, -14, -13, -12, -11, -10, -9, -8, -7, -6, -5, -4, -3, -2, -1);
        let high = _mm512_add_epi32(low, _mm512_set1_epi32(HALF.into()));
        halves(scaling, off, element, [low, high])
    }
}

/// The numbers of 32 values, as bf16.
///
/// # Safety
/// As [`table`].
#[inline(always)]
unsafe fn halves(scaling: &Scaling<'_>, off: f32, element: usize, [low, high]: [__m512i; 2]) -> __m512i {
    // SAFETY: as in `table`.
    unsafe { rounded([number(scaling, off, element, low), number(scaling, off, element, high)]) }
}

/// Two registers of numbers as bf16, in order.
///
/// # Safety
/// AVX-512F, BW.
#[inline(always)]
pub(super) unsafe fn rounded([low, high]: [__m512; 2]) -> __m512i {
    // SAFETY: register operations only.
    unsafe {
        let word = Sixteen::halves(low, high);
        // low halves are the first 16, upper halves the others
        let first = _mm512_cvtepi32_epi16(word);
        let second = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(word));
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second)
    }
}

/// The numbers of 16 values.
///
/// # Safety
/// As [`table`].
#[inline(always)]
pub(super) unsafe fn number(scaling: &Scaling<'_>, off: f32, element: usize, q: __m512i) -> __m512 {
    // SAFETY: as in `table`.
    unsafe {
        let steps = Sixteen::mul(Sixteen::to_float(q), Sixteen::splat(scaling.ratio() as f32));
        let steps = Sixteen::towards_zero(steps, Sixteen::splat(off), q);
        let mean = Sixteen::splat(*scaling.mean.get_unchecked(element));
        Sixteen::add(Sixteen::mul(steps, Sixteen::splat(scaling.gain)), mean)
    }
}

/// bf16 rows of as many tokens as fill registers; returns how many. Elements are whole tiles of 32.
///
/// # Safety
/// AVX-512F, BW; `values` hold `stride`, `rows` `tokens` of each of `scaling.elements()`, which 32 divides; there are as many `offs`,
/// and half as many words.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn rows<const PAST_CACHE: bool>(
    scaling: &Scaling<'_>,
    offs: &[f32],
    values: QuantisedRows<'_, i16>,
    rows: &mut [bf16],
    (tables, words): (&mut Vec<Lane<u32>>, &mut [Lane<u32>]),
) -> usize {
    let count = scaling.elements();
    debug_assert!(count.is_multiple_of(2 * TILE) && offs.len() == count && 2 * words.len() == count);
    let whole = values.tokens / TOKENS * TOKENS;
    tables.resize(count, Lane::default());
    for (element, (table_of, off)) in tables.iter_mut().zip(offs).enumerate() {
        // SAFETY: 64 bytes; the caller's promise.
        unsafe { _mm512_storeu_si512(table_of.as_mut_ptr().cast(), table(scaling, *off, element)) };
    }
    for (block, rows) in rows[..whole * count].chunks_exact_mut(TOKENS * count).enumerate() {
        // 32 elements at once: 16 words of 2 × 16 tokens
        for square in (0..count).step_by(2 * TILE) {
            let (mut near, mut far) = ([_mm512_setzero_si512(); TILE], [_mm512_setzero_si512(); TILE]);
            for (word, (near, far)) in near.iter_mut().zip(&mut far).enumerate() {
                let element = square + 2 * word;
                // SAFETY: the values of two elements; the caller's promise.
                let (low, high) = unsafe {
                    let at = values.values.as_ptr().add(element * values.stride + block * TOKENS);
                    (
                        element_halves(scaling, (offs, tables), element, at),
                        element_halves(scaling, (offs, tables), element + 1, at.add(values.stride)),
                    )
                };
                (*near, *far) = (_mm512_unpacklo_epi16(low, high), _mm512_unpackhi_epi16(low, high));
            }
            // SAFETY: the caller's promise.
            unsafe {
                transposes::square_rows::<PAST_CACHE>(near, rows, count, square, 0);
                transposes::square_rows::<PAST_CACHE>(far, rows, count, square, 4);
            }
        }
    }
    whole
}

/// Rows of 32 tokens from 32 halves of every element.
///
/// # Safety
/// AVX-512F, BW; `rows` hold 32 tokens of all elements, which 32 divides.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn squares<const PAST_CACHE: bool>(halves: &[Lane<u32>], rows: &mut [bf16]) {
    let count = halves.len();
    debug_assert!(count.is_multiple_of(2 * TILE) && rows.len() == TOKENS * count);
    for (square, halves) in halves.chunks_exact(2 * TILE).enumerate() {
        let (mut near, mut far) = ([_mm512_setzero_si512(); TILE], [_mm512_setzero_si512(); TILE]);
        for (word, [low, high]) in halves.as_chunks().0.iter().enumerate() {
            // SAFETY: 64 bytes each.
            let (low, high) = unsafe {
                (_mm512_loadu_si512(low.as_ptr().cast()), _mm512_loadu_si512(high.as_ptr().cast()))
            };
            (near[word], far[word]) = (_mm512_unpacklo_epi16(low, high), _mm512_unpackhi_epi16(low, high));
        }
        // SAFETY: the caller's promise.
        unsafe {
            transposes::square_rows::<PAST_CACHE>(near, rows, count, square * 2 * TILE, 0);
            transposes::square_rows::<PAST_CACHE>(far, rows, count, square * 2 * TILE, 4);
        }
    }
}

/// The numbers of 32 tokens of an element.
///
/// # Safety
/// As [`table`]; 32 values at `at`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn element_halves(
    scaling: &Scaling<'_>,
    (offs, tables): (&[f32], &[Lane<u32>]),
    element: usize,
    at: *const i16,
) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let q = _mm512_loadu_si512(at.cast());
        let index = _mm512_add_epi16(q, _mm512_set1_epi16(HALF));
        let rare = _mm512_cmpge_epu16_mask(index, _mm512_set1_epi16(2 * HALF));
        if rare != 0 {
            let low = _mm512_cvtepi16_epi32(_mm512_castsi512_si256(q));
            let high = _mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64::<1>(q));
            return halves(scaling, *offs.get_unchecked(element), element, [low, high]);
        }
        let table = _mm512_loadu_si512(tables.get_unchecked(element).as_ptr().cast());
        _mm512_permutexvar_epi16(index, table)
    }
}
