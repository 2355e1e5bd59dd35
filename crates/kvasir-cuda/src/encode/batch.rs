//! The work of an encode: scopes and spans of several chunks as tasks, joined into one launch a kernel.

use std::ops::Range;

use kvasir_codec::{CpuEncoder, PredictorView, ScopeView, rans::STREAM_COEFFICIENTS_MAX};
use kvasir_kernels::{
    ANALYSIS_TILE, AnalyseTask, ElementRange, EncodePiece, GATHER_INTEGERS, GATHER_ROWS, GATHER_STEPS,
    GatherTask, NONE, Placement, QuantiseTask, StreamSlot,
};
use kvasir_types::SPAN_TOKENS;

use super::{
    EncodeRequest,
    resident::{EncodeProfile, EncodeScopeOffsets},
};
use crate::{
    CudaError, PagedKv, factors::push_factors, lower::TASK_COEFFICIENTS_MAX, paging::PagingTables,
    resident::index_u32,
};

/// Coefficients that a warp quantises.
const QUANTISE_COEFFICIENTS: usize = 8;

/// One scope of one span of one chunk. Its number is that of its flag.
#[derive(Debug, Clone)]
pub(super) struct EncodeSite {
    pub(super) request: usize,
    pub(super) scope: usize,
    pub(super) span: usize,
    pub(super) tokens: usize,
    /// Tokens at the start that are stored exactly.
    pub(super) masked: usize,
    /// Tokens that are anchors.
    pub(super) groups: usize,
    /// First quantised value, `[coefficient][token]`; anchors follow the others.
    pub(super) values: u32,
    /// First coefficient, f32.
    pub(super) coefficients: u32,
    /// First row that is stored exactly, f32.
    pub(super) rows: u32,
    placement: u32,
}

/// The section of a site to which a piece belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SectionKind {
    /// The coefficients at a level.
    Level(usize),
    /// The anchors.
    Anchors,
}

/// The phase before coding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EncodePhase {
    /// Rows to values: direct scopes need no coefficients in between.
    Whole,
    /// Rows to coefficients, to be added to those of other ranks.
    Partial,
    /// Coefficients, already added, to values.
    Finish,
}

#[derive(Debug, Default)]
pub(super) struct EncodeBatch {
    pub(super) sites: Vec<EncodeSite>,
    /// To values, to coefficients, to finest steps of basis scopes, to exact rows.
    pub(super) gather: [Vec<GatherTask>; 4],
    pub(super) gather_columns: usize,
    pub(super) analyse: Vec<AnalyseTask>,
    pub(super) ranges: Vec<ElementRange>,
    pub(super) quantise: Vec<QuantiseTask>,
    pub(super) pieces: Vec<EncodePiece>,
    /// Site and section of every piece.
    pub(super) names: Vec<(usize, SectionKind)>,
    pub(super) slots: Vec<StreamSlot>,
    pub(super) paging: PagingTables,
    pub(super) factors: Vec<u8>,
    /// Lengths: values (i32), coefficients (f32), finest steps (f32), exact rows (f32), widths (bytes).
    pub(super) values: usize,
    pub(super) coefficients: usize,
    pub(super) steps: usize,
    pub(super) rows: usize,
    pub(super) widths: usize,
    stream_words: usize,
}

/// A chunk's spans and how many of its tokens are exact.
pub(super) struct EncodeChunk<'a> {
    pub(super) request: &'a EncodeRequest<'a>,
    pub(super) exact: usize,
}

impl EncodeBatch {
    pub(super) fn new(cpu: &CpuEncoder, pages: Option<&PagedKv>, stream_words: usize) -> Self {
        let views = (0..cpu.scope_count()).filter_map(|scope| cpu.scope_view(scope));
        Self { stream_words, paging: PagingTables::new(views, pages), ..Self::default() }
    }

