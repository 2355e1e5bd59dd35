//! The contents of a piece: for every coefficient, its coding at this level.

use kvasir_types::SPAN_TOKENS;

use super::{
    bank::TableBank,
    coding::Coding,
    constants::{COEFFICIENTS_MAX, TRITS_MAX},
    error::PieceError,
};

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
