//! Direct rows with AVX-512: 16 elements × 16 tokens at once, transposed in registers.
#![allow(clippy::needless_range_loop, reason = "indices of several arrays, unrolled")]
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "register intrinsics share one proof: the CPU feature"
)]

use std::arch::x86_64::{
    __m512, _mm512_add_ps, _mm512_castpd_ps, _mm512_castps_pd, _mm512_cmpgt_epi32_mask,
    _mm512_cmplt_epi32_mask, _mm512_cvtepi32_ps, _mm512_loadu_si512, _mm512_mask_add_epi32,
    _mm512_mask_sub_epi32, _mm512_mul_ps, _mm512_mullo_epi32, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_setzero_ps, _mm512_setzero_si512, _mm512_shuffle_f32x4, _mm512_storeu_ps, _mm512_unpackhi_pd,
    _mm512_unpackhi_ps, _mm512_unpacklo_pd, _mm512_unpacklo_ps,
};

use crate::direct_rows::{Scaling, TILE, scale_rows_portable};

/// Whole tiles here, the rest by the portable kernel.
///
/// # Safety
/// AVX-512F; `values` and `rows` hold `elements × tokens`.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn scale_rows(scaling: &Scaling<'_>, tokens: usize, values: &[i32], rows: &mut [f32]) {
    let elements = scaling.elements();
    debug_assert!(values.len() == elements * tokens && rows.len() == elements * tokens);
    let (whole_elements, whole_tokens) = (elements / TILE * TILE, tokens / TILE * TILE);
    for element in (0..whole_elements).step_by(TILE) {
        for token in (0..whole_tokens).step_by(TILE) {
            let mut columns = [_mm512_setzero_ps(); TILE];
            for (i, column) in columns.iter_mut().enumerate() {
                let element = element + i;
                // SAFETY: 16 values of one element from `token`, both within whole tiles.
                let q = unsafe { _mm512_loadu_si512(values.as_ptr().add(element * tokens + token).cast()) };
                let (zero, off) = (_mm512_setzero_si512(), _mm512_set1_epi32(scaling.towards_zero(element)));
                let steps = _mm512_mullo_epi32(q, _mm512_set1_epi32(scaling.ratio()));
                let steps = _mm512_mask_sub_epi32(steps, _mm512_cmpgt_epi32_mask(q, zero), steps, off);
                let steps = _mm512_mask_add_epi32(steps, _mm512_cmplt_epi32_mask(q, zero), steps, off);
                let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(steps), _mm512_set1_ps(scaling.gain));
                *column = _mm512_add_ps(scaled, _mm512_set1_ps(scaling.mean[element]));
            }
            for (i, row) in transpose(columns).into_iter().enumerate() {
                // SAFETY: 16 elements of one token from `element`, both within whole tiles.
                unsafe { _mm512_storeu_ps(rows.as_mut_ptr().add((token + i) * elements + element), row) };
            }
        }
    }
    scale_rows_portable(scaling, tokens, values, rows, (whole_elements..elements, 0..whole_tokens));
    scale_rows_portable(scaling, tokens, values, rows, (0..elements, whole_tokens..tokens));
}

/// 16 × 16: pairs, quadruples, then 128-bit lanes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn transpose(m: [__m512; TILE]) -> [__m512; TILE] {
    // Loops, not closures: a closure with a target feature is not inlined into its caller.
    let mut pairs = m;
    for i in 0..TILE {
        let (a, b) = (m[i & !1], m[i | 1]);
        pairs[i] = if i & 1 == 0 { _mm512_unpacklo_ps(a, b) } else { _mm512_unpackhi_ps(a, b) };
    }
    // fours[4 g + j]: element 4 k + j of rows 4 g .. 4 g + 4, in lane k
    let mut fours = m;
    for i in 0..TILE {
        let (group, j) = (i & !3, i & 3);
        let (a, b) = (pairs[group + (j >> 1)], pairs[group + 2 + (j >> 1)]);
        let (a, b) = (_mm512_castps_pd(a), _mm512_castps_pd(b));
        fours[i] =
            _mm512_castpd_ps(if j & 1 == 0 { _mm512_unpacklo_pd(a, b) } else { _mm512_unpackhi_pd(a, b) });
    }
    // column 4 k + j takes lane k of the four groups: first lanes 0, 2 and 1, 3 of two groups each
    let mut out = m;
    for j in 0..4 {
        let (a, b, c, d) = (fours[j], fours[4 + j], fours[8 + j], fours[12 + j]);
        let (ab_even, ab_odd) =
            (_mm512_shuffle_f32x4::<0b10_00_10_00>(a, b), _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b));
        let (cd_even, cd_odd) =
            (_mm512_shuffle_f32x4::<0b10_00_10_00>(c, d), _mm512_shuffle_f32x4::<0b11_01_11_01>(c, d));
        out[j] = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab_even, cd_even);
        out[4 + j] = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab_odd, cd_odd);
        out[8 + j] = _mm512_shuffle_f32x4::<0b11_01_11_01>(ab_even, cd_even);
        out[12 + j] = _mm512_shuffle_f32x4::<0b11_01_11_01>(ab_odd, cd_odd);
    }
    out
}
