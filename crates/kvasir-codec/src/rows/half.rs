//! Rows in bf16: reconstruct, scale, rotate and round while tokens are the lanes, then transpose what is half as wide.
//!
//! The numbers are those of the f32 rows, rounded to nearest even with denormals kept: the same operations in the same
//! order, on other lanes.

use half::bf16;
use kvasir_types::{Pairing, Rope};

use super::{Scaling, TILE};
use crate::rope::sin_cos;

/// One value of [`TILE`] tokens.
pub(crate) type Lane<T> = [T; TILE];

/// Sines and cosines of a rope with tokens side by side, shared by all heads of a span that use it.
#[derive(Debug, Clone)]
pub(crate) struct Turns {
    pairing: Pairing,
    offset: usize,
    pairs: usize,
    factor: f32,
    /// `[tile of tokens][pair]` of sines and cosines.
    table: Vec<[Lane<f32>; 2]>,
}

impl Turns {
    /// The turns of `rope` at `tokens` positions from `first` on, modulo 2^64.
    pub(crate) fn new(rope: &Rope, first: u64, tokens: usize) -> Self {
        let tile = |tile: usize| {
            rope.freqs.iter().map(move |freq| {
                let mut turn = [[0.0; TILE]; 2];
                for lane in 0..TILE {
                    let position = first.wrapping_add((tile * TILE + lane) as u64);
                    let (sin, cos) = sin_cos((position.wrapping_mul(*freq) >> 32) as u32);
                    (turn[0][lane], turn[1][lane]) = (sin, cos);
                }
                turn
            })
        };
        Self {
            pairing: rope.pairing,
            offset: rope.offset as usize,
            pairs: rope.freqs.len(),
            factor: rope.attention_factor,
            table: (0..tokens.div_ceil(TILE)).flat_map(tile).collect(),
        }
    }

    #[inline(always)]
    fn rotate(&self, tile: usize, elements: &mut [Lane<f32>]) {
        let turns = &self.table[tile * self.pairs..(tile + 1) * self.pairs];
        for (pair, [sin, cos]) in turns.iter().enumerate() {
            let (a, b) = self.pair(pair);
            let (x, y) = (elements[a], elements[b]);
            let (mut turned_x, mut turned_y) = ([0.0; TILE], [0.0; TILE]);
            for lane in 0..TILE {
                turned_x[lane] = (x[lane] * cos[lane] - y[lane] * sin[lane]) * self.factor;
            }
            for lane in 0..TILE {
                turned_y[lane] = (y[lane] * cos[lane] + x[lane] * sin[lane]) * self.factor;
            }
            (elements[a], elements[b]) = (turned_x, turned_y);
        }
    }
}

impl Turns {
    /// The inverse of the rotation, up to f32 rounding.
    #[inline(always)]
    pub(super) fn unrotate(&self, tile: usize, elements: &mut [Lane<f32>]) {
        let inverse = 1.0 / self.factor;
        let turns = &self.table[tile * self.pairs..(tile + 1) * self.pairs];
        for (pair, [sin, cos]) in turns.iter().enumerate() {
            let (a, b) = self.pair(pair);
            let (x, y) = (elements[a], elements[b]);
            let (mut turned_x, mut turned_y) = ([0.0; TILE], [0.0; TILE]);
            for lane in 0..TILE {
                turned_x[lane] = (x[lane] * cos[lane] + y[lane] * sin[lane]) * inverse;
            }
            for lane in 0..TILE {
                turned_y[lane] = (y[lane] * cos[lane] - x[lane] * sin[lane]) * inverse;
            }
            (elements[a], elements[b]) = (turned_x, turned_y);
        }
    }

    /// Both elements of a pair.
    #[inline(always)]
    fn pair(&self, pair: usize) -> (usize, usize) {
        match self.pairing {
            Pairing::Half => (self.offset + pair, self.offset + pair + self.pairs),
            Pairing::Interleaved => (self.offset + 2 * pair, self.offset + 2 * pair + 1),
        }
    }
}

/// What a kernel works in, kept from head to head.
#[derive(Debug, Default)]
pub(crate) struct RowScratch {
    pub(super) elements: Vec<Lane<f32>>,
    /// Two neighbouring elements in a word, the first in the low half.
    pairs: Vec<Lane<u32>>,
}

