//! The decoder on the CPU.

mod device_view;
mod direct;
mod lossless_level;
mod product;
mod row_value;
mod scope_rows;
mod sections;
mod task;
mod values;
mod window;

use std::{ops::Range, sync::Arc};

use half::{bf16, f16};
use kvasir_container::Head;
use kvasir_types::{KvDtype, Level, ModelSpec, SPAN_TOKENS};
use rayon::prelude::*;

use crate::{
    ChunkDecoder, DecodeError, KvSink, LayerGroup, Profile, ProfileError, ScopeReach,
    buffer_pool::BufferPool, encoder::spans, exact_piece::ExactDtype, prepared_scope::PreparedScope,
    span_ropes::SpanRopes, synthesis::Synthesis,
};

use self::{
    direct::{DirectScratch, SinkRows},
    product::ProductScratch,
    row_value::RowValue,
    sections::PartialObject,
    task::DecodeTask,
};
pub(crate) use device_view::view_of;
pub use device_view::{LosslessBytes, MemberView, PieceBytes, PlanView, PredictorView, ScopeSpan, ScopeView};
pub use direct::DecodePath;

/// Values that are decoded between two writes to the sink, where that takes more tasks than threads. With one scope of a
/// single head for each, threads would wait for each other most of the time; these rows still are in a cache.
const BATCH_VALUES: usize = 1 << 20;

/// Decodes chunks of one profile. Spans and scopes are decoded in parallel on rayon's global pool, in batches
/// of bounded size: memory does not grow with the chunk.
#[derive(Debug, Clone)]
pub struct CpuDecoder {
    spec: Arc<ModelSpec>,
    profile: Arc<Profile>,
    scopes: Vec<(PreparedScope, Synthesis)>,
    groups: Vec<LayerGroup>,
    exact_dtype: ExactDtype,
    path: DecodePath,
    scratch: Arc<BufferPool<DirectScratch>>,
    products: Arc<BufferPool<ProductScratch>>,
}

impl CpuDecoder {
    /// A decoder for a model.
    ///
    /// # Errors
    /// [`ProfileError`] where the profile is of another model.
    pub fn new(spec: Arc<ModelSpec>, profile: Arc<Profile>) -> Result<Self, ProfileError> {
        profile.check_model(&spec)?;
        let bind = |index: usize| {
            (PreparedScope::new(&spec, &profile, index), Synthesis::new(&profile.scopes[index]))
        };
        let scopes: Vec<_> = (0..profile.scopes.len()).map(bind).collect();
        let groups = groups_of(scopes.iter().map(|(prepared, _)| prepared));
        let exact_dtype = ExactDtype::of(spec.kv_dtype);
        let path = DecodePath::best();
        let (scratch, products) = Default::default();
        Ok(Self { spec, profile, scopes, groups, exact_dtype, path, scratch, products })
    }

    /// The same decoder on another path: for tests and benchmarks, as [`new`](Self::new) takes the fastest.
    pub fn with_path(mut self, path: DecodePath) -> Self {
        self.path = path;
        self
    }

