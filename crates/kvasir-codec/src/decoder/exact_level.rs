//! The level that gives the cache back bit for bit.

use super::{BAND_LOSSLESS, CpuDecoder, Object, Rows, SpanRopes, Task};
use crate::{
    DecodeError,
    lossless::{self, float_of},
};

impl CpuDecoder {
    /// Rows of the exact level, over those of the level beneath.
    pub(super) fn exact_level(
        &self,
        object: &Object<'_, '_>,
        task: Task,
        ropes: &SpanRopes<'_>,
        exact: Option<(usize, Vec<f32>)>,
    ) -> Result<Vec<f32>, DecodeError> {
        let (elements, tokens) = (&self.scopes[task.scope].0.elements, ropes.tokens());
        let known = exact.as_ref().map_or(0, |(tokens, _)| *tokens);
        let mut beneath = match task.level.checked_sub(1) {
            Some(level) => match self.decode_task(object, Task { level, ..task }, ropes, false)? {
                Rows::Full(rows) => rows,
                Rows::Half(rows) => rows.iter().map(|x| x.to_f32()).collect(),
            },
            None => vec![0.0; elements.count() * tokens],
        };
        if let Some((exact_tokens, values)) = exact {
            elements.overwrite(tokens, exact_tokens, &values, &mut beneath);
        }
        let malformed = DecodeError::Exact { scope: task.scope, span: task.span };
        let lossless = self.profile.scopes[task.scope].lossless.as_ref();
        let (Some(lossless), Some(float)) = (lossless, float_of(self.spec.kv_dtype)) else {
            return Err(malformed);
        };
        // Where nothing is said the cache is what is beneath, in its own type.
        let Some((section, bytes)) = object.piece(task, BAND_LOSSLESS, task.level)? else {
            beneath.iter_mut().for_each(|x| *x = float.value(float.bits(*x)));
            return Ok(beneath);
        };
        let predicted = elements.by_element(tokens, &beneath);
        let span_values = lossless::Span { tokens, known, predicted: &predicted };
        let decoded = lossless::decode(&self.profile.bank, lossless, float, &span_values, bytes)
            .map_err(|source| DecodeError::Piece { section, span: task.span, source })?;
        Ok(elements.by_token(tokens, &decoded.ok_or(malformed)?))
    }
}
