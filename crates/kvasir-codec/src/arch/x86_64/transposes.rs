//! Transposition in registers: rows of tokens to lanes and back, 16 tokens at once.
#![allow(clippy::needless_range_loop, reason = "indices of several arrays, unrolled")]
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "register intrinsics share one proof: the CPU feature"
)]

use std::arch::x86_64::{
    __m256i, __m512i, _MM_HINT_T0, _mm_prefetch, _mm256_loadu_si256, _mm256_permute2x128_si256,
    _mm256_setzero_si256, _mm256_storeu_si256, _mm256_stream_si256, _mm256_unpackhi_epi32,
    _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64, _mm512_castps_si512,
    _mm512_castsi512_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_setzero_ps, _mm512_storeu_ps,
    _mm512_storeu_si512, _mm512_stream_si512,
};

use half::bf16;

use super::avx512_rows;
use crate::direct_rows::{
    TILE,
    bf16_tiles::{Lane, transpose_portable},
    quantise_tiles::lanes_portable,
};

/// 16 elements of 16 tokens at once.
///
/// # Safety
/// AVX-512F.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn lanes_512(rows: &[f32], lanes: &mut [Lane<f32>]) {
    let count = lanes.len();
    let whole = if rows.len() == TILE * count { count / TILE * TILE } else { 0 };
    for first in (0..whole).step_by(TILE) {
        let mut tokens = [_mm512_setzero_ps(); TILE];
        for (token, x) in tokens.iter_mut().enumerate() {
            let row: &[f32] = &rows[token * count + first..][..TILE];
            // the line of the next tile, which is all over two pages: no prefetcher sees it coming
            let next = row.as_ptr().wrapping_add(rows.len()).cast();
            // SAFETY: 16 elements of the slice just taken; a prefetch reads nothing.
            *x = unsafe {
                _mm_prefetch::<_MM_HINT_T0>(next);
                _mm512_loadu_ps(row.as_ptr())
            };
        }
        for (lane, element) in lanes[first..first + TILE].iter_mut().zip(avx512_rows::transpose(tokens)) {
            // SAFETY: an array of 16.
            unsafe { _mm512_storeu_ps(lane.as_mut_ptr(), element) };
        }
    }
    lanes_portable(rows, whole, lanes);
}

/// 8 elements of 8 tokens at once.
///
/// # Safety
/// AVX2.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn lanes_256(rows: &[f32], lanes: &mut [Lane<f32>]) {
    const SQUARE: usize = 8;
    let count = lanes.len();
    let whole = if rows.len() == TILE * count { count / SQUARE * SQUARE } else { 0 };
    for first in (0..whole).step_by(SQUARE) {
        for half in [0, SQUARE] {
            let mut tokens = [_mm256_setzero_si256(); SQUARE];
            for (token, x) in tokens.iter_mut().enumerate() {
                let row: &[f32] = &rows[(half + token) * count + first..][..SQUARE];
                // SAFETY: 8 elements of the slice just taken.
                *x = unsafe { _mm256_loadu_si256(row.as_ptr().cast()) };
            }
            for (lane, element) in lanes[first..first + SQUARE].iter_mut().zip(square(tokens)) {
                let out: &mut [f32] = &mut lane[half..half + SQUARE];
                // SAFETY: 8 elements of the slice just taken.
                unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), element) };
            }
        }
    }
    lanes_portable(rows, whole, lanes);
}

/// 16 words × 16 tokens at once: a cache line of every token's row, bypassing the cache if aligned to a line.
/// The caller orders such stores with an `sfence`.
///
/// # Safety
/// AVX-512F.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn rows_512<const PAST_CACHE: bool>(
    pairs: &[Lane<u32>],
    elements: usize,
    rows: &mut [bf16],
) {
    // whole squares lie below `elements / 2`, so their words are two elements each
    let whole = if rows.len() == TILE * elements { elements / (2 * TILE) * TILE } else { 0 };
    for first in (0..whole).step_by(TILE) {
        let mut words = [_mm512_setzero_ps(); TILE];
        for (word, pair) in words.iter_mut().zip(&pairs[first..first + TILE]) {
            // SAFETY: an array of 16.
            *word = unsafe { _mm512_castsi512_ps(_mm512_loadu_si512(pair.as_ptr().cast())) };
        }
        for (token, row) in avx512_rows::transpose(words).into_iter().enumerate() {
            let at = token * elements + 2 * first;
            let row16: &mut [bf16] = &mut rows[at..at + 2 * TILE];
            let (row, to) = (_mm512_castps_si512(row), row16.as_mut_ptr().cast());
            // SAFETY: 64 bytes of the slice just taken, aligned where that is asked for.
            unsafe {
                if PAST_CACHE && row16.as_ptr().cast::<__m512i>().is_aligned() {
                    _mm512_stream_si512(to, row);
                } else {
                    _mm512_storeu_si512(to.cast(), row);
                }
            }
        }
    }
    transpose_portable(pairs, whole, elements, rows);
}

