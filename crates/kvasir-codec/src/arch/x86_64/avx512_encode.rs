//! The AVX-512 encoder: the decoder's steps backwards. Of all 32 lanes, the low halves of the states are one register and the
//! high halves another, so that everything is 16 bits wide but the quotients, which are in even and odd lanes.
//!
//! Quotients are `f32` products with reciprocals that are a little too large: after the spill a state is below `f · 2^19`, so
//! what the reciprocal and three roundings of `2^-24` add stays below 1/4, and a quotient is right or one too large.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "register intrinsics share one proof: the CPU feature"
)]

use std::arch::x86_64::*;

use super::avx512::{load, store};
use crate::rans::{
    ESCAPE, LANES, PROBABILITY_BITS,
    plan::Coding,
    stream::{
        encode::{Backward, EncodeJob, EncodedStream, Lanes, Uncodable, encode_stream},
        encode_tables::{StageEncoding, TritEncoding},
    },
};

/// Odd lanes of 32.
const ODD: u32 = 0xaaaa_aaaa;
/// Bits of a zigzag code of a value that 16 bits hold with its refinements.
const NARROW_BITS: u32 = 15;

/// The halves of the coders' states, in lane order.
#[derive(Clone, Copy)]
struct States {
    low: __m512i,
    high: __m512i,
}

/// What a step codes, of all lanes.
struct Symbols {
    start: __m512i,
    frequency: __m512i,
    /// A little above 1 / frequency, of even and odd lanes.
    reciprocals: [__m512; 2],
}

