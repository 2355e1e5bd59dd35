//! Rows of direct scopes, tokens as lanes, over registers of either width. Written with plain loops and no closures: a closure
//! with a target feature is not inlined into what calls it, and iterators over arrays were left scalar.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "register operations share one proof: the CPU feature"
)]

use super::registers::Registers;
use crate::{
    limits::QUANTISED_MAX,
    rows::{
        Scaling, TILE,
        fine::Steps,
        half::{Lane, Turns},
    },
};

/// Lanes of whole tokens from quantised values: `elements[e]` = steps × gain + mean, turned.
///
/// # Safety
/// As [`Registers`]; `first + 16 ≤ tokens`, `values` hold `elements.len() × tokens`, `elements.len()` is `scaling.elements()`.
#[inline(always)]
pub(super) unsafe fn reconstruct<R: Registers>(
    scaling: &Scaling<'_>,
    (tokens, first): (usize, usize),
    values: &[i32],
    elements: &mut [Lane<f32>],
    shifted: bool,
) {
    debug_assert!(first + TILE <= tokens && values.len() == elements.len() * tokens);
    // SAFETY: register operations; every pointer is within the slices by the caller's promise.
    unsafe {
        let (ratio, gain) = (R::splat_i(scaling.ratio()), R::splat(scaling.gain));
        for (element, lanes) in elements.iter_mut().enumerate() {
            let mean = R::splat(scaling.mean[element]);
            let off = R::splat_i(if shifted { scaling.towards_zero(element) } else { 0 });
            let (from, to) = (values.as_ptr().add(element * tokens + first), lanes.as_mut_ptr());
            let mut at = 0;
            while at < TILE {
                let q = R::load_i(from.add(at));
                let mut steps = R::mul_i(q, ratio);
                if shifted {
                    steps = R::sub_i(steps, R::with_sign(off, q));
                }
                R::store(to.add(at), R::add(R::mul(R::to_float(steps), gain), mean));
                at += R::LANES;
            }
        }
    }
}

/// Rotates the pairs of a tile, back where `BACK`.
///
/// # Safety
/// As [`Registers`].
#[inline(always)]
pub(super) unsafe fn turn<R: Registers, const BACK: bool>(
    turns: &Turns,
    tile: usize,
    elements: &mut [Lane<f32>],
) {
    let factor = if BACK { 1.0 / turns.factor() } else { turns.factor() };
    for (pair, [sin, cos]) in turns.of_tile(tile).iter().enumerate() {
        let (a, b) = turns.pair(pair);
        let mut at = 0;
        while at < TILE {
            let (from_a, from_b) = (elements[a][at..].as_mut_ptr(), elements[b][at..].as_mut_ptr());
            // SAFETY: `LANES` divides 16, so a register from `at` lies within each array of 16.
            unsafe {
                let (x, y) = (R::load(from_a), R::load(from_b));
                let (s, c) = (R::load(sin[at..].as_ptr()), R::load(cos[at..].as_ptr()));
                let factor = R::splat(factor);
                let (xc, ys, yc, xs) = (R::mul(x, c), R::mul(y, s), R::mul(y, c), R::mul(x, s));
                let (first, second) =
                    if BACK { (R::add(xc, ys), R::sub(yc, xs)) } else { (R::sub(xc, ys), R::add(yc, xs)) };
                R::store(from_a, R::mul(first, factor));
                R::store(from_b, R::mul(second, factor));
            }
            at += R::LANES;
        }
    }
}

/// Rounds to bf16 and puts neighbours into words, the first in the low half.
///
/// # Safety
/// As [`Registers`].
#[inline(always)]
pub(super) unsafe fn pack<R: Registers>(elements: &[Lane<f32>], pairs: &mut [Lane<u32>]) {
    for (index, words) in pairs.iter_mut().enumerate() {
        let (low, high) = (&elements[2 * index], elements.get(2 * index + 1));
        let mut at = 0;
        while at < TILE {
            // SAFETY: as in `turn`.
            unsafe {
                let mut word = rounded::<R>(R::load(low[at..].as_ptr()));
                if let Some(high) = high {
                    word = R::or_i(word, R::shl16(rounded::<R>(R::load(high[at..].as_ptr()))));
                }
                R::store_i(words[at..].as_mut_ptr().cast(), word);
            }
            at += R::LANES;
        }
    }
}

/// Bits of a bf16 in the low half: nearest, ties to even, NaN quiet.
///
/// # Safety
/// As [`Registers`].
#[inline(always)]
unsafe fn rounded<R: Registers>(x: R::Float) -> R::Int {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = R::bits(x);
        let upper = R::shr16(bits);
        let odd = R::and_i(upper, R::splat_i(1));
        let nearest = R::shr16(R::add_i(bits, R::add_i(odd, R::splat_i(0x7fff))));
        R::where_nan(x, R::or_i(upper, R::splat_i(0x40)), nearest)
    }
}

/// Centres, scales and rounds a tile of lanes into `values`; `false` where one is out of range.
///
/// # Safety
/// As [`Registers`]; `first + 16 ≤ tokens`, `values` hold `elements.len() × tokens`.
#[inline(always)]
pub(super) unsafe fn quantise<R: Registers>(
    steps: &Steps<'_>,
    (tokens, first): (usize, usize),
    elements: &[Lane<f32>],
    values: &mut [i32],
) -> bool {
    debug_assert!(first + TILE <= tokens && values.len() == elements.len() * tokens);
    let mut within = true;
    // SAFETY: register operations; every pointer is within the slices by the caller's promise.
    unsafe {
        let inverse = R::splat(steps.inverse);
        let most = R::splat(QUANTISED_MAX as f32);
        for (element, lanes) in elements.iter().enumerate() {
            let mean = R::splat(steps.mean[element]);
            let (from, to) = (lanes.as_ptr(), values.as_mut_ptr().add(element * tokens + first));
            let mut at = 0;
            while at < TILE {
                let x = R::mul(R::sub(R::load(from.add(at)), mean), inverse);
                within &= R::all_within(x, most);
                R::store_i(to.add(at), R::round(x));
                at += R::LANES;
            }
        }
    }
    within
}
