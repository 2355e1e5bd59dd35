//! The driver that decodes streams with a kernel.

use std::borrow::Cow;

use super::{
    kernel::{Kernel, KernelCell, REFILL_BYTES},
    steps::{Mix, Mixed, OfAny, OfEither, OfStages, OfTrits, Step},
};
use crate::rans::{
    LANES,
    bank::TableBank,
    halves::StepTable,
    plan::Coding,
    stream::{RowsAt, StreamFault, StreamJob, cell::Fit, decode::Lanes},
};

/// A stream being decoded; what changes with every step is in [`Live`], and its steps are apart.
struct Stream<'a, V> {
    bank: &'a TableBank,
    /// None where the stream's head is faulty.
    codings: &'a [Coding],
    rows: RowsAt<'a>,
    /// `stride` of every row that there is.
    values: &'a mut [V],
    stride: usize,
    tokens: usize,
    /// Largest magnitude of a stage value that the cells have to hold.
    most: i32,
    fit: Fit,
    /// The words with at least [`REFILL_BYTES`] behind them.
    padded: Cow<'a, [u8]>,
    /// Bytes of the words proper.
    word_bytes: usize,
    /// The same coders for what is rare: long escapes, the partial row, the end check.
    scalar: Lanes<'a>,
    fault: Option<StreamFault>,
}

/// Coders and cursors of streams. A cursor behind `word_bytes` means an underrun; it is found at the end, and until then decoding
/// goes on with whatever lies there.
#[derive(Clone, Copy)]
struct Live<K: Kernel, const N: usize> {
    coders: [K::Coders; N],
    cursors: [usize; N],
}

/// Does something for every index below `N`, at most 4, written out: what a loop indexes would be kept in memory. No closures:
/// they would not be compiled for the kernel's features.
macro_rules! each {
    ($count:ident, |$i:ident| $body:expr) => {
        each!($count $i $body; 0 1 2 3)
    };
    ($count:ident $i:ident $body:expr; $($index:literal)+) => {
        {
            $(if $index < $count {
                let $i: usize = $index;
                $body
            })+
        }
    };
}

impl<'a, V: KernelCell> Stream<'a, V> {
    fn new(bank: &'a TableBank, tokens: usize, job: StreamJob<'a, V>) -> Self {
        let StreamJob { codings, rows, bytes, values, stride, most } = job;
        // rows increase
        let held = rows.reach(codings.len()) * stride <= values.len();
        assert!(tokens <= stride && held, "a stream's values have its coefficients' rows");
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
        let fit = Fit::Held;
        Self { bank, codings, rows, values, stride, tokens, most, fit, padded, word_bytes, scalar, fault }
    }

