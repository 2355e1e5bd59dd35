//! From a span's coefficients to integers in finest steps.

use crate::{
    KvSource,
    arch::RowKernel,
    direct_rows::{
        bf16_tiles::RowScratch,
        quantise_rows,
        quantise_tiles::{QuantiseTarget, QuantiserSteps},
    },
    limits::QUANTISED_MAX,
    prepared_scope::{PreparedScope, anchor_prediction, split_anchors},
    profile::{Predictor, Scope},
    span_ropes::SpanRopes,
};

/// Values of the finest lossy level as a decoder has them: those of coefficients that are never coded are 0.
pub(super) fn finest_values(scope: &Scope, prepared: &PreparedScope, values: &QuantisedSpan) -> Vec<i32> {
    let mut main = values.main.clone();
    // NEVER is above all levels, and so is an entry at the exact level.
    let silent = scope.coding.iter().map(|coding| i32::from(coding.entry) >= prepared.levels.len() as i32);
    for (row, _) in main.chunks_exact_mut(values.main_tokens).zip(silent).filter(|(_, silent)| *silent) {
        row.fill(0);
    }
    prepared.reconstruct(prepared.levels.len() - 1, values.main_tokens, &mut main);
    main
}

/// Quantised values of one scope and span, `[coefficient][token]`.
#[derive(Debug, PartialEq)]
pub(super) struct QuantisedSpan {
    pub(super) anchors: Vec<i32>,
    pub(super) anchor_tokens: usize,
    /// At the finest level, less the prediction; exact tokens are 0.
    pub(super) main: Vec<i32>,
    pub(super) main_tokens: usize,
}

/// Quantises coefficients, `[coefficient][token]` in units of the finest step; `None` if a value is out of
/// range. `predictions` has the same shape; the first `exact` tokens are masked.
pub(super) fn quantise(
    scope: &Scope,
    tokens: usize,
    exact: usize,
    coefficients: &[f32],
    mut predictions: Vec<i32>,
) -> Option<QuantisedSpan> {
    let (anchor_list, main_list) = split_anchors(&scope.predictor, tokens);
    let mut anchors = Vec::with_capacity(anchor_list.len() * scope.rank());
    if let Predictor::AnchorFirst { group, anchor_ratio, .. } = &scope.predictor {
        let rows = coefficients.chunks_exact(tokens).zip(predictions.chunks_exact_mut(tokens));
        for (row, predicted) in rows {
            for &token in &anchor_list {
                let anchor = round(row[token] * *anchor_ratio as f32)?;
                let end = (token + group).min(tokens);
                predicted[token..end].fill(anchor_prediction(anchor, *anchor_ratio));
                anchors.push(anchor);
            }
        }
    }
    let mut main = Vec::with_capacity(main_list.len() * scope.rank());
    let mut rest = vec![0.0; main_list.len()];
    for (row, predicted) in coefficients.chunks_exact(tokens).zip(predictions.chunks_exact(tokens)) {
        for (to, &token) in rest.iter_mut().zip(&main_list) {
            *to = if token < exact { 0.0 } else { row[token] - predicted[token] as f32 };
        }
        // All are compared before one is rounded: both vectorise.
        if !rest.iter().fold(true, |fit, x| fit & is_in_range(*x)) {
            return None;
        }
        main.extend(rest.iter().map(|x| nearest(*x)));
    }
    Some(QuantisedSpan { anchors, anchor_tokens: anchor_list.len(), main, main_tokens: main_list.len() })
}

/// As [`quantise`] for a scope whose coefficients are its elements and whose prediction is the mean, head by
/// head: the same values in one pass, to buffers that may be reused. Also `false` if a value is not finite.
pub(super) fn direct_values(
    prepared: &PreparedScope,
    mean: &[f32],
    ropes: &SpanRopes<'_>,
    masked: usize,
    source: &dyn KvSource,
    mut to: QuantiseTarget<'_>,
) -> bool {
    let (kernel, mut scratch) = (RowKernel::best(), RowScratch::default());
    let tokens = ropes.tokens();
    let mut raw = Vec::new();
    prepared.elements.views().all(|member| {
        let range = member.start..member.start + member.dim;
        let rows = match source.held(member.layer, member.plane, member.head, ropes.span.clone()) {
            Some(rows) if rows.len() == member.dim * tokens => rows,
            _ => {
                raw.resize(member.dim * tokens, 0.0);
                source.read(member.layer, member.plane, member.head, ropes.span.clone(), &mut raw);
                &raw
            }
        };
        // Others are out of range if they are not.
        if !rows[..masked * member.dim].iter().all(|x| x.is_finite()) {
            return false;
        }
        let steps = QuantiserSteps { mean: &mean[range.clone()], inverse: 1.0 / member.gain, masked };
        let rotation = member.rope.and_then(|rope| ropes.rotation_tables().get(rope));
        quantise_rows(kernel, &steps, rotation, tokens, rows, to.elements(range, tokens), &mut scratch)
    })
}

/// To the nearest integer, ties to even; `None` beyond [`QUANTISED_MAX`] and for NaN.
fn round(value: f32) -> Option<i32> {
    is_in_range(value).then(|| nearest(value))
}

fn is_in_range(value: f32) -> bool {
    value.abs() <= QUANTISED_MAX as f32
}

/// To the nearest integer, ties to even, of a value in range. From 2^23 on floats have no fractions, so the sum rounds:
/// `round_ties_even` is a call of libm for every value on x86-64 without SSE4.1.
fn nearest(value: f32) -> i32 {
    const WHOLE: f32 = 1.5 * (1 << 23) as f32;
    (value + WHOLE - WHOLE) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_rounds_ties_to_even() {
        for halves in -2 * QUANTISED_MAX..=2 * QUANTISED_MAX {
            let tie = halves as f32 / 2.0;
            for value in [tie.next_down(), tie, tie.next_up()].into_iter().filter(|x| is_in_range(*x)) {
                assert_eq!(nearest(value), value.round_ties_even() as i32, "{value}");
            }
        }
    }
}
