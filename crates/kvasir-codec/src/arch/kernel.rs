//! The operations that a register file must implement.

use crate::rans::{LANES, stream::cell::Cell, u16_lanes::StepTable};

/// Bytes that a refill loads: one word for each of the 32 lanes.
pub(crate) const REFILL_BYTES: usize = 2 * LANES;

/// 32 lanes of `u32` in some registers, and the steps of FORMAT.md §5.5 on them, but those in which a symbol has all slots.
///
/// # Safety
/// Every method requires a CPU with the features of the kernel's constructor. The methods are `inline(always)`, so that they
/// become part of an entry point compiled for these features.
pub(crate) trait Kernel: Copy {
    /// 32 coders.
    type Coders: Copy;
    /// 32 values of 16 bits, in lane order.
    type Values: Copy;

    /// Streams that decode in lockstep. A step waits for its table, its product and its words; the waiting
    /// time can be used by steps of other streams while their registers last. A kernel does each part of a
    /// step for all streams before the next part, because a CPU looks ahead no further than a step or two.
    const STREAMS: usize;

    /// Loads 32 coders.
    unsafe fn load(lanes: &[u32; LANES]) -> Self::Coders;

    /// Stores 32 coders.
    unsafe fn store(coders: Self::Coders, lanes: &mut [u32; LANES]);

    /// Loads 32 values.
    unsafe fn load_values(values: &[i16; LANES]) -> Self::Values;

    /// Stores 32 values.
    unsafe fn store_values(values: Self::Values, out: &mut [i16; LANES]);

    /// Stores 32 values in 32 bits each.
    unsafe fn store_wide(values: Self::Values, out: &mut [i32; LANES]);

    /// A stage step of each stream before its refill: new states, values (symbol − 7), set of lanes with an escape.
    unsafe fn stages<const N: usize>(
        tables: [&StepTable; N],
        coders: [Self::Coders; N],
    ) -> ([Self::Coders; N], [Self::Values; N], [u32; N]);

    /// A trit step of each before its refill: new states, refined values. The caller knows that three times the values fit.
    unsafe fn trits<const N: usize>(
        tables: [&StepTable; N],
        coders: [Self::Coders; N],
        values: [Self::Values; N],
    ) -> ([Self::Coders; N], [Self::Values; N]);

    /// Steps of either kind: the CPU cannot predict which kind is next.
    unsafe fn eithers<const N: usize>(
        tables: [&StepTable; N],
        coders: [Self::Coders; N],
        values: [Self::Values; N],
    ) -> ([Self::Coders; N], [Self::Values; N], [u32; N]);

    /// A trit step on values of 32 bits.
    unsafe fn trit_wide(table: &StepTable, coders: Self::Coders, values: &mut [i32; LANES]) -> Self::Coders;

    /// The escapes' first eight bypass bits before their refill: new states, values with magnitude and sign
    /// from these bits in the lanes of `set`, and the lanes whose escape continues.
    unsafe fn escape(
        coders: Self::Coders,
        values: Self::Values,
        set: u32,
    ) -> (Self::Coders, Self::Values, u32);

    /// Refills the lanes below the minimum state, in lane order; returns the bytes taken.
    unsafe fn refills<const N: usize>(
        coders: [Self::Coders; N],
        words: [&[u8; REFILL_BYTES]; N],
    ) -> ([Self::Coders; N], [usize; N]);
}

