//! Decoding on a device: chunks into pages.

use std::{collections::BTreeMap, ops::Range, sync::Arc, time::Duration};

use kvasir_codec::{ChunkDecoder, CpuDecoder, Profile, ProfileError, ScopeSpan, container::Head};
use kvasir_kernels::{
    DecodeParams, Kernel, PageParams, PrepareParams, Status, SynthesiseParams, TILE_STRIDE, Task,
};
use kvasir_types::{Level, ModelSpec};

use crate::{
    CudaError, Device, DeviceError, DeviceMemory, PagedKv, PendingDecode, Work,
    batch::{DecodeBatch, Destination},
    buffers::DecodeBuffers,
    lower::TASK_COEFFICIENTS_MAX,
    pending::{Marks, PendingGroup},
    queue::Queue,
    resident::{DecodeProfile, index_u32},
    tiles::{check_tiles, tile_bytes},
};

/// Shared memory of a product's CTA: two stages of operands, then four tiles of 32 tokens by 128 elements.
const PRODUCT_SHARED_BYTES: usize = 4 * 128 * TILE_STRIDE as usize * 4;
const DECODE_KERNELS: [Kernel; 4] = [Kernel::Decode1, Kernel::Decode2, Kernel::Decode3, Kernel::Decode4];
const DIRECT_KERNELS: [Kernel; 4] = [Kernel::Direct1, Kernel::Direct2, Kernel::Direct3, Kernel::Direct4];

/// What a request takes, or why it is refused.
type Outline<'a> = Result<Vec<ScopeSpan<'a>>, CudaError>;
/// What became of each request, in their order; then the bytes of the device that all of them took, and the time of their
/// copies and of their kernels.
type Decoded = (Vec<Result<(), CudaError>>, usize, [Duration; 2]);

/// Decodes chunks of one profile on a device.
#[derive(Debug)]
pub struct KernelDecoder<D: Device> {
    pub(crate) device: D,
    pub(crate) cpu: CpuDecoder,
    resident: DecodeProfile<D::Memory>,
}

/// A chunk, or its prefix, and the destination of its tokens.
#[derive(Debug, Clone)]
pub struct ChunkRequest<'a> {
    /// The object's head.
    pub head: &'a Head,
    /// The object's bytes from the first on, at least to the last piece needed.
    pub object_prefix: &'a [u8],
    /// Level of every requested scope; other scopes are not decoded.
    pub scopes: Vec<(usize, Level)>,
    /// Tokens wanted, relative to the chunk.
    pub tokens: Range<usize>,
    /// The sequence's block table.
    pub blocks: &'a [i32],
    /// Position of the first wanted token in the sequence's pages.
    pub first_slot: u32,
}

