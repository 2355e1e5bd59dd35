//! An object's pieces and a profile's scopes as flat data, for decoders that run elsewhere (the `kvasir-cuda` crate).

use std::ops::Range;

use half::f16;
use kvasir_container::Head;
use kvasir_types::{KvDtype, Level, ModelSpec, Plane};

use super::{CpuDecoder, sections::PartialObject, spans, task::DecodeTask};
use crate::{
    DecodeError, Profile,
    exact_piece::{self, ExactDtype},
    levels::{ratio, towards_zero},
    lossless::{self, Lossless},
    prepared_scope::{BAND_ANCHORS, BAND_EXACT, BAND_LOSSLESS, BAND_MAIN, PreparedScope, SectionPlan},
    profile::{Basis, Predictor, Scope},
    rans::Coding,
};

/// A piece: index of its section, and its bytes.
pub type PieceBytes<'a> = (usize, &'a [u8]);

/// A piece of the exact level (FORMAT.md "Exact level").
#[derive(Debug, Clone, Copy)]
pub struct LosslessBytes<'a> {
    /// Index of its section.
    pub section: usize,
    /// The coded differences, a piece over all elements; empty if all are 0.
    pub coded: &'a [u8],
    /// The bits that tell the patterns of a cell apart, not yet checked.
    pub raw: &'a [u8],
}

/// One scope of one span, with its pieces checked against their checksums.
#[derive(Debug, Clone)]
pub struct ScopeSpan<'a> {
    /// The scope.
    pub scope: usize,
    /// The span.
    pub span: usize,
    /// Its tokens, relative to the chunk.
    pub tokens: Range<usize>,
    /// The level it is decoded at.
    pub level: Level,
    /// Exact tokens at the start of the span, and their values as stored: `[member][token][element]`.
    pub exact: Option<(usize, &'a [u8])>,
    /// The anchors; `None` if they are absent or the scope has none.
    pub anchors: Option<PieceBytes<'a>>,
    /// One entry a lossy level, coarsest first, up to `level`; `None` is absent.
    pub levels: Vec<Option<PieceBytes<'a>>>,
    /// Present exactly if `level` is the exact level and the span has tokens that are not in `exact`.
    pub lossless: Option<LosslessBytes<'a>>,
}

impl ScopeSpan<'_> {
    /// Whether all tokens are exact, so that nothing is left to decode.
    pub fn is_exact(&self) -> bool {
        self.exact.is_some_and(|(tokens, _)| tokens == self.tokens.len())
    }
}

/// One head of a scope.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemberView {
    /// Layer.
    pub layer: usize,
    /// Plane.
    pub plane: Plane,
    /// Head.
    pub head: usize,
    /// Elements.
    pub dim: usize,
    /// First element within the scope.
    pub start: usize,
    /// One finest step in the head's units.
    pub gain: f32,
    /// The rope that has to be redone, as an index into the spec's.
    pub rope: Option<usize>,
}

/// Coefficients that one section codes, in stream order, and how.
pub type PlanView<'a> = (&'a [usize], &'a [Coding]);

/// The predictor of a scope.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PredictorView<'a> {
    /// Nothing.
    Mean,
    /// The first token of every group.
    Anchors {
        /// Tokens of a group; groups restart at each span.
        group: usize,
        /// Anchor steps in a finest step.
        ratio: i32,
        /// How anchors are coded.
        plan: PlanView<'a>,
    },
    /// The text.
    Token {
        /// Rows of the two tables.
        vocabulary: usize,
        /// Factors of the current and of the previous token.
        factors: [usize; 2],
        /// `[token][factor]`.
        current: &'a [i8],
        /// `[token][factor]`.
        previous: &'a [i8],
        /// `[factor][coefficient]`, the current token's factors first.
        matrix: &'a [i8],
        /// One a coefficient.
        shifts: &'a [u8],
    },
}

/// A scope bound to a model.
#[derive(Debug, Clone)]
pub struct ScopeView<'a> {
    /// Its heads, in element order.
    pub members: Vec<MemberView>,
    /// Static mean, one per element.
    pub mean: &'a [f32],
    /// Coefficients of one token.
    pub rank: usize,
    /// One plan a lossy level.
    pub levels: Vec<PlanView<'a>>,
    /// How the exact level is coded; `None` without one.
    pub lossless: Option<&'a Lossless>,
    /// Synthesis matrix `[coefficient][element]`; `None` if coefficients are elements.
    pub synthesis: Option<&'a [f16]>,
    /// The predictor.
    pub predictor: PredictorView<'a>,
}

fn view(plan: &SectionPlan) -> PlanView<'_> {
    (&plan.coefficients, &plan.codings)
}

