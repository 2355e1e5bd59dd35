//! One scope of one span: from its pieces to its rows.

use std::ops::Range;

use half::bf16;

use super::{CpuDecoder, direct::Appended, sections::Object};
use crate::{DecodeError, KvSink, exact, ropes::SpanRopes, transform::Elements};

/// One scope of one span, to be decoded at a level.
#[derive(Debug, Clone, Copy)]
pub(super) struct Task {
    pub(super) scope: usize,
    pub(super) span: usize,
    pub(super) level: usize,
}

/// Rows `[member][token][element]` in what the sink takes.
pub(super) enum Rows {
    Full(Vec<f32>),
    Half(Vec<bf16>),
}

impl Rows {
    /// Rounds where the sink wants it.
    pub(super) fn of(rows: Vec<f32>, half: bool) -> Self {
        if half { Self::Half(rows.iter().map(|x| bf16::from_f32(*x)).collect()) } else { Self::Full(rows) }
    }

    /// Gives the `kept` tokens of a span of `tokens` to a sink, as tokens from `first` on.
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
                .for_each(|m| sink.write(m.layer, m.plane, m.head, first, m.rows)),
            Self::Half(rows) => elements
                .members(tokens, kept, rows)
                .for_each(|m| sink.write_bf16(m.layer, m.plane, m.head, first, m.rows)),
        }
    }
}

impl CpuDecoder {
    /// Rows `[member][token][element]` of one scope and span, in bf16 where `half`.
    pub(super) fn decode_task(
        &self,
        object: &Object<'_, '_>,
        task: Task,
        ropes: &SpanRopes<'_>,
        half: bool,
    ) -> Result<Rows, DecodeError> {
        let (bound, synthesis) = &self.scopes[task.scope];
        let scope = &self.profile.scopes[task.scope];
        let (span, tokens) = (&ropes.span, ropes.tokens());
        let exact = self.exact_rows(object, task, span)?;
        if let Some((exact_tokens, rows)) = &exact
            && *exact_tokens == tokens
        {
            return Ok(Rows::of(rows.clone(), half));
        }
        if task.level == self.profile.lossy_levels() {
            return Ok(Rows::of(self.exact_level(object, task, ropes, exact)?, half));
        }
        let count = bound.elements.count() * tokens;
        let is_direct = self.is_direct(task);
        if half && is_direct {
            let mut place = Appended { rows: vec![bf16::ZERO; count], done: 0 };
            self.direct_members(object, task, ropes, &mut place)?;
            let mut rows = place.rows;
            if let Some((exact_tokens, values)) = exact {
                let values: Vec<bf16> = values.into_iter().map(bf16::from_f32).collect();
                bound.elements.overwrite(tokens, exact_tokens, &values, &mut rows);
            }
            return Ok(Rows::Half(rows));
        }
        let mut rows = vec![0.0; count];
        if is_direct {
            let values = self.main_values(object, task, tokens)?;
            let reconstruction = bound.reconstruction(task.level);
            let rotations = ropes.rotations();
            bound.elements.direct_rows(&scope.mean, rotations, tokens, reconstruction, &values, &mut rows);
        } else {
            let coefficients = self.coefficients(object, task, span)?;
            let mut elements = vec![0.0; rows.len()];
            synthesis.synthesise(tokens, &coefficients, &mut elements);
            bound.elements.denormalise(&scope.mean, ropes.rotations(), tokens, &elements, &mut rows);
        }
        if let Some((exact_tokens, values)) = exact {
            bound.elements.overwrite(tokens, exact_tokens, &values, &mut rows);
        }
        Ok(Rows::of(rows, half))
    }

    /// The exact tokens of a span and their values.
    pub(super) fn exact_rows(
        &self,
        object: &Object<'_, '_>,
        task: Task,
        span: &Range<usize>,
    ) -> Result<Option<(usize, Vec<f32>)>, DecodeError> {
        let found = self.exact_bytes(object, task, span)?;
        Ok(found.map(|(tokens, values)| (tokens, exact::values(self.exact_dtype, values))))
    }
}