    /// Decodes some scopes, each at a separate level, from their sections alone: for a pipeline stage, or
    /// between two levels of an object that is still arriving.
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
        let object = PartialObject { head, bytes: object_prefix, sections: &sections };
        self.check_present(&object, &tasks)?;
        match sink.dtype() {
            KvDtype::Bf16 => self.decode_tasks::<bf16>(&object, &tasks, &tokens, sink),
            KvDtype::F16 => self.decode_tasks::<f16>(&object, &tasks, &tokens, sink),
            KvDtype::Fp8E4m3 => self.decode_tasks::<u8>(&object, &tasks, &tokens, sink),
            KvDtype::F32 | KvDtype::Int8 => self.decode_tasks::<f32>(&object, &tasks, &tokens, sink),
        }
    }

    /// Decodes tasks in the order of their spans, and writes their rows of `tokens`.
    fn decode_tasks<T: RowValue>(
        &self,
        object: &PartialObject<'_, '_>,
        tasks: &[DecodeTask],
        tokens: &Range<usize>,
        sink: &mut dyn KvSink,
    ) -> Result<(), DecodeError> {
        let header = &object.head.header;
        let spans: Vec<_> = spans(header.token_count as usize).collect();
        let mut ropes: Vec<SpanRopes<'_>> = Vec::new();
        let mut rest = tasks;
        while !rest.is_empty() {
            let values = |task: &DecodeTask| self.scopes[task.scope].0.elements.count() * SPAN_TOKENS;
            let sizes = rest.iter().map(|task| (task.span, values(task)));
            let len = batch_len(sizes, rayon::current_num_threads());
            let batch;
            (batch, rest) = rest.split_at(len.min(rest.len()));
            // Tasks run span by span: data before the current span is not needed again.
            let of_batch =
                batch.first().map_or(0, |task| task.span)..batch.last().map_or(0, |task| task.span + 1);
            ropes.retain(|r| r.span.start >= spans[of_batch.start].start);
            let ahead = of_batch.start + ropes.len()..of_batch.end;
            ropes.extend(
                ahead.map(|span| SpanRopes::new(&self.spec, header.first_position, spans[span].clone())),
            );
            let of = |task: &DecodeTask| &ropes[task.span - of_batch.start];
            if let [task] = batch
                && T::BY_MEMBER
                && task.level < self.profile.lossy_levels()
            {
                // Alone: rows go from cache to sink, and exact ones over them.
                let span = of(task).span.clone();
                let exact = self.exact_rows(object, *task, &span)?;
                let kept = kept(&span, tokens);
                let mut place = SinkRows { sink: &mut *sink, first: span.start, kept };
                if exact.as_ref().is_none_or(|(exact, _)| *exact < span.len()) {
                    self.lossy_members::<T>(object, *task, of(task), &mut place)?;
                }
                if let Some((exact, values)) = exact {
                    place.overwrite::<T>(self.scopes[task.scope].0.elements.views(), exact, &values);
                }
                continue;
            }
            let decoded: Result<Vec<Vec<T>>, _> =
                batch.par_iter().map(|task| self.decode_task(object, *task, of(task))).collect();
            for (task, rows) in batch.iter().zip(decoded?) {
                let span = &spans[task.span];
                let kept = kept(span, tokens);
                let first = span.start + kept.start;
                for m in self.scopes[task.scope].0.elements.members(span.len(), &kept, &rows) {
                    sink.write_rows(m.layer, m.plane, m.first_head, first, T::typed(m.rows));
                }
            }
        }
        Ok(())
    }

    /// The values beneath the lossless level in the first span of an object, `[member][token][element]`, for
    /// trainers.
    ///
    /// # Errors
    /// As [`decode`](ChunkDecoder::decode).
    ///
    /// # Panics
    /// If the profile has no such scope.
    pub fn rows_beneath_lossless(
        &self,
        head: &Head,
        bytes: &[u8],
        scope: usize,
    ) -> Result<Vec<f32>, DecodeError> {
        let sections = self.section_map(head)?;
        let object = PartialObject { head, bytes, sections: &sections };
        let tokens = (head.header.token_count as usize).min(SPAN_TOKENS);
        let ropes = SpanRopes::new(&self.spec, head.header.first_position, 0..tokens);
        self.beneath(&object, DecodeTask { scope, span: 0, level: self.profile.lossy_levels() }, &ropes)
    }

    /// Coefficients of one scope and span in finest steps, `[coefficient][token]`: the input of the
    /// synthesis. For tests that compare products.
    ///
    /// # Errors
    /// As [`decode`](ChunkDecoder::decode).
    ///
    /// # Panics
    /// If the profile has no such scope or lossy level, or the object no such span.
    pub fn scope_coefficients(
        &self,
        head: &Head,
        bytes: &[u8],
        scope: usize,
        level: Level,
        span: usize,
    ) -> Result<Vec<f32>, DecodeError> {
        let sections = self.section_map(head)?;
        let object = PartialObject { head, bytes, sections: &sections };
        let spans: Vec<_> = spans(head.header.token_count as usize).collect();
        let task = DecodeTask { scope, span, level: level.index() };
        let (mut main, mut rows) = (Vec::new(), Vec::new());
        let push = &mut |_, row: &[f32]| rows.extend_from_slice(row);
        self.each_coefficient(&object, task, &spans[span], &mut main, push)?;
        Ok(rows)
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

    fn shared_profile(&self) -> Option<&Arc<Profile>> {
        Some(&self.profile)
    }

    fn level_kl(&self) -> Option<Vec<f64>> {
        self.profile.levels().iter().map(|level| level.kl.map(f64::from)).collect()
    }
}

/// How many of the next tasks, `(span, values)` each, to decode at once: at least one for each thread, and of no more
/// spans than threads, because each span has ropes.
fn batch_len(tasks: impl Iterator<Item = (usize, usize)>, threads: usize) -> usize {
    if threads <= 1 {
        return 1;
    }
    let (mut sum, mut spans, mut last) = (0, 0, None);
    let small = tasks.take_while(|&(span, values)| {
        sum += values;
        spans += usize::from(last.replace(span) != Some(span));
        sum <= BATCH_VALUES && spans <= threads
    });
    small.count().max(threads)
}

/// The finest grouping of layers that no scope crosses.
fn groups_of<'a>(scopes: impl Iterator<Item = &'a PreparedScope>) -> Vec<LayerGroup> {
    let mut reaches: Vec<ScopeReach> =
        scopes.map(|prepared| prepared.elements.reach(prepared.index)).collect();
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

/// The tokens of a span, relative to it, that are within `tokens`.
fn kept(span: &Range<usize>, tokens: &Range<usize>) -> Range<usize> {
    tokens.start.max(span.start) - span.start..tokens.end.min(span.end) - span.start
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;

    #[test]
    fn a_batch_has_a_task_for_each_thread_or_as_many_as_its_values_and_spans_allow() {
        let head = 128 * SPAN_TOKENS;
        let heads = || (0..).flat_map(|span| iter::repeat_n((span, head), 8));
        assert_eq!(batch_len(heads(), 1), 1);
        assert_eq!(batch_len(heads(), 2), 2 * 8);
        assert_eq!(batch_len(heads(), 8), BATCH_VALUES / head);
        assert_eq!(batch_len(iter::repeat((0, 2 * BATCH_VALUES)), 3), 3);
    }
}
