//! What a register file has to do, and the driver that decodes streams with it.

use std::borrow::Cow;

use crate::rans::{
    LANES,
    alias::Buckets,
    bank::TableBank,
    plan::Coding,
    stream::{RowsAt, StreamFault, StreamJob, decode::Lanes},
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

    /// Streams that decode in lockstep: a step waits for its table, its product and its words, and what waits leaves room
    /// for other streams' steps as long as their registers last.
    const STREAMS: usize;

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

    /// The escapes' first eight bypass bits before their refill: new states, values with magnitude and sign of these
    /// bits in the lanes of `set`, and the lanes that have more to come.
    unsafe fn escape(
        states: Self::Registers,
        values: Self::Registers,
        set: u32,
    ) -> (Self::Registers, Self::Registers, u32);

    /// Refills the lanes below the minimum state, in lane order; returns the bytes taken.
    unsafe fn refill(states: Self::Registers, words: &[u8; REFILL_BYTES]) -> (Self::Registers, usize);
}

/// A stream being decoded; what changes with every step is in [`Live`].
struct Stream<'a> {
    bank: &'a TableBank,
    /// Of tables that the bank has.
    codings: &'a [Coding],
    rows: RowsAt<'a>,
    /// `tokens` of every row that there is.
    values: &'a mut [i32],
    tokens: usize,
    /// The words with at least [`REFILL_BYTES`] behind them.
    padded: Cow<'a, [u8]>,
    /// Bytes of the words proper.
    word_bytes: usize,
    /// The same coders for what is rare: long escapes, the partial row, the end check.
    scalar: Lanes<'a>,
    fault: Option<StreamFault>,
}

/// Coders and cursor, kept in registers. A cursor behind `word_bytes` means an underrun; it is found at the end,
/// and until then decoding goes on with whatever lies there.
#[derive(Clone, Copy)]
struct Live<K: Kernel> {
    states: K::Registers,
    at: usize,
}

impl<'a> Stream<'a> {
    fn new(bank: &'a TableBank, tokens: usize, job: StreamJob<'a>) -> Self {
        let StreamJob { codings, rows, bytes, values } = job;
        let held = values.len() / tokens.max(1);
        assert!(
            (0..codings.len()).all(|c| rows.row(c) < held),
            "a stream's values have its coefficients' rows"
        );
        let known = |coding: &Coding| match *coding {
            Coding::Stage { table, trits, trit_table } => {
                usize::from(table) < bank.stage_tables().len()
                    && (trits == 0 || usize::from(trit_table) < bank.trit_tables().len())
            }
            Coding::Trit { table } => usize::from(table) < bank.trit_tables().len(),
        };
        assert!(codings.iter().all(known), "a plan's tables are in the bank");
        let word_bytes = bytes.words.len();
        let padded = match bytes.readable.len() >= word_bytes + REFILL_BYTES {
            true => Cow::Borrowed(bytes.readable),
            false => Cow::Owned([bytes.words, &[0; REFILL_BYTES]].concat()),
        };
        let (scalar, fault) = match Lanes::new(bytes) {
            Ok(lanes) => (lanes, None),
            Err(fault) => (Lanes::ended(), Some(fault)),
        };
        let codings = if fault.is_none() { codings } else { &[] };
        Self { bank, codings, rows, values, tokens, padded, word_bytes, scalar, fault }
    }

    /// The coders as stored.
    ///
    /// # Safety
    /// As [`Kernel`].
    #[inline(always)]
    unsafe fn start<K: Kernel>(&self) -> Live<K> {
        // SAFETY: the caller's promise.
        Live { states: unsafe { K::load(&self.scalar.states) }, at: 0 }
    }

