//! The AVX-512 encoder: the same steps backwards, 2 × 16 lanes.
//!
//! Divisions go through `f32`: after the spill a state is below `f · 2^19`, so the quotient is below `2^19` and three
//! roundings of `2^-24` leave it at most one off, which a comparison repairs.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "register intrinsics share one proof: the CPU feature"
)]

use std::arch::x86_64::{
    __m256i, __m512i, __mmask16, _mm256_loadu_si256, _mm256_mask_storeu_epi16, _mm512_add_epi32,
    _mm512_and_si512, _mm512_cmpeq_epi32_mask, _mm512_cmpge_epi32_mask, _mm512_cmpge_epu32_mask,
    _mm512_cmpgt_epi32_mask, _mm512_cmplt_epi32_mask, _mm512_cvtepi32_epi16, _mm512_cvtepi32_ps,
    _mm512_cvttps_epi32, _mm512_div_ps, _mm512_i32gather_epi32, _mm512_loadu_si512, _mm512_mask_add_epi32,
    _mm512_mask_srli_epi32, _mm512_mask_sub_epi32, _mm512_maskz_compress_epi32, _mm512_maskz_set1_epi32,
    _mm512_min_epu32, _mm512_mul_ps, _mm512_mullo_epi32, _mm512_or_si512, _mm512_permutexvar_epi32,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_si512, _mm512_slli_epi32, _mm512_srli_epi32,
    _mm512_sub_epi32, _mm512_test_epi32_mask, _mm512_testn_epi32_mask, _mm512_zextsi256_si512,
};

use super::avx512::{SLOT_MASK, load, store};
use crate::rans::{
    ESCAPE, LANES, PROBABILITY_BITS,
    plan::Coding,
    stream::encode::{Backward, EncodeJob, EncodeTable, EncodedStream, Lanes, Uncodable},
    trit::TritTable,
};

/// Encodes one stream; the partial row and escapes go through the scalar coders.
///
/// # Safety
/// The CPU has the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,popcnt")]
pub(super) unsafe fn encode(job: EncodeJob<'_>, words: &mut Backward) -> Result<EncodedStream, Uncodable> {
    let tables = job.bank.encode_tables();
    let mut lanes = Lanes::new(words);
    let full = job.tokens / LANES * LANES;
    if full < job.tokens {
        lanes.row(job, full)?;
    }
    // SAFETY: the caller's promise, here and below.
    let mut states = unsafe { load(&lanes.states) };
    for row in (0..full).step_by(LANES).rev() {
        for (coding, token_values) in job.codings.iter().zip(job.values.chunks_exact(job.tokens)).rev() {
            lanes.words.ready()?;
            let Some(row_values) = token_values[row..].first_chunk() else { continue }; // rows are full
            // SAFETY: as above.
            let mut values = unsafe { load(row_values) };
            let (stage, refining, trits) = match *coding {
                Coding::Stage { table, trits, trit_table } => (Some(table), trit_table, trits),
                Coding::Trit { table } => (None, table, 1),
            };
            for _ in 0..trits {
                let table = &job.bank.trit_tables()[usize::from(refining)];
                // SAFETY: as above.
                (states, values) = unsafe { trit(table, lanes.words, states, values)? };
            }
            if let Some(table) = stage {
                let table = &tables[usize::from(table)];
                // SAFETY: as above.
                states = unsafe { stage_step(table, &mut lanes, states, values)? };
            }
        }
    }
    // SAFETY: as above.
    unsafe { store(states, &mut lanes.states) };
    Ok(lanes.finish())
}

