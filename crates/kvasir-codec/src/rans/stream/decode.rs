//! The scalar decoder: the oracle that every other path is compared with.

use std::hint::select_unpredictable;

use super::{
    StreamBytes, StreamFault, StreamJob,
    cell::{Cell, Fit},
};
use crate::rans::{
    alias::AliasTable,
    bank::TableBank,
    limits::{ESCAPE, LANES, LONG_ESCAPE, PROBABILITY_BITS, PROBABILITY_ONE, STATE_MIN},
    nest::refine,
    plan::Coding,
    trit::TritTable,
};

/// The 32 coders and the cursor they share.
pub(crate) struct Lanes<'a> {
    pub(crate) states: [u32; LANES],
    words: &'a [u8],
    /// Bytes of `words` consumed.
    pub(crate) cursor: usize,
}

/// Decodes one stream. The caller checked table ids and the number of values.
pub(crate) fn decode_stream<V: Cell>(
    bank: &TableBank,
    tokens: usize,
    job: StreamJob<'_, V>,
) -> Result<Fit, StreamFault> {
    let StreamJob { codings, rows, bytes, values, stride, most } = job;
    let mut lanes = Lanes::new(bytes)?;
    for row in (0..tokens).step_by(LANES) {
        let valid = LANES.min(tokens - row);
        for (c, coding) in codings.iter().enumerate() {
            let at = rows.row(c) * stride + row;
            if lanes.cells(bank, *coding, &mut values[at..at + valid], most)? == Fit::TooWide {
                return Ok(Fit::TooWide);
            }
        }
    }
    lanes.finish()?;
    Ok(Fit::Held)
}

impl<'a> Lanes<'a> {
    /// Coders at the stored states; lanes without tokens stand where they end.
    pub(crate) fn new(bytes: StreamBytes<'a>) -> Result<Self, StreamFault> {
        let mut states = [STATE_MIN; LANES];
        for (lane, (state, stored)) in states.iter_mut().zip(bytes.states.as_chunks().0).enumerate() {
            *state = u32::from_le_bytes(*stored);
            if !(STATE_MIN..1 << 31).contains(state) {
                return Err(StreamFault::State { lane, state: *state });
            }
        }
        Ok(Self { states, words: bytes.words, cursor: 0 })
    }

    /// Coders of nothing.
    pub(crate) fn ended() -> Self {
        Self { states: [STATE_MIN; LANES], words: &[], cursor: 0 }
    }

    /// The words of the next step: one a lane at the most.
    #[inline(always)]
    fn coming(&self) -> Words {
        let rest = self.words.get(self.cursor..).unwrap_or_default();
        let mut next = [[0; 2]; LANES];
        match rest.as_chunks().0.first_chunk() {
            Some(whole) => next = *whole,
            None => next.iter_mut().zip(rest.as_chunks().0).for_each(|(next, word)| *next = *word),
        }
        Words { next, taken: 0 }
    }

    /// Goes on behind the words that a step took.
    #[inline(always)]
    fn took(&mut self, words: &Words) -> Result<(), StreamFault> {
        self.cursor += 2 * words.taken;
        if self.cursor <= self.words.len() { Ok(()) } else { Err(StreamFault::Underrun) }
    }

    /// One coefficient in one row of cells.
    #[inline]
    pub(crate) fn cells<V: Cell>(
        &mut self,
        bank: &TableBank,
        coding: Coding,
        out: &mut [V],
        most: i32,
    ) -> Result<Fit, StreamFault> {
        let mut row = [0; LANES];
        let row = &mut row[..out.len()];
        if matches!(coding, Coding::Trit { .. }) {
            row.iter_mut().zip(&*out).for_each(|(value, cell)| *value = cell.get());
        }
        let escaped = self.coefficient(bank, coding, row)?;
        // only an escape is beyond what cells hold
        let most = coding.bound(most);
        if escaped && row.iter().any(|value| V::of(*value, most).is_none()) {
            return Ok(Fit::TooWide);
        }
        out.iter_mut().zip(row).for_each(|(cell, value)| *cell = V::truncated(*value));
        Ok(Fit::Held)
    }

    /// One coefficient in one row; whether there was an escape.
    #[inline]
    pub(crate) fn coefficient(
        &mut self,
        bank: &TableBank,
        coding: Coding,
        out: &mut [i32],
    ) -> Result<bool, StreamFault> {
        match coding {
            Coding::Stage { table, trits, trit_table } => {
                let escaped = self.stage(&bank.stage_tables()[usize::from(table)], out)?;
                for _ in 0..trits {
                    self.trit(&bank.trit_tables()[usize::from(trit_table)], out)?;
                }
                Ok(escaped)
            }
            Coding::Trit { table } => {
                self.trit(&bank.trit_tables()[usize::from(table)], out)?;
                Ok(false)
            }
        }
    }

