//! What a task gives.

use std::ops::Range;

use half::bf16;

use crate::{KvSink, transform::Elements};

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
