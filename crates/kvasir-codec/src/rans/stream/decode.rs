//! The scalar decoder: the oracle that every other path is compared with.

use std::hint::select_unpredictable;

use super::{
    StreamBytes, StreamFault, StreamJob,
    cell::{Cell, Fit},
};
use crate::rans::{
    alias::AliasTable,
    bank::TableBank,
    coding::Coding,
    constants::{ESCAPE, LANES, LONG_ESCAPE, PROBABILITY_BITS, PROBABILITY_ONE, STATE_MIN},
    nested_index::refine,
    trit::TritTable,
};

/// The value of the escape symbol.
const ESCAPED: i32 = ESCAPE as i32 - 7;

/// The 32 coders and the cursor they share.
pub(crate) struct LaneDecoder<'a> {
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
    let mut lanes = LaneDecoder::new(bytes)?;
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

impl<'a> LaneDecoder<'a> {
    /// Coders at the stored states; lanes without tokens are in their final state.
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

    /// The words of the next step, at most one per lane: in place, or the rest padded with zeros.
    #[inline(always)]
    fn coming<'w>(&self, end: &'w mut [[u8; 2]; LANES]) -> Words<'w>
    where
        'a: 'w,
    {
        let rest = self.words.get(self.cursor..).unwrap_or_default().as_chunks().0;
        let next = rest.first_chunk().unwrap_or_else(|| {
            end.iter_mut().zip(rest).for_each(|(end, word)| *end = *word);
            end
        });
        Words { next, taken: 0 }
    }

    /// Advances past the words that a step used.
    #[inline(always)]
    fn took(&mut self, taken: usize) -> Result<(), StreamFault> {
        self.cursor += 2 * taken;
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
        let (trits, refining) = match coding {
            Coding::Stage { trits, trit_table, .. } => (trits, trit_table),
            Coding::Trit { table } => (1, table),
        };
        if let Coding::Stage { table, .. } = coding
            && self.stage(&bank.stage_tables()[usize::from(table)], out)?
        {
            return self.escaped(bank, coding, out, most);
        }
        for _ in 0..trits {
            self.trit(&bank.trit_tables()[usize::from(refining)], out)?;
        }
        Ok(Fit::Held)
    }

    /// The rest of a stage's coefficient if there are escapes, which only wide cells can always hold.
    #[cold]
    fn escaped<V: Cell>(
        &mut self,
        bank: &TableBank,
        coding: Coding,
        out: &mut [V],
        most: i32,
    ) -> Result<Fit, StreamFault> {
        let mut row = [0; LANES];
        let row = &mut row[..out.len()];
        row.iter_mut().zip(&*out).for_each(|(value, cell)| *value = cell.get());
        let escapes = row.iter().rev().fold(0, |set, value| set << 1 | u32::from(*value == ESCAPED));
        self.escape(escapes, row)?;
        if let Coding::Stage { trits, trit_table, .. } = coding {
            for _ in 0..trits {
                self.trit(&bank.trit_tables()[usize::from(trit_table)], row)?;
            }
        }
        let most = coding.bound(most);
        for (cell, value) in out.iter_mut().zip(row) {
            let Some(held) = V::of(*value, most) else { return Ok(Fit::TooWide) };
            *cell = held;
        }
        Ok(Fit::Held)
    }

    /// One stage symbol a lane; whether one is an escape.
    #[inline]
    fn stage<V: Cell>(&mut self, table: &AliasTable, out: &mut [V]) -> Result<bool, StreamFault> {
        let mut end = [[0; 2]; LANES];
        let mut words = self.coming(&mut end);
        let mut most = 0;
        each_lane(out, &mut self.states, |cell, state| {
            let slot = table.slot(*state);
            *state = words.refilled(slot.frequency * (*state >> PROBABILITY_BITS) + slot.offset);
            let value = slot.symbol as i32 - 7;
            // all of them at once, before any is read; none is larger
            most = most.max(value);
            *cell = V::truncated(value);
        });
        let taken = words.taken;
        self.took(taken)?;
        Ok(most == ESCAPED)
    }

    /// Payloads of the lanes in `escapes`: 8 bits each, then 16 more for long ones.
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
        let mut end = [[0; 2]; LANES];
        let mut words = self.coming(&mut end);
        for lane in lanes_of(set) {
            out[lane] = self.states[lane] & 0xff;
            self.states[lane] = words.refilled(self.states[lane] >> 8);
        }
        let taken = words.taken;
        self.took(taken)
    }

    /// One trit a lane: `value` becomes `3 value + d`.
    #[inline]
    fn trit<V: Cell>(&mut self, table: &TritTable, out: &mut [V]) -> Result<(), StreamFault> {
        let mut end = [[0; 2]; LANES];
        let mut words = self.coming(&mut end);
        each_lane(out, &mut self.states, |cell, state| {
            let (value, slot) = (cell.get(), *state % PROBABILITY_ONE);
            let (folded, start, frequency) = table.slot(TritTable::context(value), slot);
            *state = words.refilled(frequency * (*state >> PROBABILITY_BITS) + (slot - start));
            let sign = value >> 31;
            *cell = V::truncated(refine(value, (folded ^ sign) - sign)); // negated where the value is negative
        });
        let taken = words.taken;
        self.took(taken)
    }

    /// Every coder must end at its encoder's initial state, and the words must be used up.
    pub(crate) fn finish(self) -> Result<(), StreamFault> {
        let left = self.words.len().checked_sub(self.cursor).ok_or(StreamFault::Underrun)? / 2;
        let lanes = self.states.iter().filter(|&&state| state != STATE_MIN).count();
        if left == 0 && lanes == 0 { Ok(()) } else { Err(StreamFault::Final { left, lanes }) }
    }
}

/// Does a step in the lanes of some cells, eight written out: a loop of one takes a fifth longer.
#[inline(always)]
fn each_lane<V>(cells: &mut [V], states: &mut [u32; LANES], mut step: impl FnMut(&mut V, &mut u32)) {
    let (eights, rest) = cells.as_chunks_mut::<8>();
    let done = 8 * eights.len();
    for (cells, states) in eights.iter_mut().zip(states.as_chunks_mut::<8>().0) {
        for i in 0..8 {
            step(&mut cells[i], &mut states[i]);
        }
    }
    rest.iter_mut().zip(states.iter_mut().skip(done)).for_each(|(cell, state)| step(cell, state));
}

/// Words of a step, for the lanes that need one. Which lanes these are is practically random, so there are no
/// branches.
struct Words<'w> {
    next: &'w [[u8; 2]; LANES],
    taken: usize,
}

impl Words<'_> {
    /// A lane's state, refilled if it fell below the minimum. One word suffices: states are at least 8
    /// before.
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
