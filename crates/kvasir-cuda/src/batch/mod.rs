//! All work of a decode: pieces of several chunks, cut into tasks, joined into one launch a kernel.

mod lossless;
mod piece_list;

use std::ops::Range;

use kvasir_codec::{
    CpuDecoder, DecodeError, PieceBytes, PredictorView, ScopeSpan, ScopeView,
    rans::{Coding, PieceParts, PiecePlan, piece_parts},
};
use kvasir_kernels::{
    CellTask, Dtype, ExactTask, NONE, PRODUCT_ELEMENTS, PRODUCT_TOKENS, PatternTask, Placement, PrepareTask,
    ScatterTask, Stream, SynthesiseTask, Task,
};
use kvasir_types::KvDtype;

use self::piece_list::PieceList;
use crate::{
    CudaError, PagedKv,
    factors::push_factors,
    lower::{FUSED_LEVELS_MAX, Lowered, PlacedPiece, ScopeCodings, StreamName, TASK_COEFFICIENTS_MAX, lower},
    paging::PagingTables,
    resident::{DecodeProfile, DecodeScopeOffsets, index_u32},
};

/// Tokens that a warp turns into operands.
const PREPARE_TOKENS: usize = 32;

/// The input of one launch of each kernel.
#[derive(Debug, Default)]
pub(crate) struct DecodeBatch<'a> {
    pub(crate) bytes: PieceList<'a>,
    pub(crate) streams: Vec<Stream>,
    /// Request, scope and name of every stream.
    pub(crate) names: Vec<Option<(usize, usize, StreamName)>>,
    /// Straight to pages, by number of levels less one.
    pub(crate) direct: [Vec<Task>; FUSED_LEVELS_MAX],
    /// To scratch, by number of levels less one.
    pub(crate) fused: [Vec<Task>; FUSED_LEVELS_MAX],
    /// To scratch, one level after the other.
    pub(crate) staged: Vec<Vec<Task>>,
    pub(crate) scatter: Vec<ScatterTask>,
    pub(crate) prepare: Vec<PrepareTask>,
    pub(crate) synthesise: Vec<SynthesiseTask>,
    pub(crate) exact: Vec<ExactTask>,
    /// Of exact levels: parts of heads, and whole spans.
    pub(crate) cells: Vec<CellTask>,
    pub(crate) patterns: Vec<PatternTask>,
    pub(crate) paging: PagingTables,
    /// Factors of token predictors, `[span of a scope][token][factor]`.
    pub(crate) factors: Vec<u8>,
    /// Lengths of scratch (i32), operands (f16) and flags (u32).
    pub(crate) values: usize,
    pub(crate) operands: usize,
    pub(crate) wide: usize,
    /// Most elements of a scatter or cell task.
    pub(crate) scatter_columns: usize,
}

/// The destination of a chunk's tokens.
#[derive(Debug, Clone)]
pub(crate) struct Destination {
    /// Index of the request, for errors.
    pub(crate) request: usize,
    /// Tokens wanted, relative to the chunk.
    pub(crate) tokens: Range<usize>,
    /// First entry of its block table, and slot of its first wanted token.
    pub(crate) blocks: u32,
    pub(crate) first_slot: u32,
    /// Row of angles of chunk token 0; wraps if the first spans are not requested.
    pub(crate) angles: u32,
}

/// One scope of one span on its way into a batch.
struct DecodeSite<'s, 'a> {
    span: &'s ScopeSpan<'a>,
    view: &'s ScopeView<'s>,
    offsets: &'s DecodeScopeOffsets,
    request: usize,
    placement: u32,
    tokens: usize,
}

impl<'a> DecodeBatch<'a> {
    /// A batch into `pages`.
    pub(crate) fn new(cpu: &CpuDecoder, pages: &PagedKv) -> Self {
        let views = (0..cpu.scope_count()).filter_map(|scope| cpu.scope_view(scope));
        Self { paging: PagingTables::new(views, Some(pages)), ..Self::default() }
    }

