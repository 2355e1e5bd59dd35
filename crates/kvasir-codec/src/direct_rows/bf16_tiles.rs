//! Rows in bf16: reconstruct, scale, rotate and round with tokens as lanes, then transpose the rounded
//! values, which have half the width.
//!
//! The numbers are those of the f32 rows, rounded to nearest even with denormals kept: the same operations in
//! the same order, on other lanes.

use std::ops::{Deref, DerefMut};

use half::bf16;
use kvasir_types::{Pairing, Rope};

use super::{QuantisedRows, Scaling, TILE};
use crate::{arch::RowKernel, rans::Cell, rope::sin_cos};

/// One value of [`TILE`] tokens, in separate cache lines: a register that crosses two costs twice.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C, align(64))]
pub(crate) struct Lane<T>(pub(crate) [T; TILE]);

impl<T> Deref for Lane<T> {
    type Target = [T; TILE];

    #[inline(always)]
    fn deref(&self) -> &[T; TILE] {
        &self.0
    }
}

impl<T> DerefMut for Lane<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T; TILE] {
        &mut self.0
    }
}

/// `count` values that begin a cache line; old ones stay.
pub(crate) fn aligned<T: Copy + Default>(buffer: &mut Vec<T>, count: usize) -> &mut [T] {
    const LINE: usize = 64;
    let spare = LINE / size_of::<T>();
    buffer.resize((count + spare).max(buffer.len()), T::default());
    // at most one line for types whose size divides it
    let start = buffer.as_ptr().align_offset(LINE).min(spare);
    &mut buffer[start..start + count]
}

/// Sines and cosines of a rope with tokens side by side, shared by all heads of a span that use it.
#[derive(Debug, Clone)]
pub(crate) struct RotationTable {
    pairing: Pairing,
    offset: usize,
    pairs: usize,
    factor: f32,
    /// `[tile of tokens][pair]` of sines and cosines.
    table: Vec<[Lane<f32>; 2]>,
}

impl RotationTable {
    /// The sines and cosines of `rope` at `tokens` positions from `first` on, modulo 2^64.
    pub(crate) fn new(rope: &Rope, first: u64, tokens: usize) -> Self {
        RowKernel::best().rotation_table(rope, first, tokens)
    }

    /// As [`new`](Self::new): plain loops, to be compiled for the CPU's features.
    #[inline(always)]
    pub(crate) fn portable(rope: &Rope, first: u64, tokens: usize) -> Self {
        let pairs = rope.freqs.len();
        let mut table = vec![[Lane::default(); 2]; tokens.div_ceil(TILE) * pairs];
        for (tile, table) in table.chunks_exact_mut(pairs.max(1)).enumerate() {
            let position = first.wrapping_add((tile * TILE) as u64);
            for ([sines, cosines], freq) in table.iter_mut().zip(&rope.freqs) {
                let begin = position.wrapping_mul(*freq);
                for lane in 0..TILE {
                    let phase = begin.wrapping_add((lane as u64).wrapping_mul(*freq));
                    (sines.0[lane], cosines.0[lane]) = sin_cos((phase >> 32) as u32);
                }
            }
        }
        let (offset, factor) = (rope.offset as usize, rope.attention_factor);
        Self { pairing: rope.pairing, offset, pairs, factor, table }
    }

    /// Rotates a tile's elements.
    #[inline(always)]
    pub(crate) fn rotate(&self, tile: usize, elements: &mut [Lane<f32>]) {
        let rotation = self.of_tile(tile);
        for (pair, [sin, cos]) in rotation.iter().enumerate() {
            let (a, b) = self.pair(pair);
            let (x, y) = (elements[a], elements[b]);
            let (mut rotated_x, mut rotated_y) = ([0.0; TILE], [0.0; TILE]);
            for lane in 0..TILE {
                rotated_x[lane] = (x[lane] * cos[lane] - y[lane] * sin[lane]) * self.factor;
            }
            for lane in 0..TILE {
                rotated_y[lane] = (y[lane] * cos[lane] + x[lane] * sin[lane]) * self.factor;
            }
            (elements[a], elements[b]) = (Lane(rotated_x), Lane(rotated_y));
        }
    }
}

impl RotationTable {
    /// The inverse of the rotation, up to f32 rounding.
    #[inline(always)]
    pub(super) fn unrotate(&self, tile: usize, elements: &mut [Lane<f32>]) {
        let inverse = 1.0 / self.factor;
        let rotation = self.of_tile(tile);
        for (pair, [sin, cos]) in rotation.iter().enumerate() {
            let (a, b) = self.pair(pair);
            let (x, y) = (elements[a], elements[b]);
            let (mut rotated_x, mut rotated_y) = ([0.0; TILE], [0.0; TILE]);
            for lane in 0..TILE {
                rotated_x[lane] = (x[lane] * cos[lane] + y[lane] * sin[lane]) * inverse;
            }
            for lane in 0..TILE {
                rotated_y[lane] = (y[lane] * cos[lane] - x[lane] * sin[lane]) * inverse;
            }
            (elements[a], elements[b]) = (Lane(rotated_x), Lane(rotated_y));
        }
    }

    /// How elements are paired.
    pub(crate) fn pairing(&self) -> Pairing {
        self.pairing
    }

    /// The first element that is rotated.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// Pairs that are rotated.
    pub(crate) fn pairs(&self) -> usize {
        self.pairs
    }

