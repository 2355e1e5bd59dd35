//! Rows of direct scopes, with tokens as lanes, over registers of either width. All operations on an element
//! are done in registers, from its quantised values to its half of a word. Written with plain loops and no
//! closures: a closure with a target feature is not inlined into its caller, and iterators over arrays were
//! left scalar.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "register operations share one proof: the CPU feature"
)]

use std::{arch::x86_64::_mm_sfence, ops::Range};

use kvasir_types::Pairing;

use super::{lookup_rows::LookupRows, registers::Registers};
use crate::{
    direct_rows::{
        QuantisedRows, Scaling, TILE,
        bf16_tiles::{Bf16Rows, Lane, RotationTable, RowScratch, bf16_tile},
        quantise_tiles::{QuantiseTarget, QuantiserSteps, quantise_tile},
    },
    rans::{LANES, blocks::Blocks},
};

/// The arrangement of a head's elements in words of two neighbours, and the elements that rotate together.
#[derive(Clone, Copy)]
enum PairLayout<'a> {
    /// None does.
    None,
    /// Both elements of a word.
    Neighbours(&'a RotationTable),
    /// Pairs in words half a rope apart, one by one.
    Halves(&'a RotationTable),
}

impl<'a> PairLayout<'a> {
    /// `None` if pairs begin within words: no known model has such pairs.
    fn of(rotation: Option<&'a RotationTable>, elements: usize) -> Option<Self> {
        let Some(rotation) = rotation else { return elements.is_multiple_of(2).then_some(Self::None) };
        let whole = elements.is_multiple_of(2)
            && rotation.offset().is_multiple_of(2)
            && rotation.offset() + 2 * rotation.pairs() <= elements;
        match rotation.pairing() {
            Pairing::Interleaved if whole => Some(Self::Neighbours(rotation)),
            Pairing::Half if whole && rotation.pairs().is_multiple_of(2) => Some(Self::Halves(rotation)),
            _ => None,
        }
    }

    /// The rope, and the elements that it rotates.
    fn rotated(self) -> Option<(&'a RotationTable, Range<usize>)> {
        match self {
            Self::None => None,
            Self::Neighbours(rotation) | Self::Halves(rotation) => {
                Some((rotation, rotation.offset()..rotation.offset() + 2 * rotation.pairs()))
            }
        }
    }
}

/// bf16 rows of a head, whole tiles in registers, the rest by the portable kernel.
///
/// # Safety
/// As [`Registers`]; `values` hold `stride`, `rows` `tokens` of each of `scaling.elements()`.
#[inline(always)]
pub(super) unsafe fn bf16_rows<R: LookupRows>(
    scaling: &Scaling<'_>,
    rotation: Option<&RotationTable>,
    values: QuantisedRows<'_, i16>,
    Bf16Rows { rows, past_cache }: Bf16Rows<'_>,
    scratch: &mut RowScratch,
) {
    let (count, tokens) = (scaling.elements(), values.tokens);
    debug_assert!(values.values.len() == count * values.stride && rows.len() == count * tokens);
    let layout = PairLayout::of(rotation, count);
    let whole = if layout.is_some() { tokens / TILE } else { 0 };
    let (whole_rows, rest) = rows.split_at_mut(whole * TILE * count);
    let (offs, words, tables) = scratch.prepared(scaling);
    let shifted = offs.iter().any(|off| *off != 0.0);
    let looked_up = match layout {
        // SAFETY: the caller's promise; what rotates are elements.
        Some(_) => unsafe {
            R::lookup_rows((scaling, offs), rotation, values, (whole_rows, past_cache), (tables, words))
        },
        None => 0,
    };
    for (tile, rows) in whole_rows.chunks_exact_mut(TILE * count).enumerate().skip(looked_up / TILE) {
        let (first, layout) = (tile * TILE, layout.unwrap_or(PairLayout::None));
        // SAFETY: the caller's promise; the tile is whole, and values hold every element of it. Here and below.
        unsafe {
            if shifted {
                Tile::<R, true>::new(scaling, offs, values, first).words(layout, tile, words);
            } else {
                Tile::<R, false>::new(scaling, offs, values, first).words(layout, tile, words);
            }
            if past_cache {
                R::transpose::<true>(words, count, rows);
            } else {
                R::transpose::<false>(words, count, rows);
            }
        }
    }
    for (tile, rows) in rest.chunks_mut(TILE * count).enumerate() {
        bf16_tile(scaling, rotation, (values, whole + tile), rows, scratch);
    }
    if past_cache {
        // No other instruction orders such stores, but any reader of the rows, on this core or another, must
        // see them.
        // SAFETY: every x86-64 has SSE.
        unsafe { _mm_sfence() };
    }
}

/// Sixteen tokens of a head's quantised values, and the data to convert them to numbers.
struct Tile<'a, R: Registers, const SHIFTED: bool> {
    scaling: &'a Scaling<'a>,
    /// The amount subtracted from the magnitude of every element.
    offs: &'a [f32],
    /// The first token's value of element 0; the next element's is `stride` further on.
    values: *const i16,
    stride: usize,
    ratio: R::Float,
    gain: R::Float,
}