    /// Adds a scope of a span.
    pub(crate) fn add<M>(
        &mut self,
        cpu: &CpuDecoder,
        resident: &DecodeProfile<M>,
        span: &ScopeSpan<'a>,
        to: &Destination,
        text: (&[u32], Option<u32>),
    ) -> Result<(), CudaError> {
        let (Some(view), Some(offsets)) = (cpu.scope_view(span.scope), resident.scopes.get(span.scope))
        else {
            return Err(DecodeError::Sections { what: "a requested scope is not in the profile" }.into());
        };
        let members = self.paging.members_from(span.scope);
        if members[..view.members.len()].iter().all(|member| member.plane == NONE) {
            return Ok(()); // another rank's
        }
        let placement = self.place_span(span, &view, offsets, to)?;
        let tokens = span.tokens.len();
        let site = DecodeSite { span, view: &view, offsets, request: to.request, placement, tokens };
        if let Some((exact_tokens, values)) = span.exact {
            self.exact_tasks(cpu, &site, exact_tokens, values)?;
        }
        if span.is_exact() {
            return Ok(());
        }
        if let Some(piece) = &span.lossless {
            return self.lossless_tasks(cpu, &site, piece, text);
        }
        if view.synthesis.is_some() {
            let values = self.main_to_scratch(cpu, &site, tokens)?;
            return self.product_tasks(&site, values, text);
        }
        match view.predictor {
            PredictorView::Anchors { group, ratio, plan } => {
                let groups = tokens.div_ceil(group);
                let values = self.main_to_scratch(cpu, &site, tokens - groups)?;
                let anchors = self.anchors_to_scratch(cpu, &site, plan.1, groups)?;
                let group = group as u32;
                let predictor = ScatterTask { anchors, group, anchor_ratio: ratio, ..ScatterTask::default() };
                self.scatter_tasks(&site, values, predictor)
            }
            PredictorView::Token { .. } => {
                let values = self.main_to_scratch(cpu, &site, tokens)?;
                let predictor = self.text_predictor(&site, text)?;
                self.scatter_tasks(&site, values, predictor)
            }
            PredictorView::Mean => self.direct_tasks(cpu, &site),
        }
    }

    fn place_span(
        &mut self,
        span: &ScopeSpan<'_>,
        view: &ScopeView<'_>,
        offsets: &DecodeScopeOffsets,
        to: &Destination,
    ) -> Result<u32, CudaError> {
        let from = to.tokens.start.max(span.tokens.start);
        let end = to.tokens.end.min(span.tokens.end);
        let index = index_u32(self.paging.placements.len())?;
        self.paging.placements.push(Placement {
            members: self.paging.scope_members[span.scope],
            member_count: view.members.len() as u32,
            blocks: to.blocks,
            slot: to.first_slot + (from - to.tokens.start) as u32,
            keep_from: (from - span.tokens.start) as u32,
            keep_to: (end - span.tokens.start) as u32,
            angles: to.angles.wrapping_add(span.tokens.start as u32),
            elements: offsets.elements,
        });
        Ok(index)
    }

    /// Adds a piece to the batch and outlines it.
    fn piece(
        &mut self,
        cpu: &CpuDecoder,
        site: &DecodeSite<'_, 'a>,
        piece: Option<PieceBytes<'a>>,
        codings: &[Coding],
        tokens: usize,
    ) -> Result<PlacedPiece, CudaError> {
        let Some((section, bytes)) = piece else {
            return Ok(PlacedPiece { section: 0, offset: 0, parts: PieceParts::Absent });
        };
        let plan = PiecePlan { coefficients: codings, tokens };
        let span = site.span.span;
        let parts = piece_parts(cpu.profile().bank(), &plan, bytes).map_err(|source| DecodeError::Piece {
            section,
            span,
            source,
        })?;
        Ok(PlacedPiece { section, offset: self.bytes.push(bytes)?, parts })
    }

