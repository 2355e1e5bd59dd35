//! Rows of a direct scope, member by member while their values are in the cache.

use std::ops::Range;

use half::bf16;

use super::{
    CpuDecoder, MemberView,
    row_value::RowValue,
    sections::PartialObject,
    task::DecodeTask,
    window::{Window, narrow_stride},
};
use crate::{
    DecodeError, HeadRows, KvSink,
    arch::{RowKernel, StreamCell},
    direct_rows::{
        QuantisedRows, Scaling, bf16_rows, bf16_rows_portable,
        bf16_tiles::{RotationTable, RowScratch, RowsMut, aligned},
        scale_rows,
    },
    prepared_scope::{BAND_MAIN, PreparedScope, SectionPlan},
    profile::Predictor,
    rans::{Fit, PieceDecoder, PiecePlan, PieceSteps},
    span_ropes::SpanRopes,
    synthesis::Synthesis,
};

/// The kernels that a decoder uses. All give the same rows, those of a basis within FORMAT.md's tolerance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodePath {
    pub(super) pieces: PieceDecoder,
    pub(super) rows: RowKernel,
}

impl DecodePath {
    /// Every path that this CPU has, slowest first.
    pub fn available() -> Vec<Self> {
        let rows = RowKernel::available();
        let path = |pieces: PieceDecoder| {
            let own = rows.iter().find(|rows| rows.name() == pieces.name());
            Self { pieces, rows: own.copied().unwrap_or(RowKernel::portable()) }
        };
        PieceDecoder::available().into_iter().map(path).collect()
    }

    /// The fastest.
    pub fn best() -> Self {
        // the scalar one always is
        Self::available()
            .pop()
            .unwrap_or(Self { pieces: PieceDecoder::scalar(), rows: RowKernel::portable() })
    }

    /// `scalar`, `avx2`, `avx512` or `neon`: for reports and metrics.
    pub fn name(&self) -> &'static str {
        self.pieces.name()
    }
}

/// The buffers for decoding a scope, except its output.
#[derive(Debug, Default)]
pub(super) struct DirectScratch {
    narrow: Vec<i16>,
    wide: Vec<i32>,
    /// Rows of one member.
    rows: Vec<bf16>,
    floats: Vec<f32>,
    lanes: RowScratch,
}

/// Takes the rows, `[token][element]`, of members.
pub(super) trait RowDestination<T> {
    /// Memory for all of a member's rows, if they can be made in place.
    fn room(&mut self, member: &MemberView, tokens: usize) -> Option<RowsMut<'_, T>>;

    /// Receives rows that were not made in place, while they are in the cache.
    fn take(&mut self, member: &MemberView, rows: &[T]);
}

/// A span's rows in a sink that gets only the `kept` ones.
pub(super) struct SinkRows<'a> {
    pub(super) sink: &'a mut dyn KvSink,
    /// First token of the span.
    pub(super) first: usize,
    pub(super) kept: Range<usize>,
}

impl SinkRows<'_> {
    /// Writes the exact tokens at the start of the span, `[member][token][element]`.
    pub(super) fn overwrite<T: RowValue>(
        &mut self,
        members: impl Iterator<Item = MemberView>,
        exact: usize,
        values: &[f32],
    ) {
        let kept = self.kept.start..self.kept.end.min(exact);
        if kept.is_empty() {
            return;
        }
        for m in members {
            let values = &values[m.start * exact..][kept.start * m.dim..kept.end * m.dim];
            self.write(&m, kept.start, &T::rounded(values.to_vec()));
        }
    }

    /// Writes rows of a member, as tokens of the span from `token` on.
    fn write<T: RowValue>(&mut self, m: &MemberView, token: usize, rows: &[T]) {
        let rows = T::typed(HeadRows::dense(rows, 1, m.dim));
        self.sink.write_rows(m.layer, m.plane, m.head, self.first + token, rows);
    }
}

impl<T: RowValue> RowDestination<T> for SinkRows<'_> {
    fn room(&mut self, m: &MemberView, tokens: usize) -> Option<RowsMut<'_, T>> {
        if self.kept != (0..tokens) {
            return None;
        }
        let rows = T::place(&mut *self.sink, m, self.first, tokens)?;
        (rows.len() == tokens * m.dim).then_some(RowsMut { rows, past_cache: true })
    }

    fn take(&mut self, m: &MemberView, rows: &[T]) {
        let rows = &rows[self.kept.start * m.dim..self.kept.end * m.dim];
        self.write(m, self.kept.start, rows);
    }
}