    /// Adds all scopes and spans of a chunk, `[scope][span]`.
    pub(super) fn add<M>(
        &mut self,
        cpu: &CpuEncoder,
        resident: &EncodeProfile<M>,
        phase: EncodePhase,
        index: usize,
        chunk: &EncodeChunk<'_>,
    ) -> Result<(), CudaError> {
        let request = chunk.request;
        let (blocks, angles) =
            (index_u32(self.paging.blocks.len())?, index_u32(self.paging.positions.len())?);
        self.paging.blocks.extend_from_slice(request.blocks);
        let position = |token: usize| request.first_position.wrapping_add(token as u64);
        self.paging.positions.extend((0..request.tokens.len()).map(position));
        let spans = || (0..request.tokens.len()).step_by(SPAN_TOKENS);
        for (scope, offsets) in resident.scopes.iter().enumerate() {
            let Some(view) = cpu.scope_view(scope) else { continue };
            for (span, start) in spans().enumerate() {
                let end = (start + SPAN_TOKENS).min(request.tokens.len());
                let placement = index_u32(self.paging.placements.len())?;
                self.paging.placements.push(Placement {
                    members: self.paging.scope_members[scope],
                    member_count: view.members.len() as u32,
                    blocks,
                    slot: request.first_slot + start as u32,
                    keep_from: 0,
                    keep_to: (end - start) as u32,
                    angles: angles + start as u32,
                    elements: offsets.elements,
                });
                let masked = chunk.exact.saturating_sub(start).min(end - start);
                let name = (index, scope, span);
                self.site(&view, offsets, phase, name, (start..end, masked, placement), request)?;
            }
        }
        Ok(())
    }

    fn site(
        &mut self,
        view: &ScopeView<'_>,
        offsets: &EncodeScopeOffsets,
        phase: EncodePhase,
        (request, scope, span): (usize, usize, usize),
        (range, masked, placement): (Range<usize>, usize, u32),
        chunk: &EncodeRequest<'_>,
    ) -> Result<(), CudaError> {
        let tokens = range.len();
        let group = match view.predictor {
            PredictorView::Anchors { group, .. } => group,
            PredictorView::Mean | PredictorView::Token { .. } => 0,
        };
        let groups = if group == 0 { 0 } else { tokens.div_ceil(group) };
        let site = EncodeSite {
            request,
            scope,
            span,
            tokens,
            masked,
            groups,
            values: reserve(
                &mut self.values,
                if phase == EncodePhase::Partial { 0 } else { view.rank * tokens },
            )?,
            coefficients: index_u32(self.coefficients)?,
            rows: reserve(
                &mut self.rows,
                if phase == EncodePhase::Finish { 0 } else { view.mean.len() * masked },
            )?,
            placement,
        };
        let flag = index_u32(self.sites.len())?;
        if phase != EncodePhase::Finish {
            let rows = (GATHER_ROWS, 3, site.rows, masked);
            self.gather_tasks(view, &site, flag, rows);
        }
        let is_direct = offsets.analysis.is_none() && matches!(view.predictor, PredictorView::Mean);
        if is_direct && phase == EncodePhase::Whole {
            self.gather_tasks(view, &site, flag, (GATHER_INTEGERS, 0, site.values, tokens));
        } else {
            self.coefficients += view.rank * tokens;
            index_u32(self.coefficients)?;
            if phase != EncodePhase::Finish {
                self.coefficient_tasks(view, offsets, &site, flag)?;
            }
            if phase != EncodePhase::Partial {
                let text = (chunk.tokens, chunk.preceding_token);
                self.quantise_tasks(view, offsets, &site, flag, group, &range, text)?;
            }
        }
        if phase != EncodePhase::Partial {
            self.site_pieces(view, offsets, &site, flag)?;
        }
        self.sites.push(site);
        Ok(())
    }

    /// `how`: kind, queue, first value and tokens.
    fn gather_tasks(
        &mut self,
        view: &ScopeView<'_>,
        site: &EncodeSite,
        flag: u32,
        (kind, queue, values, tokens): (u32, usize, u32, usize),
    ) {
        if tokens == 0 {
            return;
        }
        for (index, member) in view.members.iter().enumerate() {
            let width = if member.rope.is_some() { member.dim } else { TASK_COEFFICIENTS_MAX };
            for first in (0..member.dim).step_by(width) {
                let count = width.min(member.dim - first);
                self.gather_columns = self.gather_columns.max(count);
                self.gather[queue].push(GatherTask {
                    placement: site.placement,
                    member: index as u32,
                    first: first as u32,
                    count: count as u32,
                    tokens: tokens as u32,
                    masked: site.masked as u32,
                    values,
                    flag,
                    kind,
                    reserved: 0,
                });
            }
        }
    }

    /// Whole rows of a site, unmodified.
    pub(super) fn rows_of(
        &mut self,
        view: &ScopeView<'_>,
        site: &EncodeSite,
        flag: u32,
    ) -> Result<u32, CudaError> {
        let rows = reserve(&mut self.rows, view.mean.len() * site.tokens)?;
        self.gather_tasks(view, site, flag, (GATHER_ROWS, 3, rows, site.tokens));
        Ok(rows)
    }

