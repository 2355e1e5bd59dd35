//! AArch64: NEON. 32 lanes are eight registers; a stage table is four, which `tbl` looks up for four lanes at once. Rows need
//! no kernel of their own: NEON is part of the target, so that the portable one is compiled to it.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "register intrinsics share one proof: the CPU feature"
)]

use std::arch::aarch64::{
    uint8x16_t, uint8x16x2_t, uint8x16x4_t, uint32x4_t, vaddq_u32, vaddvq_u32, vandq_u32, vbicq_u32,
    vbslq_u32, vceqq_u32, vceqzq_u32, vcgeq_u32, vcgtq_u32, vcltq_u32, vdupq_n_u32, vld1_u16, vld1q_u8,
    vld1q_u32, vmlaq_u32, vmovl_u16, vmulq_n_u32, vnegq_s32, vorrq_u32, vqtbl1q_u8, vqtbl2q_u8, vqtbl4q_u8,
    vreinterpretq_s32_u32, vreinterpretq_u8_u32, vreinterpretq_u32_s32, vreinterpretq_u32_u8, vshlq_n_u32,
    vshrq_n_u32, vst1q_u32, vsubq_u32, vtstq_u32,
};

use super::kernel::{Kernel, REFILL_BYTES, decode};
use crate::rans::{
    ESCAPE, LANES, LONG_ESCAPE, PROBABILITY_BITS, PROBABILITY_ONE, STATE_MIN,
    alias::Buckets,
    bank::TableBank,
    stream::{StreamFault, StreamJob},
    trit::TritTable,
};

const SLOT_MASK: u32 = PROBABILITY_ONE - 1;
const PROBABILITY_SHIFT: i32 = PROBABILITY_BITS as i32;
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

/// A token that can only be had on a CPU with NEON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Neon(());

impl Neon {
    /// `None` where the CPU lacks it.
    pub(crate) fn new() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("neon").then_some(Self(()))
    }

    /// Streams that are best decoded at once.
    pub(crate) const STREAMS: usize = Kernel4::STREAMS;

    /// Decodes streams in lockstep.
    pub(crate) fn decode<const N: usize>(
        self,
        bank: &TableBank,
        tokens: usize,
        jobs: [StreamJob<'_>; N],
    ) -> [Result<(), StreamFault>; N] {
        /// # Safety
        /// The CPU has NEON.
        #[target_feature(enable = "neon")]
        unsafe fn entry<const N: usize>(
            bank: &TableBank,
            tokens: usize,
            jobs: [StreamJob<'_>; N],
        ) -> [Result<(), StreamFault>; N] {
            // SAFETY: the caller's promise.
            unsafe { decode::<Kernel4, N>(bank, tokens, jobs) }
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
unsafe fn stage_part(a: uint8x16x4_t, b: uint8x16x4_t, x: uint32x4_t) -> (uint32x4_t, uint32x4_t, u32) {
    // SAFETY: register operations only.
    unsafe {
        let bucket = vandq_u32(vshrq_n_u32::<8>(x), vdupq_n_u32(15));
        let index = bytes_of(bucket);
        let own = vreinterpretq_u32_u8(vqtbl4q_u8(a, index));
        let other = vreinterpretq_u32_u8(vqtbl4q_u8(b, index));
        let r = vandq_u32(x, vdupq_n_u32(255));
        let q = vshrq_n_u32::<PROBABILITY_SHIFT>(x);
        let below = vcgtq_u32(vshrq_n_u32::<PROBABILITY_SHIFT>(own), r);
        let less_one = vandq_u32(vbslq_u32(below, own, other), vdupq_n_u32(SLOT_MASK));
        let offset = vaddq_u32(r, vbicq_u32(vshrq_n_u32::<20>(other), below));
        let symbol = vbslq_u32(below, bucket, vshrq_n_u32::<12>(other));
        let symbol = vandq_u32(symbol, vdupq_n_u32(15));
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

/// Four lanes of the escapes' first bits: new states, values, lanes with more to come.
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

impl Kernel for Kernel4 {
    type Registers = [uint32x4_t; REGISTERS];
    const STREAMS: usize = 1;

    #[inline(always)]
    unsafe fn load(lanes: &[u32; LANES]) -> Self::Registers {
        // SAFETY: the caller's promise.
        let mut registers = [unsafe { vdupq_n_u32(0) }; REGISTERS];
        for (register, lanes) in registers.iter_mut().zip(lanes.as_chunks::<WIDTH>().0) {
            // SAFETY: four lanes are one register.
            *register = unsafe { vld1q_u32(lanes.as_ptr()) };
        }
        registers
    }

    #[inline(always)]
    unsafe fn store(registers: Self::Registers, lanes: &mut [u32; LANES]) {
        for (register, lanes) in registers.into_iter().zip(lanes.as_chunks_mut::<WIDTH>().0) {
            // SAFETY: four lanes are one register.
            unsafe { vst1q_u32(lanes.as_mut_ptr(), register) };
        }
    }

    #[inline(always)]
    unsafe fn load_values(values: &[i32; LANES]) -> Self::Registers {
        // SAFETY: the caller's promise; i32 and u32 are of one size and alignment.
        unsafe { Self::load(&*values.as_ptr().cast()) }
    }

    #[inline(always)]
    unsafe fn store_values(registers: Self::Registers, values: &mut [i32; LANES]) {
        // SAFETY: the caller's promise; i32 and u32 are of one size and alignment.
        unsafe { Self::store(registers, &mut *values.as_mut_ptr().cast()) }
    }

    #[inline(always)]
    unsafe fn stage(buckets: &Buckets, states: Self::Registers) -> (Self::Registers, Self::Registers, u32) {
        // SAFETY: the caller's promise, here and below.
        let (a, b) = unsafe { (table_of(&buckets.a), table_of(&buckets.b)) };
        let (mut next, mut values, mut escapes) = (states, states, 0);
        for i in 0..REGISTERS {
            let part;
            // SAFETY: as above.
            (next[i], values[i], part) = unsafe { stage_part(a, b, states[i]) };
            escapes |= part << (WIDTH * i);
        }
        (next, values, escapes)
    }

    #[inline(always)]
    unsafe fn trit(
        table: &TritTable,
        states: Self::Registers,
        values: Self::Registers,
    ) -> (Self::Registers, Self::Registers) {
        let at = table.ranges().as_ptr().cast::<u8>();
        // SAFETY: 32 bytes are two registers.
        let ranges = unsafe { uint8x16x2_t(vld1q_u8(at), vld1q_u8(at.add(16))) };
        let (mut next, mut refined) = (states, values);
        for i in 0..REGISTERS {
            // SAFETY: the caller's promise.
            (next[i], refined[i]) = unsafe { trit_part(table, ranges, states[i], values[i]) };
        }
        (next, refined)
    }

    #[inline(always)]
    unsafe fn escape(
        mut states: Self::Registers,
        mut values: Self::Registers,
        set: u32,
    ) -> (Self::Registers, Self::Registers, u32) {
        let mut long = 0;
        for i in 0..REGISTERS {
            let part;
            // SAFETY: the caller's promise.
            (states[i], values[i], part) = unsafe { escape_part(set >> (WIDTH * i), states[i], values[i]) };
            long |= part << (WIDTH * i);
        }
        (states, values, long)
    }

    #[inline(always)]
    unsafe fn refill(mut states: Self::Registers, words: &[u8; REFILL_BYTES]) -> (Self::Registers, usize) {
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
