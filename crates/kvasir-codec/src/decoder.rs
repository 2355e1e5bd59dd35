//! The decoder on the CPU.

mod direct;
mod exact_level;
mod outline;
mod task;
mod window;

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use half::bf16;
use kvasir_container::Head;
use kvasir_types::{Level, ModelSpec, SPAN_TOKENS};
use rayon::prelude::*;

use crate::{
    ChunkDecoder, DecodeError, KvSink, LayerGroup, Profile, ProfileError, ScopeReach,
    bound::{
        BAND_ANCHORS, BAND_EXACT, BAND_LOSSLESS, BAND_MAIN, BoundScope, Matrix, SectionPlan,
        anchor_prediction, split_anchors,
    },
    encoder::spans,
    exact::{self, ExactDtype},
    pool::Pool,
    profile::{Predictor, Scope},
    rans::{Coding, PiecePlan, refine},
    ropes::SpanRopes,
};

use self::{
    direct::{Appended, InSink, Scratch},
    task::Rows,
};
pub use direct::DecodePath;
pub(crate) use outline::view_of;
pub use outline::{MemberView, PieceBytes, PlanView, PredictorView, ScopeSpan, ScopeView};

/// Decodes chunks of one profile. Spans and scopes are decoded in parallel on rayon's global pool, a few at a
/// time: memory does not grow with the chunk.
#[derive(Debug, Clone)]
pub struct CpuDecoder {
    spec: Arc<ModelSpec>,
    profile: Arc<Profile>,
    scopes: Vec<(BoundScope, Matrix)>,
    groups: Vec<LayerGroup>,
    exact_dtype: ExactDtype,
    path: DecodePath,
    scratch: Arc<Pool<Scratch>>,
}

/// Section index by (scope, band, level).
type SectionMap = BTreeMap<(u16, u8, Level), usize>;

/// One scope of one span, to be decoded at a level.
#[derive(Debug, Clone, Copy)]
struct Task {
    scope: usize,
    span: usize,
    level: usize,
}

/// An object, or what is there of it.
#[derive(Clone, Copy)]
struct Object<'a, 's> {
    head: &'a Head,
    bytes: &'a [u8],
    sections: &'s SectionMap,
}

impl CpuDecoder {
    /// A decoder for a model.
    ///
    /// # Errors
    /// [`ProfileError`] where the profile is of another model.
    pub fn new(spec: Arc<ModelSpec>, profile: Arc<Profile>) -> Result<Self, ProfileError> {
        profile.check_model(&spec)?;
        let bind = |index: usize| {
            (BoundScope::new(&spec, &profile, index), Matrix::synthesis(&profile.scopes[index]))
        };
        let scopes: Vec<_> = (0..profile.scopes.len()).map(bind).collect();
        let groups = groups_of(scopes.iter().map(|(bound, _)| bound));
        let exact_dtype = ExactDtype::of(spec.kv_dtype);
        let path = DecodePath::best();
        Ok(Self { spec, profile, scopes, groups, exact_dtype, path, scratch: Arc::default() })
    }

    /// The same decoder on another path: for tests and benchmarks, as [`new`](Self::new) takes the fastest.
    pub fn with_path(mut self, path: DecodePath) -> Self {
        self.path = path;
        self
    }

