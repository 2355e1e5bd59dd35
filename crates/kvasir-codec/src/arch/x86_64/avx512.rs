//! AVX-512: the low halves of all 32 states in one register, the upper ones in another, so that everything is 16 bits wide: a
//! table is looked up by `vpermw`, and a refill moves one register to the other and expands words into it.
//!
//! A step makes `f (x >> 12) + offset` of a state `x = 2^16 high + low`: `16 f high` in 32 bits, plus `f (low >> 12) + offset`,
//! which is less than `16 f`, for an offset is less than `f`; so `f < 4096` has to be, see [`Kernel`].
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "register intrinsics share one proof: the CPU feature"
)]

use std::arch::{asm, x86_64::*};

use crate::{
    arch::kernel::{Kernel, REFILL_BYTES},
    rans::{ESCAPE, LANES, LONG_ESCAPE, PROBABILITY_ONE, STATE_MIN, u16_lanes::StepTable},
};

/// The value of the escape symbol.
const ESCAPED: i16 = ESCAPE as i16 - 7;
/// Bits of a state's lower half that are its quotient's.
const QUOTIENT: u16 = !(PROBABILITY_ONE as u16 - 1);

/// Ternary logic of `a`, `b`, `c`: `a ? b : c`.
const SELECT: i32 = 0xca;
/// `a | b & c`.
const OR_AND: i32 = 0xf8;
/// `c ? a : !b`.
const OR_NOT_ABOVE: i32 = {
    let (a, b, c) = (0xf0, 0xcc, 0xaa);
    (c & a | !c & !b) & 0xff
};

/// Two registers of 32 halves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kernel16;

/// Lower halves, upper halves.
type Coders = [__m512i; 2];

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

/// Both halves of lanes in order.
///
/// # Safety
/// AVX-512F, BW.
#[inline(always)]
unsafe fn split([first, second]: [__m512i; 2]) -> Coders {
    // SAFETY: register operations only.
    unsafe {
        let above = [_mm512_srli_epi32::<16>(first), _mm512_srli_epi32::<16>(second)];
        [narrowed([first, second]), narrowed(above)]
    }
}

/// Lanes in order of both halves.
///
/// # Safety
/// AVX-512F.
#[inline(always)]
unsafe fn join([low, high]: Coders) -> [__m512i; 2] {
    // SAFETY: register operations only.
    unsafe {
        let (below, above) = (_mm512_castsi512_si256(low), _mm512_castsi512_si256(high));
        let first = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(above));
        let first = _mm512_or_si512(_mm512_cvtepu16_epi32(below), first);
        let (below, above) = (_mm512_extracti64x4_epi64::<1>(low), _mm512_extracti64x4_epi64::<1>(high));
        let second = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(above));
        [first, _mm512_or_si512(_mm512_cvtepu16_epi32(below), second)]
    }
}

/// The low halves of lanes in order.
///
/// # Safety
/// AVX-512F.
#[inline(always)]
unsafe fn narrowed([first, second]: [__m512i; 2]) -> __m512i {
    // SAFETY: register operations only.
    unsafe {
        let (first, second) = (_mm512_cvtepi32_epi16(first), _mm512_cvtepi32_epi16(second));
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second)
    }
}

/// Signed halves of lanes in order, each in a separate lane.
///
/// # Safety
/// AVX-512F.
#[inline(always)]
unsafe fn widened(halves: __m512i) -> [__m512i; 2] {
    // SAFETY: register operations only.
    unsafe {
        [
            _mm512_cvtepi16_epi32(_mm512_castsi512_si256(halves)),
            _mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64::<1>(halves)),
        ]
    }
}

/// A table of 32 halves, by the low five bits of every index.
///
/// # Safety
/// AVX-512BW.
#[inline(always)]
unsafe fn lookup<T>(table: &[T; LANES], index: __m512i) -> __m512i {
    const { assert!(size_of::<T>() == 2) };
    // SAFETY: 64 bytes.
    unsafe { _mm512_permutexvar_epi16(index, _mm512_loadu_si512(table.as_ptr().cast())) }
}

/// A constant that the compiler does not know: of one operation with a mask, or of two bounds, it would make several.
///
/// # Safety
/// AVX-512F.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn opaque(x: i16) -> __m512i {
    let mut x = _mm512_set1_epi16(x);
    // SAFETY: no instruction at all.
    unsafe { asm!("/* {0} */", inout(zmm_reg) x, options(pure, nomem, nostack, preserves_flags)) };
    x
}

/// The result of steps: scaled frequencies, and offsets from the starts of symbols' slots.
#[derive(Clone, Copy)]
struct Found<const N: usize> {
    frequency: [__m512i; N],
    offset: [__m512i; N],
}