/// Encodes two streams in turns, of which the second may be of nothing: a step waits for what it divides, and leaves room for
/// another's. Partial rows and long escapes go through the scalar coders, and so do streams of wide values.
///
/// # Safety
/// The CPU has the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,bmi2,popcnt")]
pub(super) unsafe fn encode(
    [first, second]: [EncodeJob<'_>; 2],
    [first_words, second_words]: &mut [Backward; 2],
) -> Result<[EncodedStream; 2], Uncodable> {
    if (first.used | second.used) >> NARROW_BITS != 0 {
        return Ok([encode_stream(first, first_words)?, encode_stream(second, second_words)?]);
    }
    // not in an array: what is indexed would be kept in memory
    let (mut one, mut other) = (Lanes::new(first_words), Lanes::new(second_words));
    let full = first.tokens / LANES * LANES;
    if full < first.tokens {
        one.row(first, full)?;
        other.row(second, full)?;
    }
    let (mut state, mut beside) = (split(&one.states), split(&other.states));
    for row in (0..full).step_by(LANES).rev() {
        for c in (0..first.codings.len().max(second.codings.len())).rev() {
            if c < first.codings.len() {
                // SAFETY: the caller's promise, here and below.
                state = unsafe { step(&first, (c, row), &mut one, state)? };
            }
            if c < second.codings.len() {
                // SAFETY: as above.
                beside = unsafe { step(&second, (c, row), &mut other, beside)? };
            }
        }
    }
    (one.states, other.states) = (join(state), join(beside));
    Ok([one.finish(), other.finish()])
}

/// Coefficient `c` of a full row.
///
/// # Safety
/// The features of [`encode`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,bmi2,popcnt")]
unsafe fn step(
    job: &EncodeJob<'_>,
    (c, row): (usize, usize),
    lanes: &mut Lanes<'_>,
    mut states: States,
) -> Result<States, Uncodable> {
    lanes.words.ready()?;
    let row_values = job.values.get(c * job.tokens + row..).and_then(<[i32]>::first_chunk);
    let mut values = narrow(row_values.ok_or(Uncodable)?); // rows are full
    let (stage, refining, trits) = match job.codings[c] {
        Coding::Stage { table, trits, trit_table } => (Some(table), trit_table, trits),
        Coding::Trit { table } => (None, table, 1),
    };
    for _ in 0..trits {
        let table = &job.bank.trit_encodings()[usize::from(refining)];
        // SAFETY: the caller's promise, here and below.
        (states, values) = unsafe { trit(table, lanes.words, states, values)? };
    }
    match stage {
        None => Ok(states),
        Some(table) => {
            let table = &job.bank.stage_encodings()[usize::from(table)];
            // SAFETY: as above.
            unsafe { stage_step(table, lanes, states, values) }
        }
    }
}

/// Escapes, then the stage symbols.
///
/// # Safety
/// The features of [`encode`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,bmi2,popcnt")]
unsafe fn stage_step(
    table: &StageEncoding,
    lanes: &mut Lanes<'_>,
    mut states: States,
    values: __m512i,
) -> Result<States, Uncodable> {
    let index = _mm512_add_epi16(values, _mm512_set1_epi16(7)); // negative becomes huge
    let escape = _mm512_set1_epi16(ESCAPE as i16);
    let symbol = _mm512_permutexvar_epi16(_mm512_min_epu16(index, escape), words_of(&table.codes));
    let escapes = _mm512_cmpeq_epi16_mask(symbol, escape);
    if escapes != 0 {
        // SAFETY: the caller's promise, here and below.
        states = unsafe { escaped(lanes, escapes, states, values)? };
    }
    // SAFETY: 64 bytes.
    let reciprocals = unsafe { _mm512_loadu_ps(table.reciprocals.as_ptr()) };
    let symbols = Symbols {
        start: _mm512_permutexvar_epi16(symbol, words_of(&table.starts)),
        frequency: _mm512_permutexvar_epi16(symbol, words_of(&table.frequencies)),
        reciprocals: looked_up(symbol, reciprocals),
    };
    // SAFETY: the caller's promise.
    let states = unsafe { spill(lanes.words, states, symbols.frequency)? };
    let divided = divide(states, &symbols);
    let slot = slot_of(table, divided.index);
    Ok(divided.pushed(slot))
}

/// One trit of every lane; leaves the coarser values.
///
/// # Safety
/// The features of [`encode`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,bmi2,popcnt")]
unsafe fn trit(
    table: &TritEncoding,
    words: &mut Backward,
    states: States,
    values: __m512i,
) -> Result<(States, __m512i), Uncodable> {
    /// Keeps `value + 1` positive, and is a multiple of 3.
    const OFFSET: i16 = 3 * THIRD;
    const THIRD: i16 = 10_922;
    let (zero, one) = (_mm512_setzero_si512(), _mm512_set1_epi16(1));
    let above = _mm512_add_epi16(values, _mm512_set1_epi16(OFFSET + 1));
    // x · 43,691 / 2^17 is x / 3 for all of 16 bits
    let third =
        _mm512_srli_epi16::<1>(_mm512_mulhi_epu16(above, _mm512_set1_epi16(0xaaab_u16.cast_signed())));
    let coarse = _mm512_sub_epi16(third, _mm512_set1_epi16(THIRD));
    let tripled = _mm512_add_epi16(coarse, _mm512_add_epi16(coarse, coarse));
    let digit = _mm512_sub_epi16(values, tripled);
    let folded = _mm512_mask_sub_epi16(digit, _mm512_movepi16_mask(coarse), zero, digit);
    let index = _mm512_add_epi16(folded, one);
    let context = _mm512_test_epi16_mask(coarse, coarse);
    let index = _mm512_mask_add_epi16(index, context, index, _mm512_set1_epi16(4));
    // SAFETY: 64 bytes.
    let reciprocals = unsafe { _mm512_loadu_ps(table.reciprocals.as_ptr()) };
    let symbols = Symbols {
        start: _mm512_permutexvar_epi16(index, words_of(&table.starts)),
        frequency: _mm512_permutexvar_epi16(index, words_of(&table.frequencies)),
        reciprocals: looked_up(index, reciprocals),
    };
    // SAFETY: the caller's promise.
    let states = unsafe { spill(words, states, symbols.frequency)? };
    let divided = divide(states, &symbols);
    Ok((divided.pushed(divided.index), coarse))
}

/// States over frequencies.
#[derive(Clone, Copy)]
struct Divided {
    /// Quotients of even and odd lanes.
    quotients: [__m512i; 2],
    /// The low halves of all of them.
    low: __m512i,
    /// Remainders, from the start of the symbols' slots.
    index: __m512i,
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn divide(states: States, symbols: &Symbols) -> Divided {
    let even = _mm512_mask_blend_epi16(ODD, states.low, _mm512_slli_epi32::<16>(states.high));
    let odd = _mm512_mask_blend_epi16(ODD, _mm512_srli_epi32::<16>(states.low), states.high);
    let even = _mm512_cvttps_epi32(_mm512_mul_ps(_mm512_cvtepi32_ps(even), symbols.reciprocals[0]));
    let odd = _mm512_cvttps_epi32(_mm512_mul_ps(_mm512_cvtepi32_ps(odd), symbols.reciprocals[1]));
    let low = _mm512_mask_blend_epi16(ODD, even, _mm512_slli_epi32::<16>(odd));
    // from -f to f, which 16 bits hold whatever is above them
    let rest = _mm512_sub_epi16(states.low, _mm512_mullo_epi16(low, symbols.frequency));
    let too_large = _mm512_srli_epi16::<15>(rest);
    let rest = _mm512_min_epu16(rest, _mm512_add_epi16(rest, symbols.frequency));
    let even = _mm512_sub_epi32(even, _mm512_and_si512(too_large, _mm512_set1_epi32(1)));
    let odd = _mm512_sub_epi32(odd, _mm512_srli_epi32::<16>(too_large));
    Divided {
        quotients: [even, odd],
        low: _mm512_sub_epi16(low, too_large),
        index: _mm512_add_epi16(symbols.start, rest),
    }
}

impl Divided {
    /// The states with these slots.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn pushed(self, slot: __m512i) -> States {
        let [even, odd] = self.quotients;
        States {
            low: _mm512_or_si512(_mm512_slli_epi16::<PROBABILITY_BITS>(self.low), slot),
            high: _mm512_mask_blend_epi16(ODD, _mm512_srli_epi32::<4>(even), _mm512_slli_epi32::<12>(odd)),
        }
    }
}

/// The slot of an index into all symbols' slots in order: that many from the start of the piece that it is in.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn slot_of(table: &StageEncoding, index: __m512i) -> __m512i {
    let starts = words_of(&table.piece_starts);
    let mut piece = _mm512_setzero_si512();
    for half in [16, 8, 4, 2, 1] {
        let probe = _mm512_add_epi16(piece, _mm512_set1_epi16(half));
        let behind = _mm512_cmpge_epu16_mask(index, _mm512_permutexvar_epi16(probe, starts));
        piece = _mm512_mask_mov_epi16(piece, behind, probe);
    }
    _mm512_add_epi16(index, _mm512_permutexvar_epi16(piece, words_of(&table.piece_shifts)))
}