    /// Decodes some scopes, each at a level of its own, from their sections alone: a pipeline stage, or the
    /// state between two levels of an object that is still arriving.
    ///
    /// # Errors
    /// As [`ChunkDecoder::decode`]; a scope that the profile lacks is [`DecodeError::Sections`].
    pub fn decode_scopes(
        &self,
        head: &Head,
        object_prefix: &[u8],
        scopes: &[(usize, Level)],
        tokens: Range<usize>,
        sink: &mut dyn KvSink,
    ) -> Result<(), DecodeError> {
        let (sections, tasks) = self.plan_tasks(head, scopes, &tokens)?;
        let object = Object { head, bytes: object_prefix, sections: &sections };
        let spans: Vec<_> = spans(head.header.token_count as usize).collect();
        self.check_present(&object, &tasks)?;
        let (first_position, half) = (head.header.first_position, sink.wants_bf16());
        let mut ropes: Vec<SpanRopes<'_>> = Vec::new();
        for batch in tasks.chunks(rayon::current_num_threads().max(1)) {
            // Tasks go span by span: what is behind is not needed again.
            let of_batch =
                batch.first().map_or(0, |task| task.span)..batch.last().map_or(0, |task| task.span + 1);
            ropes.retain(|r| r.span.start >= spans[of_batch.start].start);
            let ahead = of_batch.start + ropes.len()..of_batch.end;
            ropes.extend(ahead.map(|span| SpanRopes::new(&self.spec, first_position, spans[span].clone())));
            let of = |task: &Task| &ropes[task.span - of_batch.start];
            if let [task] = batch
                && half
                && self.is_direct(*task)
            {
                // Alone: rows go from cache to sink, and exact ones over them.
                let span = of(task).span.clone();
                let exact = self.exact_rows(&object, *task, &span)?;
                let kept = kept(&span, &tokens);
                let mut place = InSink { sink: &mut *sink, first: span.start, kept };
                if exact.as_ref().is_none_or(|(exact, _)| *exact < span.len()) {
                    self.direct_members(&object, *task, of(task), &mut place)?;
                }
                if let Some((exact, values)) = exact {
                    place.overwrite(self.scopes[task.scope].0.elements.views(), exact, &values);
                }
                continue;
            }
            let decoded: Result<Vec<_>, _> =
                batch.par_iter().map(|task| self.decode_task(&object, *task, of(task), half)).collect();
            for (task, rows) in batch.iter().zip(decoded?) {
                let span = &spans[task.span];
                let kept = kept(span, &tokens);
                let first = span.start + kept.start;
                rows.write(&self.scopes[task.scope].0.elements, span.len(), &kept, first, sink);
            }
        }
        Ok(())
    }

    /// The sections of an object and the work that a request is, after both were checked.
    fn plan_tasks(
        &self,
        head: &Head,
        scopes: &[(usize, Level)],
        tokens: &Range<usize>,
    ) -> Result<(SectionMap, Vec<Task>), DecodeError> {
        self.check_head(head)?;
        let chunk_tokens = head.header.token_count as usize;
        if tokens.start > tokens.end || tokens.end > chunk_tokens {
            let (start, end) = (tokens.start, tokens.end);
            return Err(DecodeError::NoSuchTokens { start, end, tokens: chunk_tokens });
        }
        let top = self.profile.top_level();
        for &(scope, level) in scopes {
            if level > top {
                return Err(DecodeError::NoSuchLevel { level, top });
            }
            if scope >= self.scopes.len() {
                return Err(DecodeError::Sections { what: "a scope was asked for that the profile lacks" });
            }
        }
        let needed = if tokens.is_empty() {
            0..0
        } else {
            tokens.start / SPAN_TOKENS..tokens.end.div_ceil(SPAN_TOKENS)
        };
        let of_span =
            |span| scopes.iter().map(move |&(scope, level)| Task { scope, span, level: level.index() });
        Ok((self.section_map(head)?, needed.flat_map(of_span).collect()))
    }

    /// What an exact level would start from in the first span of an object: for training. `[member][token][element]`.
    pub(crate) fn rows_beneath_exact(
        &self,
        head: &Head,
        bytes: &[u8],
        scope: usize,
    ) -> Result<Vec<f32>, DecodeError> {
        let sections = self.section_map(head)?;
        let object = Object { head, bytes, sections: &sections };
        let tokens = (head.header.token_count as usize).min(SPAN_TOKENS);
        let ropes = SpanRopes::new(&self.spec, head.header.first_position, 0..tokens);
        self.beneath(&object, Task { scope, span: 0, level: self.profile.lossy_levels() }, &ropes)
    }