impl<D: Device> KernelDecoder<D> {
    /// A decoder for a model. Uploads the profile.
    ///
    /// # Errors
    /// [`ProfileError`] where the profile is of another model; else the device's.
    pub fn new(
        device: D,
        spec: Arc<ModelSpec>,
        profile: Arc<Profile>,
    ) -> Result<Result<Self, CudaError>, ProfileError> {
        let cpu = CpuDecoder::new(spec, profile)?;
        let resident = DecodeProfile::new(&device, &cpu);
        Ok(resident.map(|resident| Self { device, cpu, resident }))
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// All scopes at one level.
    pub fn all_scopes(&self, level: Level) -> Vec<(usize, Level)> {
        (0..self.cpu.scope_count()).map(|scope| (scope, level)).collect()
    }

    /// Bytes of the device that the profile takes.
    #[cfg(feature = "client")]
    pub(crate) fn profile_bytes(&self) -> usize {
        self.resident.bytes()
    }

    /// Decodes several chunks into an engine's pages. Returns when the rows are in place. A chunk that is
    /// refused, or turns out to be damaged, keeps no other from being decoded.
    ///
    /// After an error some rows may have been written, right or wrong, but only requested rows.
    ///
    /// # Safety
    /// The planes of `pages` are device memory of the layout they say, of [`PagedKv::blocks`] blocks, and nobody else
    /// uses the rows asked for until this returns.
    ///
    /// # Errors
    /// The device's, else that of the first request that has one. See [`CudaError`].
    pub unsafe fn decode_into(
        &self,
        requests: &[ChunkRequest<'_>],
        pages: &PagedKv,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        let (outcomes, ..) = unsafe { self.decode_each(requests, pages)? };
        outcomes.into_iter().collect()
    }

    /// As [`decode_into`](Self::decode_into), with the outcome of each request, and what all of them took.
    ///
    /// # Safety
    /// As [`decode_into`](Self::decode_into).
    ///
    /// # Errors
    /// The outer one is the device's, and every request's. An inner one is of a request that was refused before
    /// anything was launched, whose rows are untouched, or of one in whose bytes the kernels found damage.
    pub(crate) unsafe fn decode_each(
        &self,
        requests: &[ChunkRequest<'_>],
        pages: &PagedKv,
    ) -> Result<Decoded, CudaError> {
        let mut outlines: Vec<_> = requests.iter().map(|request| self.outline(request, pages)).collect();
        // A request may leave tasks in a batch before it is refused: the batch is made again without it.
        let batch = loop {
            if let Some(batch) = self.build_each(requests, &mut outlines, pages) {
                break batch;
            }
        };
        let (mut failed, mut scratch_bytes, mut times) = (BTreeMap::new(), 0, [Duration::ZERO; 2]);
        if outlines.iter().flatten().any(|spans| !spans.is_empty()) {
            let layers = 0..self.cpu.spec().layers.len();
            // SAFETY: the caller's promise; `build_each` checked everything else against it.
            let mut group = unsafe { self.run(layers, batch, pages, true)? };
            scratch_bytes = group.scratch_bytes();
            failed = group.failed_requests()?;
            times = group.times();
        }
        let outcome = |(index, outline): (usize, Outline<'_>)| match failed.remove(&index) {
            Some(error) => Err(error),
            None => outline.map(drop),
        };
        Ok((outlines.into_iter().enumerate().map(outcome).collect(), scratch_bytes, times))
    }

    /// Queues the decode of several chunks into an engine's pages: one launch a kernel for every group of layers that
    /// decodes apart from the others, in layer order. The bytes of a group travel while the one before is decoded.
    ///
    /// # Safety
    /// As [`decode_into`](Self::decode_into), until the result was waited for or dropped; it has to be one of both.
    ///
    /// # Errors
    /// See [`CudaError`]; what only decoding finds shows when the layer is waited for.
    pub unsafe fn submit<'a>(
        &self,
        requests: &[ChunkRequest<'a>],
        pages: &PagedKv,
    ) -> Result<PendingDecode<'a, D>, CudaError> {
        let outlines = requests.iter().map(|request| self.outline(request, pages));
        let outlines = outlines.collect::<Result<Vec<_>, _>>()?;
        let mut pending = PendingDecode { groups: Vec::new() };
        for group in self.cpu.layer_groups() {
            let is_in = |scope: usize| group.scopes.iter().any(|reach| reach.scope == scope);
            if !outlines.iter().flatten().any(|span| is_in(span.scope)) {
                continue;
            }
            let mut batch = DecodeBatch::new(&self.cpu, pages);
            for (index, (request, spans)) in requests.iter().zip(&outlines).enumerate() {
                self.add(&mut batch, index, request, spans, &is_in)?;
            }
            batch.sort();
            // SAFETY: the caller's promise; `outline` and `add` checked everything else against it.
            pending.groups.push(unsafe { self.run(group.layers.clone(), batch, pages, false)? });
        }
        Ok(pending)
    }

    /// The spans that a request takes, after all checks but those of their pieces.
    fn outline<'a>(&self, request: &ChunkRequest<'a>, pages: &PagedKv) -> Outline<'a> {
        let first = u64::from(request.first_slot);
        pages.check_blocks(request.blocks, first..first + request.tokens.len() as u64)?;
        let (head, tokens) = (request.head, request.tokens.clone());
        let spans = self.cpu.scope_spans(head, request.object_prefix, &request.scopes, tokens)?;
        for span in &spans {
            let rotated = self.resident.scopes.get(span.scope).map_or(0, |scope| scope.rotated);
            if let Err(error) = check_tiles(&self.device, rotated)
                && self.is_tiled(span, pages)
            {
                return Err(error);
            }
        }
        Ok(spans)
    }

