//! Direct rows with AVX-512: 16 elements × 16 tokens at once, transposed in registers.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "register intrinsics share one proof: the CPU feature"
)]

use std::{
    arch::x86_64::{
        __m512, _mm512_add_ps, _mm512_castpd_ps, _mm512_castps_pd, _mm512_cmpgt_epi32_mask,
        _mm512_cmplt_epi32_mask, _mm512_cvtepi32_ps, _mm512_loadu_si512, _mm512_mask_add_epi32,
        _mm512_mask_sub_epi32, _mm512_mul_ps, _mm512_mullo_epi32, _mm512_set1_epi32, _mm512_set1_ps,
        _mm512_setzero_si512, _mm512_shuffle_f32x4, _mm512_storeu_ps, _mm512_unpackhi_pd, _mm512_unpackhi_ps,
        _mm512_unpacklo_pd, _mm512_unpacklo_ps,
    },
    array::from_fn,
};

use crate::rows::{Scaling, TILE, scale_rows_portable};

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
            let columns = from_fn(|i| {
                let element = element + i;
                // SAFETY: 16 values of one element from `token`, both within whole tiles.
                let q = unsafe { _mm512_loadu_si512(values.as_ptr().add(element * tokens + token).cast()) };
                let (zero, off) = (_mm512_setzero_si512(), _mm512_set1_epi32(scaling.towards_zero(element)));
                let steps = _mm512_mullo_epi32(q, _mm512_set1_epi32(scaling.ratio()));
                let steps = _mm512_mask_sub_epi32(steps, _mm512_cmpgt_epi32_mask(q, zero), steps, off);
                let steps = _mm512_mask_add_epi32(steps, _mm512_cmplt_epi32_mask(q, zero), steps, off);
                let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(steps), _mm512_set1_ps(scaling.gain));
                _mm512_add_ps(scaled, _mm512_set1_ps(scaling.mean[element]))
            });
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
fn transpose(m: [__m512; TILE]) -> [__m512; TILE] {
    let pairs: [__m512; TILE] = from_fn(|i| {
        let (a, b) = (m[i & !1], m[i | 1]);
        if i & 1 == 0 { _mm512_unpacklo_ps(a, b) } else { _mm512_unpackhi_ps(a, b) }
    });
    // fours[4 g + j]: element 4 k + j of rows 4 g .. 4 g + 4, in lane k
    let fours: [__m512; TILE] = from_fn(|i| {
        let (group, j) = (i & !3, i & 3);
        let (a, b) = (pairs[group + (j >> 1)], pairs[group + 2 + (j >> 1)]);
        let (a, b) = (_mm512_castps_pd(a), _mm512_castps_pd(b));
        _mm512_castpd_ps(if j & 1 == 0 { _mm512_unpacklo_pd(a, b) } else { _mm512_unpackhi_pd(a, b) })
    });
    from_fn(|i| {
        // column 4 k + j takes lane k of the four groups
        let (k, j) = (i >> 2, i & 3);
        let (a, b, c, d) = (fours[j], fours[4 + j], fours[8 + j], fours[12 + j]);
        let halves = |x, y| match k {
            0 => _mm512_shuffle_f32x4::<0b00_00_00_00>(x, y),
            1 => _mm512_shuffle_f32x4::<0b01_01_01_01>(x, y),
            2 => _mm512_shuffle_f32x4::<0b10_10_10_10>(x, y),
            _ => _mm512_shuffle_f32x4::<0b11_11_11_11>(x, y),
        };
        // halves(a, b) = [a_k a_k b_k b_k]; lanes 0 and 2 of both are what is wanted
        _mm512_shuffle_f32x4::<0b10_00_10_00>(halves(a, b), halves(c, d))
    })
}