    /// The factor of the rotation.
    pub(crate) fn factor(&self) -> f32 {
        self.factor
    }

    /// Sines and cosines of the pairs in a tile.
    #[inline(always)]
    pub(crate) fn of_tile(&self, tile: usize) -> &[[Lane<f32>; 2]] {
        &self.table[tile * self.pairs..(tile + 1) * self.pairs]
    }

    /// Both elements of a pair.
    #[inline(always)]
    pub(crate) fn pair(&self, pair: usize) -> (usize, usize) {
        match self.pairing {
            Pairing::Half => (self.offset + pair, self.offset + pair + self.pairs),
            Pairing::Interleaved => (self.offset + 2 * pair, self.offset + 2 * pair + 1),
        }
    }
}

/// The destination of rows `[token][element]`.
pub(crate) struct RowsMut<'a, T> {
    pub(crate) rows: &'a mut [T],
    /// Whether stores may bypass the cache, because no reader needs the rows soon. A store that must first
    /// fetch its line, only to overwrite all of it, costs as much as making the values.
    pub(crate) past_cache: bool,
}

/// The destination of bf16 rows.
pub(crate) type Bf16Rows<'a> = RowsMut<'a, bf16>;

/// A kernel's scratch memory, kept from head to head.
#[derive(Debug, Default)]
pub(crate) struct RowScratch {
    pub(crate) elements: Vec<Lane<f32>>,
    /// Two neighbouring elements in a word, the first in the low half.
    pub(crate) pairs: Vec<Lane<u32>>,
    /// The amount subtracted from the magnitude of every element.
    pub(crate) offs: Vec<f32>,
    /// Numbers of every element's frequent values.
    pub(crate) tables: Vec<Lane<u32>>,
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
fn reconstruct_tile<V: Cell>(
    scaling: &Scaling<'_>,
    QuantisedRows { values, stride, tokens }: QuantisedRows<'_, V>,
    first: usize,
    elements: &mut [Lane<f32>],
) {
    let (ratio, gain) = (scaling.ratio(), scaling.gain);
    let count = TILE.min(tokens - first);
    let rows = values.chunks_exact(stride);
    for (element, (out, row)) in elements.iter_mut().zip(rows).enumerate() {
        let mean = scaling.mean[element];
        let towards_zero = scaling.towards_zero(element);
        let mut q = [V::default(); TILE];
        q[..count].copy_from_slice(&row[first..first + count]);
        for (lane, q) in out.0.iter_mut().zip(q) {
            *lane = q.finest(ratio, towards_zero) as f32 * gain + mean;
        }
    }
}

impl RowScratch {
    /// The amount subtracted from the magnitude of every element, and words of pairs.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn prepared(
        &mut self,
        scaling: &Scaling<'_>,
    ) -> (&[f32], &mut [Lane<u32>], &mut Vec<Lane<u32>>) {
        let count = scaling.elements();
        self.offs.clear();
        self.offs.extend((0..count).map(|element| scaling.towards_zero(element) as f32));
        self.pairs.resize(count.div_ceil(2), Lane::default());
        (&self.offs, &mut self.pairs, &mut self.tables)
    }

    /// Room for heads of `count` elements.
    pub(crate) fn of(&mut self, count: usize) -> (&mut [Lane<f32>], &mut [Lane<u32>]) {
        self.elements.resize(count, Lane::default());
        self.pairs.resize(count.div_ceil(2), Lane::default());
        (&mut self.elements, &mut self.pairs)
    }
}

/// Rows of one tile, whole or not: the reference, and the path for the last tokens of other kernels.
pub(crate) fn bf16_tile<V: Cell>(
    scaling: &Scaling<'_>,
    rotation: Option<&RotationTable>,
    (values, tile): (QuantisedRows<'_, V>, usize),
    rows: &mut [bf16],
    scratch: &mut RowScratch,
) {
    let count = scaling.elements();
    let (elements, pairs) = scratch.of(count);
    reconstruct_tile(scaling, values, tile * TILE, elements);
    if let Some(rotation) = rotation {
        rotation.rotate(tile, elements);
    }
    round_pairs(elements, pairs);
    transpose_portable(pairs, 0, count, rows);
}

/// Words of two neighbouring elements, rounded.
#[inline(always)]
pub(crate) fn round_pairs(elements: &[Lane<f32>], pairs: &mut [Lane<u32>]) {
    for (pair, elements) in pairs.iter_mut().zip(elements.chunks(2)) {
        let (low, high) = (&elements[0], elements.get(1).copied().unwrap_or_default());
        for lane in 0..TILE {
            pair[lane] = rounded(low[lane]) | rounded(high[lane]) << 16;
        }
    }
}

/// Rows of the tile's tokens from words `from..`, one at a time.
pub(crate) fn transpose_portable(pairs: &[Lane<u32>], from: usize, elements: usize, rows: &mut [bf16]) {
    for (token, row) in rows.chunks_exact_mut(elements).enumerate() {
        let (twos, last) = row[2 * from..].as_chunks_mut();
        for (pair, out) in pairs[from..].iter().zip(&mut *twos) {
            let word = pair[token];
            *out = [bf16::from_bits(word as u16), bf16::from_bits((word >> 16) as u16)];
        }
        if let ([last], Some(pair)) = (last, pairs.get(from + twos.len())) {
            *last = bf16::from_bits(pair[token] as u16);
        }
    }
}