/// 16 words of 32 elements from `first` on, whose lanes are tokens `8 k + half ..` by fours, to rows of `elements`.
///
/// # Safety
/// AVX-512F; `rows` hold 32 tokens, `first + 32 ≤ elements`, `half` is 0 or 4.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn square_rows<const PAST_CACHE: bool>(
    words: [__m512i; TILE],
    rows: &mut [bf16],
    elements: usize,
    first: usize,
    half: usize,
) {
    let mut square = [_mm512_setzero_ps(); TILE];
    for (x, word) in square.iter_mut().zip(words) {
        *x = _mm512_castsi512_ps(word);
    }
    let aligned = rows.as_ptr().cast::<__m512i>().is_aligned();
    for (lane, row) in avx512_rows::transpose(square).into_iter().enumerate() {
        let at = (lane / 4 * 8 + half + lane % 4) * elements + first;
        debug_assert!(at + 2 * TILE <= rows.len());
        let row = _mm512_castps_si512(row);
        // SAFETY: 32 elements of a row, which is a multiple of 64 bytes long.
        unsafe {
            let to = rows.as_mut_ptr().add(at);
            if PAST_CACHE && aligned {
                _mm512_stream_si512(to.cast(), row);
            } else {
                _mm512_storeu_si512(to.cast(), row);
            }
        }
    }
}

/// 8 words × 8 tokens at once, two such for a cache line; otherwise as [`rows_512`].
///
/// # Safety
/// AVX2.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn rows_256<const PAST_CACHE: bool>(
    pairs: &[Lane<u32>],
    elements: usize,
    rows: &mut [bf16],
) {
    const SQUARE: usize = 8;
    let whole = if rows.len() == TILE * elements { elements / (4 * SQUARE) * 2 * SQUARE } else { 0 };
    for first in (0..whole).step_by(2 * SQUARE) {
        for half in [0, SQUARE] {
            let mut words = [[_mm256_setzero_si256(); SQUARE]; 2];
            for (word, pair) in words.as_flattened_mut().iter_mut().zip(&pairs[first..first + 2 * SQUARE]) {
                let half: &[u32] = &pair[half..half + SQUARE];
                // SAFETY: 8 words of the slice just taken.
                *word = unsafe { _mm256_loadu_si256(half.as_ptr().cast()) };
            }
            let (near, far) = (square(words[0]), square(words[1]));
            for (token, (near, far)) in near.into_iter().zip(far).enumerate() {
                let at = (half + token) * elements + 2 * first;
                let line: &mut [bf16] = &mut rows[at..at + 4 * SQUARE];
                let aligned = line.as_ptr().cast::<__m512i>().is_aligned();
                let to: *mut __m256i = line.as_mut_ptr().cast();
                // SAFETY: 64 bytes of the slice just taken, aligned where that is asked for.
                unsafe {
                    if PAST_CACHE && aligned {
                        _mm256_stream_si256(to, near);
                        _mm256_stream_si256(to.add(1), far);
                    } else {
                        _mm256_storeu_si256(to, near);
                        _mm256_storeu_si256(to.add(1), far);
                    }
                }
            }
        }
    }
    transpose_portable(pairs, whole, elements, rows);
}

/// 8 × 8: pairs, quadruples, halves.
#[inline]
#[target_feature(enable = "avx2")]
fn square(m: [__m256i; 8]) -> [__m256i; 8] {
    let mut pairs = m;
    for i in 0..8 {
        let (a, b) = (m[i & !1], m[i | 1]);
        pairs[i] = if i & 1 == 0 { _mm256_unpacklo_epi32(a, b) } else { _mm256_unpackhi_epi32(a, b) };
    }
    // fours[4 g + j]: column j (low half) and 4 + j (high half) of rows 4 g .. 4 g + 4
    let mut fours = m;
    for i in 0..8 {
        let (group, j) = (i & 4, i & 3);
        let (a, b) = (pairs[group + (j >> 1)], pairs[group + 2 + (j >> 1)]);
        fours[i] = if j & 1 == 0 { _mm256_unpacklo_epi64(a, b) } else { _mm256_unpackhi_epi64(a, b) };
    }
    let mut out = m;
    for j in 0..4 {
        let (a, b) = (fours[j], fours[4 + j]);
        out[j] = _mm256_permute2x128_si256::<0x20>(a, b);
        out[4 + j] = _mm256_permute2x128_si256::<0x31>(a, b);
    }
    out
}