    /// Coefficients of one scope and span in finest steps, `[coefficient][token]`: what the product starts from.
    #[cfg(test)]
    pub(crate) fn scope_coefficients(
        &self,
        head: &Head,
        bytes: &[u8],
        scope: usize,
        level: Level,
        span: usize,
    ) -> Result<Vec<f32>, DecodeError> {
        let sections = self.section_map(head)?;
        let object = Object { head, bytes, sections: &sections };
        let spans: Vec<_> = spans(head.header.token_count as usize).collect();
        self.coefficients(&object, Task { scope, span, level: level.index() }, &spans[span])
    }

    fn check_head(&self, head: &Head) -> Result<(), DecodeError> {
        let header = &head.header;
        if header.model_id != self.profile.model_id() {
            let decoder = self.profile.model_id();
            return Err(DecodeError::ForeignModel { object: header.model_id, decoder });
        }
        if header.profile_hash != self.profile.hash() {
            let decoder = self.profile.hash();
            return Err(DecodeError::ForeignProfile { object: header.profile_hash, decoder });
        }
        if usize::from(header.level_count) != self.profile.level_count() {
            return Err(DecodeError::Sections { what: "its number of levels is not the profile's" });
        }
        Ok(())
    }

    /// Finds every section the profile writes, and nothing else.
    fn section_map(&self, head: &Head) -> Result<SectionMap, DecodeError> {
        let map: SectionMap = (head.sections().iter().enumerate())
            .map(|(index, id)| ((id.scope, id.band, id.level), index))
            .collect();
        let mut expected = 0;
        for (bound, _) in &self.scopes {
            let scope = bound.index as u16;
            let mains = (0..bound.levels.len()).map(|level| (scope, BAND_MAIN, Level(level as u8)));
            let anchors = (!bound.anchors.codings.is_empty()).then_some((scope, BAND_ANCHORS, Level::BASE));
            let exact_level = self.profile.scopes[bound.index].lossless.as_ref();
            let exact_level = exact_level.map(|_| (scope, BAND_LOSSLESS, self.profile.top_level()));
            for id in mains.chain(anchors).chain(exact_level) {
                if !map.contains_key(&id) {
                    return Err(DecodeError::Sections { what: "one is missing" });
                }
                expected += 1;
            }
            expected += usize::from(map.contains_key(&(scope, BAND_EXACT, Level::BASE)));
        }
        if expected != head.sections().len() {
            return Err(DecodeError::Sections { what: "there are unknown ones" });
        }
        Ok(map)
    }

    /// Says how many bytes are missing before anything is decoded.
    fn check_present(&self, object: &Object<'_, '_>, tasks: &[Task]) -> Result<(), DecodeError> {
        let end_of = |task: &Task| {
            let levels = (0..=task.level).map(|level| (BAND_MAIN, level));
            let ids = levels.chain([(BAND_ANCHORS, 0), (BAND_EXACT, 0), (BAND_LOSSLESS, task.level)]);
            ids.filter_map(|(band, level)| object.entry(*task, band, level).map(|(_, range)| range.end)).max()
        };
        let needed = tasks.iter().filter_map(end_of).max().unwrap_or(0);
        let level = Level(tasks.iter().map(|task| task.level).max().unwrap_or(0) as u8);
        let found = object.bytes.len() as u64;
        if needed > found { Err(DecodeError::Short { level, needed, found }) } else { Ok(()) }
    }