    fn main_pieces(
        &mut self,
        cpu: &CpuDecoder,
        site: &DecodeSite<'_, 'a>,
        tokens: usize,
    ) -> Result<Vec<PlacedPiece>, CudaError> {
        let levels = site.span.levels.iter().zip(&site.view.levels);
        levels.map(|(piece, (_, codings))| self.piece(cpu, site, *piece, codings, tokens)).collect()
    }

    fn direct_tasks(&mut self, cpu: &CpuDecoder, site: &DecodeSite<'_, 'a>) -> Result<(), CudaError> {
        let pieces = self.main_pieces(cpu, site, site.tokens)?;
        let lowered = lower(&site.offsets.main, site.span.span, site.tokens, &pieces);
        if let Lowered::Fused(work) = &lowered
            && work.tasks.iter().all(|task| fits_tile(site.view, task))
        {
            let level = pieces.len() - 1;
            let steps = site.offsets.steps + (level * site.offsets.main.rank) as u32;
            let tasks = self.join(&lowered, site, site.offsets.codings[0], 0, steps)?;
            self.direct[level].extend(tasks.into_iter().flatten());
            return Ok(());
        }
        let values = self.scratch(site, site.tokens)?;
        self.decode_tasks(&lowered, site, site.offsets.codings[0], values)?;
        self.scatter_tasks(site, values, ScatterTask::default())
    }

    /// Queues the decode of the main band to scratch, and returns its position.
    fn main_to_scratch(
        &mut self,
        cpu: &CpuDecoder,
        site: &DecodeSite<'_, 'a>,
        tokens: usize,
    ) -> Result<u32, CudaError> {
        let values = self.scratch(site, tokens)?;
        if tokens > 0 {
            let pieces = self.main_pieces(cpu, site, tokens)?;
            let lowered = lower(&site.offsets.main, site.span.span, tokens, &pieces);
            self.decode_tasks(&lowered, site, site.offsets.codings[0], values)?;
        }
        Ok(values)
    }

    fn anchors_to_scratch(
        &mut self,
        cpu: &CpuDecoder,
        site: &DecodeSite<'_, 'a>,
        codings: &[Coding],
        groups: usize,
    ) -> Result<u32, CudaError> {
        let values = self.scratch(site, groups)?;
        let plans: Option<&ScopeCodings> = site.offsets.anchors.as_ref();
        if let Some(plans) = plans {
            let piece = self.piece(cpu, site, site.span.anchors, codings, groups)?;
            let lowered = lower(plans, site.span.span, groups, &[piece]);
            self.decode_tasks(&lowered, site, site.offsets.codings[1], values)?;
        }
        Ok(values)
    }

    fn scratch(&mut self, site: &DecodeSite<'_, 'a>, tokens: usize) -> Result<u32, CudaError> {
        let first = index_u32(self.values)?;
        self.values += site.view.rank * tokens;
        index_u32(self.values)?;
        Ok(first)
    }

    fn decode_tasks(
        &mut self,
        lowered: &Lowered,
        site: &DecodeSite<'_, 'a>,
        codings: u32,
        values: u32,
    ) -> Result<(), CudaError> {
        let mut passes = self.join(lowered, site, codings, values, 0)?;
        match lowered {
            Lowered::Fused(work) => {
                let levels = work.streams.len() / work.tasks.len().max(1);
                self.fused[levels.max(1) - 1].extend(passes.drain(..).flatten());
            }
            Lowered::Staged(_) => {
                self.staged.resize_with(self.staged.len().max(passes.len()), Vec::new);
                for (queue, pass) in self.staged.iter_mut().zip(passes) {
                    queue.extend(pass);
                }
            }
        }
        Ok(())
    }