    /// One a coding.
    fn steps(&self) -> Vec<Step<'a>> {
        let (tables, mut steps) = (self.bank.steps(), Vec::with_capacity(self.codings.len()));
        for (c, coding) in self.codings.iter().enumerate() {
            steps.extend(Step::new(tables, *coding, self.rows.row(c) * self.stride));
        }
        assert!(steps.len() == self.codings.len(), "a plan's tables are in the bank");
        steps
    }

    /// The 32 values of a full row that begin at `at`.
    ///
    /// # Safety
    /// `at` is a step's and `row × 32` behind it; `(row + 1) × 32 ≤ tokens`.
    #[inline(always)]
    unsafe fn row_values(&mut self, at: usize) -> &mut [V; LANES] {
        debug_assert!(at + LANES <= self.values.len());
        // SAFETY: a step's row ends within the values, which `new` checked.
        let first = unsafe { self.values.as_mut_ptr().add(at) };
        // SAFETY: as above; the borrow is that of `values`.
        unsafe { &mut *first.cast() }
    }

    /// The next words at a cursor, or what lies behind the last.
    #[inline(always)]
    fn words(&self, at: usize) -> &[u8; REFILL_BYTES] {
        // SAFETY: `padded` has REFILL_BYTES behind `word_bytes`.
        let words = unsafe { self.padded.as_ptr().add(at.min(self.word_bytes)) };
        // SAFETY: as above.
        unsafe { &*words.cast() }
    }

    /// One trit.
    ///
    /// # Safety
    /// As [`Kernel`]; `at` as for [`row_values`](Self::row_values).
    #[inline(always)]
    unsafe fn refine<K: Kernel>(
        &mut self,
        table: &StepTable,
        at: usize,
        (coders, cursor): (K::Coders, usize),
    ) -> (K::Coders, usize) {
        // SAFETY: the caller's promise, here and below.
        let out = unsafe { self.row_values(at) };
        // SAFETY: as above.
        let next = unsafe { V::refine::<K>(table, coders, out) };
        // SAFETY: as above.
        let ([next], [taken]) = unsafe { K::refills([next], [self.words(cursor)]) };
        (next, cursor + taken)
    }

    /// The first eight bits of escapes and a refill, and where some are long the rest; the cursor.
    ///
    /// # Safety
    /// As [`Kernel`]; `at` as for [`row_values`](Self::row_values).
    #[inline(always)]
    unsafe fn escapes<K: Kernel>(
        &mut self,
        set: u32,
        values: K::Values,
        at: usize,
        (coders, cursor): (K::Coders, usize),
    ) -> (K::Coders, usize) {
        // SAFETY: the caller's promise, here and below.
        let (next, values, long) = unsafe { K::escape(coders, values, set) };
        if long == 0 {
            // SAFETY: as above.
            let out = unsafe { self.row_values(at) };
            // SAFETY: as above.
            unsafe { V::put::<K>(values, out) };
            // SAFETY: as above.
            let ([next], [taken]) = unsafe { K::refills([next], [self.words(cursor)]) };
            return (next, cursor + taken);
        }
        let mut lanes = [0; LANES];
        // SAFETY: as above.
        unsafe { K::store(coders, &mut lanes) };
        let cursor = self.escape(&mut lanes, cursor, set, at);
        // SAFETY: as above.
        (unsafe { K::load(&lanes) }, cursor)
    }

    /// The payload of escapes of which some are long, which is rare enough for the scalar coders; returns the cursor.
    #[cold]
    #[inline(never)]
    fn escape(&mut self, states: &mut [u32; LANES], at: usize, escapes: u32, values_at: usize) -> usize {
        self.scalar.states = *states;
        self.scalar.cursor = at;
        let cells = &mut self.values[values_at..values_at + LANES];
        let mut row = [0; LANES];
        row.iter_mut().zip(&*cells).for_each(|(value, cell)| *value = cell.get());
        // the only fault there is here; `finish` reports it
        let Ok(()) = self.scalar.escape(escapes, &mut row) else { return self.word_bytes + 1 };
        for (cell, value) in cells.iter_mut().zip(row) {
            match V::of(value, self.most) {
                Some(held) => *cell = held,
                None => self.fit = Fit::TooWide,
            }
        }
        *states = self.scalar.states;
        self.scalar.cursor
    }

    /// Coefficient `c` in a full row by the scalar coders; returns the cursor.
    #[cold]
    #[inline(never)]
    fn portable(&mut self, states: &mut [u32; LANES], at: usize, c: usize, row: usize) -> usize {
        self.scalar.states = *states;
        self.scalar.cursor = at;
        let first = self.rows.row(c) * self.stride + row * LANES;
        let cells = &mut self.values[first..first + LANES];
        match self.scalar.cells(self.bank, self.codings[c], cells, self.most) {
            Ok(Fit::Held) => {}
            Ok(Fit::TooWide) => self.fit = Fit::TooWide,
            // the only fault there is here; `finish` reports it
            Err(_) => return self.word_bytes + 1,
        }
        *states = self.scalar.states;
        self.scalar.cursor
    }

    /// The partial row, if there is one, and the end check.
    fn finish(mut self, states: &[u32; LANES], at: usize) -> Result<Fit, StreamFault> {
        if self.fit == Fit::TooWide {
            return Ok(Fit::TooWide); // what was decoded since then is of a wrong value
        }
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
                let first = self.rows.row(c) * self.stride;
                let row = &mut self.values[first + full..first + self.tokens];
                if self.scalar.cells(self.bank, *coding, row, self.most)? == Fit::TooWide {
                    return Ok(Fit::TooWide);
                }
            }
        }
        self.scalar.finish()?;
        Ok(Fit::Held)
    }
}