/// Escapes, then the stage symbols.
///
/// # Safety
/// AVX-512F, BW, VL.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,popcnt")]
unsafe fn stage_step(
    table: &EncodeTable,
    lanes: &mut Lanes<'_>,
    mut states: [__m512i; 2],
    values: [__m512i; 2],
) -> Result<[__m512i; 2], Uncodable> {
    // SAFETY: an array of 16 words, here and below.
    let codes = unsafe { _mm512_loadu_si512(table.codes.as_ptr().cast()) };
    // SAFETY: as above.
    let starts = unsafe { _mm512_loadu_si512(table.starts.as_ptr().cast()) };
    // SAFETY: as above.
    let frequencies = unsafe { _mm512_loadu_si512(table.frequencies.as_ptr().cast()) };
    // Loops, not `map`: a closure with a target feature is not inlined into what calls it.
    let (mut symbols, mut escapes) = (values, [0; 2]);
    for i in 0..2 {
        let index = _mm512_add_epi32(values[i], _mm512_set1_epi32(7)); // negative becomes huge
        let escape = _mm512_set1_epi32(ESCAPE as i32);
        symbols[i] = _mm512_permutexvar_epi32(_mm512_min_epu32(index, escape), codes);
        escapes[i] = u32::from(_mm512_cmpeq_epi32_mask(symbols[i], escape));
    }
    let escapes = escapes[0] | escapes[1] << 16;
    if escapes != 0 {
        // SAFETY: the caller's promise, here and below.
        states = unsafe { escape(lanes, escapes, states, values)? };
    }
    let mut frequency = [_mm512_setzero_si512(); 2];
    for (frequency, symbol) in frequency.iter_mut().zip(symbols) {
        *frequency = _mm512_permutexvar_epi32(symbol, frequencies);
    }
    // SAFETY: as above.
    let states = unsafe { spill(lanes.words, states, frequency)? };
    let mut next = states;
    for (i, next) in next.iter_mut().enumerate() {
        let (quotient, rest) = divide(states[i], frequency[i]);
        let index = _mm512_add_epi32(_mm512_permutexvar_epi32(symbols[i], starts), rest);
        // SAFETY: start + rest < 4096, and `slots` has one more for the upper half of the last load.
        let slot = unsafe { _mm512_i32gather_epi32::<2>(index, table.slots.as_ptr().cast()) };
        let slot = _mm512_and_si512(slot, _mm512_set1_epi32(SLOT_MASK));
        *next = _mm512_or_si512(_mm512_slli_epi32::<PROBABILITY_BITS>(quotient), slot);
    }
    Ok(next)
}

/// # Safety
/// AVX-512F.
#[cold]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,popcnt")]
unsafe fn escape(
    lanes: &mut Lanes<'_>,
    escapes: u32,
    states: [__m512i; 2],
    values: [__m512i; 2],
) -> Result<[__m512i; 2], Uncodable> {
    let mut row = [0i32; LANES];
    // SAFETY: the caller's promise, here and below.
    unsafe { store(values, &mut row) };
    // SAFETY: as above.
    unsafe { store(states, &mut lanes.states) };
    lanes.escape(escapes, &row)?;
    // SAFETY: as above.
    Ok(unsafe { load(&lanes.states) })
}

/// One trit of every lane; leaves the coarser values.
///
/// # Safety
/// AVX-512F, BW, VL.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,popcnt")]
unsafe fn trit(
    table: &TritTable,
    words: &mut Backward,
    states: [__m512i; 2],
    values: [__m512i; 2],
) -> Result<([__m512i; 2], [__m512i; 2]), Uncodable> {
    // SAFETY: 32 bytes; indices stay below 8.
    let ranges: __m256i = unsafe { _mm256_loadu_si256(table.ranges().as_ptr().cast()) };
    let ranges = _mm512_zextsi256_si512(ranges);
    let zero = _mm512_setzero_si512();
    let mut coarse = [zero; 2];
    let mut range = [zero; 2];
    for i in 0..2 {
        let (up, digit) = coarsen(values[i]);
        let folded = _mm512_mask_sub_epi32(digit, _mm512_cmplt_epi32_mask(up, zero), zero, digit);
        let context = _mm512_maskz_set1_epi32(_mm512_test_epi32_mask(up, up), 4);
        let index = _mm512_add_epi32(_mm512_add_epi32(context, folded), _mm512_set1_epi32(1));
        range[i] = _mm512_permutexvar_epi32(index, ranges);
        coarse[i] = up;
    }
    let mut frequency = range;
    for frequency in &mut frequency {
        *frequency = _mm512_and_si512(*frequency, _mm512_set1_epi32(0xffff));
    }
    // SAFETY: the caller's promise.
    let states = unsafe { spill(words, states, frequency)? };
    let mut next = states;
    for (i, next) in next.iter_mut().enumerate() {
        let (quotient, rest) = divide(states[i], frequency[i]);
        let slot = _mm512_add_epi32(_mm512_srli_epi32::<16>(range[i]), rest);
        *next = _mm512_or_si512(_mm512_slli_epi32::<PROBABILITY_BITS>(quotient), slot);
    }
    Ok((next, coarse))
}

