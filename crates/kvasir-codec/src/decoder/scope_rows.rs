//! One scope of one span: from its pieces to its rows.

use std::ops::Range;

use super::{
    CpuDecoder, direct::AppendedRows, row_value::RowValue, sections::PartialObject, task::DecodeTask,
};
use crate::{DecodeError, exact_piece, span_ropes::SpanRopes};

impl CpuDecoder {
    /// Rows `[member][token][element]` of one scope and span.
    pub(super) fn decode_task<T: RowValue>(
        &self,
        object: &PartialObject<'_, '_>,
        task: DecodeTask,
        ropes: &SpanRopes<'_>,
    ) -> Result<Vec<T>, DecodeError> {
        let (span, tokens) = (&ropes.span, ropes.tokens());
        let exact = match self.exact_rows(object, task, span)? {
            Some((exact_tokens, rows)) if exact_tokens == tokens => return Ok(T::rounded(rows)),
            exact => exact,
        };
        if task.level == self.profile.lossy_levels() {
            return Ok(T::rounded(self.lossless_rows(object, task, ropes, exact)?));
        }
        let mut rows = T::lossy_rows(self, object, task, ropes)?;
        if let Some((exact_tokens, values)) = exact {
            let elements = &self.scopes[task.scope].0.elements;
            elements.overwrite(tokens, exact_tokens, &T::rounded(values), &mut rows);
        }
        Ok(rows)
    }

    /// Rows of a scope at a lossy level, made member by member.
    pub(super) fn appended_rows<T: RowValue>(
        &self,
        object: &PartialObject<'_, '_>,
        task: DecodeTask,
        ropes: &SpanRopes<'_>,
    ) -> Result<Vec<T>, DecodeError> {
        let count = self.scopes[task.scope].0.elements.count() * ropes.tokens();
        let mut place = AppendedRows { rows: vec![T::default(); count], done: 0 };
        self.lossy_members(object, task, ropes, &mut place)?;
        Ok(place.rows)
    }

    /// f32 rows of a direct scope at a lossy level.
    pub(super) fn direct_rows(
        &self,
        object: &PartialObject<'_, '_>,
        task: DecodeTask,
        ropes: &SpanRopes<'_>,
    ) -> Result<Vec<f32>, DecodeError> {
        let (prepared, tokens) = (&self.scopes[task.scope].0, ropes.tokens());
        let (mean, rotations) = (&self.profile.scopes[task.scope].mean, ropes.rotations());
        let mut values = Vec::new();
        self.main_values(object, task, tokens, &mut values)?;
        let reconstruction = prepared.reconstruction(task.level);
        let mut rows = vec![0.0; prepared.elements.count() * tokens];
        prepared.elements.direct_rows(mean, rotations, tokens, reconstruction, &values, &mut rows);
        Ok(rows)
    }

    /// The exact tokens of a span and their values.
    pub(super) fn exact_rows(
        &self,
        object: &PartialObject<'_, '_>,
        task: DecodeTask,
        span: &Range<usize>,
    ) -> Result<Option<(usize, Vec<f32>)>, DecodeError> {
        let found = self.exact_bytes(object, task, span)?;
        Ok(found.map(|(tokens, values)| (tokens, exact_piece::values(self.exact_dtype, values))))
    }
}
