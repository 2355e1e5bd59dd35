//! The reverse direction: rows of a head to quantised values, with tokens as lanes.

use std::ops::Range;

use super::{
    TILE,
    bf16_tiles::{Lane, RotationTable, RowScratch},
};
use crate::{
    limits::QUANTISED_MAX,
    rans::{LANES, blocks::Blocks},
};

/// How the elements of one head become finest steps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuantiserSteps<'a> {
    /// Static mean of every element.
    pub(crate) mean: &'a [f32],
    /// Steps in a unit: 1 over the head's gain.
    pub(crate) inverse: f32,
    /// Tokens at the start whose values are 0, because they are stored separately.
    pub(crate) masked: usize,
}

/// The destination of a head's quantised values.
#[derive(Debug)]
pub(crate) enum QuantiseTarget<'a> {
    /// `[element][token]`, up to [`QUANTISED_MAX`].
    Wide(&'a mut [i32]),
    /// Rows of these from the given one on, up to [`Blocks::MOST`].
    Narrow(&'a mut Blocks, usize),
}

impl QuantiseTarget<'_> {
    /// Those of some elements.
    pub(crate) fn elements(&mut self, range: Range<usize>, tokens: usize) -> QuantiseTarget<'_> {
        match self {
            Self::Wide(rows) => QuantiseTarget::Wide(&mut rows[range.start * tokens..range.end * tokens]),
            Self::Narrow(blocks, first) => QuantiseTarget::Narrow(blocks, *first + range.start),
        }
    }

    /// Largest magnitude.
    pub(crate) fn most(&self) -> f32 {
        match self {
            Self::Wide(_) => QUANTISED_MAX as f32,
            Self::Narrow(..) => Blocks::MOST as f32,
        }
    }

    /// The values of `count` tokens from `first` on, which are in the same block.
    fn put(&mut self, (element, tokens, first): (usize, usize, usize), values: &[i32]) {
        match self {
            Self::Wide(rows) => rows[element * tokens + first..][..values.len()].copy_from_slice(values),
            Self::Narrow(blocks, start) => {
                let at = blocks.at(*start + element, first / LANES);
                let to = blocks.as_mut_slice()[at].0[first % LANES..].iter_mut();
                to.zip(values).for_each(|(to, value)| *to = *value as i16);
            }
        }
    }
}

/// Values of one tile from `rows[token][element]`, whole or not: unrotate, subtract the mean, scale, round to even, in this
/// order and never fused. Says whether all are small enough; they are unspecified otherwise.
pub(crate) fn quantise_tile(
    steps: &QuantiserSteps<'_>,
    rotation: Option<&RotationTable>,
    (tokens, tile): (usize, usize),
    rows: &[f32],
    to: &mut QuantiseTarget<'_>,
    scratch: &mut RowScratch,
) -> bool {
    let (elements, _) = scratch.of(steps.mean.len());
    elements.fill(Lane::default());
    lanes_portable(rows, 0, elements);
    if let Some(rotation) = rotation {
        rotation.unrotate(tile, elements);
    }
    let first = tile * TILE;
    let valid = TILE.min(tokens - first);
    let masked = steps.masked.saturating_sub(first).min(valid);
    let most = to.most();
    let mut within = true;
    for (element, (lanes, mean)) in elements.iter().zip(steps.mean).enumerate() {
        let mut row = [0; TILE];
        for (out, x) in row[..valid].iter_mut().zip(&lanes.0).skip(masked) {
            let x = (x - mean) * steps.inverse;
            within &= x.abs() <= most;
            *out = x.round_ties_even() as i32;
        }
        to.put((element, tokens, first), &row[..valid]);
    }
    within
}

/// Lanes of the tile's tokens, elements `from..`.
pub(crate) fn lanes_portable(rows: &[f32], from: usize, lanes: &mut [Lane<f32>]) {
    let count = lanes.len();
    for (token, row) in rows.chunks_exact(count).enumerate() {
        for (lane, x) in lanes[from..].iter_mut().zip(&row[from..]) {
            lane[token] = *x;
        }
    }
}
