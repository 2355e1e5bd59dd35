//! AArch64: NEON. 32 lanes are eight registers; a stage table is four, which `tbl` looks up for four lanes at
//! once. Rows need no separate kernel: NEON is part of the target, so the portable kernel is compiled to it.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "register intrinsics share one proof: the CPU feature"
)]

use std::arch::aarch64::{
    int16x4_t, uint8x16_t, uint8x16x2_t, uint8x16x4_t, uint32x4_t, vaddq_u32, vaddvq_u32, vandq_u32,
    vbicq_u32, vbslq_u32, vceqq_u32, vceqzq_u32, vcgeq_u32, vcgtq_u32, vcltq_u32, vdup_n_s16, vdupq_n_u32,
    vld1_s16, vld1_u16, vld1q_u8, vld1q_u32, vmlaq_u32, vmovl_s16, vmovl_u16, vmovn_s32, vmulq_n_u32,
    vnegq_s32, vorrq_u32, vqtbl1q_u8, vqtbl2q_u8, vqtbl4q_u8, vreinterpretq_s32_u32, vreinterpretq_u8_u32,
    vreinterpretq_u32_s32, vreinterpretq_u32_u8, vshlq_n_u32, vshrq_n_u32, vst1_s16, vst1q_u32, vsubq_u32,
    vtstq_u32,
};

use super::{
    kernel::{Kernel, KernelCell, REFILL_BYTES, one_by_one},
    lockstep::decode,
};
use crate::rans::{
    ESCAPE, LANES, LONG_ESCAPE, PROBABILITY_BITS, PROBABILITY_ONE, STATE_MIN,
    bank::TableBank,
    buckets::UPPER_SHIFT,
    stream::{StreamFault, StreamJob, cell::Fit},
    trit::TritTable,
    u16_lanes::StepTable,
};

const SLOT_MASK: u32 = PROBABILITY_ONE - 1;
const PROBABILITY_SHIFT: i32 = PROBABILITY_BITS as i32;
const UPPER: i32 = UPPER_SHIFT as i32;
/// Lanes of a register.
const WIDTH: usize = 4;
/// Registers of 32 lanes.
const REGISTERS: usize = LANES / WIDTH;
/// One bit for each lane of a register.
static BITS: [u32; WIDTH] = [1, 2, 4, 8];
/// `SPREAD[mask][byte]`: which byte of the next words a lane's byte is, if the lane's bit is set.
static SPREAD: [[u8; 16]; 16] = spread();

const fn spread() -> [[u8; 16]; 16] {
    let mut table = [[0; 16]; 16];
    let mut mask = 0;
    while mask < 16 {
        let (mut byte, mut word) = (0, 0);
        while byte < 16 {
            table[mask][byte] = 4 * word + (byte % 4) as u8;
            if byte % 4 == 3 {
                word += (mask >> (byte / 4) & 1) as u8;
            }
            byte += 1;
        }
        mask += 1;
    }
    table
}

/// A proof that the CPU has NEON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Neon(());