/// Bits of a bf16, in the low half.
#[inline(always)]
fn rounded(x: f32) -> u32 {
    let bits = x.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let quiet = bits >> 16 | 0x40;
    if bits & 0x7fff_ffff > 0x7f80_0000 { quiet } else { nearest }
}

/// The elements of one tile of tokens, in lanes.
#[inline(always)]
fn reconstruct_tile<const SHIFTED: bool>(
    scaling: &Scaling<'_>,
    (tokens, first): (usize, usize),
    values: &[i32],
    elements: &mut [Lane<f32>],
) {
    let (ratio, gain) = (scaling.ratio(), scaling.gain);
    let count = TILE.min(tokens - first);
    let rows = values.chunks_exact(tokens);
    for (element, (out, row)) in elements.iter_mut().zip(rows).enumerate() {
        let mean = scaling.mean[element];
        let towards_zero = if SHIFTED { scaling.towards_zero(element) } else { 0 };
        // Arrays by value, one operation a loop: what compilers turn into one instruction each.
        let mut q = [0; TILE];
        match row[first..].first_chunk::<TILE>() {
            Some(tile) => q = *tile,
            None => q[..count].copy_from_slice(&row[first..]),
        }
        let mut steps = q;
        for step in &mut steps {
            *step = step.wrapping_mul(ratio);
        }
        if SHIFTED {
            for (step, q) in steps.iter_mut().zip(&q) {
                let sign = i32::from(*q > 0) - i32::from(*q < 0);
                *step = step.wrapping_sub(sign * towards_zero);
            }
        }
        let mut lanes = [0.0; TILE];
        for (lane, step) in lanes.iter_mut().zip(&steps) {
            *lane = *step as f32;
        }
        for lane in &mut lanes {
            *lane = *lane * gain + mean;
        }
        *out = lanes;
    }
}

/// `rows[token][element]` from `values[element][token]`, with the instruction set of its caller; `transpose` writes the words of a tile,
/// `[word][token]`, as rows of `elements` each.
#[inline(always)]
pub(crate) fn half_rows_with(
    scaling: &Scaling<'_>,
    turns: Option<&Turns>,
    tokens: usize,
    values: &[i32],
    rows: &mut [bf16],
    scratch: &mut RowScratch,
    mut transpose: impl FnMut(&[Lane<u32>], usize, &mut [bf16]),
) {
    let count = scaling.elements();
    scratch.elements.resize(count, [0.0; TILE]);
    scratch.pairs.resize(count.div_ceil(2), [0; TILE]);
    let (elements, pairs) = (&mut scratch.elements[..count], &mut scratch.pairs[..count.div_ceil(2)]);
    let shifted = (0..count).any(|element| scaling.towards_zero(element) != 0);
    for (tile, rows) in rows.chunks_mut(TILE * count).enumerate() {
        match shifted {
            true => reconstruct_tile::<true>(scaling, (tokens, tile * TILE), values, elements),
            false => reconstruct_tile::<false>(scaling, (tokens, tile * TILE), values, elements),
        }
        if let Some(turns) = turns {
            turns.rotate(tile, elements);
        }
        for (pair, elements) in pairs.iter_mut().zip(elements.chunks(2)) {
            let (low, high) = (elements[0], elements.get(1).copied().unwrap_or([0.0; TILE]));
            let mut words = [0; TILE];
            for (word, x) in words.iter_mut().zip(&low) {
                *word = rounded(*x);
            }
            for (word, x) in words.iter_mut().zip(&high) {
                *word |= rounded(*x) << 16;
            }
            *pair = words;
        }
        transpose(pairs, count, rows);
    }
}

/// Rows of the tile's tokens from words `from..`, one at a time.
pub(crate) fn transpose_portable(pairs: &[Lane<u32>], from: usize, elements: usize, rows: &mut [bf16]) {
    for (token, row) in rows.chunks_exact_mut(elements).enumerate() {
        for (pair, out) in pairs[from..].iter().zip(row[2 * from..].chunks_mut(2)) {
            let word = pair[token];
            out[0] = bf16::from_bits(word as u16);
            if let Some(out) = out.get_mut(1) {
                *out = bf16::from_bits((word >> 16) as u16);
            }
        }
    }
}
