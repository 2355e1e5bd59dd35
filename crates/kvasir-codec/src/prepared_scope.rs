//! A profile's scope bound to a model: everything that is derived once and used for every span.

use std::ops::Range;

use kvasir_types::{LEVELS_MAX, ModelSpec};

use crate::{
    arch::RowKernel,
    direct_rows::{TILE, bf16_tiles::Lane},
    levels::reconstruction,
    matrix::Matrix,
    profile::{CoefficientCoding, Predictor, Profile, Scope},
    rans::{Coding, narrow_most},
    span_ropes::SpanRopes,
    synthesis::{PANEL, TileLists, pair_words},
    transform::Elements,
};

/// Band of a scope's coefficients.
pub(crate) const BAND_MAIN: u8 = 0;
/// Band of the anchors of an anchor-first scope, level 0 only.
pub(crate) const BAND_ANCHORS: u8 = 1;
/// Band of the exact tokens and spans of a scope, level 0 only.
pub(crate) const BAND_EXACT: u8 = 2;
/// Band of the exact level of a scope, the last level only.
pub(crate) const BAND_LOSSLESS: u8 = 3;

/// The coefficients that one section codes, in stream order, and how.
#[derive(Debug, Clone, Default)]
pub(crate) struct SectionPlan {
    pub(crate) coefficients: Vec<usize>,
    pub(crate) codings: Vec<Coding>,
}

impl SectionPlan {
    /// The coefficients below `count` that are not in the plan.
    pub(crate) fn gaps(&self, count: usize) -> impl Iterator<Item = usize> {
        let ends = self.coefficients.iter().copied().chain([count]);
        let mut next = 0;
        ends.flat_map(move |end| std::mem::replace(&mut next, end + 1)..end)
    }
}

/// A scope bound to a model.
#[derive(Debug, Clone)]
pub(crate) struct PreparedScope {
    pub(crate) index: usize,
    pub(crate) elements: Elements,
    pub(crate) levels: Vec<SectionPlan>,
    pub(crate) anchors: SectionPlan,
    pub(crate) text: TextPredictor,
    /// Shift of every coefficient at every level, `[level][coefficient]`.
    shifts: Vec<Vec<u8>>,
    narrow_most: Option<i32>,
}

impl PreparedScope {
    /// Derives the plans of scope `index` of a profile.
    pub(crate) fn new(spec: &ModelSpec, profile: &Profile, index: usize) -> Self {
        let scope = &profile.scopes[index];
        let levels = (0..profile.lossy_levels()).map(|level| level_plan(&scope.coding, level)).collect();
        let anchors = match &scope.predictor {
            Predictor::AnchorFirst { anchors, .. } => level_plan(anchors, 0),
            Predictor::Mean | Predictor::Token(_) => SectionPlan::default(),
        };
        let shift = |coding: &CoefficientCoding, level: usize| {
            let depth = usize::try_from(level as i32 - i32::from(coding.entry)).ok()?;
            Some(profile.shifts.get(usize::from(coding.stage))?[depth.min(LEVELS_MAX - 1)])
        };
        let shifts = (0..profile.lossy_levels())
            .map(|level| scope.coding.iter().map(|c| shift(c, level).unwrap_or(0)).collect())
            .collect();
        let (elements, text) = (Elements::new(spec, scope), TextPredictor::new(scope));
        let finest = profile.lossy_levels() as i32 - 1;
        let deepest = scope.coding.iter().map(|c| (finest - i32::from(c.entry)).max(0)).max().unwrap_or(0);
        let narrow_most = narrow_most(deepest.unsigned_abs());
        Self { index, elements, levels, anchors, text, shifts, narrow_most }
    }

    /// The shift of every coefficient at a level.
    pub(crate) fn shifts(&self, level: usize) -> Option<&[u8]> {
        self.shifts.get(level).map(Vec::as_slice)
    }

    /// Largest magnitude of a stage value in narrow cells that also hold it in finest steps; `None` if
    /// coefficients have too many trits for narrow cells.
    pub(crate) fn narrow_most(&self) -> Option<i32> {
        self.narrow_most
    }

    /// Levels from `level` to the finest, and the shift of every coefficient at `level`.
    pub(crate) fn reconstruction(&self, level: usize) -> (u32, &[u8]) {
        ((self.shifts.len() - 1 - level) as u32, &self.shifts[level])
    }

    /// Turns quantised values of `level` into units of the finest step, before the prediction: `[coefficient]`
    /// rows of `tokens` values, in place.
    pub(crate) fn reconstruct(&self, level: usize, tokens: usize, values: &mut [i32]) {
        let (up, shifts) = self.reconstruction(level);
        for (row, shift) in values.chunks_exact_mut(tokens).zip(shifts) {
            let finest = reconstruction(up, *shift);
            row.iter_mut().for_each(|q| *q = finest(*q));
        }
    }
}