    /// One stage symbol a lane, then the escapes' payload, if there was one.
    fn stage(&mut self, table: &AliasTable, out: &mut [i32]) -> Result<bool, StreamFault> {
        let mut words = self.coming();
        for (value, state) in out.iter_mut().zip(&mut self.states) {
            let slot = table.slot(*state % PROBABILITY_ONE);
            *state = words.refilled(slot.frequency * (*state >> PROBABILITY_BITS) + slot.offset);
            *value = slot.symbol as i32 - 7;
        }
        self.took(&words)?;
        let escaped = |value: &i32| *value == ESCAPE as i32 - 7;
        // all of them at once, before any is asked for
        if !out.iter().fold(false, |any, value| any | escaped(value)) {
            return Ok(false);
        }
        let escapes = out.iter().rev().fold(0, |set, value| set << 1 | u32::from(escaped(value)));
        self.escape(escapes, out)?;
        Ok(true)
    }

    /// Payloads of the lanes in `escapes`: 8 bits each, then 16 more for those that ask.
    pub(crate) fn escape(&mut self, escapes: u32, out: &mut [i32]) -> Result<(), StreamFault> {
        let mut short = [0; LANES];
        self.bypass(escapes, &mut short)?;
        let long =
            lanes_of(escapes).filter(|&lane| short[lane] >= LONG_ESCAPE).fold(0, |set, lane| set | 1 << lane);
        let (mut low, mut high) = ([0; LANES], [0; LANES]);
        if long != 0 {
            self.bypass(long, &mut low)?;
            self.bypass(long, &mut high)?;
        }
        for lane in lanes_of(escapes) {
            let magnitude = ((short[lane] >> 1) + (high[lane] << 8 | low[lane])) as i32;
            out[lane] = if short[lane] & 1 == 1 { -magnitude } else { magnitude };
        }
        Ok(())
    }

    /// Eight uncoded bits from every lane in `set`, in lane order.
    fn bypass(&mut self, set: u32, out: &mut [u32; LANES]) -> Result<(), StreamFault> {
        let mut words = self.coming();
        for lane in lanes_of(set) {
            out[lane] = self.states[lane] & 0xff;
            self.states[lane] = words.refilled(self.states[lane] >> 8);
        }
        self.took(&words)
    }

    /// One trit a lane: `value` becomes `3 value + d`.
    fn trit(&mut self, table: &TritTable, out: &mut [i32]) -> Result<(), StreamFault> {
        let contexts = [0, 1].map(|context| table.thresholds(context).map(u32::from));
        let mut words = self.coming();
        for (value, state) in out.iter_mut().zip(&mut self.states) {
            let slot = *state % PROBABILITY_ONE;
            let context = TritTable::context(*value);
            let threshold = |i: usize| select_unpredictable(context == 0, contexts[0][i], contexts[1][i]);
            let index = usize::from(slot >= threshold(0)) + usize::from(slot >= threshold(1));
            let range = table.ranges()[4 * context + index];
            let (start, frequency) = (range >> 16, range & 0xffff);
            *state = words.refilled(frequency * (*state >> PROBABILITY_BITS) + (slot - start));
            let (folded, sign) = (index as i32 - 1, *value >> 31);
            *value = refine(*value, (folded ^ sign) - sign); // negated where the value is negative
        }
        self.took(&words)
    }

    /// Every coder has to end where its encoder began, and the words have to be used up.
    pub(crate) fn finish(self) -> Result<(), StreamFault> {
        let left = self.words.len().checked_sub(self.cursor).ok_or(StreamFault::Underrun)? / 2;
        let lanes = self.states.iter().filter(|&&state| state != STATE_MIN).count();
        if left == 0 && lanes == 0 { Ok(()) } else { Err(StreamFault::Final { left, lanes }) }
    }
}

/// Words of a step, for the lanes that need one: which these are is as good as random, so nothing is asked in branches.
struct Words {
    /// Zeros behind the last.
    next: [[u8; 2]; LANES],
    taken: usize,
}

impl Words {
    /// A lane's state, refilled where it fell below the minimum. One word suffices: states are at least 8 before.
    #[inline(always)]
    fn refilled(&mut self, state: u32) -> u32 {
        let word = u16::from_le_bytes(self.next[self.taken % LANES]);
        let low = state < STATE_MIN;
        self.taken += usize::from(low);
        select_unpredictable(low, state << 16 | u32::from(word), state)
    }
}

/// The lanes of a set, in increasing order.
fn lanes_of(mut set: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = set.trailing_zeros() as usize;
        set &= set.checked_sub(1)?;
        Some(lane)
    })
}
