//! The way back: rows of a head to quantised values, tokens as lanes.

use super::{
    TILE,
    half::{Lane, RowScratch, Turns},
};
use crate::limits::QUANTISED_MAX;

/// How the elements of one head become finest steps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Steps<'a> {
    /// Static mean of every element.
    pub(crate) mean: &'a [f32],
    /// Steps in a unit: 1 over the head's gain.
    pub(crate) inverse: f32,
    /// Tokens at the start whose values are 0, as they are stored elsewhere.
    pub(crate) masked: usize,
}

/// `values[element][token]` of one tile from `rows[token][element]`, whole or not: unrotate, subtract the mean, scale, round to even, in this
/// order and never fused. Says whether all are within [`QUANTISED_MAX`]; `values` are unspecified otherwise.
pub(crate) fn fine_tile(
    steps: &Steps<'_>,
    turns: Option<&Turns>,
    (tokens, tile): (usize, usize),
    rows: &[f32],
    values: &mut [i32],
    scratch: &mut RowScratch,
) -> bool {
    let (elements, _) = scratch.of(steps.mean.len());
    elements.fill(Lane::default());
    lanes_portable(rows, 0, elements);
    if let Some(turns) = turns {
        turns.unrotate(tile, elements);
    }
    let first = tile * TILE;
    let valid = TILE.min(tokens - first);
    let masked = steps.masked.saturating_sub(first).min(valid);
    let mut within = true;
    for ((lanes, mean), row) in elements.iter().zip(steps.mean).zip(values.chunks_exact_mut(tokens)) {
        let row = &mut row[first..first + valid];
        row[..masked].fill(0);
        for (out, x) in row.iter_mut().zip(&lanes.0).skip(masked) {
            let x = (x - mean) * steps.inverse;
            within &= x.abs() <= QUANTISED_MAX as f32;
            *out = x.round_ties_even() as i32;
        }
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
