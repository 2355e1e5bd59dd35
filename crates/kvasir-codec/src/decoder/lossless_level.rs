//! The level that restores the cache bit for bit.

use super::{CpuDecoder, sections::PartialObject, task::DecodeTask};
use crate::{
    DecodeError,
    lossless::{self, float_of},
    prepared_scope::{BAND_LOSSLESS, rows_beneath},
    span_ropes::SpanRopes,
};

impl CpuDecoder {
    /// Rows of the exact level, over those of the levels beneath.
    pub(super) fn lossless_rows(
        &self,
        object: &PartialObject<'_, '_>,
        task: DecodeTask,
        ropes: &SpanRopes<'_>,
        exact: Option<(usize, Vec<f32>)>,
    ) -> Result<Vec<f32>, DecodeError> {
        let (elements, tokens) = (&self.scopes[task.scope].0.elements, ropes.tokens());
        let known = exact.as_ref().map_or(0, |(tokens, _)| *tokens);
        let mut beneath = self.beneath(object, task, ropes)?;
        if let Some((exact_tokens, values)) = exact {
            elements.overwrite(tokens, exact_tokens, &values, &mut beneath);
        }
        let malformed = DecodeError::Exact { scope: task.scope, span: task.span };
        let lossless = self.profile.scopes[task.scope].lossless.as_ref();
        let (Some(lossless), Some(float)) = (lossless, float_of(self.spec.kv_dtype)) else {
            return Err(malformed);
        };
        let Some((section, bytes)) = object.piece(task, BAND_LOSSLESS, task.level)? else {
            return Err(malformed);
        };
        let predicted = elements.by_element(tokens, &beneath);
        let span_values = lossless::LosslessSpan { tokens, known, predicted: &predicted };
        let decoded = lossless::decode(&self.profile.bank, lossless, float, &span_values, bytes)
            .map_err(|source| DecodeError::Piece { section, span: task.span, source })?;
        Ok(elements.by_token(tokens, &decoded.ok_or(malformed)?))
    }

    /// The values beneath the exact level: `[member][token][element]`.
    pub(super) fn beneath(
        &self,
        object: &PartialObject<'_, '_>,
        task: DecodeTask,
        ropes: &SpanRopes<'_>,
    ) -> Result<Vec<f32>, DecodeError> {
        let prepared = &self.scopes[task.scope].0;
        let values = match self.profile.lossy_levels().checked_sub(1) {
            None => None,
            Some(level) => {
                let mut values = Vec::new();
                self.main_values(object, DecodeTask { level, ..task }, ropes.tokens(), &mut values)?;
                prepared.reconstruct(level, ropes.tokens(), &mut values);
                Some(values)
            }
        };
        let text = (object.head.tokens.as_slice(), object.head.header.preceding_token);
        let scope = &self.profile.scopes[task.scope];
        Ok(rows_beneath(scope, &prepared.elements, &prepared.text, ropes, text, values.as_deref()))
    }
}