/// The next step of one stream, whatever it is.
///
/// # Safety
/// As [`Kernel`]; the step is the stream's `c`th, and the row is full.
#[inline(always)]
unsafe fn alone<K: Kernel, V: KernelCell>(
    stream: &mut Stream<'_, V>,
    step: &Step<'_>,
    (c, row): (usize, usize),
    (mut coders, mut cursor): (K::Coders, usize),
) -> (K::Coders, usize) {
    let at = step.at + row * LANES;
    if step.certain() {
        let mut lanes = [0; LANES];
        // SAFETY: the caller's promise, here and below.
        unsafe { K::store(coders, &mut lanes) };
        let cursor = stream.portable(&mut lanes, cursor, c, row);
        // SAFETY: as above.
        return (unsafe { K::load(&lanes) }, cursor);
    }
    if !step.table.is_stage() {
        // SAFETY: as above.
        return unsafe { stream.refine::<K>(step.table, at, (coders, cursor)) };
    }
    // SAFETY: as above.
    let ([next], [values], [escapes]) = unsafe { K::stages([step.table], [coders]) };
    // SAFETY: as above.
    let out = unsafe { stream.row_values(at) };
    // SAFETY: as above.
    unsafe { V::put::<K>(values, out) };
    // SAFETY: as above.
    let ([next], [taken]) = unsafe { K::refills([next], [stream.words(cursor)]) };
    (coders, cursor) = (next, cursor + taken);
    if escapes != 0 {
        // SAFETY: as above.
        (coders, cursor) = unsafe { stream.escapes::<K>(escapes, values, at, (coders, cursor)) };
    }
    for table in step.refinements() {
        // SAFETY: as above.
        (coders, cursor) = unsafe { stream.refine::<K>(table, at, (coders, cursor)) };
    }
    (coders, cursor)
}