/// `floor((v + 1) / 3)` and `v − 3` of it, for |v| ≤ 2^24: an `f32` holds `v + 1` exactly.
#[inline]
#[target_feature(enable = "avx512f")]
fn coarsen(value: __m512i) -> (__m512i, __m512i) {
    let one = _mm512_set1_epi32(1);
    let above = _mm512_cvtepi32_ps(_mm512_add_epi32(value, one));
    let up = _mm512_cvttps_epi32(_mm512_mul_ps(above, _mm512_set1_ps(1.0 / 3.0)));
    let digit = _mm512_sub_epi32(value, _mm512_mullo_epi32(up, _mm512_set1_epi32(3)));
    // truncation and rounding leave `up` at most one off
    let (low, high) =
        (_mm512_cmplt_epi32_mask(digit, _mm512_set1_epi32(-1)), _mm512_cmpgt_epi32_mask(digit, one));
    let up = _mm512_mask_sub_epi32(up, low, up, one);
    let up = _mm512_mask_add_epi32(up, high, up, one);
    (up, _mm512_sub_epi32(value, _mm512_mullo_epi32(up, _mm512_set1_epi32(3))))
}

/// Emits the low words of states that would leave their range; refuses frequency 0.
///
/// # Safety
/// AVX-512F, BW, VL.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,popcnt")]
unsafe fn spill(
    words: &mut Backward,
    states: [__m512i; 2],
    frequency: [__m512i; 2],
) -> Result<[__m512i; 2], Uncodable> {
    if _mm512_testn_epi32_mask(frequency[0], frequency[0])
        | _mm512_testn_epi32_mask(frequency[1], frequency[1])
        != 0
    {
        return Err(Uncodable);
    }
    let mut next = states;
    // the decoder reads the low lanes' words first
    for i in [1, 0] {
        const SHIFT: u32 = 31 - PROBABILITY_BITS;
        let full = _mm512_cmpge_epu32_mask(states[i], _mm512_slli_epi32::<SHIFT>(frequency[i]));
        let packed = _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(full, states[i]));
        let count = full.count_ones();
        words.top -= count as usize;
        let kept = ((1u32 << count) - 1) as __mmask16;
        let at = words.buffer[words.top..].as_mut_ptr().cast();
        // SAFETY: `count` words from `top`, which `ready` made room for; the mask keeps the store to them.
        unsafe { _mm256_mask_storeu_epi16(at, kept, packed) };
        next[i] = _mm512_mask_srli_epi32::<16>(states[i], full, states[i]);
    }
    Ok(next)
}

/// Quotient and remainder of spilled states.
#[inline]
#[target_feature(enable = "avx512f")]
fn divide(state: __m512i, frequency: __m512i) -> (__m512i, __m512i) {
    let (one, zero) = (_mm512_set1_epi32(1), _mm512_setzero_si512());
    let quotient =
        _mm512_cvttps_epi32(_mm512_div_ps(_mm512_cvtepi32_ps(state), _mm512_cvtepi32_ps(frequency)));
    let rest = _mm512_sub_epi32(state, _mm512_mullo_epi32(quotient, frequency));
    let (low, high) = (_mm512_cmplt_epi32_mask(rest, zero), _mm512_cmpge_epi32_mask(rest, frequency));
    let quotient = _mm512_mask_sub_epi32(quotient, low, quotient, one);
    let quotient = _mm512_mask_add_epi32(quotient, high, quotient, one);
    let rest = _mm512_mask_add_epi32(rest, low, rest, frequency);
    let rest = _mm512_mask_sub_epi32(rest, high, rest, frequency);
    (quotient, rest)
}