/// The states after the found symbols.
///
/// # Safety
/// AVX-512BW.
#[inline(always)]
unsafe fn advance<const N: usize>(coders: [Coders; N], found: Found<N>) -> [Coders; N] {
    let Found { frequency, offset } = found;
    let (mut next, mut rest, mut sum, mut above) = (coders, offset, offset, offset);
    // SAFETY: register operations only, here and below.
    let (quotient, less_one) = unsafe { (_mm512_set1_epi16(QUOTIENT as i16), opaque(-1)) };
    for i in 0..N {
        // SAFETY: as above.
        unsafe {
            rest[i] = _mm512_mulhi_epu16(frequency[i], _mm512_and_si512(coders[i][0], quotient));
            sum[i] = _mm512_mullo_epi16(frequency[i], coders[i][1]);
            above[i] = _mm512_mulhi_epu16(frequency[i], coders[i][1]);
        }
    }
    for i in 0..N {
        // SAFETY: as above.
        unsafe {
            rest[i] = _mm512_add_epi16(rest[i], offset[i]);
            sum[i] = _mm512_add_epi16(sum[i], rest[i]);
        }
    }
    for i in 0..N {
        // SAFETY: as above.
        unsafe {
            let carries = _mm512_cmplt_epu16_mask(sum[i], rest[i]);
            next[i] = [sum[i], _mm512_mask_sub_epi16(above[i], carries, above[i], less_one)];
        }
    }
    next
}

/// Values as classes of a trit: their signs.
///
/// # Safety
/// AVX-512BW.
#[inline(always)]
unsafe fn signs<const N: usize>(mut values: [__m512i; N]) -> [__m512i; N] {
    // SAFETY: register operations only.
    unsafe {
        let (most, least) = (opaque(1), opaque(-1));
        for value in &mut values {
            *value = _mm512_max_epi16(_mm512_min_epi16(*value, most), least);
        }
    }
    values
}

/// Trit steps of values with these signs: new states, and the addends for three times the values.
///
/// # Safety
/// AVX-512BW.
#[inline(always)]
unsafe fn digits<const N: usize>(
    tables: [&StepTable; N],
    coders: [Coders; N],
    classes: [__m512i; N],
) -> ([Coders; N], [__m512i; N]) {
    let (mut slot, mut second, mut third, mut entry) = (classes, classes, classes, classes);
    // SAFETY: register operations only, here and below.
    let (slots, place) = unsafe { (_mm512_set1_epi16(!QUOTIENT as i16), _mm512_set1_epi16(8)) };
    for i in 0..N {
        // SAFETY: as above.
        unsafe {
            second[i] = lookup(&tables[i].u16_lanes.least[0], classes[i]);
            third[i] = lookup(&tables[i].u16_lanes.least[1], classes[i]);
            slot[i] = _mm512_and_si512(coders[i][0], slots);
        }
    }
    for i in 0..N {
        // SAFETY: as above.
        unsafe {
            let reached = _mm512_cmpge_epu16_mask(slot[i], second[i]);
            entry[i] = _mm512_mask_add_epi16(classes[i], reached, classes[i], place);
        }
    }
    for i in 0..N {
        // SAFETY: as above.
        unsafe {
            let reached = _mm512_cmpge_epu16_mask(slot[i], third[i]);
            entry[i] = _mm512_mask_add_epi16(entry[i], reached, entry[i], place);
        }
    }
    let mut found = Found { frequency: entry, offset: slot };
    for i in 0..N {
        // SAFETY: as above.
        unsafe {
            found.frequency[i] = lookup(&tables[i].u16_lanes.frequency, entry[i]);
            found.offset[i] = _mm512_add_epi16(slot[i], lookup(&tables[i].u16_lanes.offset, entry[i]));
            entry[i] = lookup(&tables[i].u16_lanes.value, entry[i]);
        }
    }
    // SAFETY: as above.
    (unsafe { advance(coders, found) }, entry)
}

impl Kernel for Kernel16 {
    type Coders = Coders;
    type Values = __m512i;
    const STREAMS: usize = 4;

    #[inline(always)]
    unsafe fn load(lanes: &[u32; LANES]) -> Coders {
        // SAFETY: the caller's promise.
        unsafe { split(load(lanes)) }
    }

    #[inline(always)]
    unsafe fn store(coders: Coders, lanes: &mut [u32; LANES]) {
        // SAFETY: the caller's promise.
        unsafe { store(join(coders), lanes) }
    }

    #[inline(always)]
    unsafe fn load_values(values: &[i16; LANES]) -> __m512i {
        // SAFETY: 64 bytes; an unaligned load.
        unsafe { _mm512_loadu_si512(values.as_ptr().cast()) }
    }

