//! A model's ropes over a span, in both layouts.

use std::{ops::Range, sync::OnceLock};

use kvasir_types::ModelSpec;

use crate::{rows::half::Turns, transform::Rotations};

/// A model's ropes over a span, made at first use and shared by the span's scopes.
pub(crate) struct SpanRopes<'a> {
    spec: &'a ModelSpec,
    first_position: u64,
    /// Tokens, relative to the chunk.
    pub(crate) span: Range<usize>,
    rotations: OnceLock<Rotations>,
    turns: OnceLock<Vec<Turns>>,
}

impl<'a> SpanRopes<'a> {
    pub(crate) fn new(spec: &'a ModelSpec, first_position: u64, span: Range<usize>) -> Self {
        Self { spec, first_position, span, rotations: OnceLock::new(), turns: OnceLock::new() }
    }

    pub(crate) fn tokens(&self) -> usize {
        self.span.len()
    }

    /// For rows: elements side by side.
    pub(crate) fn rotations(&self) -> &Rotations {
        self.rotations.get_or_init(|| Rotations::new(&self.spec.ropes, self.first_position, &self.span))
    }

    /// For direct scopes: tokens side by side.
    pub(crate) fn turns(&self) -> &[Turns] {
        // Positions are taken modulo 2^64 everywhere: the phase is.
        let first = self.first_position.wrapping_add(self.span.start as u64);
        self.turns.get_or_init(|| {
            self.spec.ropes.iter().map(|rope| Turns::new(rope, first, self.span.len())).collect()
        })
    }
}