/// The next step of each stream, knowing that all are `M`, which is not [`Mix::Any`].
///
/// # Safety
/// As [`Kernel`]; the steps are the streams' and the row is full.
#[inline(always)]
unsafe fn together<K: Kernel, V: KernelCell, M: Mixed, const N: usize>(
    streams: &mut [Stream<'_, V>; N],
    steps: [&Step<'_>; N],
    row: usize,
    mut live: Live<K, N>,
) -> Live<K, N> {
    // SAFETY: the caller's promise, here and below.
    let mut values = [unsafe { K::load_values(&[0; LANES]) }; N];
    let (mut ats, mut escapes) = ([0; N], [0; N]);
    each!(N, |i| ats[i] = steps[i].at + row * LANES);
    if M::MIX != Mix::Stages && V::NARROW {
        each!(N, |i| {
            // SAFETY: as above.
            let cells = unsafe { streams[i].row_values(ats[i]) };
            // SAFETY: as above.
            let Some(held) = (unsafe { V::values::<K>(cells) }) else { return live };
            values[i] = held;
        });
    }
    let mut tables = [steps[0].table; N];
    each!(N, |i| tables[i] = steps[i].table);
    match M::MIX {
        // SAFETY: as above.
        Mix::Stages => (live.coders, values, escapes) = unsafe { K::stages(tables, live.coders) },
        // SAFETY: as above.
        Mix::Either => (live.coders, values, escapes) = unsafe { K::eithers(tables, live.coders, values) },
        Mix::Trits | Mix::Any if V::NARROW => {
            // SAFETY: as above.
            (live.coders, values) = unsafe { K::trits(tables, live.coders, values) };
        }
        Mix::Trits | Mix::Any => each!(N, |i| {
            // SAFETY: as above.
            let cells = unsafe { streams[i].row_values(ats[i]) };
            // SAFETY: as above.
            live.coders[i] = unsafe { V::refine::<K>(tables[i], live.coders[i], cells) };
        }),
    }
    if M::MIX != Mix::Trits || V::NARROW {
        each!(N, |i| {
            // SAFETY: as above.
            let cells = unsafe { streams[i].row_values(ats[i]) };
            // SAFETY: as above.
            unsafe { V::put::<K>(values[i], cells) };
        });
    }
    let mut words = [&[0; REFILL_BYTES]; N];
    each!(N, |i| words[i] = streams[i].words(live.cursors[i]));
    // SAFETY: as above.
    let (coders, taken) = unsafe { K::refills(live.coders, words) };
    live.coders = coders;
    each!(N, |i| live.cursors[i] += taken[i]);
    if M::MIX != Mix::Trits {
        let mut any = 0;
        each!(N, |i| any |= escapes[i]);
        if any != 0 {
            each!(N, |i| if escapes[i] != 0 {
                let before = (live.coders[i], live.cursors[i]);
                // SAFETY: as above.
                (live.coders[i], live.cursors[i]) =
                    unsafe { streams[i].escapes::<K>(escapes[i], values[i], ats[i], before) };
            });
        }
    }
    live
}

/// Decodes streams in lockstep, so that their dependency chains overlap.
///
/// # Safety
/// As [`Kernel`].
#[inline(always)]
pub(super) unsafe fn decode<K: Kernel, V: KernelCell, const N: usize>(
    bank: &TableBank,
    tokens: usize,
    jobs: [StreamJob<'_, V>; N],
) -> [Result<Fit, StreamFault>; N] {
    const { assert!(N >= 1 && N <= 4, "as many as are written out") };
    let streams = jobs.map(|job| Stream::new(bank, tokens, job));
    let steps = streams.each_ref().map(Stream::steps);
    let steps = steps.each_ref().map(Vec::as_slice);
    let mix = steps.iter().copied().map(Mix::of).reduce(Mix::with);
    // SAFETY: the caller's promise, here and below.
    match mix.unwrap_or(Mix::Any) {
        // SAFETY: as above.
        Mix::Stages => unsafe { lockstep::<K, V, OfStages, N>(tokens, streams, steps) },
        // SAFETY: as above.
        Mix::Trits => unsafe { lockstep::<K, V, OfTrits, N>(tokens, streams, steps) },
        // SAFETY: as above.
        Mix::Either if V::NARROW => unsafe { lockstep::<K, V, OfEither, N>(tokens, streams, steps) },
        // SAFETY: as above.
        Mix::Either | Mix::Any => unsafe { lockstep::<K, V, OfAny, N>(tokens, streams, steps) },
    }
}

/// As [`decode`], of streams whose steps are all as `M` says.
///
/// # Safety
/// As [`Kernel`].
#[allow(clippy::needless_range_loop, reason = "one index of several lists")]
#[inline(always)]
unsafe fn lockstep<K: Kernel, V: KernelCell, M: Mixed, const N: usize>(
    tokens: usize,
    mut streams: [Stream<'_, V>; N],
    steps: [&[Step<'_>]; N],
) -> [Result<Fit, StreamFault>; N] {
    let lengths = steps.map(<[_]>::len);
    let common = lengths.into_iter().min().unwrap_or(0);
    // SAFETY: the caller's promise, here and below.
    let mut live = Live::<K, N> { coders: [unsafe { K::load(&[0; LANES]) }; N], cursors: [0; N] };
    // SAFETY: as above.
    each!(N, |i| live.coders[i] = unsafe { K::load(&streams[i].scalar.states) });
    for row in 0..tokens / LANES {
        for c in 0..common {
            if M::MIX == Mix::Any {
                each!(N, |i| {
                    let before = (live.coders[i], live.cursors[i]);
                    // SAFETY: as above; `c` and `row` are in range.
                    (live.coders[i], live.cursors[i]) =
                        unsafe { alone::<K, V>(&mut streams[i], &steps[i][c], (c, row), before) };
                });
            } else {
                let mut next = [&steps[0][c]; N];
                each!(N, |i| next[i] = &steps[i][c]);
                // SAFETY: as above.
                live = unsafe { together::<K, V, M, N>(&mut streams, next, row, live) };
            }
        }
        each!(N, |i| for c in common..lengths[i] {
            let before = (live.coders[i], live.cursors[i]);
            // SAFETY: as above.
            (live.coders[i], live.cursors[i]) =
                unsafe { alone::<K, V>(&mut streams[i], &steps[i][c], (c, row), before) };
        });
    }
    let mut ends = [[0; LANES]; N];
    // SAFETY: as above.
    each!(N, |i| unsafe { K::store(live.coders[i], &mut ends[i]) });
    let mut ends = ends.iter().zip(live.cursors);
    streams.map(|stream| match ends.next() {
        Some((lanes, at)) => stream.finish(lanes, at),
        None => Err(StreamFault::Underrun), // there are as many
    })
}
