//! What a register file has to do, and the driver that decodes streams with it.

use std::borrow::Cow;

use crate::rans::{
    LANES,
    alias::Buckets,
    bank::TableBank,
    plan::Coding,
    stream::{StreamFault, StreamJob, decode::Lanes},
    trit::TritTable,
};

/// Bytes that a refill loads: one word for each of the 32 lanes.
pub(super) const REFILL_BYTES: usize = 2 * LANES;

/// 32 lanes of `u32` in some registers, and the steps of FORMAT.md §5.5 on them.
///
/// # Safety
/// Every method requires a CPU with the features of the kernel's constructor. The methods are `inline(always)`, so that they
/// become part of an entry point compiled for these features.
pub(super) trait Kernel: Copy {
    /// 32 lanes.
    type Registers: Copy;

    /// Loads 32 lanes.
    unsafe fn load(lanes: &[u32; LANES]) -> Self::Registers;

    /// Stores 32 lanes.
    unsafe fn store(registers: Self::Registers, lanes: &mut [u32; LANES]);

    /// Loads 32 values.
    unsafe fn load_values(values: &[i32; LANES]) -> Self::Registers;

    /// Stores 32 values.
    unsafe fn store_values(registers: Self::Registers, values: &mut [i32; LANES]);

    /// A stage step before its refill: new states, values (symbol − 7), set of lanes with an escape.
    unsafe fn stage(buckets: &Buckets, states: Self::Registers) -> (Self::Registers, Self::Registers, u32);

    /// A trit step before its refill: new states, refined values.
    unsafe fn trit(
        table: &TritTable,
        states: Self::Registers,
        values: Self::Registers,
    ) -> (Self::Registers, Self::Registers);

    /// Refills the lanes below the minimum state, in lane order; returns the bytes taken.
    unsafe fn refill(states: Self::Registers, words: &[u8; REFILL_BYTES]) -> (Self::Registers, usize);
}

/// A stream being decoded.
struct Cursor<'a> {
    codings: &'a [Coding],
    values: &'a mut [i32],
    /// The words with at least [`REFILL_BYTES`] behind them.
    padded: Cow<'a, [u8]>,
    /// Words and first states, for escapes and the end check.
    scalar: Lanes<'a>,
    at: usize,
    fault: Option<StreamFault>,
}

impl<'a> Cursor<'a> {
    fn new(job: StreamJob<'a>) -> Self {
        let StreamJob { codings, bytes, values } = job;
        let words = bytes.words.len();
        let padded = match bytes.readable.len() >= words + REFILL_BYTES {
            true => Cow::Borrowed(bytes.readable),
            false => Cow::Owned([bytes.words, &[0; REFILL_BYTES]].concat()),
        };
        let (scalar, fault) = match Lanes::new(bytes) {
            Ok(lanes) => (lanes, None),
            Err(fault) => (Lanes::ended(), Some(fault)),
        };
        let codings = if fault.is_none() { codings } else { &[] };
        Self { codings, values, padded, scalar, at: 0, fault }
    }

    /// Nothing more is decoded of this stream.
    #[cold]
    fn fail(&mut self, fault: StreamFault) {
        self.fault = Some(fault);
        self.codings = &[];
    }

    /// # Safety
    /// As [`Kernel`].
    #[inline(always)]
    unsafe fn refill<K: Kernel>(&mut self, states: K::Registers) -> K::Registers {
        let Some(words) = self.padded.get(self.at..).and_then(|rest| rest.first_chunk()) else {
            self.fail(StreamFault::Underrun);
            return states;
        };
        // SAFETY: the caller's promise.
        let (states, taken) = unsafe { K::refill(states, words) };
        self.at += taken;
        states
    }

    /// The escapes' payload, which is rare enough for the scalar path.
    ///
    #[cold]
    #[inline(never)]
    fn escape(&mut self, states: &mut [u32; LANES], escapes: u32, at: usize, valid: usize) {
        self.scalar.states = *states;
        self.scalar.cursor = self.at;
        let verdict = self.scalar.escape(escapes, &mut self.values[at..at + valid]);
        *states = self.scalar.states;
        self.at = self.scalar.cursor;
        if let Err(fault) = verdict {
            self.fail(fault);
        }
    }

    /// # Safety
    /// As [`Kernel`].
    #[inline(always)]
    unsafe fn read<K: Kernel>(&self, at: usize, valid: usize) -> K::Registers {
        let mut partial = [0; LANES];
        let values = match self.values[at..].first_chunk() {
            Some(whole) if valid == LANES => whole,
            _ => {
                partial[..valid].copy_from_slice(&self.values[at..at + valid]);
                &partial
            }
        };
        // SAFETY: the caller's promise.
        unsafe { K::load_values(values) }
    }

    /// # Safety
    /// As [`Kernel`].
    #[inline(always)]
    unsafe fn write<K: Kernel>(&mut self, at: usize, valid: usize, values: K::Registers) {
        match self.values[at..].first_chunk_mut() {
            // SAFETY: the caller's promise.
            Some(whole) if valid == LANES => unsafe { K::store_values(values, whole) },
            _ => {
                let mut partial = [0; LANES];
                // SAFETY: the caller's promise.
                unsafe { K::store_values(values, &mut partial) };
                self.values[at..at + valid].copy_from_slice(&partial[..valid]);
            }
        }
    }