impl<'a, R: Registers, const SHIFTED: bool> Tile<'a, R, SHIFTED> {
    /// # Safety
    /// As [`Registers`]; `first + 16 ≤ values.tokens`.
    #[inline(always)]
    unsafe fn new(
        scaling: &'a Scaling<'a>,
        offs: &'a [f32],
        values: QuantisedRows<'_, i16>,
        first: usize,
    ) -> Self {
        debug_assert!(first + TILE <= values.tokens && offs.len() == scaling.elements());
        // SAFETY: the caller's promise.
        unsafe {
            let stride = values.stride;
            let values = values.values.as_ptr().add(first);
            let ratio = R::splat(scaling.ratio() as f32);
            Self { scaling, offs, values, stride, ratio, gain: R::splat(scaling.gain) }
        }
    }

    /// Steps × gain + mean of tokens `at..` of an element. Steps are whole numbers below 2^24: exact in floats.
    ///
    /// # Safety
    /// `element < scaling.elements()`, `at + R::LANES ≤ 16`.
    #[inline(always)]
    unsafe fn element(&self, element: usize, at: usize) -> R::Float {
        debug_assert!(element < self.scaling.elements() && at + R::LANES <= TILE);
        // SAFETY: the caller's promise and that of `new`.
        unsafe {
            let q = R::load_narrow(self.values.add(element * self.stride + at));
            let mut steps = R::mul(R::to_float(q), self.ratio);
            if SHIFTED {
                steps = R::towards_zero(steps, R::splat(*self.offs.as_ptr().add(element)), q);
            }
            let mean = R::splat(*self.scaling.mean.as_ptr().add(element));
            R::add(R::mul(steps, self.gain), mean)
        }
    }

    /// The words of every two neighbouring elements, rotated and rounded.
    ///
    /// # Safety
    /// As [`Registers`]; `layout` is that of `scaling.elements()`, and there are half as many words.
    #[inline(always)]
    unsafe fn words(&self, layout: PairLayout<'_>, tile: usize, words: &mut [Lane<u32>]) {
        let elements = self.scaling.elements();
        let rotated = layout.rotated().map_or(0..0, |(_, range)| range);
        debug_assert!(words.len() == elements / 2 && rotated.end <= elements);
        // SAFETY: every element and word index is below their number.
        unsafe {
            let mut at = 0;
            while at < TILE {
                for word in (0..rotated.start / 2).chain(rotated.end / 2..elements / 2) {
                    let (low, high) = (self.element(2 * word, at), self.element(2 * word + 1, at));
                    store::<R>(words, word, at, low, high);
                }
                match layout {
                    PairLayout::None => {}
                    PairLayout::Neighbours(rotation) => self.neighbours(rotation, tile, at, words),
                    PairLayout::Halves(rotation) => self.halves(rotation, tile, at, words),
                }
                at += R::LANES;
            }
        }
    }

    /// # Safety
    /// As [`words`](Self::words).
    #[inline(always)]
    unsafe fn neighbours(&self, rotation: &RotationTable, tile: usize, at: usize, words: &mut [Lane<u32>]) {
        for (pair, turn) in rotation.of_tile(tile).iter().enumerate() {
            let element = rotation.offset() + 2 * pair;
            // SAFETY: the caller's promise.
            unsafe {
                let (x, y) = (self.element(element, at), self.element(element + 1, at));
                let (x, y) = rotated::<R, false>(x, y, turn, at, rotation.factor());
                store::<R>(words, element / 2, at, x, y);
            }
        }
    }