    #[inline(always)]
    unsafe fn store_values(values: __m512i, out: &mut [i16; LANES]) {
        // SAFETY: 64 bytes; an unaligned store.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), values) }
    }

    #[inline(always)]
    unsafe fn store_wide(values: __m512i, out: &mut [i32; LANES]) {
        // SAFETY: the caller's promise.
        unsafe { store(widened(values), out) }
    }

    #[inline(always)]
    unsafe fn stages<const N: usize>(
        tables: [&StepTable; N],
        coders: [Coders; N],
    ) -> ([Coders; N], [__m512i; N], [u32; N]) {
        // SAFETY: the caller's promise, here and below.
        let [byte, fifth, escaped] =
            unsafe { [_mm512_set1_epi16(255), _mm512_set1_epi16(15), _mm512_set1_epi16(ESCAPED)] };
        let mut bucket = [byte; N];
        let (mut r, mut below, mut entry, mut escapes) = (bucket, bucket, bucket, [0; N]);
        for i in 0..N {
            // SAFETY: as above.
            unsafe {
                bucket[i] = _mm512_srli_epi16::<8>(coders[i][0]);
                r[i] = _mm512_and_si512(coders[i][0], byte);
            }
        }
        for i in 0..N {
            // all ones from bit 9 on where it is below the divide
            // SAFETY: as above.
            below[i] = unsafe { _mm512_sub_epi16(r[i], lookup(&tables[i].u16_lanes.least[0], bucket[i])) };
        }
        for i in 0..N {
            // the bucket, and the fifth bit where it is not
            // SAFETY: as above.
            unsafe {
                let other = _mm512_srli_epi16::<11>(below[i]);
                entry[i] = _mm512_ternarylogic_epi32::<OR_NOT_ABOVE>(bucket[i], other, fifth);
            }
        }
        let mut found = Found { frequency: entry, offset: r };
        for i in 0..N {
            // SAFETY: as above.
            unsafe {
                found.frequency[i] = lookup(&tables[i].u16_lanes.frequency, entry[i]);
                found.offset[i] = _mm512_add_epi16(r[i], lookup(&tables[i].u16_lanes.offset, entry[i]));
                entry[i] = lookup(&tables[i].u16_lanes.value, entry[i]);
            }
        }
        // SAFETY: as above.
        let coders = unsafe { advance(coders, found) };
        for i in 0..N {
            // SAFETY: as above.
            escapes[i] = unsafe { _mm512_cmpeq_epi16_mask(entry[i], escaped) };
        }
        (coders, entry, escapes)
    }

    #[inline(always)]
    unsafe fn trits<const N: usize>(
        tables: [&StepTable; N],
        coders: [Coders; N],
        values: [__m512i; N],
    ) -> ([Coders; N], [__m512i; N]) {
        // SAFETY: the caller's promise, here and below.
        let (coders, mut refined) = unsafe { digits(tables, coders, signs(values)) };
        for i in 0..N {
            // SAFETY: as above.
            unsafe {
                let twice = _mm512_add_epi16(values[i], values[i]);
                refined[i] = _mm512_add_epi16(refined[i], _mm512_add_epi16(values[i], twice));
            }
        }
        (coders, refined)
    }

    #[inline(always)]
    unsafe fn eithers<const N: usize>(
        tables: [&StepTable; N],
        coders: [Coders; N],
        mut values: [__m512i; N],
    ) -> ([Coders; N], [__m512i; N], [u32; N]) {
        // SAFETY: the caller's promise, here and below.
        let mut class = unsafe { signs(values) };
        // SAFETY: as above.
        let escaped = unsafe { _mm512_set1_epi16(ESCAPED) };
        let (mut compared, mut second, mut third, mut escapes) = (class, class, class, [0; N]);
        for i in 0..N {
            let kind = &tables[i].u16_lanes.kind;
            // SAFETY: as above.
            unsafe {
                let refines = _mm512_set1_epi32(kind.refines as i32);
                let bucket = _mm512_srli_epi16::<8>(coders[i][0]);
                class[i] = _mm512_ternarylogic_epi32::<SELECT>(refines, class[i], bucket);
                compared[i] = _mm512_and_si512(coders[i][0], _mm512_set1_epi32(kind.compared as i32));
            }
        }
        for i in 0..N {
            let kind = &tables[i].u16_lanes.kind;
            // SAFETY: as above.
            unsafe {
                second[i] = lookup(&tables[i].u16_lanes.least[0], class[i]);
                third[i] = lookup(&tables[i].u16_lanes.least[1], class[i]);
                class[i] = _mm512_and_si512(class[i], _mm512_set1_epi32(kind.class as i32));
            }
        }
        let mut entry = class;
        for i in 0..N {
            // SAFETY: as above.
            unsafe {
                let place = _mm512_set1_epi32(tables[i].u16_lanes.kind.place as i32);
                let reached = _mm512_cmpge_epu16_mask(compared[i], second[i]);
                entry[i] = _mm512_mask_add_epi16(entry[i], reached, entry[i], place);
                let reached = _mm512_cmpge_epu16_mask(compared[i], third[i]);
                entry[i] = _mm512_mask_add_epi16(entry[i], reached, entry[i], place);
            }
        }
        let mut found = Found { frequency: entry, offset: entry };
        for i in 0..N {
            // SAFETY: as above.
            unsafe {
                let lanes = &tables[i].u16_lanes;
                found.frequency[i] = lookup(&lanes.frequency, entry[i]);
                found.offset[i] = _mm512_add_epi16(compared[i], lookup(&lanes.offset, entry[i]));
                entry[i] = lookup(&lanes.value, entry[i]);
            }
        }
        // SAFETY: as above.
        let coders = unsafe { advance(coders, found) };
        for i in 0..N {
            // SAFETY: as above.
            unsafe {
                escapes[i] = _mm512_cmpeq_epi16_mask(entry[i], escaped);
                let times = _mm512_set1_epi32(tables[i].u16_lanes.kind.times as i32);
                values[i] = _mm512_add_epi16(_mm512_mullo_epi16(values[i], times), entry[i]);
            }
        }
        (coders, values, escapes)
    }