/// A prepared scope as flat data.
pub(crate) fn view_of<'a>(prepared: &'a PreparedScope, scope: &'a Scope) -> ScopeView<'a> {
    let predictor = match &scope.predictor {
        Predictor::Mean => PredictorView::Mean,
        Predictor::AnchorFirst { group, anchor_ratio, .. } => {
            PredictorView::Anchors { group: *group, ratio: *anchor_ratio, plan: view(&prepared.anchors) }
        }
        Predictor::Token(token) => PredictorView::Token {
            vocabulary: token.vocabulary,
            factors: token.factors,
            current: &token.current,
            previous: &token.previous,
            matrix: &token.matrix,
            shifts: &token.shifts,
        },
    };
    let synthesis = match &scope.basis {
        Basis::Identity => None,
        Basis::Trained { synthesis, .. } => Some(synthesis.as_slice()),
    };
    ScopeView {
        members: prepared.elements.views().collect(),
        mean: &scope.mean,
        rank: scope.rank(),
        levels: prepared.levels.iter().map(view).collect(),
        lossless: scope.lossless.as_ref(),
        synthesis,
        predictor,
    }
}

impl CpuDecoder {
    /// The model.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The profile.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Scopes of the profile.
    pub fn scope_count(&self) -> usize {
        self.scopes.len()
    }

    /// Type of the values in exact pieces.
    pub fn exact_dtype(&self) -> KvDtype {
        match self.exact_dtype {
            ExactDtype::Bf16 => KvDtype::Bf16,
            ExactDtype::F16 => KvDtype::F16,
            ExactDtype::F32 => KvDtype::F32,
        }
    }

    /// A scope as flat data; `None` if the profile has no such scope.
    pub fn scope_view(&self, scope: usize) -> Option<ScopeView<'_>> {
        let (prepared, _) = self.scopes.get(scope)?;
        Some(view_of(prepared, self.profile.scopes.get(scope)?))
    }

    /// How a level's values of a scope become finest steps, one `(ratio, towards_zero)` a coefficient:
    /// `q · ratio − sign(q) · towards_zero`.
    pub fn steps(&self, scope: usize, level: Level) -> Option<Vec<(i32, i32)>> {
        let shifts = self.scopes.get(scope)?.0.shifts(level.index())?;
        let up = self.profile.lossy_levels().checked_sub(level.index() + 1)? as u32;
        Some(shifts.iter().map(|shift| (ratio(up), towards_zero(up, *shift))).collect())
    }

    /// Finds, checks and cuts the pieces that decoding `scopes` at their levels takes. Nothing is decoded.
    ///
    /// # Errors
    /// As [`decode_scopes`](Self::decode_scopes), but for what only decoding a piece finds.
    pub fn scope_spans<'a>(
        &self,
        head: &'a Head,
        object_prefix: &'a [u8],
        scopes: &[(usize, Level)],
        tokens: Range<usize>,
    ) -> Result<Vec<ScopeSpan<'a>>, DecodeError> {
        let (sections, tasks) = self.plan_tasks(head, scopes, &tokens)?;
        let object = PartialObject { head, bytes: object_prefix, sections: &sections };
        self.check_present(&object, &tasks)?;
        let spans: Vec<_> = spans(head.header.token_count as usize).collect();
        tasks.iter().map(|task| self.scope_span(&object, *task, &spans[task.span])).collect()
    }

    fn scope_span<'a>(
        &self,
        object: &PartialObject<'a, '_>,
        task: DecodeTask,
        span: &Range<usize>,
    ) -> Result<ScopeSpan<'a>, DecodeError> {
        let exact = self.exact_bytes(object, task, span)?;
        let (scope, level) = (task.scope, Level(task.level as u8));
        let mut found = ScopeSpan {
            scope,
            span: task.span,
            tokens: span.clone(),
            level,
            exact,
            anchors: None,
            levels: vec![],
            lossless: None,
        };
        if !found.is_exact() {
            found.anchors = object.piece(task, BAND_ANCHORS, 0)?;
            let lossy = self.profile.lossy_levels();
            let pieces = (0..lossy.min(task.level + 1)).map(|level| object.piece(task, BAND_MAIN, level));
            found.levels = pieces.collect::<Result<_, _>>()?;
            if task.level == lossy {
                let bytes = object.piece(task, BAND_LOSSLESS, task.level)?.and_then(|(section, piece)| {
                    let (coded, raw) = lossless::split(piece)?;
                    Some(LosslessBytes { section, coded, raw })
                });
                found.lossless = Some(bytes.ok_or(DecodeError::Exact { scope, span: task.span })?);
            }
        }
        Ok(found)
    }

    /// The positions of a span's exact values, after all checks on them.
    pub(super) fn exact_bytes<'a>(
        &self,
        object: &PartialObject<'a, '_>,
        task: DecodeTask,
        span: &Range<usize>,
    ) -> Result<Option<(usize, &'a [u8])>, DecodeError> {
        let malformed = DecodeError::Exact { scope: task.scope, span: task.span };
        let required =
            usize::from(object.head.header.exact_tokens).saturating_sub(span.start).min(span.len());
        let Some((_, bytes)) = object.piece(task, BAND_EXACT, 0)? else {
            return if required == 0 { Ok(None) } else { Err(malformed) };
        };
        let elements = self.scopes[task.scope].0.elements.count();
        match exact_piece::split(self.exact_dtype, elements, span.len(), bytes) {
            Some((tokens, values)) if tokens >= required => Ok(Some((tokens, values))),
            _ => Err(malformed),
        }
    }
}