    /// # Safety
    /// As [`words`](Self::words).
    #[inline(always)]
    unsafe fn halves(&self, rotation: &RotationTable, tile: usize, at: usize, words: &mut [Lane<u32>]) {
        let (near, half) = (rotation.offset(), rotation.pairs());
        for (two, [first, second]) in rotation.of_tile(tile).as_chunks().0.iter().enumerate() {
            let (low, high) = (near + 2 * two, near + 2 * two + 1);
            // SAFETY: the caller's promise.
            unsafe {
                let (x, y) = (self.element(low, at), self.element(low + half, at));
                let (x0, y0) = rotated::<R, false>(x, y, first, at, rotation.factor());
                let (x, y) = (self.element(high, at), self.element(high + half, at));
                let (x1, y1) = rotated::<R, false>(x, y, second, at, rotation.factor());
                store::<R>(words, low / 2, at, x0, x1);
                store::<R>(words, (low + half) / 2, at, y0, y1);
            }
        }
    }
}

/// A pair rotated, in reverse if `BACK`.
///
/// # Safety
/// As [`Registers`]; `at + R::LANES ≤ 16`.
#[inline(always)]
unsafe fn rotated<R: Registers, const BACK: bool>(
    x: R::Float,
    y: R::Float,
    [sin, cos]: &[Lane<f32>; 2],
    at: usize,
    factor: f32,
) -> (R::Float, R::Float) {
    // SAFETY: the caller's promise.
    unsafe {
        let (s, c) = (R::load(sin.as_ptr().add(at)), R::load(cos.as_ptr().add(at)));
        let (xc, ys, yc, xs) = (R::mul(x, c), R::mul(y, s), R::mul(y, c), R::mul(x, s));
        let (x, y) = if BACK { (R::add(xc, ys), R::sub(yc, xs)) } else { (R::sub(xc, ys), R::add(yc, xs)) };
        if factor == 1.0 {
            return (x, y); // times one is itself
        }
        let factor = R::splat(factor);
        (R::mul(x, factor), R::mul(y, factor))
    }
}

/// Rounds two neighbours to bf16 and stores them as a word.
///
/// # Safety
/// As [`Registers`]; `word < words.len()`, `at + R::LANES ≤ 16`.
#[inline(always)]
unsafe fn store<R: Registers>(
    words: &mut [Lane<u32>],
    word: usize,
    at: usize,
    low: R::Float,
    high: R::Float,
) {
    debug_assert!(word < words.len() && at + R::LANES <= TILE);
    // SAFETY: the caller's promise.
    unsafe {
        let out = words.as_mut_ptr().add(word).cast::<i32>().add(at);
        R::store_i(out, R::halves(low, high));
    }
}

/// Quantised values of a head's rows; `false` where one is out of range.
///
/// # Safety
/// As [`Registers`]; `rows` and `to` hold `elements × tokens`.
#[inline(always)]
pub(super) unsafe fn quantise_rows<R: Registers>(
    steps: &QuantiserSteps<'_>,
    rotation: Option<&RotationTable>,
    tokens: usize,
    rows: &[f32],
    to: &mut QuantiseTarget<'_>,
    scratch: &mut RowScratch,
) -> bool {
    let count = steps.mean.len();
    let layout = PairLayout::of(rotation, count);
    let mut within = true;
    for (tile, rows) in rows.chunks(TILE * count).enumerate() {
        let first = tile * TILE;
        let whole = first + TILE <= tokens && first >= steps.masked;
        let Some(layout) = layout.filter(|_| whole) else {
            within &= quantise_tile(steps, rotation, (tokens, tile), rows, to, scratch);
            continue;
        };
        let (elements, _) = scratch.of(count);
        let most = to.most();
        // SAFETY: the caller's promise; the tile is whole.
        unsafe {
            R::lanes(rows, elements);
            let largest = match to {
                QuantiseTarget::Wide(values) => {
                    let put = StoreWide { to: values[first..].as_mut_ptr(), tokens };
                    quantise::<R, StoreWide>(steps, layout, tile, elements, put)
                }
                QuantiseTarget::Narrow(blocks, row) => {
                    let put = StoreNarrow { first: *row, lane: first % LANES, block: first / LANES, blocks };
                    quantise::<R, StoreNarrow<'_>>(steps, layout, tile, elements, put)
                }
            };
            within &= R::all_within(largest, most);
        }
    }
    within
}

