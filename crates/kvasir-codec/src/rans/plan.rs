//! What a piece holds: for every coefficient, how it is coded at this level.

use kvasir_types::SPAN_TOKENS;

use super::{
    TableBank,
    error::PieceError,
    limits::{COEFFICIENTS_MAX, TRITS_MAX},
};

/// How one coefficient is coded in a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Coding {
    /// The coefficient enters here. The value at the piece's level is coarsened `trits` times, coded by stage table
    /// `table`, and refined by `trits` trits of trit table `trit_table` (ignored when `trits` is 0). More than 0
    /// only in level 0, for coefficients whose entry level is negative.
    Stage {
        /// Stage table of the bank.
        table: u8,
        /// Trits behind the stage symbol, at most [`TRITS_MAX`].
        trits: u8,
        /// Trit table of the bank, for all of them.
        trit_table: u8,
    },
    /// The coefficient is known at the level before and refined by one trit.
    Trit {
        /// Trit table of the bank.
        table: u8,
    },
}

impl Coding {
    /// Largest magnitude after this coding where a stage gives `most` at the most; what is refined has been bounded before.
    pub(crate) fn bound(self, most: i32) -> i32 {
        match self {
            Self::Stage { trits, .. } => {
                let ratio = 3i32.saturating_pow(trits.into());
                most.saturating_mul(ratio).saturating_add(ratio / 2)
            }
            Self::Trit { .. } => i32::MAX,
        }
    }
}

/// The coding of a piece's coefficients, in stream order (by decreasing variance, so that trailing ones vanish).
#[derive(Debug, Clone, Copy)]
pub struct PiecePlan<'a> {
    /// One entry a coefficient, at most [`COEFFICIENTS_MAX`].
    pub coefficients: &'a [Coding],
    /// Tokens of the span, 1 to [`SPAN_TOKENS`].
    pub tokens: usize,
}

impl PiecePlan<'_> {
    /// Length of the piece's values: coefficients × tokens.
    pub fn value_count(&self) -> usize {
        self.coefficients.len() * self.tokens
    }

    /// Checks shape and table ids.
    pub(super) fn check(&self, bank: &TableBank, values: usize) -> Result<(), PieceError> {
        if self.coefficients.len() > COEFFICIENTS_MAX || !(1..=SPAN_TOKENS).contains(&self.tokens) {
            return Err(PieceError::Shape { coefficients: self.coefficients.len(), tokens: self.tokens });
        }
        if values != self.value_count() {
            return Err(PieceError::ValueCount { expected: self.value_count(), actual: values });
        }
        let known = |coding: &Coding| match *coding {
            Coding::Stage { table, trits, trit_table } => {
                usize::from(table) < bank.stage_tables().len()
                    && trits <= TRITS_MAX
                    && (trits == 0 || usize::from(trit_table) < bank.trit_tables().len())
            }
            Coding::Trit { table } => usize::from(table) < bank.trit_tables().len(),
        };
        match self.coefficients.iter().position(|coding| !known(coding)) {
            Some(coefficient) => {
                Err(PieceError::Coding { coefficient, coding: self.coefficients[coefficient] })
            }
            None => Ok(()),
        }
    }
}
