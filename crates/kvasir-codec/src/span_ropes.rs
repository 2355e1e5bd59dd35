//! A model's ropes over a span, in both layouts.

use std::{ops::Range, sync::OnceLock};

use kvasir_types::ModelSpec;

use crate::{direct_rows::bf16_tiles::RotationTable, transform::Rotations};

/// A model's ropes over a span, made at first use and shared by the span's scopes.
#[derive(Debug)]
pub struct SpanRopes<'a> {
    spec: &'a ModelSpec,
    first_position: u64,
    /// Tokens, relative to the chunk.
    pub(crate) span: Range<usize>,
    rotations: OnceLock<Rotations>,
    rotation_tables: OnceLock<Vec<RotationTable>>,
}

impl<'a> SpanRopes<'a> {
    /// Of the positions `first_position + span`.
    pub fn new(spec: &'a ModelSpec, first_position: u64, span: Range<usize>) -> Self {
        Self { spec, first_position, span, rotations: OnceLock::new(), rotation_tables: OnceLock::new() }
    }

    pub(crate) fn tokens(&self) -> usize {
        self.span.len()
    }

    /// For rows: elements side by side.
    pub(crate) fn rotations(&self) -> &Rotations {
        self.rotations.get_or_init(|| Rotations::new(&self.spec.ropes, self.first_position, &self.span))
    }

    /// For direct scopes: tokens side by side.
    pub(crate) fn rotation_tables(&self) -> &[RotationTable] {
        // Positions are taken modulo 2^64 everywhere: the phase is.
        let first = self.first_position.wrapping_add(self.span.start as u64);
        self.rotation_tables.get_or_init(|| {
            self.spec.ropes.iter().map(|rope| RotationTable::new(rope, first, self.span.len())).collect()
        })
    }
}
