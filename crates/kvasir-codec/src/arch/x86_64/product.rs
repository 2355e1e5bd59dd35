//! Rows of a scope with a basis, with tokens as lanes, over registers of either width: the sums of a panel stay in
//! registers while coefficients pass by.
#![allow(clippy::needless_range_loop, reason = "indices of several arrays, unrolled")]
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "register operations share one proof: the CPU feature"
)]

use std::arch::x86_64::_mm_sfence;

use super::registers::Registers;
use crate::{
    direct_rows::{
        TILE,
        bf16_tiles::{Bf16Rows, Lane, RowScratch, round_pairs},
    },
    synthesis::{MemberSynthesis, MemberTile, PANEL, TileList, TileRows, rows_of_lanes},
};

/// Coefficients whose values of a tile stay in the nearest cache from panel to panel.
const BLOCK: usize = 256;

/// A member's rows of one tile.
///
/// # Safety
/// As [`Registers`].
#[inline(always)]
pub(super) unsafe fn member_tile<R: Registers>(
    tile: &MemberTile<'_>,
    rows: TileRows<'_>,
    scratch: &mut RowScratch,
) {
    let count = tile.mean.len();
    let (elements, words) = scratch.of(count.next_multiple_of(PANEL));
    match tile.synthesis {
        MemberSynthesis::Identity { start } => {
            tile.coefficients.singles.copy_to(start, &mut elements[..count]);
        }
        // SAFETY: the caller's promise.
        MemberSynthesis::Pairs { words, units } => unsafe {
            pair_sums::<R>(tile.coefficients.pairs, (words, units), elements);
        },
        // SAFETY: the caller's promise.
        MemberSynthesis::Floats(panels) => unsafe { sums::<R>(tile.coefficients.singles, panels, elements) },
    }
    tile.finish(&mut elements[..count]);
    match rows {
        TileRows::Full(rows) => rows_of_lanes(&elements[..count], rows),
        TileRows::Half(Bf16Rows { rows, past_cache }) => {
            round_pairs(&elements[..count], words);
            let words = &words[..count.div_ceil(2)];
            // SAFETY: the caller's promise. No other instruction orders stores past the cache, but any reader of the
            // rows must see them.
            unsafe {
                if past_cache {
                    R::transpose::<true>(words, count, rows);
                    _mm_sfence();
                } else {
                    R::transpose::<false>(words, count, rows);
                }
            }
        }
    }
}

/// The elements of all panels.
///
/// # Safety
/// As [`Registers`].
#[inline(always)]
unsafe fn sums<R: Registers>(of: TileList<'_, f32>, panels: &[f32], elements: &mut [Lane<f32>]) {
    let stride = of.room * PANEL;
    let count = elements.len() / PANEL;
    assert!(of.fits(panels, elements.len()), "panels of every element");
    elements.fill(Lane::default());
    for (columns, values) in of.rows.chunks(BLOCK).zip(of.values.chunks(BLOCK)) {
        let mut panel = 0;
        while panel < count {
            let (from, to) = (panels[panel * stride..].as_ptr(), &mut elements[panel * PANEL..]);
            let two = R::LANES == TILE && panel + 2 <= count;
            // SAFETY: the caller's promise; as many panels and elements are left, columns are below the rank.
            unsafe {
                if R::LANES < TILE {
                    add::<R, 2, 1>((columns, values), (from, stride), to);
                } else if two {
                    add::<R, 1, 2>((columns, values), (from, stride), to);
                } else {
                    add::<R, 1, 1>((columns, values), (from, stride), to);
                }
            }
            panel += if two { 2 } else { 1 };
        }
    }
}

