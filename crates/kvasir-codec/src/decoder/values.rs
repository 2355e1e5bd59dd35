//! A task's streams to its coefficients.

use std::ops::Range;

use super::{CpuDecoder, sections::PartialObject, task::DecodeTask};
use crate::{
    DecodeError,
    levels::reconstruction,
    prepared_scope::{BAND_ANCHORS, BAND_MAIN, SectionPlan, anchor_prediction, split_anchors},
    profile::{Predictor, Scope},
    rans::{Coding, PiecePlan, refine},
};

impl CpuDecoder {
    /// Hands on the coefficients in units of the finest step, a row of all tokens at a time, in order. `main` is room
    /// for the values of the main band.
    pub(super) fn each_coefficient(
        &self,
        object: &PartialObject<'_, '_>,
        task: DecodeTask,
        span: &Range<usize>,
        main: &mut Vec<i32>,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), DecodeError> {
        let (prepared, _) = &self.scopes[task.scope];
        let scope = &self.profile.scopes[task.scope];
        let tokens = span.len();
        let (anchor_list, main_list) = split_anchors(&scope.predictor, tokens);
        self.main_values(object, task, main_list.len(), main)?;
        if !anchor_list.is_empty() {
            if !main_list.is_empty() {
                prepared.reconstruct(task.level, main_list.len(), main);
            }
            let mut anchors = vec![0i32; scope.rank() * anchor_list.len()];
            let plan = &prepared.anchors;
            self.decode_section(object, task, BAND_ANCHORS, 0, plan, anchor_list.len(), &mut anchors)?;
            let rows = merge_anchors(scope, tokens, (&anchor_list, &anchors), (&main_list, main));
            rows.chunks_exact(tokens).enumerate().for_each(|(coefficient, row)| each(coefficient, row));
            return Ok(());
        }
        // The main band is the whole span.
        let preceding = object.head.header.preceding_token;
        let predictions = matches!(scope.predictor, Predictor::Token(_))
            .then(|| prepared.text.predict(scope, &object.head.tokens, preceding, span));
        let (up, shifts) = prepared.reconstruction(task.level);
        let mut row = vec![0.0; tokens];
        for (coefficient, (values, shift)) in main.chunks_exact(tokens).zip(shifts).enumerate() {
            let finest = values.iter().copied().map(reconstruction(up, *shift));
            match &predictions {
                None => row.iter_mut().zip(finest).for_each(|(x, q)| *x = q as f32),
                Some(predictions) => {
                    let predicted = &predictions[coefficient * tokens..(coefficient + 1) * tokens];
                    let sums = finest.zip(predicted).map(|(q, predicted)| q.wrapping_add(*predicted));
                    row.iter_mut().zip(sums).for_each(|(x, q)| *x = q as f32);
                }
            }
            each(coefficient, &row);
        }
        Ok(())
    }

    /// Makes `values` those of the main band at the task's level, quantised, `[coefficient][token]`.
    pub(super) fn main_values(
        &self,
        object: &PartialObject<'_, '_>,
        task: DecodeTask,
        tokens: usize,
        values: &mut Vec<i32>,
    ) -> Result<(), DecodeError> {
        let (prepared, _) = &self.scopes[task.scope];
        values.clear();
        values.resize(self.profile.scopes[task.scope].rank() * tokens, 0);
        for (level, plan) in prepared.levels[..=task.level].iter().enumerate() {
            self.decode_section(object, task, BAND_MAIN, level, plan, tokens, values)?;
        }
        Ok(())
    }

    /// Brings `values`, `[coefficient][token]`, from the level before to the section's.
    #[allow(clippy::too_many_arguments, reason = "one call site a band; a struct would only rename them")]
    pub(super) fn decode_section(
        &self,
        object: &PartialObject<'_, '_>,
        task: DecodeTask,
        band: u8,
        level: usize,
        plan: &SectionPlan,
        tokens: usize,
        values: &mut [i32],
    ) -> Result<(), DecodeError> {
        if tokens == 0 {
            return Ok(());
        }
        let Some((section, bytes)) = object.piece(task, band, level)? else {
            for (&coefficient, coding) in plan.coefficients.iter().zip(&plan.codings) {
                if matches!(coding, Coding::Trit { .. }) {
                    let row = &mut values[coefficient * tokens..(coefficient + 1) * tokens];
                    row.iter_mut().for_each(|q| *q = refine(*q, 0));
                }
            }
            return Ok(());
        };
        let piece = PiecePlan { coefficients: &plan.codings, tokens };
        let failed = |source| DecodeError::Piece { section, span: task.span, source };
        let rows = &plan.coefficients;
        self.path.pieces.decode_rows(&self.profile.bank, &piece, bytes, rows, values).map_err(failed)
    }
}

/// Puts anchors and deltas, `[coefficient][token of the list]`, together in units of the finest step.
fn merge_anchors(
    scope: &Scope,
    tokens: usize,
    (anchor_list, anchors): (&[usize], &[i32]),
    (main_list, main): (&[usize], &[i32]),
) -> Vec<f32> {
    let mut out = vec![0.0; scope.rank() * tokens];
    let Predictor::AnchorFirst { group, anchor_ratio, .. } = &scope.predictor else { return out };
    for (coefficient, row) in out.chunks_exact_mut(tokens).enumerate() {
        let anchors = &anchors[coefficient * anchor_list.len()..(coefficient + 1) * anchor_list.len()];
        for (&token, &anchor) in anchor_list.iter().zip(anchors) {
            row[token] = anchor as f32 / *anchor_ratio as f32;
        }
        let deltas = &main[coefficient * main_list.len()..(coefficient + 1) * main_list.len()];
        for (&token, &delta) in main_list.iter().zip(deltas) {
            let predicted = anchor_prediction(anchors[token / group], *anchor_ratio);
            row[token] = delta.wrapping_add(predicted) as f32;
        }
    }
    out
}