/// Rotates a tile of lanes back, centres, scales and rounds it; the bits of the largest magnitudes.
///
/// # Safety
/// As [`Registers`]; the tile is whole, and `put` has room for it.
#[inline(always)]
unsafe fn quantise<R: Registers, P: StoreQuantised>(
    steps: &QuantiserSteps<'_>,
    layout: PairLayout<'_>,
    tile: usize,
    elements: &[Lane<f32>],
    mut put: P,
) -> R::Int {
    let range = layout.rotated().map_or(0..0, |(_, range)| range);
    let mut at = 0;
    // SAFETY: every element index is below their number, here and below.
    unsafe {
        let mut largest = R::nought();
        while at < TILE {
            for element in (0..range.start).chain(range.end..elements.len()) {
                let x = R::load(elements[element].as_ptr().add(at));
                largest = fine::<R, P>(steps, &mut put, (element, at), x, largest);
            }
            if let Some((rotation, _)) = layout.rotated() {
                let factor = 1.0 / rotation.factor();
                for (pair, turn) in rotation.of_tile(tile).iter().enumerate() {
                    let (a, b) = rotation.pair(pair);
                    let (x, y) =
                        (R::load(elements[a].as_ptr().add(at)), R::load(elements[b].as_ptr().add(at)));
                    let (x, y) = rotated::<R, true>(x, y, turn, at, factor);
                    largest = fine::<R, P>(steps, &mut put, (a, at), x, largest);
                    largest = fine::<R, P>(steps, &mut put, (b, at), y, largest);
                }
            }
            at += R::LANES;
        }
        largest
    }
}

/// Quantises values of an element; returns the larger of the previous largest and their magnitudes' bits.
///
/// # Safety
/// As [`Registers`]; `element < steps.mean.len()`, `at + R::LANES ≤ 16`, and `put` has room for them.
#[inline(always)]
unsafe fn fine<R: Registers, P: StoreQuantised>(
    steps: &QuantiserSteps<'_>,
    put: &mut P,
    (element, at): (usize, usize),
    x: R::Float,
    largest: R::Int,
) -> R::Int {
    // SAFETY: the caller's promise.
    unsafe {
        let mean = R::splat(*steps.mean.as_ptr().add(element));
        let x = R::mul(R::sub(x, mean), R::splat(steps.inverse));
        put.put::<R>(element, at, R::round(x));
        R::largest(largest, x)
    }
}

/// The destination of a tile's quantised values.
trait StoreQuantised {
    /// # Safety
    /// As [`Registers`]; there is room for `R::LANES` values of the element from `at` on.
    unsafe fn put<R: Registers>(&mut self, element: usize, at: usize, values: R::Int);
}

/// To rows of 32 bits.
struct StoreWide {
    /// Element 0 at the tile's first token.
    to: *mut i32,
    /// From one element to the next.
    tokens: usize,
}

impl StoreQuantised for StoreWide {
    #[inline(always)]
    unsafe fn put<R: Registers>(&mut self, element: usize, at: usize, values: R::Int) {
        // SAFETY: the caller's promise.
        unsafe { R::store_i(self.to.add(element * self.tokens + at), values) }
    }
}

/// To blocks.
struct StoreNarrow<'a> {
    blocks: &'a mut Blocks,
    /// The row of element 0.
    first: usize,
    block: usize,
    /// The tile's first.
    lane: usize,
}

impl StoreQuantised for StoreNarrow<'_> {
    #[inline(always)]
    unsafe fn put<R: Registers>(&mut self, element: usize, at: usize, values: R::Int) {
        let index = self.blocks.at(self.first + element, self.block);
        let block: &mut [i16] = &mut self.blocks.as_mut_slice()[index].0;
        debug_assert!(self.lane + at + R::LANES <= block.len());
        // SAFETY: a tile is half a block, which begins at the first or the 16th lane.
        unsafe { R::store_narrow(block.as_mut_ptr().add(self.lane + at), values) }
    }
}