/// The members, concatenated.
pub(super) struct AppendedRows<T> {
    pub(super) rows: Vec<T>,
    /// Number of values present.
    pub(super) done: usize,
}

impl<T> RowDestination<T> for AppendedRows<T> {
    fn room(&mut self, member: &MemberView, tokens: usize) -> Option<RowsMut<'_, T>> {
        let start = self.done;
        self.done += tokens * member.dim;
        Some(RowsMut { rows: self.rows.get_mut(start..self.done)?, past_cache: false })
    }

    fn take(&mut self, _: &MemberView, _: &[T]) {}
}

/// One level of a scope, being decoded.
struct LevelSteps<'a> {
    plan: &'a SectionPlan,
    steps: PieceSteps<'a>,
    section: usize,
}

impl LevelSteps<'_> {
    /// The first of the scope's coefficients that is not decoded yet; all are if there is none.
    fn waiting(&self) -> usize {
        self.steps.next().map_or(usize::MAX, |step| self.plan.coefficients[step.start])
    }
}

/// The levels of a scope, coarsest first, none ahead of the one before it.
struct ScopeSteps<'a> {
    levels: Vec<LevelSteps<'a>>,
    span: usize,
}

impl ScopeSteps<'_> {
    /// Brings all coefficients below `end` to level `level`.
    fn decode_until<V: StreamCell>(
        &mut self,
        level: usize,
        end: usize,
        window: &mut Window<'_, V>,
    ) -> Result<Fit, DecodeError> {
        while self.levels[level].waiting() < end {
            let level_steps = &self.levels[level];
            let Some(step) = level_steps.steps.next() else { break };
            // increasing, and a step is never empty
            let after = level_steps.plan.coefficients[step.end - 1] + 1;
            if let Some(before) = level.checked_sub(1)
                && self.decode_until(before, after, window)? == Fit::TooWide
            {
                return Ok(Fit::TooWide);
            }
            let (span, level_steps) = (self.span, &mut self.levels[level]);
            let section = level_steps.section;
            let failed = |source| DecodeError::Piece { section, span, source };
            window.reach(after);
            let base = window.base();
            if level_steps
                .steps
                .step_of(&level_steps.plan.coefficients, base, window.target())
                .map_err(failed)?
                == Fit::TooWide
            {
                return Ok(Fit::TooWide);
            }
        }
        Ok(Fit::Held)
    }
}

impl CpuDecoder {
    /// Whether a scope's coefficients are its elements, predicted by their mean.
    pub(super) fn is_direct(&self, task: DecodeTask) -> bool {
        let scope = &self.profile.scopes[task.scope];
        matches!((&self.scopes[task.scope].1, &scope.predictor), (Synthesis::Identity, Predictor::Mean))
    }

    /// Makes the rows `[token][element]` of every member of a scope in turn, at a lossy level.
    pub(super) fn lossy_members<T: RowValue>(
        &self,
        object: &PartialObject<'_, '_>,
        task: DecodeTask,
        ropes: &SpanRopes<'_>,
        place: &mut dyn RowDestination<T>,
    ) -> Result<(), DecodeError> {
        if !self.is_direct(task) {
            return self.product_members(object, task, ropes, place);
        }
        let mut scratch = self.scratch.take();
        let done = T::direct_members(self, object, task, ropes, &mut scratch, place);
        self.scratch.give(scratch);
        done
    }