    /// Whether rows of a span go to these pages through tiles. Those of the product do not.
    fn is_tiled(&self, span: &ScopeSpan<'_>, pages: &PagedKv) -> bool {
        let Some(view) = self.cpu.scope_view(span.scope) else { return false };
        let is_product = view.synthesis.is_some() && span.lossless.is_none();
        let is_held = || view.members.iter().any(|member| pages.place(member).is_some());
        !is_product && !span.is_exact() && is_held()
    }

    /// One batch of all requests that have an outline. `None` if some were refused: their outlines are errors now.
    fn build_each<'a>(
        &self,
        requests: &[ChunkRequest<'a>],
        outlines: &mut [Outline<'a>],
        pages: &PagedKv,
    ) -> Option<DecodeBatch<'a>> {
        let (mut batch, mut is_whole) = (DecodeBatch::new(&self.cpu, pages), true);
        for (index, (request, outline)) in requests.iter().zip(outlines).enumerate() {
            if let Ok(spans) = outline
                && let Err(error) = self.add(&mut batch, index, request, spans, &|_| true)
            {
                *outline = Err(error);
                is_whole = false;
            }
        }
        is_whole.then(|| {
            batch.sort();
            batch
        })
    }

    /// Adds those scopes of a request that are `is_in`. After an error some of it is in the batch.
    fn add<'a>(
        &self,
        batch: &mut DecodeBatch<'a>,
        index: usize,
        request: &ChunkRequest<'_>,
        spans: &[ScopeSpan<'a>],
        is_in: &dyn Fn(usize) -> bool,
    ) -> Result<(), CudaError> {
        let head = request.head;
        let spans = || spans.iter().filter(|span| is_in(span.scope));
        let covered = spans().map(|span| span.tokens.clone());
        let (start, end) = covered.fold((usize::MAX, 0), |(s, e), r| (s.min(r.start), e.max(r.end)));
        let (blocks, row) = (index_u32(batch.paging.blocks.len())?, index_u32(batch.paging.positions.len())?);
        batch.paging.blocks.extend_from_slice(request.blocks);
        let position = |token: usize| head.header.first_position.wrapping_add(token as u64);
        batch.paging.positions.extend((start.min(end)..end).map(position));
        let to = Destination {
            request: index,
            tokens: request.tokens.clone(),
            blocks,
            first_slot: request.first_slot,
            angles: row.wrapping_sub(start.min(end) as u32),
        };
        for span in spans() {
            let text = (&head.tokens[..], head.header.preceding_token);
            batch.add(&self.cpu, &self.resident, span, &to, text)?;
        }
        Ok(())
    }