impl Neon {
    /// `None` if the CPU lacks it.
    pub(crate) fn new() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("neon").then_some(Self(()))
    }

    /// Number of streams to decode in parallel for the best speed.
    pub(crate) const STREAMS: usize = Kernel4::STREAMS;

    /// Decodes streams in lockstep.
    pub(crate) fn decode<V: KernelCell, const N: usize>(
        self,
        bank: &TableBank,
        tokens: usize,
        jobs: [StreamJob<'_, V>; N],
    ) -> [Result<Fit, StreamFault>; N] {
        /// # Safety
        /// The CPU has NEON.
        #[target_feature(enable = "neon")]
        unsafe fn entry<V: KernelCell, const N: usize>(
            bank: &TableBank,
            tokens: usize,
            jobs: [StreamJob<'_, V>; N],
        ) -> [Result<Fit, StreamFault>; N] {
            // SAFETY: the caller's promise.
            unsafe { decode::<Kernel4, V, N>(bank, tokens, jobs) }
        }
        // SAFETY: `self` exists, so `new` saw the feature.
        unsafe { entry(bank, tokens, jobs) }
    }
}

/// Eight registers of four lanes.
#[derive(Debug, Clone, Copy)]
struct Kernel4;

/// The words at four indices of a table: indices of their bytes for `tbl`.
///
/// # Safety
/// NEON.
#[inline(always)]
unsafe fn bytes_of(index: uint32x4_t) -> uint8x16_t {
    // SAFETY: register operations only.
    unsafe { vreinterpretq_u8_u32(vaddq_u32(vmulq_n_u32(index, 0x0404_0404), vdupq_n_u32(0x0302_0100))) }
}

/// The set of lanes whose bits are all set.
///
/// # Safety
/// NEON.
#[inline(always)]
unsafe fn set_of(lanes: uint32x4_t) -> u32 {
    // SAFETY: `BITS` is one register.
    unsafe { vaddvq_u32(vandq_u32(lanes, vld1q_u32(BITS.as_ptr()))) }
}

/// Four lanes of a stage step: new states, values, escapes.
///
/// # Safety
/// NEON.
#[inline(always)]
unsafe fn stage_part(own: uint8x16x4_t, other: uint8x16x4_t, x: uint32x4_t) -> (uint32x4_t, uint32x4_t, u32) {
    // SAFETY: register operations only.
    unsafe {
        let bucket = vandq_u32(vshrq_n_u32::<8>(x), vdupq_n_u32(15));
        let index = bytes_of(bucket);
        let own = vreinterpretq_u32_u8(vqtbl4q_u8(own, index));
        let other = vreinterpretq_u32_u8(vqtbl4q_u8(other, index));
        let r = vandq_u32(x, vdupq_n_u32(255));
        let q = vshrq_n_u32::<PROBABILITY_SHIFT>(x);
        let below = vcgtq_u32(vshrq_n_u32::<UPPER>(own), r);
        let word = vbslq_u32(below, own, other);
        let less_one = vandq_u32(word, vdupq_n_u32(SLOT_MASK));
        let offset = vaddq_u32(r, vbicq_u32(vshrq_n_u32::<UPPER>(word), below));
        let symbol = vandq_u32(vshrq_n_u32::<PROBABILITY_SHIFT>(word), vdupq_n_u32(15));
        let escapes = set_of(vceqq_u32(symbol, vdupq_n_u32(ESCAPE as u32)));
        let next = vmlaq_u32(vaddq_u32(q, offset), less_one, q);
        (next, vsubq_u32(symbol, vdupq_n_u32(7)), escapes)
    }
}

/// Four lanes of a trit step: new states, refined values.
///
/// # Safety
/// NEON.
#[inline(always)]
unsafe fn trit_part(
    table: &TritTable,
    ranges: uint8x16x2_t,
    x: uint32x4_t,
    value: uint32x4_t,
) -> (uint32x4_t, uint32x4_t) {
    let [zero, other] = [0, 1].map(|context| table.thresholds(context).map(u32::from));
    // SAFETY: register operations only.
    unsafe {
        let is_zero = vceqzq_u32(value);
        let a = vbslq_u32(is_zero, vdupq_n_u32(zero[0]), vdupq_n_u32(other[0]));
        let b = vbslq_u32(is_zero, vdupq_n_u32(zero[1]), vdupq_n_u32(other[1]));
        let slot = vandq_u32(x, vdupq_n_u32(SLOT_MASK));
        // a true comparison is -1
        let steps = vaddq_u32(vcgeq_u32(slot, a), vcgeq_u32(slot, b));
        let index = vsubq_u32(vbicq_u32(vdupq_n_u32(4), is_zero), steps);
        let range = vreinterpretq_u32_u8(vqtbl2q_u8(ranges, bytes_of(index)));
        let frequency = vandq_u32(range, vdupq_n_u32(0xffff));
        let offset = vsubq_u32(slot, vshrq_n_u32::<16>(range));
        let next = vmlaq_u32(offset, frequency, vshrq_n_u32::<PROBABILITY_SHIFT>(x));
        let digit = vsubq_u32(vdupq_n_u32(u32::MAX), steps);
        let negated = vreinterpretq_u32_s32(vnegq_s32(vreinterpretq_s32_u32(digit)));
        let negative = vtstq_u32(value, vdupq_n_u32(1 << 31));
        let digit = vbslq_u32(negative, negated, digit);
        let tripled = vaddq_u32(value, vshlq_n_u32::<1>(value));
        (next, vaddq_u32(tripled, digit))
    }
}

/// Four lanes of the escapes' first bits: new states, values, and the lanes whose escape continues.
///
/// # Safety
/// NEON.
#[inline(always)]
unsafe fn escape_part(set: u32, x: uint32x4_t, values: uint32x4_t) -> (uint32x4_t, uint32x4_t, u32) {
    // SAFETY: register operations; `BITS` is one register.
    unsafe {
        let set = vtstq_u32(vdupq_n_u32(set), vld1q_u32(BITS.as_ptr()));
        let short = vandq_u32(x, vdupq_n_u32(0xff));
        let long = set_of(vandq_u32(vcgeq_u32(short, vdupq_n_u32(LONG_ESCAPE)), set));
        let magnitude = vshrq_n_u32::<1>(short);
        let negated = vreinterpretq_u32_s32(vnegq_s32(vreinterpretq_s32_u32(magnitude)));
        let signed = vbslq_u32(vtstq_u32(short, vdupq_n_u32(1)), negated, magnitude);
        (vbslq_u32(set, vshrq_n_u32::<8>(x), x), vbslq_u32(set, signed, values), long)
    }
}

/// Sixteen words as four registers.
///
/// # Safety
/// NEON.
#[inline(always)]
unsafe fn table_of(words: &[u32; 16]) -> uint8x16x4_t {
    let at = words.as_ptr().cast::<u8>();
    // SAFETY: 64 bytes are four registers.
    unsafe { uint8x16x4_t(vld1q_u8(at), vld1q_u8(at.add(16)), vld1q_u8(at.add(32)), vld1q_u8(at.add(48))) }
}

/// Lanes in order of 16 bits each: the low halves.
///
/// # Safety
/// NEON.
#[inline(always)]
unsafe fn narrowed(lanes: [uint32x4_t; REGISTERS]) -> [int16x4_t; REGISTERS] {
    // SAFETY: register operations only.
    let mut narrow = [unsafe { vdup_n_s16(0) }; REGISTERS];
    for (narrow, lanes) in narrow.iter_mut().zip(lanes) {
        // SAFETY: as above.
        *narrow = unsafe { vmovn_s32(vreinterpretq_s32_u32(lanes)) };
    }
    narrow
}

/// The reverse, of signed values.
///
/// # Safety
/// NEON.
#[inline(always)]
unsafe fn widened(values: [int16x4_t; REGISTERS]) -> [uint32x4_t; REGISTERS] {
    // SAFETY: register operations only.
    let mut wide = [unsafe { vdupq_n_u32(0) }; REGISTERS];
    for (wide, values) in wide.iter_mut().zip(values) {
        // SAFETY: as above.
        *wide = unsafe { vreinterpretq_u32_s32(vmovl_s16(values)) };
    }
    wide
}

impl Kernel4 {
    /// A trit step on values of 32 bits.
    ///
    /// # Safety
    /// NEON.
    #[inline(always)]
    unsafe fn refined(
        table: &TritTable,
        coders: [uint32x4_t; REGISTERS],
        values: [uint32x4_t; REGISTERS],
    ) -> ([uint32x4_t; REGISTERS], [uint32x4_t; REGISTERS]) {
        let at = table.ranges().as_ptr().cast::<u8>();
        // SAFETY: 32 bytes are two registers.
        let ranges = unsafe { uint8x16x2_t(vld1q_u8(at), vld1q_u8(at.add(16))) };
        let (mut next, mut refined) = (coders, values);
        for i in 0..REGISTERS {
            // SAFETY: the caller's promise.
            (next[i], refined[i]) = unsafe { trit_part(table, ranges, coders[i], values[i]) };
        }
        (next, refined)
    }
}

type Coders = <Kernel4 as Kernel>::Coders;
type Values = <Kernel4 as Kernel>::Values;

impl Kernel4 {
    /// A stage step before its refill.
    ///
    /// # Safety
    /// As [`Kernel`].
    #[inline(always)]
    unsafe fn stage(StepTable { buckets, .. }: &StepTable, coders: Coders) -> (Coders, Values, u32) {
        // SAFETY: the caller's promise, here and below.
        let (own, other) = unsafe { (table_of(&buckets.own), table_of(&buckets.other)) };
        let (mut next, mut values, mut escapes) = (coders, coders, 0);
        for i in 0..REGISTERS {
            let part;
            // SAFETY: as above.
            (next[i], values[i], part) = unsafe { stage_part(own, other, coders[i]) };
            escapes |= part << (WIDTH * i);
        }
        // SAFETY: as above.
        (next, unsafe { narrowed(values) }, escapes)
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
            // SAFETY: 8 bytes from an offset of at most 7 × 8; `SPREAD` rows are one register.
            unsafe {
                let low = vcltq_u32(*x, vdupq_n_u32(STATE_MIN));
                let set = set_of(low);
                let next = vmovl_u16(vld1_u16(words.as_ptr().add(taken).cast()));
                let order = vld1q_u8(SPREAD[set as usize & 15].as_ptr());
                let next = vreinterpretq_u32_u8(vqtbl1q_u8(vreinterpretq_u8_u32(next), order));
                *x = vbslq_u32(low, vorrq_u32(vshlq_n_u32::<16>(*x), next), *x);
                taken += 2 * set.count_ones() as usize;
            }
        }
        (states, taken)
    }
}