    /// How a member's quantised values become numbers.
    fn scaling(&self, task: DecodeTask, member: &MemberView) -> Scaling<'_> {
        let (up, shifts) = self.scopes[task.scope].0.reconstruction(task.level);
        let mean = &self.profile.scopes[task.scope].mean;
        let range = member.start..member.start + member.dim;
        Scaling { up, shifts: &shifts[range.clone()], gain: member.gain, mean: &mean[range] }
    }

    /// Rows of a direct scope in any type, by way of the f32 rows of one member.
    pub(super) fn scaled_members<T: RowValue>(
        &self,
        object: &PartialObject<'_, '_>,
        task: DecodeTask,
        ropes: &SpanRopes<'_>,
        scratch: &mut DirectScratch,
        place: &mut dyn RowDestination<T>,
    ) -> Result<(), DecodeError> {
        let (prepared, tokens) = (&self.scopes[task.scope].0, ropes.tokens());
        let DirectScratch { wide, floats, .. } = scratch;
        let mut rows = Vec::new();
        let mut steps = self.scope_steps(object, task, prepared, tokens)?;
        let mut window = Window::new(wide, prepared, task.level, tokens, i32::MAX);
        for member in prepared.elements.views() {
            window.slide(member.start);
            steps.decode_until(task.level, member.start + member.dim, &mut window)?;
            let values = window.rows(member.start..member.start + member.dim);
            floats.resize(member.dim * tokens, 0.0);
            scale_rows(self.path.rows, &self.scaling(task, &member), tokens, values, floats);
            if let Some(rotation) = member.rope.and_then(|rope| ropes.rotations().get(rope)) {
                let by_token = floats.chunks_exact_mut(member.dim).enumerate();
                by_token.for_each(|(token, row)| rotation.rotate(token, row));
            }
            placed(&member, tokens, place, &mut rows, |to| T::round(floats, to.rows));
        }
        Ok(())
    }

    /// bf16 rows of a direct scope, made of narrow values in registers.
    pub(super) fn bf16_members(
        &self,
        object: &PartialObject<'_, '_>,
        task: DecodeTask,
        ropes: &SpanRopes<'_>,
        scratch: &mut DirectScratch,
        place: &mut dyn RowDestination<bf16>,
    ) -> Result<(), DecodeError> {
        let (prepared, tokens) = (&self.scopes[task.scope].0, ropes.tokens());
        let scaling = |member: &MemberView| self.scaling(task, member);
        let rotation = |member: &MemberView| -> Option<&RotationTable> {
            member.rope.and_then(|rope| ropes.rotation_tables().get(rope))
        };
        let DirectScratch { narrow, wide, rows, lanes, .. } = scratch;
        let mut members = prepared.elements.views().peekable();
        if let Some(most) = prepared.narrow_most() {
            let mut steps = self.scope_steps(object, task, prepared, tokens)?;
            let mut window = Window::new(narrow, prepared, task.level, narrow_stride(tokens), most);
            while let Some(member) = members.peek() {
                window.slide(member.start);
                if steps.decode_until(task.level, member.start + member.dim, &mut window)? == Fit::TooWide {
                    break;
                }
                let values = window.rows(member.start..member.start + member.dim);
                let values = QuantisedRows { values, stride: narrow_stride(tokens), tokens };
                placed(member, tokens, place, rows, |rows| {
                    bf16_rows(self.path.rows, &scaling(member), rotation(member), values, rows, lanes);
                });
                members.next();
            }
        }
        let Some(first) = members.peek() else { return Ok(()) };
        // Rare values that narrow cells do not hold: again from the start, as rows of the members before are placed.
        let mut steps = self.scope_steps(object, task, prepared, tokens)?;
        let mut window = Window::new(wide, prepared, task.level, tokens, i32::MAX);
        steps.decode_until(task.level, first.start, &mut window)?;
        for member in members {
            window.slide(member.start);
            steps.decode_until(task.level, member.start + member.dim, &mut window)?;
            let values = window.rows(member.start..member.start + member.dim);
            let values = QuantisedRows { values, stride: tokens, tokens };
            placed(&member, tokens, place, rows, |rows| {
                bf16_rows_portable(&scaling(&member), rotation(&member), values, rows, lanes);
            });
        }
        Ok(())
    }

    fn scope_steps<'a>(
        &'a self,
        object: &PartialObject<'a, '_>,
        task: DecodeTask,
        prepared: &'a PreparedScope,
        tokens: usize,
    ) -> Result<ScopeSteps<'a>, DecodeError> {
        let level_steps = |(level, plan): (usize, &'a SectionPlan)| {
            let (section, bytes) = object.piece(task, BAND_MAIN, level)?.unwrap_or((0, &[]));
            let piece = PiecePlan { coefficients: &plan.codings, tokens };
            let steps = self.path.pieces.steps(&self.profile.bank, piece, bytes);
            let failed = |source| DecodeError::Piece { section, span: task.span, source };
            Ok(LevelSteps { plan, steps: steps.map_err(failed)?, section })
        };
        let levels = prepared.levels[..=task.level].iter().enumerate().map(level_steps);
        Ok(ScopeSteps { levels: levels.collect::<Result<_, DecodeError>>()?, span: task.span })
    }
}

/// Makes a member's rows in place, or in a buffer first.
pub(super) fn placed<T: Copy + Default>(
    member: &MemberView,
    tokens: usize,
    place: &mut dyn RowDestination<T>,
    rows: &mut Vec<T>,
    make: impl FnOnce(RowsMut<'_, T>),
) {
    if let Some(room) = place.room(member, tokens) {
        return make(room);
    }
    let rows = aligned(rows, member.dim * tokens);
    make(RowsMut { rows: &mut *rows, past_cache: false });
    place.take(member, rows);
}