/// The values beneath the exact level of a scope, `[member][token][element]`: values of the finest lossy
/// level in finest steps, `[coefficient][token]`, with the predictions added; without such a level the
/// predictions alone.
pub fn rows_beneath(
    scope: &Scope,
    elements: &Elements,
    text: &TextPredictor,
    ropes: &SpanRopes<'_>,
    (tokens, preceding): (&[u32], Option<u32>),
    values: Option<&[i32]>,
) -> Vec<f32> {
    let span = &ropes.span;
    let mut steps = text.predict(scope, tokens, preceding, span);
    if let Some(values) = values {
        steps.iter_mut().zip(values).for_each(|(step, value)| *step = step.wrapping_add(*value));
    }
    let steps: Vec<f32> = steps.into_iter().map(|step| step as f32).collect();
    let (mut by_token, mut rows) = (vec![0.0; steps.len()], vec![0.0; steps.len()]);
    Matrix::Identity.synthesise(span.len(), &steps, &mut by_token);
    elements.denormalise(&scope.mean, ropes.rotations(), span.len(), &by_token, &mut rows);
    rows
}

/// The plan of a section of `level`.
fn level_plan(coding: &[CoefficientCoding], level: usize) -> SectionPlan {
    let mut plan = SectionPlan::default();
    for (index, c) in coding.iter().enumerate() {
        let entry = i32::from(c.entry);
        let coding = match level as i32 - entry.max(0) {
            ..0 => continue,
            0 => Coding::Stage { table: c.stage, trits: (-entry).max(0) as u8, trit_table: c.inner },
            1.. => Coding::Trit { table: c.trits[level] },
        };
        plan.coefficients.push(index);
        plan.codings.push(coding);
    }
    plan
}

/// Tokens of a span that are anchors (groups restart at each span), and the others.
pub fn split_anchors(predictor: &Predictor, tokens: usize) -> (Vec<usize>, Vec<usize>) {
    match predictor {
        Predictor::AnchorFirst { group, .. } => (0..tokens).partition(|token| token.is_multiple_of(*group)),
        Predictor::Mean | Predictor::Token(_) => (Vec::new(), (0..tokens).collect()),
    }
}

/// The prediction of an anchor for its group: its value rounded to finest steps.
pub const fn anchor_prediction(anchor: i32, anchor_ratio: i32) -> i32 {
    anchor.saturating_add(anchor_ratio / 2).div_euclid(anchor_ratio)
}

/// Predictions from the text, ready to be made.
#[derive(Debug, Clone)]
pub struct TextPredictor {
    /// The coefficients that have any, ascending.
    predicted: Vec<usize>,
    /// The matrix for them, in pairs of factors.
    words: Vec<i32>,
    /// One for each of them.
    units: Vec<f32>,
}

impl TextPredictor {
    /// Of a scope.
    pub fn new(scope: &Scope) -> Self {
        let Predictor::Token(token) = &scope.predictor else {
            return Self { predicted: Vec::new(), words: Vec::new(), units: Vec::new() };
        };
        let rank = scope.rank();
        let rows = || token.matrix.chunks_exact(rank.max(1));
        let predicted: Vec<usize> = (0..rank).filter(|c| rows().any(|row| row[*c] != 0)).collect();
        let code = |factor: usize, at: usize| i32::from(token.matrix[factor * rank + predicted[at]]);
        let words = pair_words(rows().len(), predicted.len(), code);
        let units = vec![1.0; predicted.len()];
        Self { predicted, words, units }
    }

    /// The predictions of a span, `[coefficient][token]`; zeros for other predictors.
    pub fn predict(
        &self,
        scope: &Scope,
        tokens: &[u32],
        preceding: Option<u32>,
        span: &Range<usize>,
    ) -> Vec<i32> {
        let count = span.len();
        let mut predictions = vec![0; scope.rank() * count];
        let Predictor::Token(token) = &scope.predictor else { return predictions };
        let factors = token.factor_count();
        let (mut codes, mut pairs) = (vec![0; factors * TILE], TileLists::default());
        let mut sums = vec![Lane::default(); self.predicted.len().next_multiple_of(PANEL)];
        for first in span.clone().step_by(TILE) {
            codes.fill(0);
            let of_tile = first..span.end.min(first + TILE);
            for (index, row) in of_tile.clone().zip(codes.chunks_exact_mut(factors.max(1))) {
                let before = if index == 0 { preceding } else { tokens.get(index - 1).copied() };
                token.factors_of(tokens.get(index).copied(), before, row);
            }
            pairs.reset(factors.div_ceil(2), 1);
            for pair in 0..factors.div_ceil(2) {
                let code = |lane: usize, factor: usize| {
                    if factor < factors { i32::from(codes[lane * factors + factor]) } else { 0 }
                };
                let both = |lane| code(lane, 2 * pair) & 0xffff | code(lane, 2 * pair + 1) << 16;
                let words = std::array::from_fn(|lane| both(lane).cast_unsigned());
                if words != [0; TILE] {
                    pairs.push(0, pair as u32, words);
                }
            }
            // Exact in floats: every sum is an integer below 512 · 128² < 2^24.
            RowKernel::best().pair_sums(pairs.of(0), (&self.words, &self.units), &mut sums);
            for (coefficient, sums) in self.predicted.iter().zip(&sums) {
                let at = coefficient * count + first - span.start;
                let row = &mut predictions[at..at + of_tile.len()];
                token.round(*coefficient, &sums[..of_tile.len()], row);
            }
        }
        predictions
    }
}
