//! One stream as kernels decode it, with the parts left to the scalar coders.

use std::borrow::Cow;

use super::{
    kernel::{Kernel, KernelCell, REFILL_BYTES},
    steps::{Mix, Step},
};
use crate::rans::{
    LANES,
    bank::TableBank,
    coding::Coding,
    stream::{RowsAt, StreamFault, StreamJob, cell::Fit, decode::LaneDecoder},
    u16_lanes::StepTable,
};

/// A stream being decoded. Its driver holds its steps and the state that changes with each step.
pub(super) struct Stream<'a, V> {
    bank: &'a TableBank,
    /// Empty if the stream's head is faulty.
    codings: &'a [Coding],
    rows: RowsAt<'a>,
    /// `stride` cells for every row.
    values: &'a mut [V],
    stride: usize,
    tokens: usize,
    /// Largest magnitude of a stage value that the cells have to hold.
    most: i32,
    fit: Fit,
    /// The words, followed by at least [`REFILL_BYTES`] readable bytes.
    padded: Cow<'a, [u8]>,
    /// Bytes of the words proper.
    word_bytes: usize,
    /// The same coders for rare cases: long escapes, the partial row, the end check.
    pub(super) scalar: LaneDecoder<'a>,
    fault: Option<StreamFault>,
}

impl<'a, V: KernelCell> Stream<'a, V> {
    pub(super) fn new(bank: &'a TableBank, tokens: usize, job: StreamJob<'a, V>) -> Self {
        let StreamJob { codings, rows, bytes, values, stride, most } = job;
        // rows increase
        let held = rows.reach(codings.len()) * stride <= values.len();
        assert!(tokens <= stride && held, "a stream's values have its coefficients' rows");
        let word_bytes = bytes.words.len();
        let padded = match bytes.readable.len() >= word_bytes + REFILL_BYTES {
            true => Cow::Borrowed(bytes.readable),
            false => Cow::Owned([bytes.words, &[0; REFILL_BYTES]].concat()),
        };
        let (scalar, fault) = match LaneDecoder::new(bytes) {
            Ok(lanes) => (lanes, None),
            Err(fault) => (LaneDecoder::ended(), Some(fault)),
        };
        let codings = if fault.is_none() { codings } else { &[] };
        let fit = Fit::Held;
        Self { bank, codings, rows, values, stride, tokens, most, fit, padded, word_bytes, scalar, fault }
    }

    /// One step per coding, and their common property.
    pub(super) fn steps(&self) -> (Vec<Step<'a>>, Mix) {
        let (tables, mut steps) = (self.bank.steps(), Vec::with_capacity(self.codings.len()));
        for (c, coding) in self.codings.iter().enumerate() {
            steps.extend(Step::new(&tables.of_kind, *coding, self.rows.row(c) * self.stride));
        }
        assert!(steps.len() == self.codings.len(), "a plan's tables are in the bank");
        // not asked of every table, which are not at hand
        let certain = tables.certain && steps.iter().any(Step::certain);
        let mix = if certain { Mix::Any } else { Mix::of(self.codings) };
        (steps, mix)
    }

    /// The 32 values of a full row that begin at `at`.
    ///
    /// # Safety
    /// `at` is a step's and `row × 32` behind it; `(row + 1) × 32 ≤ tokens`.
    #[inline(always)]
    pub(super) unsafe fn row_values(&mut self, at: usize) -> &mut [V; LANES] {
        debug_assert!(at + LANES <= self.values.len());
        // SAFETY: a step's row ends within the values, which `new` checked.
        let first = unsafe { self.values.as_mut_ptr().add(at) };
        // SAFETY: as above; the borrow is that of `values`.
        unsafe { &mut *first.cast() }
    }

    /// The next words at a cursor, or the bytes after the last word.
    #[inline(always)]
    pub(super) fn words(&self, at: usize) -> &[u8; REFILL_BYTES] {
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
    pub(super) unsafe fn refine<K: Kernel>(
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

    /// The first eight bits of escapes and a refill, and the rest of long escapes; returns the cursor.
    ///
    /// # Safety
    /// As [`Kernel`]; `at` as for [`row_values`](Self::row_values).
    #[inline(always)]
    pub(super) unsafe fn escapes<K: Kernel>(
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
        // the only possible fault here; `finish` reports it
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
    pub(super) fn portable(&mut self, states: &mut [u32; LANES], at: usize, c: usize, row: usize) -> usize {
        self.scalar.states = *states;
        self.scalar.cursor = at;
        let first = self.rows.row(c) * self.stride + row * LANES;
        let cells = &mut self.values[first..first + LANES];
        match self.scalar.cells(self.bank, self.codings[c], cells, self.most) {
            Ok(Fit::Held) => {}
            Ok(Fit::TooWide) => self.fit = Fit::TooWide,
            // the only possible fault here; `finish` reports it
            Err(_) => return self.word_bytes + 1,
        }
        *states = self.scalar.states;
        self.scalar.cursor
    }

    /// The partial row, if there is one, and the end check.
    pub(super) fn finish(mut self, states: &[u32; LANES], at: usize) -> Result<Fit, StreamFault> {
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