    /// Makes a lowered span's indices the batch's; one list of tasks a pass.
    fn join(
        &mut self,
        lowered: &Lowered,
        site: &DecodeSite<'_, 'a>,
        codings: u32,
        values: u32,
        steps: u32,
    ) -> Result<Vec<Vec<Task>>, CudaError> {
        let works = match lowered {
            Lowered::Fused(work) => std::slice::from_ref(work),
            Lowered::Staged(works) => works,
        };
        let mut passes = Vec::with_capacity(works.len());
        for work in works {
            let streams = index_u32(self.streams.len())?;
            self.streams.extend_from_slice(&work.streams);
            let names = work.names.iter();
            self.names.extend(names.map(|name| name.map(|name| (site.request, site.span.scope, name))));
            let placement = site.placement;
            passes.push(
                (work.tasks.iter())
                    .map(|task| Task {
                        streams: task.streams + streams,
                        codings: task.codings + codings,
                        values: task.values + values,
                        steps: task.steps + steps,
                        placement,
                        ..*task
                    })
                    .collect(),
            );
        }
        Ok(passes)
    }

    /// The fields of a task that are the token predictor's, if the scope has one.
    fn text_predictor(
        &mut self,
        site: &DecodeSite<'_, 'a>,
        (text, preceding): (&[u32], Option<u32>),
    ) -> Result<ScatterTask, CudaError> {
        let factor_rows = index_u32(self.factors.len())?;
        let (predictor, tokens) = (&site.view.predictor, &site.span.tokens);
        let factors = push_factors(&mut self.factors, predictor, text, preceding, tokens);
        let [matrix, shifts] = site.offsets.matrix;
        Ok(ScatterTask { factors, factor_rows, matrix, shifts, ..ScatterTask::default() })
    }

    /// `predictor` has the fields that are its own.
    fn scatter_tasks(
        &mut self,
        site: &DecodeSite<'_, 'a>,
        values: u32,
        predictor: ScatterTask,
    ) -> Result<(), CudaError> {
        let tasks = self.head_parts(site, ScatterTask { values, ..predictor });
        self.scatter.extend(tasks);
        Ok(())
    }

    /// One task for each part of a head that fits a tile, at the finest lossy level that the span has pieces of.
    fn head_parts(&mut self, site: &DecodeSite<'_, 'a>, predictor: ScatterTask) -> Vec<ScatterTask> {
        let rank = site.offsets.main.rank;
        let level = site.span.levels.len().saturating_sub(1);
        let steps = site.offsets.steps + (level * rank) as u32;
        let mut tasks = Vec::new();
        for (index, member) in site.view.members.iter().enumerate() {
            let width = if member.rope.is_some() { member.dim } else { TASK_COEFFICIENTS_MAX };
            for first in (0..member.dim).step_by(width) {
                let count = width.min(member.dim - first);
                self.scatter_columns = self.scatter_columns.max(count);
                tasks.push(ScatterTask {
                    placement: site.placement,
                    member: index as u32,
                    first: first as u32,
                    count: count as u32,
                    tokens: site.tokens as u32,
                    steps,
                    rank: rank as u32,
                    ..predictor
                });
            }
        }
        tasks
    }

    fn exact_tasks(
        &mut self,
        cpu: &CpuDecoder,
        site: &DecodeSite<'_, 'a>,
        tokens: usize,
        values: &'a [u8],
    ) -> Result<(), CudaError> {
        let dtype = match cpu.exact_dtype() {
            KvDtype::Bf16 => Dtype::Bf16,
            KvDtype::F16 => Dtype::F16,
            KvDtype::F32 | KvDtype::Fp8E4m3 | KvDtype::Int8 => Dtype::F32,
        };
        let values = self.bytes.push(values)?;
        let task = |member| ExactTask {
            placement: site.placement,
            values,
            tokens: tokens as u32,
            dtype: dtype as u32,
            member: member as u32,
            reserved: 0,
        };
        self.exact.extend((0..site.view.members.len()).map(task));
        Ok(())
    }