/// Implements the steps of several streams for a [`Kernel`] that has them only for one: `stage`, `trit` and
/// `refill`.
macro_rules! one_by_one {
    () => {
        #[inline(always)]
        unsafe fn stages<const N: usize>(
            tables: [&StepTable; N],
            mut coders: [Self::Coders; N],
        ) -> ([Self::Coders; N], [Self::Values; N], [u32; N]) {
            // SAFETY: the caller's promise, here and below.
            let (mut values, mut escapes) = ([unsafe { Self::load_values(&[0; LANES]) }; N], [0; N]);
            for i in 0..N {
                // SAFETY: as above.
                (coders[i], values[i], escapes[i]) = unsafe { Self::stage(tables[i], coders[i]) };
            }
            (coders, values, escapes)
        }

        #[inline(always)]
        unsafe fn trits<const N: usize>(
            tables: [&StepTable; N],
            mut coders: [Self::Coders; N],
            mut values: [Self::Values; N],
        ) -> ([Self::Coders; N], [Self::Values; N]) {
            for i in 0..N {
                // SAFETY: the caller's promise.
                (coders[i], values[i]) = unsafe { Self::trit(tables[i], coders[i], values[i]) };
            }
            (coders, values)
        }

        #[inline(always)]
        unsafe fn eithers<const N: usize>(
            tables: [&StepTable; N],
            mut coders: [Self::Coders; N],
            mut values: [Self::Values; N],
        ) -> ([Self::Coders; N], [Self::Values; N], [u32; N]) {
            let mut escapes = [0; N];
            for i in 0..N {
                // Both at once would take longer than what a wrong guess costs.
                // SAFETY: the caller's promise, here and below.
                if tables[i].is_stage() {
                    // SAFETY: as above.
                    (coders[i], values[i], escapes[i]) = unsafe { Self::stage(tables[i], coders[i]) };
                } else {
                    // SAFETY: as above.
                    (coders[i], values[i]) = unsafe { Self::trit(tables[i], coders[i], values[i]) };
                }
            }
            (coders, values, escapes)
        }

        #[inline(always)]
        unsafe fn refills<const N: usize>(
            mut coders: [Self::Coders; N],
            words: [&[u8; REFILL_BYTES]; N],
        ) -> ([Self::Coders; N], [usize; N]) {
            let mut taken = [0; N];
            for i in 0..N {
                // SAFETY: the caller's promise.
                (coders[i], taken[i]) = unsafe { Self::refill(coders[i], words[i]) };
            }
            (coders, taken)
        }
    };
}
pub(super) use one_by_one;

/// Cells that kernels write.
pub(crate) trait KernelCell: Cell {
    /// Whether there are kernels' values in them.
    const NARROW: bool;

    /// # Safety
    /// As [`Kernel`].
    unsafe fn put<K: Kernel>(values: K::Values, out: &mut [Self; LANES]);

    /// # Safety
    /// As [`Kernel`].
    unsafe fn refine<K: Kernel>(table: &StepTable, coders: K::Coders, out: &mut [Self; LANES]) -> K::Coders;

    /// The values of narrow cells, for steps that may refine them.
    ///
    /// # Safety
    /// As [`Kernel`].
    unsafe fn values<K: Kernel>(cells: &[Self; LANES]) -> Option<K::Values>;
}

impl KernelCell for i16 {
    const NARROW: bool = true;

    #[inline(always)]
    unsafe fn put<K: Kernel>(values: K::Values, out: &mut [Self; LANES]) {
        // SAFETY: the caller's promise.
        unsafe { K::store_values(values, out) }
    }

    #[inline(always)]
    unsafe fn refine<K: Kernel>(table: &StepTable, coders: K::Coders, out: &mut [Self; LANES]) -> K::Coders {
        // SAFETY: the caller's promise, here and below.
        let values = unsafe { K::load_values(out) };
        // SAFETY: as above.
        let ([coders], [values]) = unsafe { K::trits([table], [coders], [values]) };
        // SAFETY: as above.
        unsafe { K::store_values(values, out) };
        coders
    }

    #[inline(always)]
    unsafe fn values<K: Kernel>(cells: &[Self; LANES]) -> Option<K::Values> {
        // SAFETY: the caller's promise.
        Some(unsafe { K::load_values(cells) })
    }
}

impl KernelCell for i32 {
    const NARROW: bool = false;

    #[inline(always)]
    unsafe fn put<K: Kernel>(values: K::Values, out: &mut [Self; LANES]) {
        // SAFETY: the caller's promise.
        unsafe { K::store_wide(values, out) }
    }

    #[inline(always)]
    unsafe fn refine<K: Kernel>(table: &StepTable, coders: K::Coders, out: &mut [Self; LANES]) -> K::Coders {
        // SAFETY: the caller's promise.
        unsafe { K::trit_wide(table, coders, out) }
    }

    #[inline(always)]
    unsafe fn values<K: Kernel>(_: &[Self; LANES]) -> Option<K::Values> {
        None
    }
}