/// Adds the products of some coefficients to the elements of `PANELS` panels that lie `stride` apart, of which each
/// has `TILE` tokens in `REGISTERS` registers.
///
/// # Safety
/// As [`Registers`], `REGISTERS · R::LANES = TILE`; there are as many panels with every column, as many elements, and
/// values of every column.
#[inline(always)]
unsafe fn add<R: Registers, const REGISTERS: usize, const PANELS: usize>(
    (columns, values): (&[u32], &[Lane<f32>]),
    (panels, stride): (*const f32, usize),
    elements: &mut [Lane<f32>],
) {
    debug_assert!(REGISTERS * R::LANES == TILE && elements.len() >= PANELS * PANEL);
    let elements = elements.as_mut_ptr().cast::<f32>();
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[[R::splat(0.0); REGISTERS]; PANEL]; PANELS];
        for panel in 0..PANELS {
            for element in 0..PANEL {
                for register in 0..REGISTERS {
                    let at = (panel * PANEL + element) * TILE + register * R::LANES;
                    sums[panel][element][register] = R::load(elements.add(at));
                }
            }
        }
        let mut values = values.as_ptr().cast::<f32>();
        for column in columns {
            let row = panels.add(*column as usize * PANEL);
            let mut value = [R::splat(0.0); REGISTERS];
            for register in 0..REGISTERS {
                value[register] = R::load(values.add(register * R::LANES));
            }
            for panel in 0..PANELS {
                for element in 0..PANEL {
                    let x = R::splat(*row.add(panel * stride + element));
                    for register in 0..REGISTERS {
                        sums[panel][element][register] =
                            R::fused(x, value[register], sums[panel][element][register]);
                    }
                }
            }
            values = values.add(TILE);
        }
        for panel in 0..PANELS {
            for element in 0..PANEL {
                for register in 0..REGISTERS {
                    let at = (panel * PANEL + element) * TILE + register * R::LANES;
                    R::store(elements.add(at), sums[panel][element][register]);
                }
            }
        }
    }
}

/// The elements of all panels of words.
///
/// # Safety
/// As [`Registers`].
#[inline(always)]
pub(super) unsafe fn pair_sums<R: Registers>(
    of: TileList<'_, u32>,
    (panels, units): (&[i32], &[f32]),
    elements: &mut [Lane<f32>],
) {
    let stride = of.room * PANEL;
    let count = elements.len() / PANEL;
    assert!(of.fits(panels, elements.len()), "panels of every element");
    let mut panel = 0;
    while panel < count {
        let from = panels[panel * stride..].as_ptr();
        let (to, units) = (&mut elements[panel * PANEL..], &units[panel * PANEL..]);
        let two = R::LANES == TILE && panel + 2 <= count;
        // SAFETY: the caller's promise; as many panels and elements are left, rows are below the room.
        unsafe {
            if R::LANES < TILE {
                pair_panels::<R, 2, 1>((of.rows, of.values), (from, stride), units, to);
            } else if two {
                pair_panels::<R, 1, 2>((of.rows, of.values), (from, stride), units, to);
            } else {
                pair_panels::<R, 1, 1>((of.rows, of.values), (from, stride), units, to);
            }
        }
        panel += if two { 2 } else { 1 };
    }
}

/// As [`add`], of words of two coefficients; the elements are replaced. Elements without a unit are filling.
///
/// # Safety
/// As [`add`].
#[inline(always)]
unsafe fn pair_panels<R: Registers, const REGISTERS: usize, const PANELS: usize>(
    (rows, values): (&[u32], &[Lane<u32>]),
    (panels, stride): (*const i32, usize),
    units: &[f32],
    elements: &mut [Lane<f32>],
) {
    debug_assert!(REGISTERS * R::LANES == TILE && elements.len() >= PANELS * PANEL);
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[[R::nought(); REGISTERS]; PANEL]; PANELS];
        let mut values = values.as_ptr().cast::<i32>();
        for row in rows {
            let row = panels.add(*row as usize * PANEL);
            let mut value = [R::nought(); REGISTERS];
            for register in 0..REGISTERS {
                value[register] = R::load_i(values.add(register * R::LANES));
            }
            for panel in 0..PANELS {
                for element in 0..PANEL {
                    let x = R::splat_i(*row.add(panel * stride + element));
                    for register in 0..REGISTERS {
                        sums[panel][element][register] =
                            R::add_products(sums[panel][element][register], x, value[register]);
                    }
                }
            }
            values = values.add(TILE);
        }
        for panel in 0..PANELS {
            for element in 0..PANEL {
                let unit = R::splat(units.get(panel * PANEL + element).copied().unwrap_or(0.0));
                for register in 0..REGISTERS {
                    let at = (panel * PANEL + element) * TILE + register * R::LANES;
                    let sum = R::mul(R::to_float(sums[panel][element][register]), unit);
                    R::store(elements.as_mut_ptr().cast::<f32>().add(at), sum);
                }
            }
        }
    }
}
