//! From coefficients to elements, sixteen tokens of one head at a time: what no token of the sixteen has is not
//! multiplied, and the sums are still in the nearest cache when they are scaled, rotated and rounded.
//!
//! Coefficients are whole numbers, so products are made in integers: a basis rounded to 16 bits errs far less than a level
//! does, and two of its products cost one of floats.

mod member_tile;
#[cfg(test)]
mod tests;
mod tiles;

use std::{ops::Range, sync::OnceLock};

use half::f16;

pub(crate) use self::{
    member_tile::{MemberTile, TileRows, rows_of_lanes},
    tiles::{CoefficientTiles, TileCoefficients, TileList, TileLists},
};
use crate::profile::{Basis, Scope};

/// Elements whose sums a kernel keeps in registers.
pub(crate) const PANEL: usize = 6;

/// A scope's basis, laid out once for products with tiles of tokens.
#[derive(Debug, Clone)]
pub(crate) enum Synthesis {
    /// Coefficient = element.
    Identity,
    /// A matrix.
    Trained(Panels),
}

/// A trained basis by member: in 16 bits, and in floats as soon as a tile needs them.
#[derive(Debug, Clone)]
pub(crate) struct Panels {
    members: Vec<PairPanels>,
    /// The largest square sum of a token's coefficients for which the 16 bits do.
    most: f32,
    floats: OnceLock<Vec<Vec<f32>>>,
}

/// A member's part of a basis in 16 bits.
#[derive(Debug, Clone)]
struct PairPanels {
    /// As [`pair_words`], of coefficients.
    words: Vec<i32>,
    /// The value of 1 for every element.
    units: Vec<f32>,
}

/// Part of a level's noise that 16 bits may add, as powers: a thousandth of what FORMAT.md's "Exactness" allows.
const ROUNDING_SHARE: f64 = 1e-6;
/// Rank from which 16 bits are used: with fewer, the product takes too little time to round a basis for it.
const RANK_LEAST: usize = 32;
/// Largest magnitude of a basis in 16 bits: two products of two such numbers and their sum fit 32.
const WORD_MAX: f32 = 32_767.0;

impl Synthesis {
    /// That of a scope.
    pub(crate) fn new(scope: &Scope) -> Self {
        let Basis::Trained { synthesis, .. } = &scope.basis else { return Self::Identity };
        let (mut start, mut most) = (0, f64::from(WORD_MAX).powi(2));
        let panels = |dim: usize| {
            let (member, own) = PairPanels::new(synthesis, start..start + dim, scope.elements());
            start += dim;
            most = most.min(own);
            member
        };
        let members = scope.members.iter().map(|member| member.dim).map(panels).collect();
        // Sums of squares are made in floats.
        let most = if scope.rank() < RANK_LEAST { 0.0 } else { most * 0.99 };
        Self::Trained(Panels { members, most: most as f32, floats: OnceLock::new() })
    }
}

impl Panels {
    /// See the field.
    pub(crate) fn most(&self) -> f32 {
        self.most
    }

    /// A member's part for a tile of which `fits` says whether 16 bits do.
    fn member(&self, member: usize, scope: &Scope, fits: bool) -> MemberSynthesis<'_> {
        if fits {
            let PairPanels { words, units } = &self.members[member];
            return MemberSynthesis::Pairs { words, units };
        }
        MemberSynthesis::Floats(&self.floats.get_or_init(|| float_panels(scope))[member])
    }
}

impl PairPanels {
    /// Of the `range` of a `basis`, `[coefficient][element]`; and the largest square sum of coefficients for which they do.
    fn new(basis: &[f16], range: Range<usize>, elements: usize) -> (Self, f64) {
        let rows = || basis.chunks_exact(elements).map(|row| &row[range.clone()]);
        let mut units = vec![0f32; range.len()];
        for row in rows() {
            units.iter_mut().zip(row).for_each(|(most, x)| *most = most.max(x.to_f32().abs()));
        }
        units.iter_mut().for_each(|unit| *unit /= WORD_MAX);
        let code = |coefficient: usize, element: usize| {
            let (x, unit) = (basis[coefficient * elements + range.start + element], units[element]);
            if unit > 0.0 { (x.to_f32() / unit).round() as i32 } else { 0 }
        };
        let rank = basis.len() / elements;
        let words = pair_words(rank, range.len(), code);
        let square = |element| (0..rank).map(|c| f64::from(code(c, element)).powi(2)).sum::<f64>();
        let squares: Vec<f64> = (0..range.len()).map(square).collect();
        // Rounding adds a twelfth of `unit²`, times the coefficients' squares, to an element. A level has a twelfth of a
        // squared step of noise for each of its coefficients, or more, which the basis spreads.
        let rounding: f64 = units.iter().map(|unit| f64::from(unit * unit)).sum();
        let noise: f64 =
            units.iter().zip(&squares).map(|(unit, square)| f64::from(unit * unit) * square).sum();
        let precise = if rounding > 0.0 { ROUNDING_SHARE * noise / rounding } else { f64::INFINITY };
        // Sums may pass 32 bits on their way as long as they end within.
        let within = f64::from(i32::MAX).powi(2) / squares.iter().copied().fold(1.0, f64::max);
        (Self { words, units }, precise.min(within))
    }
}

/// `[panel][pair of rows][element of the panel]` of codes of 16 bits, the first row of a pair in the low half; the last
/// panel is filled with zeros.
pub(crate) fn pair_words(rows: usize, elements: usize, code: impl Fn(usize, usize) -> i32) -> Vec<i32> {
    let pairs = rows.div_ceil(2);
    let mut words = vec![0; elements.div_ceil(PANEL) * pairs * PANEL];
    for row in 0..rows {
        for element in 0..elements {
            let at = (element / PANEL * pairs + row / 2) * PANEL + element % PANEL;
            words[at] |= (code(row, element) & 0xffff) << (16 * (row % 2));
        }
    }
    words
}

/// A basis in floats: of every member `[panel][coefficient][element of the panel]`, the last panel filled with zeros.
fn float_panels(scope: &Scope) -> Vec<Vec<f32>> {
    let Basis::Trained { synthesis, .. } = &scope.basis else { return Vec::new() };
    let (elements, rank, mut start) = (scope.elements(), scope.rank(), 0);
    let panels = |dim: usize| {
        let mut panels = vec![0.0; dim.div_ceil(PANEL) * rank * PANEL];
        for (panel, values) in panels.chunks_exact_mut(rank * PANEL).enumerate() {
            let (first, last) = (start + panel * PANEL, start + dim.min((panel + 1) * PANEL));
            for (row, values) in synthesis.chunks_exact(elements).zip(values.chunks_exact_mut(PANEL)) {
                values.iter_mut().zip(&row[first..last]).for_each(|(to, x)| *to = x.to_f32());
            }
        }
        start += dim;
        panels
    };
    scope.members.iter().map(|member| member.dim).map(panels).collect()
}

/// How a member's elements are made of coefficients.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MemberSynthesis<'a> {
    /// They are the coefficients from `start` on.
    Identity { start: usize },
    /// As [`PairPanels`].
    Pairs { words: &'a [i32], units: &'a [f32] },
    /// As [`float_panels`].
    Floats(&'a [f32]),
}
