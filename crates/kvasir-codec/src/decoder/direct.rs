//! bf16 rows of a direct scope, member by member while their values are in the cache.

use std::ops::Range;

use half::bf16;

use super::{
    CpuDecoder, MemberView,
    sections::Object,
    task::Task,
    window::{Window, narrow_stride},
};
use crate::{
    DecodeError, KvSink,
    arch::{RowKernel, StreamCell},
    bound::{BAND_MAIN, BoundScope, Matrix, SectionPlan},
    profile::Predictor,
    rans::{Fit, PieceDecoder, PiecePlan, PieceSteps},
    ropes::SpanRopes,
    rows::{
        Quantised, Scaling,
        half::{HalfRows, RowScratch, Turns, aligned},
        half_rows, half_rows_portable,
    },
};

/// The kernels that a decoder uses. All give the same rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodePath {
    pub(super) pieces: PieceDecoder,
    rows: RowKernel,
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

/// What decoding a scope takes besides its output.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    narrow: Vec<i16>,
    wide: Vec<i32>,
    /// Rows of one member.
    rows: Vec<bf16>,
    lanes: RowScratch,
}

/// Where rows `[token][element]` of members go.
pub(super) trait Place {
    /// Room for all of a member's rows, where they can be made in place.
    fn room(&mut self, member: &MemberView, tokens: usize) -> Option<HalfRows<'_>>;

    /// Takes rows that had no room, while they are in the cache.
    fn take(&mut self, member: &MemberView, rows: &[bf16]);
}

/// A span's rows in a sink that gets only the `kept` ones.
pub(super) struct InSink<'a> {
    pub(super) sink: &'a mut dyn KvSink,
    /// First token of the span.
    pub(super) first: usize,
    pub(super) kept: Range<usize>,
}

impl InSink<'_> {
    /// Writes the exact tokens at the start of the span, `[member][token][element]`.
    pub(super) fn overwrite(
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
            let rows: Vec<bf16> = values.iter().copied().map(bf16::from_f32).collect();
            self.sink.write_bf16(m.layer, m.plane, m.head, self.first + kept.start, &rows);
        }
    }
}

impl Place for InSink<'_> {
    fn room(&mut self, m: &MemberView, tokens: usize) -> Option<HalfRows<'_>> {
        let rows = (self.kept == (0..tokens))
            .then(|| self.sink.place_bf16(m.layer, m.plane, m.head, self.first, tokens))??;
        (rows.len() == tokens * m.dim).then_some(HalfRows { rows, past_cache: true })
    }

    fn take(&mut self, m: &MemberView, rows: &[bf16]) {
        let rows = &rows[self.kept.start * m.dim..self.kept.end * m.dim];
        self.sink.write_bf16(m.layer, m.plane, m.head, self.first + self.kept.start, rows);
    }
}

/// One member behind the other.
pub(super) struct Appended {
    pub(super) rows: Vec<bf16>,
    /// Values that are there.
    pub(super) done: usize,
}

impl Place for Appended {
    fn room(&mut self, member: &MemberView, tokens: usize) -> Option<HalfRows<'_>> {
        let start = self.done;
        self.done += tokens * member.dim;
        Some(HalfRows { rows: self.rows.get_mut(start..self.done)?, past_cache: false })
    }

    fn take(&mut self, _: &MemberView, _: &[bf16]) {}
}

/// One level of a scope, being decoded.
struct Rung<'a> {
    plan: &'a SectionPlan,
    steps: PieceSteps<'a>,
    section: usize,
}

impl Rung<'_> {
    /// The first of the scope's coefficients that is not decoded yet; all are where there is none.
    fn waiting(&self) -> usize {
        self.steps.next().map_or(usize::MAX, |step| self.plan.coefficients[step.start])
    }
}

/// The levels of a scope, coarsest first, none ahead of the one before it.
struct Ladder<'a> {
    rungs: Vec<Rung<'a>>,
    span: usize,
}

impl Ladder<'_> {
    /// Brings all coefficients below `end` to level `level`.
    fn climb<V: StreamCell>(
        &mut self,
        level: usize,
        end: usize,
        window: &mut Window<'_, V>,
    ) -> Result<Fit, DecodeError> {
        while self.rungs[level].waiting() < end {
            let rung = &self.rungs[level];
            let Some(step) = rung.steps.next() else { break };
            // increasing, and a step is never empty
            let after = rung.plan.coefficients[step.end - 1] + 1;
            if let Some(before) = level.checked_sub(1)
                && self.climb(before, after, window)? == Fit::TooWide
            {
                return Ok(Fit::TooWide);
            }
            let (span, rung) = (self.span, &mut self.rungs[level]);
            let section = rung.section;
            let failed = |source| DecodeError::Piece { section, span, source };
            window.reach(after);
            let base = window.base();
            if rung.steps.step_of(&rung.plan.coefficients, base, window.target()).map_err(failed)?
                == Fit::TooWide
            {
                return Ok(Fit::TooWide);
            }
        }
        Ok(Fit::Held)
    }
}

