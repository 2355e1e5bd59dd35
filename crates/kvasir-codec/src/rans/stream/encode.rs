//! The scalar encoder: the decoder's steps backwards.

use crate::rans::{
    alias::{AliasTable, StageSymbol},
    bank::TableBank,
    limits::{ALPHABET, ESCAPE, ESCAPE_MAX, LANES, PROBABILITY_BITS, PROBABILITY_ONE, STATE_MIN},
    nest::{coarsen, digit},
    plan::Coding,
    trit::TritTable,
};

/// An alias table, inverted: where the slot of (symbol, offset) is.
#[derive(Debug, Clone)]
pub(crate) struct EncodeTable {
    starts: [u32; ALPHABET],
    frequencies: [u32; ALPHABET],
    /// `slots[starts[symbol] + offset]`.
    slots: Box<[u16; PROBABILITY_ONE as usize]>,
}

impl EncodeTable {
    pub(crate) fn new(table: &AliasTable) -> Self {
        let frequencies = table.frequencies().map(u32::from);
        let mut starts = [0; ALPHABET];
        for symbol in 1..ALPHABET {
            starts[symbol] = starts[symbol - 1] + frequencies[symbol - 1];
        }
        let mut slots = Box::new([0; PROBABILITY_ONE as usize]);
        for index in 0..PROBABILITY_ONE {
            let slot = table.slot(index);
            slots[(starts[slot.symbol] + slot.offset) as usize] = index as u16;
        }
        Self { starts, frequencies, slots }
    }
}

/// A value that the stream's tables cannot express: the piece becomes raw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Uncodable;

/// An encoded stream: what the decoder starts from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EncodedStream {
    pub(crate) states: [u32; LANES],
    pub(crate) words: Vec<u16>,
}

/// The 32 coders; words come out last first.
struct Lanes {
    states: [u32; LANES],
    words: Vec<u16>,
}

/// Encodes `values[coefficient][token]`, the values at the piece's level, rows of `tokens` values.
pub(crate) fn encode_stream(
    bank: &TableBank,
    codings: &[Coding],
    tokens: usize,
    values: &[i32],
) -> Result<EncodedStream, Uncodable> {
    let tables = bank.encode_tables();
    let mut lanes = Lanes { states: [STATE_MIN; LANES], words: Vec::new() };
    for row in (0..tokens).step_by(LANES).rev() {
        let valid = LANES.min(tokens - row);
        for (coding, token_values) in codings.iter().zip(values.chunks_exact(tokens)).rev() {
            let mut row_values = [0; LANES];
            let row_values = &mut row_values[..valid];
            row_values.copy_from_slice(&token_values[row..row + valid]);
            match *coding {
                Coding::Stage { table, trits, trit_table } => {
                    for _ in 0..trits {
                        lanes.trit(&bank.trit_tables()[usize::from(trit_table)], row_values)?;
                    }
                    lanes.stage(&tables[usize::from(table)], row_values)?;
                }
                Coding::Trit { table } => lanes.trit(&bank.trit_tables()[usize::from(table)], row_values)?,
            }
        }
    }
    lanes.words.reverse();
    Ok(EncodedStream { states: lanes.states, words: lanes.words })
}

impl Lanes {
    /// Emits a word where coding a symbol of `frequency` would push the state to `2^31`.
    #[inline]
    fn spill(&mut self, lane: usize, frequency: u32) -> u32 {
        let state = self.states[lane];
        if state >= frequency << (31 - PROBABILITY_BITS) {
            self.words.push(state as u16);
            state >> 16
        } else {
            state
        }
    }

    /// Codes eight bits without a model.
    fn bypass(&mut self, lane: usize, bits: u32) {
        let state = self.spill(lane, PROBABILITY_ONE >> 8);
        self.states[lane] = state << 8 | bits;
    }

    /// Escape payloads, then stage symbols, lanes backwards.
    fn stage(&mut self, table: &EncodeTable, row: &[i32]) -> Result<(), Uncodable> {
        let symbol_of = |value: i32| {
            let own = StageSymbol::of(value).index();
            if table.frequencies[own] > 0 { own } else { ESCAPE }
        };
        let escapes = row.iter().fold(0, |set, &value| set << 1 | u32::from(symbol_of(value) == ESCAPE));
        if escapes != 0 {
            let escaped = row.iter().enumerate().rev().filter(|&(_, &value)| symbol_of(value) == ESCAPE);
            self.escape(escaped)?;
        }
        for (lane, &value) in row.iter().enumerate().rev() {
            let symbol = symbol_of(value);
            let (start, frequency) = (table.starts[symbol], table.frequencies[symbol]);
            if frequency == 0 {
                return Err(Uncodable);
            }
            let state = self.spill(lane, frequency);
            let slot = table.slots[(start + state % frequency) as usize];
            self.states[lane] = (state / frequency) << PROBABILITY_BITS | u32::from(slot);
        }
        Ok(())
    }

    /// The decoder reads 8 bits of every escaped lane, then the low and the high bytes of the long ones.
    fn escape<'v>(
        &mut self,
        escaped: impl Iterator<Item = (usize, &'v i32)> + Clone,
    ) -> Result<(), Uncodable> {
        if escaped.clone().any(|(_, value)| value.unsigned_abs() > ESCAPE_MAX as u32) {
            return Err(Uncodable);
        }
        // 127 + 16 bits: `checked_sub` is `None` for short escapes
        let long = escaped.clone().filter_map(|(lane, v)| Some((lane, v.unsigned_abs().checked_sub(127)?)));
        for (lane, rest) in long.clone() {
            self.bypass(lane, rest >> 8);
        }
        for (lane, rest) in long {
            self.bypass(lane, rest & 0xff);
        }
        for (lane, value) in escaped {
            self.bypass(lane, value.unsigned_abs().min(127) << 1 | u32::from(*value < 0));
        }
        Ok(())
    }

    /// The trit of every lane, lanes backwards; leaves the coarser values in `row`.
    fn trit(&mut self, table: &TritTable, row: &mut [i32]) -> Result<(), Uncodable> {
        for (lane, value) in row.iter_mut().enumerate().rev() {
            let (coarse, digit) = (coarsen(*value), digit(*value));
            let folded = if coarse < 0 { -digit } else { digit };
            let (start, frequency) = table.range(TritTable::context(coarse), folded);
            if frequency == 0 {
                return Err(Uncodable);
            }
            let state = self.spill(lane, frequency);
            self.states[lane] = (state / frequency) << PROBABILITY_BITS | (start + state % frequency);
            *value = coarse;
        }
        Ok(())
    }
}