    fn product_tasks(
        &mut self,
        site: &DecodeSite<'_, 'a>,
        values: u32,
        (text, preceding): (&[u32], Option<u32>),
    ) -> Result<(), CudaError> {
        let (rank, rank_padded) = (site.offsets.main.rank, site.offsets.rank_padded());
        let rows = site.tokens.next_multiple_of(PRODUCT_TOKENS as usize);
        let (operands, wide) = (index_u32(self.operands)?, index_u32(self.wide)?);
        self.operands += 2 * rows * rank_padded;
        self.wide += rank_padded / kvasir_kernels::PRODUCT_DEPTH as usize;
        index_u32(self.operands)?;
        let factor_rows = index_u32(self.factors.len())?;
        let factors =
            push_factors(&mut self.factors, &site.view.predictor, text, preceding, &site.span.tokens);
        let steps = site.offsets.steps + (site.span.level.index() * rank) as u32;
        self.prepare.extend((0..rows).step_by(PREPARE_TOKENS).map(|first_token| PrepareTask {
            values,
            steps,
            rank: rank as u32,
            rank_padded: rank_padded as u32,
            tokens: site.tokens as u32,
            first_token: first_token as u32,
            operands,
            rows: rows as u32,
            wide,
            factors,
            factor_rows,
            matrix: site.offsets.matrix[0],
            shifts: site.offsets.matrix[1],
            reserved: 0,
        }));
        let basis = site.offsets.basis.unwrap_or_default();
        for window in self.windows(site)? {
            self.synthesise.extend((0..rows).step_by(PRODUCT_TOKENS as usize).map(|first_token| {
                SynthesiseTask {
                    placement: site.placement,
                    first: window.start as u32,
                    count: window.len() as u32,
                    tokens: site.tokens as u32,
                    first_token: first_token as u32,
                    rank_padded: rank_padded as u32,
                    operands,
                    rows: rows as u32,
                    basis,
                    wide,
                }
            }));
        }
        Ok(())
    }

    /// Ranges of this rank's elements that one CTA multiplies; a rotated head is within one range.
    fn windows(&self, site: &DecodeSite<'_, 'a>) -> Result<Vec<Range<usize>>, CudaError> {
        let most = PRODUCT_ELEMENTS as usize;
        let records = self.paging.members_from(site.span.scope);
        let mut windows: Vec<Range<usize>> = Vec::new();
        for (member, record) in site.view.members.iter().zip(records) {
            if record.plane == NONE {
                continue;
            }
            if member.rope.is_some() && member.dim > most {
                return Err(CudaError::Pages {
                    what: "rotated heads in a basis profile must have at most 128 elements",
                });
            }
            let all = member.start..member.start + member.dim;
            match windows.last_mut() {
                Some(last) if last.end == all.start && all.end - last.start <= most => last.end = all.end,
                _ => {
                    windows.extend(all.clone().step_by(most).map(|start| start..(start + most).min(all.end)))
                }
            }
        }
        Ok(windows)
    }

    /// Longest tasks first: the queue's last items are short.
    pub(crate) fn sort(&mut self) {
        let streams = &self.streams;
        let queues = self.direct.iter_mut().chain(&mut self.fused).enumerate();
        for (index, queue) in queues {
            let levels = index % FUSED_LEVELS_MAX + 1;
            queue.sort_by_cached_key(|task| {
                let own = &streams[task.streams as usize..task.streams as usize + levels];
                std::cmp::Reverse(own.iter().map(|stream| u64::from(stream.word_count)).sum::<u64>())
            });
        }
    }
}

/// Whether a task's elements fit a tile, and no rotated head is cut.
fn fits_tile(view: &ScopeView<'_>, task: &Task) -> bool {
    let range = task.first as usize..(task.first + task.count) as usize;
    let cut = |member: &kvasir_codec::MemberView| {
        let (start, end) = (member.start, member.start + member.dim);
        member.rope.is_some()
            && start < range.end
            && range.start < end
            && !(range.start <= start && end <= range.end)
    };
    range.len() <= TASK_COEFFICIENTS_MAX && !view.members.iter().any(cut)
}