impl Kernel for Kernel4 {
    type Coders = [uint32x4_t; REGISTERS];
    /// Four a register: the other half of a register would be one more operation each way.
    type Values = [int16x4_t; REGISTERS];
    const STREAMS: usize = 1;

    #[inline(always)]
    unsafe fn load(lanes: &[u32; LANES]) -> Self::Coders {
        // SAFETY: the caller's promise.
        let mut coders = [unsafe { vdupq_n_u32(0) }; REGISTERS];
        for (register, lanes) in coders.iter_mut().zip(lanes.as_chunks::<WIDTH>().0) {
            // SAFETY: four lanes are one register.
            *register = unsafe { vld1q_u32(lanes.as_ptr()) };
        }
        coders
    }

    #[inline(always)]
    unsafe fn store(coders: Self::Coders, lanes: &mut [u32; LANES]) {
        for (register, lanes) in coders.into_iter().zip(lanes.as_chunks_mut::<WIDTH>().0) {
            // SAFETY: four lanes are one register.
            unsafe { vst1q_u32(lanes.as_mut_ptr(), register) };
        }
    }

    #[inline(always)]
    unsafe fn load_values(values: &[i16; LANES]) -> Self::Values {
        // SAFETY: the caller's promise.
        let mut registers = [unsafe { vdup_n_s16(0) }; REGISTERS];
        for (register, values) in registers.iter_mut().zip(values.as_chunks::<WIDTH>().0) {
            // SAFETY: four values are one register.
            *register = unsafe { vld1_s16(values.as_ptr()) };
        }
        registers
    }