    /// Rows `[member][token][element]` of one scope and span, in bf16 where `half`.
    fn decode_task(
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
        let is_direct = matches!((synthesis, &scope.predictor), (Matrix::Identity, Predictor::Mean));
        if half && self.is_direct(task) {
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
    fn exact_rows(
        &self,
        object: &Object<'_, '_>,
        task: Task,
        span: &Range<usize>,
    ) -> Result<Option<(usize, Vec<f32>)>, DecodeError> {
        let found = self.exact_bytes(object, task, span)?;
        Ok(found.map(|(tokens, values)| (tokens, exact::values(self.exact_dtype, values))))
    }

    /// Coefficients in units of the finest step, `[coefficient][token]`.
    fn coefficients(
        &self,
        object: &Object<'_, '_>,
        task: Task,
        span: &Range<usize>,
    ) -> Result<Vec<f32>, DecodeError> {
        let (bound, _) = &self.scopes[task.scope];
        let scope = &self.profile.scopes[task.scope];
        let tokens = span.len();
        let (anchor_list, main_list) = split_anchors(&scope.predictor, tokens);
        let mut main = self.main_values(object, task, main_list.len())?;
        if !main_list.is_empty() {
            bound.reconstruct(task.level, main_list.len(), &mut main);
        }
        let preceding = object.head.header.preceding_token;
        let predictions = bound.text.predict(scope, &object.head.tokens, preceding, span);
        if anchor_list.is_empty() {
            // The main band is the whole span.
            let sum = |(value, predicted): (&i32, &i32)| value.wrapping_add(*predicted) as f32;
            return Ok(main.iter().zip(&predictions).map(sum).collect());
        }
        let mut anchors = vec![0i32; scope.rank() * anchor_list.len()];
        let plan = &bound.anchors;
        self.decode_section(object, task, BAND_ANCHORS, 0, plan, anchor_list.len(), &mut anchors)?;
        Ok(merge_anchors(scope, tokens, (&anchor_list, &anchors), (&main_list, &main)))
    }

    /// Quantised values of the main band at the task's level, `[coefficient][token]`.
    fn main_values(
        &self,
        object: &Object<'_, '_>,
        task: Task,
        tokens: usize,
    ) -> Result<Vec<i32>, DecodeError> {
        let (bound, _) = &self.scopes[task.scope];
        let mut values = vec![0i32; self.profile.scopes[task.scope].rank() * tokens];
        for (level, plan) in bound.levels[..=task.level].iter().enumerate() {
            self.decode_section(object, task, BAND_MAIN, level, plan, tokens, &mut values)?;
        }
        Ok(values)
    }

    /// Brings `values`, `[coefficient][token]`, from the level before to the section's.
    #[allow(clippy::too_many_arguments, reason = "one call site a band; a struct would only rename them")]
    fn decode_section(
        &self,
        object: &Object<'_, '_>,
        task: Task,
        band: u8,
        level: usize,
        plan: &SectionPlan,
        tokens: usize,
        values: &mut [i32],
    ) -> Result<(), DecodeError> {
        if tokens == 0 {
            return Ok(());
        }
        let Some((section, bytes)) = object.piece(task, band, level)? else {
            for (&coefficient, coding) in plan.coefficients.iter().zip(&plan.codings) {
                if matches!(coding, Coding::Trit { .. }) {
                    let row = &mut values[coefficient * tokens..(coefficient + 1) * tokens];
                    row.iter_mut().for_each(|q| *q = refine(*q, 0));
                }
            }
            return Ok(());
        };
        let piece = PiecePlan { coefficients: &plan.codings, tokens };
        let failed = |source| DecodeError::Piece { section, span: task.span, source };
        let rows = &plan.coefficients;
        self.path.pieces.decode_rows(&self.profile.bank, &piece, bytes, rows, values).map_err(failed)
    }
}

impl ChunkDecoder for CpuDecoder {
    fn decode(
        &self,
        head: &Head,
        object_prefix: &[u8],
        level: Level,
        tokens: Range<usize>,
        sink: &mut dyn KvSink,
    ) -> Result<(), DecodeError> {
        let scopes: Vec<_> = (0..self.scopes.len()).map(|scope| (scope, level)).collect();
        self.decode_scopes(head, object_prefix, &scopes, tokens, sink)
    }

    fn layer_groups(&self) -> &[LayerGroup] {
        &self.groups
    }

    fn decode_group(
        &self,
        head: &Head,
        object_prefix: &[u8],
        group: &LayerGroup,
        level: Level,
        tokens: Range<usize>,
        sink: &mut dyn KvSink,
    ) -> Result<(), DecodeError> {
        let scopes: Vec<_> = group.scopes.iter().map(|reach| (reach.scope, level)).collect();
        self.decode_scopes(head, object_prefix, &scopes, tokens, sink)
    }

    fn level_kl(&self) -> Option<Vec<f64>> {
        self.profile.levels().iter().map(|level| level.kl.map(f64::from)).collect()
    }
}

/// The finest grouping of layers that no scope crosses.
fn groups_of<'a>(scopes: impl Iterator<Item = &'a BoundScope>) -> Vec<LayerGroup> {
    let mut reaches: Vec<ScopeReach> = scopes.map(|bound| bound.elements.reach(bound.index)).collect();
    reaches.sort_by_key(|reach| (reach.layers.start, reach.scope));
    let mut groups: Vec<LayerGroup> = Vec::new();
    for reach in reaches {
        match groups.last_mut().filter(|group| reach.layers.start < group.layers.end) {
            Some(group) => {
                group.layers.end = group.layers.end.max(reach.layers.end);
                group.scopes.push(reach);
            }
            None => groups.push(LayerGroup { layers: reach.layers.clone(), scopes: vec![reach] }),
        }
    }
    groups
}

impl<'a> Object<'a, '_> {
    /// Index of a section and byte range of one of its pieces, where it is not absent.
    fn entry(&self, task: Task, band: u8, level: usize) -> Option<(usize, Range<u64>)> {
        let section = *self.sections.get(&(task.scope as u16, band, Level(level as u8)))?;
        Some((section, self.head.piece(section, task.span)?.range))
    }