    fn coefficient_tasks(
        &mut self,
        view: &ScopeView<'_>,
        offsets: &EncodeScopeOffsets,
        site: &EncodeSite,
        flag: u32,
    ) -> Result<(), CudaError> {
        let Some(matrix) = offsets.analysis else {
            self.gather_tasks(view, site, flag, (GATHER_STEPS, 1, site.coefficients, site.tokens));
            return Ok(());
        };
        let steps = reserve(&mut self.steps, view.mean.len() * site.tokens)?;
        self.gather_tasks(view, site, flag, (GATHER_STEPS, 2, steps, site.tokens));
        let ranges = index_u32(self.ranges.len())?;
        for (member, record) in view.members.iter().zip(self.paging.members_from(site.scope)) {
            if record.plane != NONE {
                self.ranges.push(ElementRange { start: member.start as u32, count: member.dim as u32 });
            }
        }
        let range_count = self.ranges.len() as u32 - ranges;
        for first in (0..view.rank).step_by(ANALYSIS_TILE as usize) {
            self.analyse.extend((0..site.tokens).step_by(ANALYSIS_TILE as usize).map(|first_token| {
                AnalyseTask {
                    steps,
                    coefficients: site.coefficients,
                    matrix,
                    rank: view.rank as u32,
                    tokens: site.tokens as u32,
                    first: first as u32,
                    first_token: first_token as u32,
                    ranges,
                    range_count,
                    reserved: 0,
                }
            }));
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "one call site; a struct would only rename them")]
    fn quantise_tasks(
        &mut self,
        view: &ScopeView<'_>,
        offsets: &EncodeScopeOffsets,
        site: &EncodeSite,
        flag: u32,
        group: usize,
        range: &Range<usize>,
        (text, preceding): (&[u32], Option<u32>),
    ) -> Result<(), CudaError> {
        let factor_rows = index_u32(self.factors.len())?;
        let factors = push_factors(&mut self.factors, &view.predictor, text, preceding, range);
        let anchor_ratio = match view.predictor {
            PredictorView::Anchors { ratio, .. } => ratio,
            PredictorView::Mean | PredictorView::Token { .. } => 1,
        };
        self.quantise.extend((0..view.rank).step_by(QUANTISE_COEFFICIENTS).map(|first| QuantiseTask {
            coefficients: site.coefficients,
            values: site.values,
            anchors: site.anchors(view.rank),
            first: first as u32,
            rank: view.rank as u32,
            tokens: site.tokens as u32,
            masked: site.masked as u32,
            group: group as u32,
            anchor_ratio,
            flag,
            factors,
            factor_rows,
            matrix: offsets.matrix[0],
            shifts: offsets.matrix[1],
        }));
        Ok(())
    }

    fn site_pieces(
        &mut self,
        view: &ScopeView<'_>,
        offsets: &EncodeScopeOffsets,
        site: &EncodeSite,
        flag: u32,
    ) -> Result<(), CudaError> {
        let top = offsets.levels.len().saturating_sub(1);
        let levels = offsets.levels.iter().enumerate().map(|(level, plan)| {
            (SectionKind::Level(level), *plan, (top - level) as u32, site.values, site.tokens - site.groups)
        });
        let anchors = offsets
            .anchors
            .iter()
            .map(|plan| (SectionKind::Anchors, *plan, 0, site.anchors(view.rank), site.groups));
        for (section, plan, up, values, tokens) in levels.chain(anchors) {
            if plan.count == 0 || tokens == 0 {
                continue;
            }
            let (piece, streams) = (index_u32(self.pieces.len())?, index_u32(self.slots.len())?);
            for index in 0..plan.count.div_ceil(STREAM_COEFFICIENTS_MAX) {
                let words = index_u32(self.slots.len() * self.stream_words)?;
                self.slots.push(StreamSlot { piece, index: index as u32, words, reserved: 0 });
            }
            self.pieces.push(EncodePiece {
                plan: plan.first,
                codings: plan.first,
                count: plan.count as u32,
                tokens: tokens as u32,
                up,
                values,
                widths: reserve(&mut self.widths, plan.count)?,
                streams,
                flag,
                stream_words: self.stream_words as u32,
            });
            self.names.push((self.sites.len(), section));
        }
        Ok(())
    }

    /// Words of all streams.
    pub(super) fn words(&self) -> usize {
        self.slots.len() * self.stream_words
    }
}

impl EncodeSite {
    /// First anchor: after the values of the other tokens.
    pub(super) fn anchors(&self, rank: usize) -> u32 {
        self.values + (rank * (self.tokens - self.groups)) as u32
    }
}

fn reserve(length: &mut usize, count: usize) -> Result<u32, CudaError> {
    let first = index_u32(*length)?;
    *length += count;
    index_u32(*length)?;
    Ok(first)
}