    #[inline(always)]
    unsafe fn store_values(values: Self::Values, out: &mut [i16; LANES]) {
        for (register, out) in values.into_iter().zip(out.as_chunks_mut::<WIDTH>().0) {
            // SAFETY: four values are one register.
            unsafe { vst1_s16(out.as_mut_ptr(), register) };
        }
    }

    #[inline(always)]
    unsafe fn store_wide(values: Self::Values, out: &mut [i32; LANES]) {
        // SAFETY: the caller's promise; i32 and u32 are of one size and alignment.
        unsafe { Self::store(widened(values), &mut *out.as_mut_ptr().cast()) }
    }

    one_by_one!();

    #[inline(always)]
    unsafe fn trit_wide(
        StepTable { trit, .. }: &StepTable,
        coders: Self::Coders,
        values: &mut [i32; LANES],
    ) -> Self::Coders {
        // SAFETY: the caller's promise; i32 and u32 are of one size and alignment.
        unsafe {
            let values = &mut *values.as_mut_ptr().cast();
            let (coders, refined) = Self::refined(trit, coders, Self::load(values));
            Self::store(refined, values);
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
            (coders[i], values[i], part) = unsafe { escape_part(set >> (WIDTH * i), coders[i], values[i]) };
            long |= part << (WIDTH * i);
        }
        // SAFETY: as above.
        (coders, unsafe { narrowed(values) }, long)
    }
}
