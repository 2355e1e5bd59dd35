//! Coefficients of a span by tiles of tokens, without those that a tile does not have.

use super::{MemberSynthesis, PANEL, Synthesis};
use crate::{
    direct_rows::{TILE, bf16_tiles::Lane},
    profile::Scope,
};

/// The coefficients of a span that are not zero in all of a tile's tokens.
#[derive(Debug, Default)]
pub(crate) struct CoefficientTiles {
    singles: TileLists<f32>,
    /// Of the tiles that `fits` names.
    pairs: TileLists<u32>,
    fits: Vec<bool>,
}

/// Of every tile, some rows of its tokens.
#[derive(Debug, Default)]
pub(crate) struct TileLists<T> {
    room: usize,
    counts: Vec<usize>,
    /// `[tile][row that it has]`, room for all.
    rows: Vec<u32>,
    values: Vec<Lane<T>>,
}

impl<T: Copy + Default> TileLists<T> {
    /// Room for `room` rows of every tile, none held.
    pub(crate) fn reset(&mut self, room: usize, tiles: usize) {
        self.room = room;
        self.counts.clear();
        self.counts.resize(tiles, 0);
        self.rows.resize(self.rows.len().max(tiles * room), 0);
        self.values.resize(self.values.len().max(tiles * room), Lane::default());
    }

    /// Adds a row to a tile. Rows ascend.
    pub(crate) fn push(&mut self, tile: usize, row: u32, values: [T; TILE]) {
        debug_assert!((row as usize) < self.room && self.counts[tile] < self.room, "one of the rows, once");
        let at = tile * self.room + self.counts[tile];
        self.rows[at] = row;
        self.values[at] = Lane(values);
        self.counts[tile] += 1;
    }

    /// Those of a tile.
    pub(crate) fn of(&self, tile: usize) -> TileList<'_, T> {
        let held = tile * self.room..tile * self.room + self.counts[tile];
        TileList { room: self.room, rows: &self.rows[held.clone()], values: &self.values[held] }
    }
}

impl CoefficientTiles {
    /// Forgets what it held.
    pub(crate) fn reset(&mut self, rank: usize, tokens: usize) {
        let tiles = tokens.div_ceil(TILE);
        self.singles.reset(rank, tiles);
        self.pairs.reset(rank.div_ceil(2), tiles);
        self.fits.clear();
        self.fits.resize(tiles, false);
    }

    /// Adds the next coefficient's values of all tokens. Coefficients ascend, and each comes once.
    pub(crate) fn push(&mut self, coefficient: usize, row: &[f32]) {
        let (whole, rest) = row.as_chunks();
        let mut last = [0.0; TILE];
        last[..rest.len()].copy_from_slice(rest);
        let last = (!rest.is_empty()).then_some(&last);
        for (tile, values) in whole.iter().chain(last).enumerate() {
            if values.iter().any(|x| *x != 0.0) {
                self.singles.push(tile, coefficient as u32, *values);
            }
        }
    }

    /// Makes pairs in 16 bits of a tile's coefficients, which are whole numbers, if no token's squares sum up to more
    /// than `most`.
    pub(crate) fn pair(&mut self, tile: usize, most: f32) {
        let list = self.singles.of(tile);
        let mut squares = [0f32; TILE];
        for values in list.values {
            squares.iter_mut().zip(values.0).for_each(|(sum, x)| *sum += x * x);
        }
        self.fits[tile] = squares.iter().all(|sum| *sum <= most);
        if !self.fits[tile] {
            return;
        }
        let both = |x: f32, y: f32| (x as i32 as u32 & 0xffff) | (y as i32 as u32) << 16;
        let mut rows = list.rows.iter().zip(list.values).peekable();
        while let Some((row, values)) = rows.next() {
            let pair = row / 2;
            let zeros = Lane::default();
            let (low, high) = match rows.next_if(|(next, _)| **next / 2 == pair) {
                Some((_, next)) => (values, next),
                None if row % 2 == 0 => (values, &zeros),
                None => (&zeros, values),
            };
            let mut words = [0; TILE];
            for (lane, word) in words.iter_mut().enumerate() {
                *word = both(low[lane], high[lane]);
            }
            self.pairs.push(tile, pair, words);
        }
    }

