//! Alias tables as encoders need them: from a symbol and its offset to the slot.

use crate::rans::{
    alias::{AliasTable, StageSymbol},
    constants::{ALPHABET, ESCAPE, PROBABILITY_ONE},
};

/// An alias table, inverted: the slot of (symbol, offset).
#[derive(Debug, Clone)]
pub(crate) struct InvertedStage {
    pub(crate) starts: [u32; ALPHABET],
    pub(crate) frequencies: [u32; ALPHABET],
    /// The symbol that codes `index`: itself, or the escape where its frequency is 0.
    pub(crate) codes: [u32; ALPHABET],
    /// `slots[starts[symbol] + offset]`, and one more, so that 32-bit loads of the last slot stay inside.
    pub(crate) slots: Box<[u16; PROBABILITY_ONE as usize + 1]>,
}

impl InvertedStage {
    pub(crate) fn new(table: &AliasTable) -> Self {
        let frequencies = table.frequencies().map(u32::from);
        let mut starts = [0; ALPHABET];
        for symbol in 1..ALPHABET {
            starts[symbol] = starts[symbol - 1] + frequencies[symbol - 1];
        }
        let codes = std::array::from_fn(|s| if frequencies[s] > 0 { s as u32 } else { ESCAPE as u32 });
        let mut slots = Box::new([0; PROBABILITY_ONE as usize + 1]);
        for index in 0..PROBABILITY_ONE {
            let slot = table.slot(index);
            slots[(starts[slot.symbol] + slot.offset) as usize] = index as u16;
        }
        Self { starts, frequencies, codes, slots }
    }

    /// The symbol that codes `value`.
    pub(super) fn code(&self, value: i32) -> usize {
        self.codes[StageSymbol::of(value).index()] as usize
    }
}
