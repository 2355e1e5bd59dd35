//! Rows of one member in one tile of tokens.

use super::{MemberSynthesis, PANEL, TileCoefficients};
use crate::direct_rows::bf16_tiles::{
    Bf16Rows, Lane, RotationTable, RowScratch, round_pairs, transpose_portable,
};

/// A member's rows of one tile of tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemberTile<'a> {
    pub(crate) synthesis: MemberSynthesis<'a>,
    pub(crate) coefficients: TileCoefficients<'a>,
    /// Finest step of the member.
    pub(crate) gain: f32,
    /// Static mean of every element.
    pub(crate) mean: &'a [f32],
    pub(crate) rotation: Option<&'a RotationTable>,
    /// The tile's place in the rotation.
    pub(crate) tile: usize,
}

/// The destination of a tile's rows, `[token][element]`.
pub(crate) enum TileRows<'a> {
    Full(&'a mut [f32]),
    Half(Bf16Rows<'a>),
}

impl MemberTile<'_> {
    /// Makes the rows: plain loops, and the portable transposition.
    pub(crate) fn rows_portable(&self, rows: TileRows<'_>, scratch: &mut RowScratch) {
        let count = self.mean.len();
        let (elements, pairs) = scratch.of(count.next_multiple_of(PANEL));
        match self.synthesis {
            MemberSynthesis::Identity { start } => {
                self.coefficients.singles.copy_to(start, &mut elements[..count]);
            }
            MemberSynthesis::Pairs { words, units } => {
                self.coefficients.pairs.sums_portable((words, units), elements);
            }
            MemberSynthesis::Floats(panels) => self.coefficients.singles.sums_portable(panels, elements),
        }
        self.finish(&mut elements[..count]);
        match rows {
            TileRows::Full(rows) => rows_of_lanes(&elements[..count], rows),
            TileRows::Half(Bf16Rows { rows, .. }) => {
                round_pairs(&elements[..count], pairs);
                transpose_portable(pairs, 0, count, rows);
            }
        }
    }

    /// From steps to numbers of the cache. Multiply, add, rotate, in this order and never fused.
    #[inline(always)]
    pub(crate) fn finish(&self, elements: &mut [Lane<f32>]) {
        for (lane, mean) in elements.iter_mut().zip(self.mean) {
            lane.0.iter_mut().for_each(|x| *x = *x * self.gain + mean);
        }
        if let Some(rotation) = self.rotation {
            rotation.rotate(self.tile, elements);
        }
    }
}

/// `rows[token][element]` from lanes of tokens.
#[inline(always)]
pub(crate) fn rows_of_lanes(elements: &[Lane<f32>], rows: &mut [f32]) {
    for (token, row) in rows.chunks_exact_mut(elements.len()).enumerate() {
        row.iter_mut().zip(elements).for_each(|(x, lane)| *x = lane[token]);
    }
}