    /// Those of a tile.
    pub(crate) fn tile(&self, tile: usize) -> TileCoefficients<'_> {
        TileCoefficients { singles: self.singles.of(tile), pairs: self.pairs.of(tile), fits: self.fits[tile] }
    }
}

/// Coefficients that a tile of tokens has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TileCoefficients<'a> {
    pub(crate) singles: TileList<'a, f32>,
    pub(crate) pairs: TileList<'a, u32>,
    fits: bool,
}

/// Rows that a tile of tokens has, ascending.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TileList<'a, T> {
    /// Rows that there are.
    pub(crate) room: usize,
    pub(crate) rows: &'a [u32],
    /// Of each of them.
    pub(crate) values: &'a [Lane<T>],
}

impl<T> TileList<'_, T> {
    /// Whether there are panels for `elements` elements, with every row, and values of every row.
    #[inline(always)]
    pub(crate) fn fits<P>(&self, panels: &[P], elements: usize) -> bool {
        panels.len() == elements / PANEL * self.room * PANEL
            && self.values.len() == self.rows.len()
            && self.rows.iter().all(|row| (*row as usize) < self.room)
    }
}

impl TileCoefficients<'_> {
    /// A member's part of a basis for this tile.
    pub(crate) fn synthesis<'a>(
        &self,
        synthesis: &'a Synthesis,
        scope: &Scope,
        (member, start): (usize, usize),
    ) -> MemberSynthesis<'a> {
        match synthesis {
            Synthesis::Identity => MemberSynthesis::Identity { start },
            Synthesis::Trained(panels) => panels.member(member, scope, self.fits),
        }
    }
}

impl TileList<'_, f32> {
    /// A member's elements: sums over panels.
    pub(super) fn sums_portable(&self, panels: &[f32], elements: &mut [Lane<f32>]) {
        for (elements, panel) in elements.chunks_exact_mut(PANEL).zip(panels.chunks_exact(self.room * PANEL))
        {
            let mut sums = [[0.0; TILE]; PANEL];
            for (column, values) in self.rows.iter().zip(self.values) {
                let row = &panel[*column as usize * PANEL..][..PANEL];
                for (sums, x) in sums.iter_mut().zip(row) {
                    sums.iter_mut().zip(values.0).for_each(|(sum, value)| *sum = fused(*x, value, *sum));
                }
            }
            elements.iter_mut().zip(sums).for_each(|(element, sums)| element.0 = sums);
        }
    }

    /// A member's elements where they are coefficients.
    pub(crate) fn copy_to(&self, start: usize, elements: &mut [Lane<f32>]) {
        elements.fill(Lane::default());
        let from = self.rows.partition_point(|row| (*row as usize) < start);
        for (row, values) in self.rows[from..].iter().zip(&self.values[from..]) {
            let Some(element) = elements.get_mut(*row as usize - start) else { break };
            *element = *values;
        }
    }
}

impl TileList<'_, u32> {
    /// Elements: sums over panels of words, times their units.
    pub(crate) fn sums_portable(&self, (panels, units): (&[i32], &[f32]), elements: &mut [Lane<f32>]) {
        let panels = panels.chunks_exact(self.room * PANEL);
        let units = units.chunks(PANEL);
        for ((elements, panel), units) in elements.chunks_exact_mut(PANEL).zip(panels).zip(units) {
            let mut sums = [[0i32; TILE]; PANEL];
            for (pair, values) in self.rows.iter().zip(self.values) {
                let row = &panel[*pair as usize * PANEL..][..PANEL];
                for (sums, x) in sums.iter_mut().zip(row) {
                    let (low, high) = (i32::from(*x as i16), x >> 16);
                    for (sum, value) in sums.iter_mut().zip(values.0) {
                        let products = low * i32::from(value as i16) + high * (value.cast_signed() >> 16);
                        *sum = sum.wrapping_add(products);
                    }
                }
            }
            for ((element, sums), unit) in elements.iter_mut().zip(sums).zip(units) {
                element.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum as f32 * unit);
            }
        }
    }
}

/// `a · b + c`, rounded once where that is one instruction.
#[inline(always)]
fn fused(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(target_arch = "aarch64") { a.mul_add(b, c) } else { a * b + c }
}