    /// The 32 values of coefficient `c` in a full row.
    ///
    /// # Safety
    /// `c < codings.len()` and `(row + 1) × 32 ≤ tokens`.
    #[inline(always)]
    unsafe fn row_values(&mut self, c: usize, row: usize) -> &mut [i32; LANES] {
        let at = self.rows.row(c) * self.tokens + row * LANES;
        debug_assert!(c < self.codings.len() && (row + 1) * LANES <= self.tokens);
        // SAFETY: `at + 32 ≤ (rows.row(c) + 1) × tokens ≤ values.len()`, which `new` checked.
        let first = unsafe { self.values.as_mut_ptr().add(at) };
        // SAFETY: as above; the borrow is that of `values`.
        unsafe { &mut *first.cast() }
    }

    /// Coefficient `c` in a full row.
    ///
    /// # Safety
    /// As [`Kernel`] and [`row_values`](Self::row_values).
    #[inline(always)]
    unsafe fn coefficient<K: Kernel>(&mut self, c: usize, row: usize, mut live: Live<K>) -> Live<K> {
        let bank = self.bank;
        // SAFETY: `c` is in range by the caller's promise, and `new` checked the tables. Here and below.
        let (table, count) = match *unsafe { self.codings.get_unchecked(c) } {
            Coding::Stage { table, trits, trit_table } => {
                // SAFETY: as above.
                let table = unsafe { bank.stage_tables().get_unchecked(usize::from(table)) };
                // SAFETY: the caller's promise.
                live = unsafe { self.stage(table.buckets(), c, row, live) };
                if trits == 0 {
                    return live;
                }
                (trit_table, trits)
            }
            Coding::Trit { table } => (table, 1),
        };
        // SAFETY: as above.
        let table = unsafe { bank.trit_tables().get_unchecked(usize::from(table)) };
        for _ in 0..count {
            // SAFETY: the caller's promise.
            live = unsafe { self.trit(table, c, row, live) };
        }
        live
    }

    /// # Safety
    /// As [`coefficient`](Self::coefficient).
    #[inline(always)]
    unsafe fn stage<K: Kernel>(&mut self, table: &Buckets, c: usize, row: usize, live: Live<K>) -> Live<K> {
        // SAFETY: the caller's promise, here and below.
        let (states, values, escapes) = unsafe { K::stage(table, live.states) };
        // SAFETY: as above.
        let out = unsafe { self.row_values(c, row) };
        // SAFETY: as above.
        unsafe { K::store_values(values, out) };
        // SAFETY: as above.
        let mut live = unsafe { self.refill(Live { states, at: live.at }) };
        if escapes != 0 {
            // SAFETY: as above.
            let (states, values, long) = unsafe { K::escape(live.states, values, escapes) };
            if long == 0 {
                // SAFETY: as above.
                let out = unsafe { self.row_values(c, row) };
                // SAFETY: as above.
                unsafe { K::store_values(values, out) };
                // SAFETY: as above.
                return unsafe { self.refill(Live { states, at: live.at }) };
            }
            let mut lanes = [0; LANES];
            // SAFETY: as above.
            unsafe { K::store(live.states, &mut lanes) };
            live.at = self.escape(&mut lanes, live.at, escapes, self.rows.row(c) * self.tokens + row * LANES);
            // SAFETY: as above.
            live.states = unsafe { K::load(&lanes) };
        }
        live
    }

    /// # Safety
    /// As [`coefficient`](Self::coefficient).
    #[inline(always)]
    unsafe fn trit<K: Kernel>(&mut self, table: &TritTable, c: usize, row: usize, live: Live<K>) -> Live<K> {
        // SAFETY: the caller's promise, here and below.
        let out = unsafe { self.row_values(c, row) };
        // SAFETY: as above.
        let values = unsafe { K::load_values(out) };
        // SAFETY: as above.
        let (states, values) = unsafe { K::trit(table, live.states, values) };
        // SAFETY: as above.
        unsafe { K::store_values(values, out) };
        // SAFETY: as above.
        unsafe { self.refill(Live { states, at: live.at }) }
    }

