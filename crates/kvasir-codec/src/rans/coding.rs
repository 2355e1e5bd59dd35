//! How one coefficient is coded in a piece.

/// How one coefficient is coded in a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Coding {
    /// The coefficient enters here. The value at the piece's level is coarsened `trits` times, coded by stage table
    /// `table`, and refined by `trits` trits of trit table `trit_table` (ignored when `trits` is 0). More than 0
    /// only in level 0, for coefficients whose entry level is negative.
    Stage {
        /// Stage table of the bank.
        table: u8,
        /// Trits after the stage symbol, at most [`TRITS_MAX`](super::TRITS_MAX).
        trits: u8,
        /// Trit table of the bank, for all of them.
        trit_table: u8,
    },
    /// The coefficient is known at the previous level and refined by one trit.
    Trit {
        /// Trit table of the bank.
        table: u8,
    },
}

impl Coding {
    /// Largest magnitude after this coding if a stage gives at most `most`; refined values were bounded
    /// before.
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