    /// Queues a batch, with marks if it `is_timed`.
    ///
    /// # Safety
    /// As [`decode_into`](Self::decode_into), with a batch that was built for these pages.
    unsafe fn run<'a>(
        &self,
        layers: Range<usize>,
        batch: DecodeBatch<'a>,
        pages: &PagedKv,
        is_timed: bool,
    ) -> Result<PendingGroup<'a, D>, CudaError> {
        let mark = |record: fn(&D) -> Result<D::Event, DeviceError>| {
            is_timed.then(|| record(&self.device)).transpose()
        };
        let first_copy = mark(D::record_copies)?;
        let buffers = DecodeBuffers::new(&self.device, &batch, pages, self.cpu.spec())?;
        let bank = self.cpu.profile().bank();
        let base = DecodeParams {
            bytes: buffers.bytes.address(),
            streams: buffers.streams.address(),
            codings: self.resident.codings.address(),
            statuses: buffers.statuses.address(),
            tables: self.resident.tables.address(),
            values: buffers.values.address(),
            steps: self.resident.steps.address(),
            factors: buffers.factors.address(),
            matrices: self.resident.matrices.address(),
            pages: buffers.paging.params(
                &self.resident.elements,
                &self.resident.frequencies,
                TASK_COEFFICIENTS_MAX,
            ),
            stage_tables: bank.stage_tables().len() as u32,
            trit_tables: bank.trit_tables().len() as u32,
            ..DecodeParams::default()
        };
        // SAFETY: all addresses in `base` and in the records below are those of memory that lives in `buffers`,
        // `self.resident`, the queue and, as the caller promises, `pages` until the group was waited for; a device frees
        // memory behind the kernels that were queued. Indices and offsets in the records were made by `DecodeBatch` for these
        // arrays.
        let mut queue = unsafe { Queue::new(&self.device, &buffers.counters) };
        let queued = mark(D::record).and_then(|first_kernel| {
            self.launch_all(&mut queue, &batch, &buffers, base)?;
            let marks = first_copy.zip(first_kernel).zip(mark(D::record_copies)?);
            let marks = marks.map(|((first_copy, first_kernel), last_copy)| Marks {
                copies: [first_copy, last_copy],
                first_kernel,
            });
            let bytes = batch.streams.len() * size_of::<Status>();
            Ok((marks, self.device.read_back(&buffers.statuses, 0, bytes)?, self.device.record()?))
        });
        let kept = queue.into_kept();
        let (marks, statuses, event) = match queued {
            Ok(queued) => queued,
            Err(error) => {
                // After an error the pages are the caller's: kernels that were launched before it must have ended.
                self.device.drain();
                return Err(error.into());
            }
        };
        Ok(PendingGroup {
            layers,
            batch,
            marks,
            event,
            statuses: Some(statuses),
            verdict: Ok(BTreeMap::new()),
            memory: (buffers, kept),
        })
    }

    fn launch_all(
        &self,
        queue: &mut Queue<'_, D>,
        batch: &DecodeBatch<'_>,
        buffers: &DecodeBuffers<D::Memory>,
        base: DecodeParams,
    ) -> Result<(), DeviceError> {
        let bank_bytes = base.stage_tables as usize * 128 + base.trit_tables as usize * 8;
        buffers.paging.launch_angles(queue, &self.resident.frequencies)?;
        let scatter_pages = PageParams { tile_columns: batch.scatter_columns as u32, ..base.pages };
        let direct = DIRECT_KERNELS.iter().zip(&batch.direct);
        let fused = DECODE_KERNELS.iter().zip(&batch.fused);
        let staged = batch.staged.iter().map(|tasks| (&Kernel::Decode1, tasks));
        for (kernel, tasks) in direct {
            queue.tasks(*kernel, tasks, bank_bytes + tile_bytes(TASK_COEFFICIENTS_MAX), base)?;
        }
        for (kernel, tasks) in fused.chain(staged) {
            queue.tasks::<Task>(*kernel, tasks, bank_bytes, base)?;
        }
        let scatter = DecodeParams { pages: scatter_pages, ..base };
        let scatter_bytes = tile_bytes(batch.scatter_columns);
        queue.tasks(Kernel::Scatter, &batch.scatter, scatter_bytes, scatter)?;
        queue.tasks(Kernel::Cells, &batch.cells, scatter_bytes, scatter)?;
        queue.tasks(Kernel::Patterns, &batch.patterns, 0, base)?;
        queue.tasks(Kernel::Restore, &batch.cells, scatter_bytes, scatter)?;
        self.launch_product(queue, batch, buffers, base)?;
        queue.tasks(Kernel::Exact, &batch.exact, 0, base)
    }

    fn launch_product(
        &self,
        queue: &mut Queue<'_, D>,
        batch: &DecodeBatch<'_>,
        buffers: &DecodeBuffers<D::Memory>,
        base: DecodeParams,
    ) -> Result<(), DeviceError> {
        if batch.prepare.is_empty() {
            return Ok(());
        }
        let prepare = PrepareParams {
            tasks: queue.upload(&batch.prepare)?,
            counter: queue.counter(),
            values: base.values,
            steps: base.steps,
            factors: buffers.factors.address(),
            matrices: self.resident.matrices.address(),
            operands: buffers.operands.address(),
            wide: buffers.wide.address(),
            task_count: batch.prepare.len() as u32,
            reserved: 0,
        };
        let synthesise = SynthesiseParams {
            tasks: queue.upload(&batch.synthesise)?,
            operands: prepare.operands,
            wide: prepare.wide,
            basis: self.resident.basis.address(),
            pages: base.pages,
        };
        let ctas = Work::Ctas(batch.synthesise.len());
        queue.launch(Kernel::Prepare, Work::Warps(batch.prepare.len()), 0, &prepare)?;
        queue.launch(Kernel::Synthesise, ctas, PRODUCT_SHARED_BYTES, &synthesise)
    }
}