    #[inline(always)]
    unsafe fn trit_wide(table: &StepTable, coders: Coders, values: &mut [i32; LANES]) -> Coders {
        // SAFETY: the caller's promise.
        unsafe {
            let (most, least) = (_mm512_set1_epi32(1), _mm512_set1_epi32(-1));
            let [first, second] = load(values);
            let first_sign = _mm512_max_epi32(_mm512_min_epi32(first, most), least);
            let second_sign = _mm512_max_epi32(_mm512_min_epi32(second, most), least);
            let signs = narrowed([first_sign, second_sign]);
            let ([coders], [digits]) = digits([table], [coders], [signs]);
            let [first_digits, second_digits] = widened(digits);
            let first =
                _mm512_add_epi32(_mm512_add_epi32(first, _mm512_slli_epi32::<1>(first)), first_digits);
            let second =
                _mm512_add_epi32(_mm512_add_epi32(second, _mm512_slli_epi32::<1>(second)), second_digits);
            store([first, second], values);
            coders
        }
    }

    #[inline(always)]
    unsafe fn escape([low, high]: Coders, values: __m512i, set: u32) -> (Coders, __m512i, u32) {
        // SAFETY: register operations only.
        unsafe {
            let short = _mm512_and_si512(low, _mm512_set1_epi16(0xff));
            let long = _mm512_mask_cmpge_epu16_mask(set, short, _mm512_set1_epi16(LONG_ESCAPE as i16));
            let negative = _mm512_mask_test_epi16_mask(set, short, _mm512_set1_epi16(1));
            let magnitude = _mm512_srli_epi16::<1>(short);
            let values = _mm512_mask_mov_epi16(values, set, magnitude);
            let values = _mm512_mask_sub_epi16(values, negative, _mm512_setzero_si512(), magnitude);
            // from the upper half into the lower one
            let next = _mm512_mask_shrdi_epi16::<8>(low, set, low, high);
            ([next, _mm512_mask_srli_epi16::<8>(high, set, high)], values, long)
        }
    }

    #[inline(always)]
    unsafe fn refills<const N: usize>(
        mut coders: [Coders; N],
        words: [&[u8; REFILL_BYTES]; N],
    ) -> ([Coders; N], [usize; N]) {
        const { assert!(STATE_MIN == 1 << 15) };
        let (mut sets, mut taken) = ([0; N], [0; N]);
        // SAFETY: 64 bytes of words each; else register operations. Here and below.
        let least = unsafe { _mm512_set1_epi16(i16::MIN) };
        for i in 0..N {
            // SAFETY: as above.
            unsafe {
                // nothing from bit 15 on
                let reached = _mm512_ternarylogic_epi32::<OR_AND>(coders[i][1], coders[i][0], least);
                sets[i] = _mm512_testn_epi16_mask(reached, reached);
            }
        }
        for i in 0..N {
            // SAFETY: as above.
            unsafe {
                let words = _mm512_loadu_si512(words[i].as_ptr().cast());
                let [low, high] = coders[i];
                coders[i] = [
                    _mm512_mask_expand_epi16(low, sets[i], words),
                    _mm512_mask_mov_epi16(high, sets[i], low),
                ];
                taken[i] = 2 * sets[i].count_ones() as usize;
            }
        }
        (coders, taken)
    }
}
