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

/// `values[element][token]` from `rows[token][element]`: unrotate, subtract the mean, scale, round to even, in this order and
/// never fused. Says whether all are within [`QUANTISED_MAX`]; `values` are unspecified otherwise. `transpose` turns rows of a tile into lanes; lanes without a token
/// may hold anything finite.
#[inline(always)]
pub(crate) fn steps_with(
    steps: &Steps<'_>,
    turns: Option<&Turns>,
    tokens: usize,
    rows: &[f32],
    values: &mut [i32],
    scratch: &mut RowScratch,
    mut transpose: impl FnMut(&[f32], &mut [Lane<f32>]),
) -> bool {
    let count = steps.mean.len();
    scratch.elements.resize(count, [0.0; TILE]);
    let elements = &mut scratch.elements[..count];
    let mut most = [0f32; TILE];
    for (tile, rows) in rows.chunks(TILE * count).enumerate() {
        let first = tile * TILE;
        let valid = TILE.min(tokens - first);
        if valid < TILE {
            elements.fill([0.0; TILE]);
        }
        transpose(rows, elements);
        if let Some(turns) = turns {
            turns.unrotate(tile, elements);
        }
        for ((lanes, mean), row) in elements.iter_mut().zip(steps.mean).zip(values.chunks_exact_mut(tokens)) {
            let mut x = *lanes;
            for x in &mut x {
                *x = (*x - mean) * steps.inverse;
            }
            if first < steps.masked {
                x[..(steps.masked - first).min(TILE)].fill(0.0);
            }
            if valid < TILE {
                x[valid..].fill(0.0);
            }
            for (most, x) in most.iter_mut().zip(&x) {
                // Greater-or-equal is false for NaN: what is not a number stays the most.
                let magnitude = x.abs();
                *most = if *most >= magnitude { *most } else { magnitude };
            }
            let mut out = [0; TILE];
            for (out, x) in out.iter_mut().zip(&x) {
                *out = x.round_ties_even() as i32;
            }
            match row[first..].first_chunk_mut() {
                Some(row) => *row = out,
                None => row[first..].copy_from_slice(&out[..valid]),
            }
        }
    }
    most.iter().all(|most| *most <= QUANTISED_MAX as f32)
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