    /// A piece's bytes after their checksum was checked; `None` where it is absent.
    fn piece(&self, task: Task, band: u8, level: usize) -> Result<Option<(usize, &'a [u8])>, DecodeError> {
        let Some((section, range)) = self.entry(task, band, level) else { return Ok(None) };
        let found = self.bytes.len() as u64;
        let short = DecodeError::Short { level: Level(level as u8), needed: range.end, found };
        let bytes = self.bytes.get(range.start as usize..range.end as usize).ok_or(short)?;
        self.head.check_piece(section, task.span, bytes)?;
        Ok(Some((section, bytes)))
    }
}

/// The tokens of a span, relative to it, that are within `tokens`.
fn kept(span: &Range<usize>, tokens: &Range<usize>) -> Range<usize> {
    tokens.start.max(span.start) - span.start..tokens.end.min(span.end) - span.start
}

/// Puts anchors and deltas, `[coefficient][token of the list]`, together in units of the finest step.
fn merge_anchors(
    scope: &Scope,
    tokens: usize,
    (anchor_list, anchors): (&[usize], &[i32]),
    (main_list, main): (&[usize], &[i32]),
) -> Vec<f32> {
    let mut out = vec![0.0; scope.rank() * tokens];
    let Predictor::AnchorFirst { group, anchor_ratio, .. } = &scope.predictor else { return out };
    for (coefficient, row) in out.chunks_exact_mut(tokens).enumerate() {
        let anchors = &anchors[coefficient * anchor_list.len()..(coefficient + 1) * anchor_list.len()];
        for (&token, &anchor) in anchor_list.iter().zip(anchors) {
            row[token] = anchor as f32 / *anchor_ratio as f32;
        }
        let deltas = &main[coefficient * main_list.len()..(coefficient + 1) * main_list.len()];
        for (&token, &delta) in main_list.iter().zip(deltas) {
            let predicted = anchor_prediction(anchors[token / group], *anchor_ratio);
            row[token] = delta.wrapping_add(predicted) as f32;
        }
    }
    out
}