    /// # Safety
    /// As [`Kernel`].
    #[inline(always)]
    unsafe fn refill<K: Kernel>(&self, live: Live<K>) -> Live<K> {
        // SAFETY: `padded` has REFILL_BYTES behind `word_bytes`.
        let words = unsafe { self.padded.as_ptr().add(live.at.min(self.word_bytes)) };
        // SAFETY: as above.
        let words = unsafe { &*words.cast::<[u8; REFILL_BYTES]>() };
        // SAFETY: the caller's promise.
        let (states, taken) = unsafe { K::refill(live.states, words) };
        Live { states, at: live.at + taken }
    }

    /// The payload of escapes of which some are long, which is rare enough for the scalar coders; returns the cursor.
    #[cold]
    #[inline(never)]
    fn escape(&mut self, states: &mut [u32; LANES], at: usize, escapes: u32, values_at: usize) -> usize {
        self.scalar.states = *states;
        self.scalar.cursor = at;
        match self.scalar.escape(escapes, &mut self.values[values_at..values_at + LANES]) {
            Ok(()) => {
                *states = self.scalar.states;
                self.scalar.cursor
            }
            // the only fault there is here; `finish` reports it
            Err(_) => self.word_bytes + 1,
        }
    }

    /// The partial row, if there is one, and the end check.
    fn finish(mut self, states: &[u32; LANES], at: usize) -> Result<(), StreamFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        if at > self.word_bytes {
            return Err(StreamFault::Underrun);
        }
        self.scalar.states = *states;
        self.scalar.cursor = at;
        let full = self.tokens / LANES * LANES;
        if full < self.tokens {
            for (c, coding) in self.codings.iter().enumerate() {
                let first = self.rows.row(c) * self.tokens;
                let row = &mut self.values[first + full..first + self.tokens];
                self.scalar.coefficient(self.bank, *coding, row)?;
            }
        }
        self.scalar.finish()
    }
}

/// Decodes streams in lockstep, so that their dependency chains overlap.
///
/// # Safety
/// As [`Kernel`].
#[inline(always)]
pub(super) unsafe fn decode<K: Kernel, const N: usize>(
    bank: &TableBank,
    tokens: usize,
    jobs: [StreamJob<'_>; N],
) -> [Result<(), StreamFault>; N] {
    let mut streams = jobs.map(|job| Stream::new(bank, tokens, job));
    // Loops, not closures: a closure would not be compiled for the kernel's features.
    // SAFETY: the caller's promise, here and below.
    let mut live = [unsafe { Live::<K> { states: K::load(&[0; LANES]), at: 0 } }; N];
    for (live, stream) in live.iter_mut().zip(&streams) {
        // SAFETY: as above.
        *live = unsafe { stream.start::<K>() };
    }
    let common = streams.iter().map(|stream| stream.codings.len()).min().unwrap_or(0);
    const { assert!(N <= 4, "as many as are written out") };
    // Written out: indexed by a variable, coders would live in memory.
    macro_rules! each {
        ($($i:literal)+, $coefficients:expr, $row:ident) => {
            $(if $i < N {
                for c in $coefficients($i) {
                    // SAFETY: as above; `c` and `row` are in range.
                    live[$i] = unsafe { streams[$i].coefficient(c, $row, live[$i]) };
                }
            })+
        };
    }
    let lengths = streams.each_ref().map(|stream| stream.codings.len());
    for row in 0..tokens / LANES {
        for c in 0..common {
            each!(0 1 2 3, |_| [c], row);
        }
        each!(0 1 2 3, |i: usize| common..lengths[i], row);
    }
    let mut lanes = [[0; LANES]; N];
    for (lanes, live) in lanes.iter_mut().zip(&live) {
        // SAFETY: as above.
        unsafe { K::store(live.states, lanes) };
    }
    let mut ends = lanes.iter().zip(live.map(|live| live.at));
    streams.map(|stream| match ends.next() {
        Some((lanes, at)) => stream.finish(lanes, at),
        None => Err(StreamFault::Underrun), // there are as many
    })
}