    /// One coefficient in one row: tokens `row..row + valid`.
    ///
    /// # Safety
    /// As [`Kernel`].
    #[inline(always)]
    unsafe fn coefficient<K: Kernel>(
        &mut self,
        bank: &TableBank,
        coding: Coding,
        at: usize,
        valid: usize,
        mut states: K::Registers,
    ) -> K::Registers {
        let (table, count) = match coding {
            Coding::Stage { table, trits, trit_table } => {
                let table = bank.stage_tables()[usize::from(table)].buckets();
                // SAFETY: the caller's promise.
                states = unsafe { self.stage::<K>(table, at, valid, states) };
                if trits == 0 {
                    return states;
                }
                (trit_table, trits)
            }
            Coding::Trit { table } => (table, 1),
        };
        let table = &bank.trit_tables()[usize::from(table)];
        for _ in 0..count {
            // SAFETY: the caller's promise.
            states = unsafe { self.trit::<K>(table, at, valid, states) };
        }
        states
    }

    /// # Safety
    /// As [`Kernel`].
    #[inline(always)]
    unsafe fn stage<K: Kernel>(
        &mut self,
        table: &Buckets,
        at: usize,
        valid: usize,
        states: K::Registers,
    ) -> K::Registers {
        // SAFETY: the caller's promise, here and below.
        let (mut next, values, mut escapes) = unsafe { K::stage(table, states) };
        if valid < LANES {
            // SAFETY: as above.
            next = unsafe { keep_idle::<K>(states, next, valid) };
            escapes &= (1 << valid) - 1;
        }
        // SAFETY: as above.
        unsafe { self.write::<K>(at, valid, values) };
        // SAFETY: as above.
        next = unsafe { self.refill::<K>(next) };
        if escapes != 0 {
            let mut lanes = [0; LANES];
            // SAFETY: as above.
            unsafe { K::store(next, &mut lanes) };
            self.escape(&mut lanes, escapes, at, valid);
            // SAFETY: as above.
            next = unsafe { K::load(&lanes) };
        }
        next
    }

    /// # Safety
    /// As [`Kernel`].
    #[inline(always)]
    unsafe fn trit<K: Kernel>(
        &mut self,
        table: &TritTable,
        at: usize,
        valid: usize,
        states: K::Registers,
    ) -> K::Registers {
        // SAFETY: the caller's promise, here and below.
        let values = unsafe { self.read::<K>(at, valid) };
        // SAFETY: as above.
        let (mut next, values) = unsafe { K::trit(table, states, values) };
        if valid < LANES {
            // SAFETY: as above.
            next = unsafe { keep_idle::<K>(states, next, valid) };
        }
        // SAFETY: as above.
        unsafe { self.write::<K>(at, valid, values) };
        // SAFETY: as above.
        unsafe { self.refill::<K>(next) }
    }

    fn finish(mut self, states: [u32; LANES]) -> Result<(), StreamFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        self.scalar.states = states;
        self.scalar.cursor = self.at;
        self.scalar.finish()
    }
}

/// The first `valid` lanes of `next`, the others of `states`: lanes without tokens stand still.
///
/// # Safety
/// As [`Kernel`].
#[cold]
#[inline(never)]
unsafe fn keep_idle<K: Kernel>(states: K::Registers, next: K::Registers, valid: usize) -> K::Registers {
    let (mut old, mut new) = ([0; LANES], [0; LANES]);
    // SAFETY: the caller's promise, here and below.
    unsafe { K::store(states, &mut old) };
    // SAFETY: as above.
    unsafe { K::store(next, &mut new) };
    new[valid..].copy_from_slice(&old[valid..]);
    // SAFETY: as above.
    unsafe { K::load(&new) }
}

/// Decodes `N` streams in lockstep, so that their dependency chains overlap.
///
/// # Safety
/// As [`Kernel`].
#[inline(always)]
pub(super) unsafe fn decode_group<K: Kernel, const N: usize>(
    bank: &TableBank,
    tokens: usize,
    jobs: [StreamJob<'_>; N],
) -> [Result<(), StreamFault>; N] {
    let mut streams = jobs.map(Cursor::new);
    // SAFETY: the caller's promise, here and below.
    let mut states = streams.each_ref().map(|stream| unsafe { K::load(&stream.scalar.states) });
    let longest = streams.iter().map(|stream| stream.codings.len()).max().unwrap_or(0);
    for row in (0..tokens).step_by(LANES) {
        let valid = LANES.min(tokens - row);
        for c in 0..longest {
            for (stream, state) in streams.iter_mut().zip(&mut states) {
                // the shorter stream, or one that failed
                let Some(&coding) = stream.codings.get(c) else { continue };
                // SAFETY: as above.
                *state = unsafe { stream.coefficient::<K>(bank, coding, c * tokens + row, valid, *state) };
            }
        }
    }
    let mut verdicts = [Ok(()); N];
    for ((stream, state), verdict) in streams.into_iter().zip(states).zip(&mut verdicts) {
        let mut lanes = [0; LANES];
        // SAFETY: as above.
        unsafe { K::store(state, &mut lanes) };
        *verdict = stream.finish(lanes);
    }
    verdicts
}