/// Emits the low words of states that would leave their range; refuses frequency 0.
///
/// # Safety
/// The features of [`encode`]; `ready` said that there is room.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,bmi2,popcnt")]
unsafe fn spill(words: &mut Backward, states: States, frequency: __m512i) -> Result<States, Uncodable> {
    if _mm512_testn_epi16_mask(frequency, frequency) != 0 {
        return Err(Uncodable);
    }
    let full = _mm512_cmpge_epu16_mask(_mm512_srli_epi16::<3>(states.high), frequency);
    // SAFETY: the caller's promise.
    Ok(unsafe { emit(words, states, full) })
}

/// Emits the low words of some lanes: those of lower lanes first, which is how the decoder reads them.
///
/// # Safety
/// As [`spill`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,bmi2,popcnt")]
unsafe fn emit(words: &mut Backward, states: States, full: u32) -> States {
    let count = full.count_ones();
    words.top -= count as usize;
    let at = words.buffer[words.top..].as_mut_ptr().cast();
    let packed = _mm512_maskz_compress_epi16(full, states.low);
    // SAFETY: `count` words from `top`, which `ready` made room for; the mask keeps the store to them.
    unsafe { _mm512_mask_storeu_epi16(at, _bzhi_u32(u32::MAX, count), packed) };
    States {
        low: _mm512_mask_mov_epi16(states.low, full, states.high),
        high: _mm512_maskz_mov_epi16(!full, states.high),
    }
}

