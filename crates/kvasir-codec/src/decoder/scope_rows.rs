//! One scope of one span: from its pieces to its rows.

use std::ops::Range;

use half::bf16;

use super::{CpuDecoder, direct::AppendedRows, sections::PartialObject, task::DecodeTask};
use crate::{DecodeError, KvSink, exact_piece, span_ropes::SpanRopes, transform::Elements};

/// Rows `[member][token][element]` in the type that the sink accepts.
pub(super) enum DecodedRows {
    Full(Vec<f32>),
    Half(Vec<bf16>),
}

impl DecodedRows {
    /// Rounds if the sink wants bf16.
    pub(super) fn of(rows: Vec<f32>, half: bool) -> Self {
        if half { Self::Half(rows.iter().map(|x| bf16::from_f32(*x)).collect()) } else { Self::Full(rows) }
    }

    /// Writes the `kept` tokens of a span of `tokens` to a sink, as tokens from `first` on.
    pub(super) fn write(
        &self,
        elements: &Elements,
        tokens: usize,
        kept: &Range<usize>,
        first: usize,
        sink: &mut dyn KvSink,
    ) {
        match self {
            Self::Full(rows) => elements
                .members(tokens, kept, rows)
                .for_each(|m| sink.write_heads(m.layer, m.plane, m.first_head, first, m.rows)),
            Self::Half(rows) => elements
                .members(tokens, kept, rows)
                .for_each(|m| sink.write_bf16(m.layer, m.plane, m.first_head, first, m.rows)),
        }
    }
}

impl CpuDecoder {
    /// Rows `[member][token][element]` of one scope and span, in bf16 if `half`.
    pub(super) fn decode_task(
        &self,
        object: &PartialObject<'_, '_>,
        task: DecodeTask,
        ropes: &SpanRopes<'_>,
        half: bool,
    ) -> Result<DecodedRows, DecodeError> {
        let (prepared, _) = &self.scopes[task.scope];
        let scope = &self.profile.scopes[task.scope];
        let (span, tokens) = (&ropes.span, ropes.tokens());
        let exact = self.exact_rows(object, task, span)?;
        if let Some((exact_tokens, rows)) = &exact
            && *exact_tokens == tokens
        {
            return Ok(DecodedRows::of(rows.clone(), half));
        }
        if task.level == self.profile.lossy_levels() {
            return Ok(DecodedRows::of(self.lossless_rows(object, task, ropes, exact)?, half));
        }
        let count = prepared.elements.count() * tokens;
        if half {
            let mut place = AppendedRows { rows: vec![bf16::ZERO; count], done: 0 };
            self.lossy_members(object, task, ropes, &mut place)?;
            let mut rows = place.rows;
            if let Some((exact_tokens, values)) = exact {
                let values: Vec<bf16> = values.into_iter().map(bf16::from_f32).collect();
                prepared.elements.overwrite(tokens, exact_tokens, &values, &mut rows);
            }
            return Ok(DecodedRows::Half(rows));
        }
        let mut rows = vec![0.0; count];
        if self.is_direct(task) {
            let values = self.main_values(object, task, tokens)?;
            let reconstruction = prepared.reconstruction(task.level);
            let rotations = ropes.rotations();
            prepared.elements.direct_rows(&scope.mean, rotations, tokens, reconstruction, &values, &mut rows);
        } else {
            self.product_rows(object, task, ropes, &mut rows)?;
        }
        if let Some((exact_tokens, values)) = exact {
            prepared.elements.overwrite(tokens, exact_tokens, &values, &mut rows);
        }
        Ok(DecodedRows::Full(rows))
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