impl CpuDecoder {
    /// Whether a task's bf16 rows are made member by member: no basis, the mean as prediction, nothing exact above.
    pub(super) fn is_direct(&self, task: Task) -> bool {
        let scope = &self.profile.scopes[task.scope];
        matches!((&self.scopes[task.scope].1, &scope.predictor), (Matrix::Identity, Predictor::Mean))
            && task.level < self.profile.lossy_levels()
    }

    /// Makes the rows `[token][element]` of every member of a direct scope in turn.
    pub(super) fn direct_members(
        &self,
        object: &Object<'_, '_>,
        task: Task,
        ropes: &SpanRopes<'_>,
        place: &mut dyn Place,
    ) -> Result<(), DecodeError> {
        let mut scratch = self.scratch.take();
        let done = self.each_member(object, task, ropes, &mut scratch, place);
        self.scratch.give(scratch);
        done
    }

    fn each_member(
        &self,
        object: &Object<'_, '_>,
        task: Task,
        ropes: &SpanRopes<'_>,
        scratch: &mut Scratch,
        place: &mut dyn Place,
    ) -> Result<(), DecodeError> {
        let (bound, _) = &self.scopes[task.scope];
        let (tokens, mean) = (ropes.tokens(), &self.profile.scopes[task.scope].mean);
        let (up, shifts) = bound.reconstruction(task.level);
        let scaling = |member: &MemberView| {
            let range = member.start..member.start + member.dim;
            Scaling { up, shifts: &shifts[range.clone()], gain: member.gain, mean: &mean[range] }
        };
        let turns =
            |member: &MemberView| -> Option<&Turns> { member.rope.and_then(|rope| ropes.turns().get(rope)) };
        let Scratch { narrow, wide, rows, lanes } = scratch;
        let mut members = bound.elements.views().peekable();
        if let Some(most) = bound.narrow_most() {
            let mut ladder = self.ladder(object, task, bound, tokens)?;
            let mut window = Window::new(narrow, bound, task.level, narrow_stride(tokens), most);
            while let Some(member) = members.peek() {
                window.slide(member.start);
                if ladder.climb(task.level, member.start + member.dim, &mut window)? == Fit::TooWide {
                    break;
                }
                let values = window.rows(member.start..member.start + member.dim);
                let values = Quantised { values, stride: narrow_stride(tokens), tokens };
                placed(member, tokens, place, rows, |rows| {
                    half_rows(self.path.rows, &scaling(member), turns(member), values, rows, lanes);
                });
                members.next();
            }
        }
        let Some(first) = members.peek() else { return Ok(()) };
        // Rare values that narrow cells do not hold: again from the start, as rows of the members before are placed.
        let mut ladder = self.ladder(object, task, bound, tokens)?;
        let mut window = Window::new(wide, bound, task.level, tokens, i32::MAX);
        ladder.climb(task.level, first.start, &mut window)?;
        for member in members {
            window.slide(member.start);
            ladder.climb(task.level, member.start + member.dim, &mut window)?;
            let values = window.rows(member.start..member.start + member.dim);
            let values = Quantised { values, stride: tokens, tokens };
            placed(&member, tokens, place, rows, |rows| {
                half_rows_portable(&scaling(&member), turns(&member), values, rows, lanes);
            });
        }
        Ok(())
    }

    fn ladder<'a>(
        &'a self,
        object: &Object<'a, '_>,
        task: Task,
        bound: &'a BoundScope,
        tokens: usize,
    ) -> Result<Ladder<'a>, DecodeError> {
        let rung = |(level, plan): (usize, &'a SectionPlan)| {
            let (section, bytes) = object.piece(task, BAND_MAIN, level)?.unwrap_or((0, &[]));
            let piece = PiecePlan { coefficients: &plan.codings, tokens };
            let steps = self.path.pieces.steps(&self.profile.bank, piece, bytes);
            let failed = |source| DecodeError::Piece { section, span: task.span, source };
            Ok(Rung { plan, steps: steps.map_err(failed)?, section })
        };
        let rungs = bound.levels[..=task.level].iter().enumerate().map(rung);
        Ok(Ladder { rungs: rungs.collect::<Result<_, DecodeError>>()?, span: task.span })
    }
}

/// Makes a member's rows where they belong, or on the way there.
fn placed(
    member: &MemberView,
    tokens: usize,
    place: &mut dyn Place,
    rows: &mut Vec<bf16>,
    make: impl FnOnce(HalfRows<'_>),
) {
    if let Some(room) = place.room(member, tokens) {
        return make(room);
    }
    let rows = aligned(rows, member.dim * tokens);
    make(HalfRows { rows: &mut *rows, past_cache: false });
    place.take(member, rows);
}