/// The payload of escapes: eight bits of a short one without a model. Where one is long, the scalar coders do it.
///
/// # Safety
/// As [`spill`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,bmi2,popcnt")]
unsafe fn escaped(
    lanes: &mut Lanes<'_>,
    escapes: u32,
    states: States,
    values: __m512i,
) -> Result<States, Uncodable> {
    let magnitude = _mm512_abs_epi16(values);
    if _mm512_mask_cmpge_epi16_mask(escapes, magnitude, _mm512_set1_epi16(127)) != 0 {
        let wide = [0, 1].map(|half| match half {
            0 => _mm512_cvtepi16_epi32(_mm512_castsi512_si256(values)),
            _ => _mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64::<1>(values)),
        });
        let mut row = [0i32; LANES];
        // SAFETY: the caller's promise.
        unsafe { store(wide, &mut row) };
        lanes.states = join(states);
        lanes.escape(escapes, &row)?;
        return Ok(split(&lanes.states));
    }
    // a symbol of frequency 2^12 / 2^8
    let frequency = _mm512_set1_epi16(1 << (PROBABILITY_BITS - 8));
    let full = _mm512_mask_cmpge_epu16_mask(escapes, _mm512_srli_epi16::<3>(states.high), frequency);
    // SAFETY: the caller's promise.
    let states = unsafe { emit(lanes.words, states, full) };
    let bits = _mm512_or_si512(_mm512_slli_epi16::<1>(magnitude), _mm512_srli_epi16::<15>(values));
    let high = _mm512_or_si512(_mm512_slli_epi16::<8>(states.high), _mm512_srli_epi16::<8>(states.low));
    let low = _mm512_or_si512(_mm512_slli_epi16::<8>(states.low), bits);
    Ok(States {
        low: _mm512_mask_mov_epi16(states.low, escapes, low),
        high: _mm512_mask_mov_epi16(states.high, escapes, high),
    })
}

/// A table of 16-bit words.
#[inline]
#[target_feature(enable = "avx512f")]
fn words_of(table: &[u16; LANES]) -> __m512i {
    // SAFETY: 64 bytes.
    unsafe { _mm512_loadu_si512(table.as_ptr().cast()) }
}

/// Entries of even and of odd lanes; `vpermps` looks at the low four bits alone.
#[inline]
#[target_feature(enable = "avx512f")]
fn looked_up(index: __m512i, table: __m512) -> [__m512; 2] {
    [_mm512_permutexvar_ps(index, table), _mm512_permutexvar_ps(_mm512_srli_epi32::<16>(index), table)]
}

/// 32 values of 16 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn narrow(values: &[i32; LANES]) -> __m512i {
    // SAFETY: AVX-512F is a feature of this function.
    let [low, high] = unsafe { load(values) };
    // packed within quarters of a register
    let order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    _mm512_permutexvar_epi64(order, _mm512_packs_epi32(low, high))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn split(states: &[u32; LANES]) -> States {
    // SAFETY: AVX-512F is a feature of this function.
    let [first, second] = unsafe { load(states) };
    let lows = std::array::from_fn::<u16, LANES, _>(|lane| 2 * lane as u16);
    let lows = words_of(&lows);
    let highs = _mm512_add_epi16(lows, _mm512_set1_epi16(1));
    States {
        low: _mm512_permutex2var_epi16(first, lows, second),
        high: _mm512_permutex2var_epi16(first, highs, second),
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn join(states: States) -> [u32; LANES] {
    let (mut low, mut high) = ([0u16; LANES], [0u16; LANES]);
    // SAFETY: arrays of 64 bytes.
    unsafe {
        _mm512_storeu_si512(low.as_mut_ptr().cast(), states.low);
        _mm512_storeu_si512(high.as_mut_ptr().cast(), states.high);
    }
    std::array::from_fn(|lane| u32::from(high[lane]) << 16 | u32::from(low[lane]))
}
