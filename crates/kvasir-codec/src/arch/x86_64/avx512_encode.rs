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

use super::avx512::{load, opaque};
use crate::rans::{
    ESCAPE, LANES, PROBABILITY_BITS,
    blocks::{Block, NINTH, THIRD, coarser},
    coding::Coding,
    stream::{
        encode::{BlockJob, EncodeJob, EncodedStream, LaneEncoder, ReverseWords, Uncodable},
        simd_tables::{StageEncoding, TritEncoding},
    },
};

/// Ternary logic of `a`, `b`, `c`: `a ? b : c`.
const SELECT: i32 = 0xca;

/// Blocks that are on their way from a farther cache while steps code others.
const AHEAD: usize = 16;

/// The halves of the coders' states, in lane order.
#[derive(Clone, Copy)]
struct States {
    low: __m512i,
    high: __m512i,
}

/// The symbols that a step codes, for all lanes.
struct Symbols {
    start: __m512i,
    frequency: __m512i,
    /// A little above 1 / frequency, of even and odd lanes.
    reciprocals: [__m512; 2],
}

/// Encodes two streams alternately; the second may be empty. A step waits for its division, and the waiting
/// time is used for the other stream. The scalar coders process partial rows and long escapes.
///
/// # Safety
/// The CPU has the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,bmi2,popcnt")]
pub(super) unsafe fn encode(
    [first, second]: [BlockJob<'_>; 2],
    [first_words, second_words]: &mut [ReverseWords; 2],
) -> Result<[EncodedStream; 2], Uncodable> {
    // not in an array: an indexed array would be kept in memory
    let (mut one, mut other) = (LaneEncoder::new(first_words), LaneEncoder::new(second_words));
    let full = first.blocks.tokens() / LANES;
    partial(&first, full, &mut one)?;
    partial(&second, full, &mut other)?;
    // SAFETY: the caller's promise.
    let (mut state, mut beside) = unsafe { (split(&one.states), split(&other.states)) };
    for block in (0..full).rev() {
        for c in (0..first.codings.len().max(second.codings.len())).rev() {
            if c < first.codings.len() {
                // SAFETY: the caller's promise, here and below.
                state = unsafe { step(&first, (c, block), &mut one, state)? };
            }
            if c < second.codings.len() {
                // SAFETY: as above.
                beside = unsafe { step(&second, (c, block), &mut other, beside)? };
            }
        }
    }
    // SAFETY: as above.
    (one.states, other.states) = unsafe { (join(state), join(beside)) };
    Ok([one.finish(), other.finish()])
}

/// Tokens after whole blocks, by the scalar coders.
fn partial(job: &BlockJob<'_>, full: usize, lanes: &mut LaneEncoder<'_>) -> Result<(), Uncodable> {
    let tokens = job.blocks.tokens() % LANES;
    if tokens == 0 {
        return Ok(());
    }
    let mut values = vec![0; job.codings.len() * tokens];
    for (row, values) in job.rows.iter().zip(values.chunks_exact_mut(tokens)) {
        let block = job.blocks.get(*row, full).ok_or(Uncodable)?; // rows are
        values.iter_mut().zip(&block.0).for_each(|(to, value)| *to = coarser(*value, job.up).into());
    }
    lanes.row(EncodeJob { bank: job.bank, codings: job.codings, tokens, values: &values }, 0)
}

/// Coefficient `c` of a whole block.
///
/// # Safety
/// The features of [`encode`].
#[inline(always)]
unsafe fn step(
    job: &BlockJob<'_>,
    (c, block): (usize, usize),
    lanes: &mut LaneEncoder<'_>,
    mut states: States,
) -> Result<States, Uncodable> {
    lanes.words.ready()?;
    let Block(values) = job.blocks.get(job.rows[c], block).ok_or(Uncodable)?; // rows are
    // the blocks of a group are read from its end to its beginning, or nearly: farther than a page, which a prefetcher ends at
    let ahead = values.as_ptr().wrapping_sub(AHEAD * LANES);
    // SAFETY: 64 bytes, and a prefetch reads nothing; the caller's promise, here and below.
    let mut values = unsafe {
        _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
        coarsened(_mm512_loadu_si512(values.as_ptr().cast()), job.up)
    };
    let (table, trits, refining) = match job.codings[c] {
        Coding::Trit { table } => {
            let table = &job.bank.trit_encodings()[usize::from(table)];
            // SAFETY: as above.
            return unsafe { trit(table, lanes.words, states, values) };
        }
        Coding::Stage { table, trits, trit_table } => (table, trits, trit_table),
    };
    for _ in 0..trits {
        let table = &job.bank.trit_encodings()[usize::from(refining)];
        // SAFETY: as above.
        unsafe {
            states = trit(table, lanes.words, states, values)?;
            values = coarsened(values, 1);
        }
    }
    let table = &job.bank.stage_encodings()[usize::from(table)];
    // SAFETY: as above.
    unsafe { stage(table, lanes, states, values) }
}

/// As [`coarser`], of all lanes.
///
/// # Safety
/// AVX-512BW.
#[inline(always)]
unsafe fn coarsened(mut values: __m512i, up: u32) -> __m512i {
    // SAFETY: register operations only.
    unsafe {
        let (third, ninth) = (_mm512_set1_epi16(THIRD), _mm512_set1_epi16(NINTH));
        match up {
            0 => values,
            1 => _mm512_mulhrs_epi16(values, third),
            2 => _mm512_mulhrs_epi16(values, ninth),
            _ => {
                for _ in 0..up {
                    values = _mm512_mulhrs_epi16(values, third);
                }
                values
            }
        }
    }
}

/// Escapes, then the stage symbols.
///
/// # Safety
/// The features of [`encode`].
#[inline(always)]
unsafe fn stage(
    table: &StageEncoding,
    lanes: &mut LaneEncoder<'_>,
    mut states: States,
    values: __m512i,
) -> Result<States, Uncodable> {
    // SAFETY: the caller's promise, and tables of 64 bytes, here and below.
    let (symbols, escapes) = unsafe {
        let index = _mm512_add_epi16(values, _mm512_set1_epi16(7)); // negative becomes huge
        let index = _mm512_min_epu16(index, _mm512_set1_epi16(ESCAPE as i16));
        let symbols = symbols_at(&table.symbols, &table.reciprocals, index);
        let escape = _mm512_set1_epi16(table.escape_start().cast_signed());
        let escapes = _mm512_cmpeq_epi16_mask(symbols.start, escape);
        (symbols, escapes)
    };
    if escapes != 0 {
        if !table.escapes() {
            return Err(Uncodable);
        }
        // SAFETY: as above.
        states = unsafe { escaped(lanes, escapes, states, values)? };
    }
    // SAFETY: as above.
    unsafe {
        let divided = divide(spill(lanes.words, states, symbols.frequency), &symbols);
        Ok(divided.pushed(slot_of(table, divided.index)))
    }
}

/// One trit of every lane.
///
/// # Safety
/// The features of [`encode`].
#[inline(always)]
unsafe fn trit(
    table: &TritEncoding,
    words: &mut ReverseWords,
    states: States,
    values: __m512i,
) -> Result<States, Uncodable> {
    // SAFETY: the caller's promise, and tables of 64 bytes, here and below.
    let symbols = unsafe {
        // of a value beyond 1, one between 2 and 4 of the same sign and digit
        let coarse = _mm512_mulhrs_epi16(values, _mm512_set1_epi16(THIRD));
        let sign = _mm512_min_epi16(_mm512_max_epi16(coarse, opaque(-1)), opaque(1));
        let beyond = _mm512_mullo_epi16(_mm512_sub_epi16(coarse, sign), _mm512_set1_epi16(3));
        let index = _mm512_sub_epi16(values, beyond);
        symbols_at(&table.symbols, &table.reciprocals, index)
    };
    // SAFETY: as above.
    unsafe {
        if !table.is_complete() && _mm512_testn_epi16_mask(symbols.frequency, symbols.frequency) != 0 {
            return Err(Uncodable);
        }
        let divided = divide(spill(words, states, symbols.frequency), &symbols);
        Ok(divided.pushed(divided.index))
    }
}

/// Even lanes of one register, odd ones of another.
///
/// # Safety
/// AVX-512F.
#[inline(always)]
unsafe fn paired(even: __m512i, odd: __m512i) -> __m512i {
    // SAFETY: register operations only.
    unsafe { _mm512_ternarylogic_epi32::<SELECT>(_mm512_set1_epi32(!0xffff), odd, even) }
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

/// # Safety
/// The features of [`encode`].
#[inline(always)]
unsafe fn divide(states: States, symbols: &Symbols) -> Divided {
    // SAFETY: register operations only.
    unsafe {
        let even = paired(states.low, _mm512_slli_epi32::<16>(states.high));
        let odd = paired(_mm512_srli_epi32::<16>(states.low), states.high);
        let even = _mm512_cvttps_epi32(_mm512_mul_ps(_mm512_cvtepi32_ps(even), symbols.reciprocals[0]));
        let odd = _mm512_cvttps_epi32(_mm512_mul_ps(_mm512_cvtepi32_ps(odd), symbols.reciprocals[1]));
        let low = paired(even, _mm512_slli_epi32::<16>(odd));
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
}

impl Divided {
    /// The states with these slots.
    ///
    /// # Safety
    /// The features of [`encode`].
    #[inline(always)]
    unsafe fn pushed(self, slot: __m512i) -> States {
        let [even, odd] = self.quotients;
        // SAFETY: register operations only.
        unsafe {
            let (even, odd) = (_mm512_srli_epi32::<4>(even), _mm512_slli_epi32::<12>(odd));
            let low = _mm512_slli_epi16::<PROBABILITY_BITS>(self.low);
            States { low: _mm512_or_si512(low, slot), high: paired(even, odd) }
        }
    }
}

/// The slot of an index into all symbols' slots in order: that many from the start of the piece that it is in.
///
/// # Safety
/// The features of [`encode`].
#[inline(always)]
unsafe fn slot_of(table: &StageEncoding, index: __m512i) -> __m512i {
    let at = |piece: usize| table.piece_starts[piece].cast_signed();
    // SAFETY: register operations only.
    unsafe {
        // two probes without a look-up, which would take as long as the rest of a probe
        let upper = _mm512_cmpge_epu16_mask(index, _mm512_set1_epi16(at(16)));
        let quarter = _mm512_mask_mov_epi16(_mm512_set1_epi16(at(8)), upper, _mm512_set1_epi16(at(24)));
        let behind = _mm512_cmpge_epu16_mask(index, quarter);
        let mut piece = _mm512_maskz_mov_epi16(upper, _mm512_set1_epi16(16));
        piece = _mm512_mask_add_epi16(piece, behind, piece, _mm512_set1_epi16(8));
        let starts = words_of(&table.piece_starts);
        for half in [4, 2, 1] {
            let probe = _mm512_add_epi16(piece, _mm512_set1_epi16(half));
            let behind = _mm512_cmpge_epu16_mask(index, _mm512_permutexvar_epi16(probe, starts));
            piece = _mm512_mask_mov_epi16(piece, behind, probe);
        }
        _mm512_add_epi16(index, _mm512_permutexvar_epi16(piece, words_of(&table.piece_shifts)))
    }
}

/// Emits the low words of states that would leave their range.
///
/// # Safety
/// The features of [`encode`]; `ready` said that there is room.
#[inline(always)]
unsafe fn spill(words: &mut ReverseWords, states: States, frequency: __m512i) -> States {
    // SAFETY: the caller's promise.
    unsafe {
        let full = _mm512_cmpge_epu16_mask(_mm512_srli_epi16::<3>(states.high), frequency);
        emit(words, states, full)
    }
}

/// Emits the low words of some lanes: those of lower lanes first, which is how the decoder reads them.
///
/// # Safety
/// As [`spill`].
#[inline(always)]
unsafe fn emit(words: &mut ReverseWords, states: States, full: u32) -> States {
    let count = full.count_ones();
    words.top -= count as usize;
    let at = words.buffer[words.top..].as_mut_ptr().cast();
    // SAFETY: `count` words from `top`, which `ready` made room for; the mask keeps the store to them.
    unsafe {
        let packed = _mm512_maskz_compress_epi16(full, states.low);
        _mm512_mask_storeu_epi16(at, _bzhi_u32(u32::MAX, count), packed);
        States {
            low: _mm512_mask_mov_epi16(states.low, full, states.high),
            high: _mm512_mask_mov_epi16(states.high, full, opaque(0)),
        }
    }
}

/// The payload of escapes: eight bits of a short one without a model. The scalar coders process long ones.
///
/// # Safety
/// As [`spill`].
#[inline(always)]
unsafe fn escaped(
    lanes: &mut LaneEncoder<'_>,
    escapes: u32,
    states: States,
    values: __m512i,
) -> Result<States, Uncodable> {
    // SAFETY: the caller's promise, here and below.
    unsafe {
        let magnitude = _mm512_abs_epi16(values);
        if _mm512_mask_cmpge_epi16_mask(escapes, magnitude, _mm512_set1_epi16(127)) != 0 {
            let mut row = Block([0; LANES]);
            _mm512_storeu_si512(row.0.as_mut_ptr().cast(), values);
            // a separate copy of the states: those in a call's arguments would never be in registers
            lanes.states = join(states);
            long_escapes(lanes, escapes, &row)?;
            return Ok(split(&lanes.states));
        }
        // a symbol of frequency 2^12 / 2^8
        let frequency = _mm512_set1_epi16(1 << (PROBABILITY_BITS - 8));
        let full = _mm512_mask_cmpge_epu16_mask(escapes, _mm512_srli_epi16::<3>(states.high), frequency);
        let states = emit(lanes.words, states, full);
        let bits = _mm512_or_si512(_mm512_slli_epi16::<1>(magnitude), _mm512_srli_epi16::<15>(values));
        let high = _mm512_or_si512(_mm512_slli_epi16::<8>(states.high), _mm512_srli_epi16::<8>(states.low));
        let low = _mm512_or_si512(_mm512_slli_epi16::<8>(states.low), bits);
        Ok(States {
            low: _mm512_mask_mov_epi16(states.low, escapes, low),
            high: _mm512_mask_mov_epi16(states.high, escapes, high),
        })
    }
}

/// Escapes of which one is long, by the scalar coders.
#[cold]
#[inline(never)]
fn long_escapes(lanes: &mut LaneEncoder<'_>, escapes: u32, Block(values): &Block) -> Result<(), Uncodable> {
    lanes.escape(escapes, &values.map(i32::from))
}

/// The entries of a table for every index, by its low bits: starts, frequencies 16 further on, and
/// reciprocals.
///
/// # Safety
/// AVX-512BW.
#[inline(always)]
unsafe fn symbols_at(table: &[u16; LANES], reciprocals: &[f32; LANES / 2], index: __m512i) -> Symbols {
    // SAFETY: 64 bytes each; else register operations.
    unsafe {
        let (words, second) = (words_of(table), _mm512_add_epi16(index, _mm512_set1_epi16(16)));
        let reciprocals = _mm512_loadu_ps(reciprocals.as_ptr());
        let odd = _mm512_srli_epi32::<16>(index);
        Symbols {
            start: _mm512_permutexvar_epi16(index, words),
            frequency: _mm512_permutexvar_epi16(second, words),
            reciprocals: [_mm512_permutexvar_ps(index, reciprocals), _mm512_permutexvar_ps(odd, reciprocals)],
        }
    }
}

/// A table of 16-bit words.
///
/// # Safety
/// AVX-512F.
#[inline(always)]
unsafe fn words_of(table: &[u16; LANES]) -> __m512i {
    // SAFETY: 64 bytes.
    unsafe { _mm512_loadu_si512(table.as_ptr().cast()) }
}

/// # Safety
/// AVX-512BW.
#[inline(always)]
unsafe fn split(states: &[u32; LANES]) -> States {
    let lows = std::array::from_fn::<u16, LANES, _>(|lane| 2 * lane as u16);
    // SAFETY: the caller's promise.
    unsafe {
        let [first, second] = load(states);
        let lows = words_of(&lows);
        let highs = _mm512_add_epi16(lows, _mm512_set1_epi16(1));
        States {
            low: _mm512_permutex2var_epi16(first, lows, second),
            high: _mm512_permutex2var_epi16(first, highs, second),
        }
    }
}

/// # Safety
/// AVX-512F.
#[inline(always)]
unsafe fn join(states: States) -> [u32; LANES] {
    let (mut low, mut high) = ([0u16; LANES], [0u16; LANES]);
    // SAFETY: the caller's promise; arrays of 64 bytes.
    unsafe {
        _mm512_storeu_si512(low.as_mut_ptr().cast(), states.low);
        _mm512_storeu_si512(high.as_mut_ptr().cast(), states.high);
    }
    std::array::from_fn(|lane| u32::from(high[lane]) << 16 | u32::from(low[lane]))
}
