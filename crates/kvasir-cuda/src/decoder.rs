//! Decoding on a device: chunks into pages, and the codec's trait over it.

use std::{ops::Range, sync::Arc};

use kvasir_codec::{ChunkDecoder, CpuDecoder, DecodeError, KvSink, Profile, ProfileError, container::Head};
use kvasir_kernels::{
    AngleParams, DecodeParams, Dtype, Kernel, PrepareParams, Record, RopeShape, Status, SynthesiseParams,
    TILE_STRIDE, TILE_THREADS, Task, record_bytes,
};
use kvasir_types::{Level, ModelSpec, Pairing, Plane};

use crate::{
    CudaError, Device, DeviceError, DeviceMemory, PageShape, PagedKv, Work,
    batch::{Batch, Destination},
    lower::{TASK_COEFFICIENTS_MAX, piece_error},
    resident::{Resident, place},
};

/// Shared memory of a product's CTA: two stages of operands, then four tiles of 32 tokens by 128 elements.
const PRODUCT_SHARED_BYTES: usize = 4 * 128 * TILE_STRIDE as usize * 4;
const DECODE_KERNELS: [Kernel; 4] = [Kernel::Decode1, Kernel::Decode2, Kernel::Decode3, Kernel::Decode4];
const DIRECT_KERNELS: [Kernel; 4] = [Kernel::Direct1, Kernel::Direct2, Kernel::Direct3, Kernel::Direct4];

/// Decodes chunks of one profile on a device.
#[derive(Debug)]
pub struct KernelDecoder<D: Device> {
    device: D,
    cpu: CpuDecoder,
    resident: Resident<D::Memory>,
}

/// A chunk, or what is there of it, and where its tokens go.
#[derive(Debug, Clone)]
pub struct ChunkRequest<'a> {
    /// The object's head.
    pub head: &'a Head,
    /// The object's bytes from the first on, at least to the last piece needed.
    pub object_prefix: &'a [u8],
    /// Level of every scope wanted; scopes that are missing here are not decoded.
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
        let resident = Resident::new(&device, &cpu);
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

    /// Decodes several chunks into an engine's pages in one launch a kernel. Returns when the rows are there.
    ///
    /// After an error some rows may have been written, right or wrong, but only rows that were asked for.
    ///
    /// # Safety
    /// The planes of `pages` are device memory of the layout they say, of [`PagedKv::blocks`] blocks, and nobody else
    /// uses the rows asked for until this returns.
    ///
    /// # Errors
    /// See [`CudaError`].
    pub unsafe fn decode_into(
        &self,
        requests: &[ChunkRequest<'_>],
        pages: &PagedKv,
    ) -> Result<(), CudaError> {
        let batch = self.build(requests, pages)?;
        // SAFETY: the caller's promise; `build` checked everything else against it.
        unsafe { self.run(&batch, pages) }
    }

    fn build(&self, requests: &[ChunkRequest<'_>], pages: &PagedKv) -> Result<Batch, CudaError> {
        let mut batch = Batch::new(&self.cpu, &self.resident, pages);
        for (index, request) in requests.iter().enumerate() {
            let first = u64::from(request.first_slot);
            pages.check_blocks(request.blocks, first..first + request.tokens.len() as u64)?;
            let head = request.head;
            let spans =
                self.cpu.outline(head, request.object_prefix, &request.scopes, request.tokens.clone())?;
            let covered = spans.iter().map(|span| span.tokens.clone());
            let (start, end) = covered.fold((usize::MAX, 0), |(s, e), r| (s.min(r.start), e.max(r.end)));
            let (blocks, row) = (place(batch.blocks.len())?, place(batch.positions.len())?);
            batch.blocks.extend_from_slice(request.blocks);
            let position = |token: usize| head.header.first_position.wrapping_add(token as u64);
            batch.positions.extend((start.min(end)..end).map(position));
            let to = Destination {
                request: index,
                tokens: request.tokens.clone(),
                blocks,
                first_slot: request.first_slot,
                angles: row.wrapping_sub(start.min(end) as u32),
            };
            for span in &spans {
                batch.add(
                    &self.cpu,
                    &self.resident,
                    span,
                    &to,
                    (&head.tokens, head.header.preceding_token),
                )?;
            }
        }
        batch.sort();
        Ok(batch)
    }

    fn rope_shapes(&self) -> Vec<RopeShape> {
        let ropes = self.cpu.spec().ropes.iter().zip(&self.resident.rope_columns);
        ropes
            .map(|(rope, &column)| RopeShape {
                pairs: rope.freqs.len() as u32,
                offset: rope.offset,
                interleaved: u32::from(rope.pairing == Pairing::Interleaved),
                column,
                factor: rope.attention_factor,
            })
            .collect()
    }

    /// # Safety
    /// As [`decode_into`](Self::decode_into), with a batch that was built for these pages.
    unsafe fn run(&self, batch: &Batch, pages: &PagedKv) -> Result<(), CudaError> {
        let on = Uploaded::new(&self.device, batch, pages, &self.rope_shapes())?;
        let bank = self.cpu.profile().bank();
        let base = DecodeParams {
            bytes: on.bytes.address(),
            streams: on.streams.address(),
            codings: self.resident.codings.address(),
            statuses: on.statuses.address(),
            tables: self.resident.tables.address(),
            values: on.values.address(),
            steps: self.resident.steps.address(),
            placements: on.placements.address(),
            elements: self.resident.elements.address(),
            members: on.members.address(),
            planes: on.planes.address(),
            blocks: on.blocks.address(),
            ropes: on.ropes.address(),
            angles: on.angles.address(),
            stage_tables: bank.stage_tables().len() as u32,
            trit_tables: bank.trit_tables().len() as u32,
            angle_columns: self.resident.angle_columns,
            tile_columns: TASK_COEFFICIENTS_MAX as u32,
            ..DecodeParams::default()
        };
        // SAFETY: all addresses in `base` and in the records below are those of memory that lives in `on`,
        // `self.resident`, `queue` and, as the caller promises, `pages` until the download has drained the device;
        // indices and offsets in the records were made by `Batch` for these arrays.
        let mut queue = unsafe { Queue::new(&self.device, &on.counters) };
        self.launch_all(&mut queue, batch, &on, base)?;
        let mut statuses = vec![0; batch.streams.len() * size_of::<Status>()];
        self.device.download(&on.statuses, &mut statuses)?;
        check_statuses(batch, &statuses)
    }

    fn launch_all(
        &self,
        queue: &mut Queue<'_, D>,
        batch: &Batch,
        on: &Uploaded<D::Memory>,
        base: DecodeParams,
    ) -> Result<(), DeviceError> {
        let bank_bytes = base.stage_tables as usize * 128 + base.trit_tables as usize * 8;
        let tile_bytes = |columns: usize| TILE_THREADS as usize / 32 * columns * TILE_STRIDE as usize * 4;
        let angles = AngleParams {
            positions: on.positions.address(),
            frequencies: self.resident.frequencies.address(),
            angles: on.angles.address(),
            rows: batch.positions.len() as u32,
            columns: self.resident.angle_columns,
        };
        let angle_count = batch.positions.len() * self.resident.angle_columns as usize;
        if angle_count > 0 {
            queue.launch(Kernel::Angles, Work::Warps(angle_count.div_ceil(32)), 0, &angles)?;
        }
        let scatter_columns = batch.scatter_columns as u32;
        let direct = DIRECT_KERNELS.iter().zip(&batch.direct);
        let fused = DECODE_KERNELS.iter().zip(&batch.fused);
        let staged = batch.staged.iter().map(|tasks| (&Kernel::Decode1, tasks));
        for (kernel, tasks) in direct {
            queue.tasks(*kernel, tasks, bank_bytes + tile_bytes(TASK_COEFFICIENTS_MAX), base)?;
        }
        for (kernel, tasks) in fused.chain(staged) {
            queue.tasks::<Task>(*kernel, tasks, bank_bytes, base)?;
        }
        let scatter = DecodeParams { tile_columns: scatter_columns, ..base };
        queue.tasks(Kernel::Scatter, &batch.scatter, tile_bytes(batch.scatter_columns), scatter)?;
        self.launch_product(queue, batch, on, base)?;
        queue.tasks(Kernel::Exact, &batch.exact, 0, base)
    }

    fn launch_product(
        &self,
        queue: &mut Queue<'_, D>,
        batch: &Batch,
        on: &Uploaded<D::Memory>,
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
            factors: on.factors.address(),
            matrices: self.resident.matrices.address(),
            operands: on.operands.address(),
            wide: on.wide.address(),
            task_count: batch.prepare.len() as u32,
            reserved: 0,
        };
        let synthesise = SynthesiseParams {
            tasks: queue.upload(&batch.synthesise)?,
            operands: prepare.operands,
            wide: prepare.wide,
            basis: self.resident.basis.address(),
            decode: base,
        };
        let ctas = Work::Ctas(batch.synthesise.len());
        queue.launch(Kernel::Prepare, Work::Warps(batch.prepare.len()), 0, &prepare)?;
        queue.launch(Kernel::Synthesise, ctas, PRODUCT_SHARED_BYTES, &synthesise)
    }
}

/// A batch's arrays on the device.
struct Uploaded<M> {
    bytes: M,
    streams: M,
    statuses: M,
    placements: M,
    members: M,
    planes: M,
    blocks: M,
    ropes: M,
    positions: M,
    angles: M,
    factors: M,
    values: M,
    operands: M,
    wide: M,
    counters: M,
}

/// Most launches of a batch.
const LAUNCHES_MAX: usize = 32;

impl<M: DeviceMemory> Uploaded<M> {
    fn new<D: Device<Memory = M>>(
        device: &D,
        batch: &Batch,
        pages: &PagedKv,
        ropes: &[RopeShape],
    ) -> Result<Self, CudaError> {
        let columns: usize = ropes.iter().map(|rope| rope.pairs as usize).sum();
        Ok(Self {
            bytes: device.upload("bytes", &batch.bytes)?,
            streams: device.upload("streams", &record_bytes(&batch.streams))?,
            statuses: device.allocate("statuses", batch.streams.len() * size_of::<Status>())?,
            placements: device.upload("placements", &record_bytes(&batch.placements))?,
            members: device.upload("members", &record_bytes(&batch.members))?,
            planes: device.upload("planes", &record_bytes(&pages.records()?))?,
            blocks: device.upload("blocks", &record_bytes(&batch.blocks))?,
            ropes: device.upload("ropes", &record_bytes(ropes))?,
            positions: device.upload("positions", &record_bytes(&batch.positions))?,
            angles: device.allocate("angles", batch.positions.len() * columns * 8)?,
            factors: device.upload("factors", &batch.factors)?,
            values: device.allocate("values", batch.values * 4)?,
            operands: device.allocate("operands", batch.operands * 2)?,
            wide: device.allocate("wide", batch.wide * 4)?,
            counters: device.allocate("counters", LAUNCHES_MAX * 4)?,
        })
    }
}

/// Launches, each with its own queue head; keeps their task arrays alive.
struct Queue<'d, D: Device> {
    device: &'d D,
    counters: &'d D::Memory,
    used: usize,
    kept: Vec<D::Memory>,
}

impl<'d, D: Device> Queue<'d, D> {
    /// # Safety
    /// Every record that is launched through the queue is good in the sense of [`Device::launch`].
    unsafe fn new(device: &'d D, counters: &'d D::Memory) -> Self {
        Self { device, counters, used: 0, kept: Vec::new() }
    }

    fn counter(&mut self) -> u64 {
        assert!(self.used < LAUNCHES_MAX, "a batch has fewer launches");
        self.used += 1;
        self.counters.address() + 4 * (self.used as u64 - 1)
    }

    fn upload<R: Record>(&mut self, records: &[R]) -> Result<u64, DeviceError> {
        let memory = self.device.upload("tasks", &record_bytes(records))?;
        let address = memory.address();
        self.kept.push(memory);
        Ok(address)
    }

    fn tasks<R: Record>(
        &mut self,
        kernel: Kernel,
        tasks: &[R],
        shared_bytes: usize,
        base: DecodeParams,
    ) -> Result<(), DeviceError> {
        if tasks.is_empty() {
            return Ok(());
        }
        let (address, counter) = (self.upload(tasks)?, self.counter());
        let params = DecodeParams { tasks: address, counter, task_count: tasks.len() as u32, ..base };
        self.launch(kernel, Work::Warps(tasks.len()), shared_bytes, &params)
    }

    fn launch<R: Record>(
        &self,
        kernel: Kernel,
        work: Work,
        shared_bytes: usize,
        params: &R,
    ) -> Result<(), DeviceError> {
        let mut bytes = Vec::with_capacity(size_of::<R>());
        params.write(&mut bytes);
        // SAFETY: promised to `new`; `bytes` is the record.
        unsafe { self.device.launch(kernel, work, shared_bytes, &bytes) }
    }
}

/// The first error in the order of request, section, span and stream.
fn check_statuses(batch: &Batch, statuses: &[u8]) -> Result<(), CudaError> {
    let words = |bytes: &[u8; 8]| {
        let [a, b, c, d, e, f, g, h] = *bytes;
        Status { code: u32::from_le_bytes([a, b, c, d]), detail: u32::from_le_bytes([e, f, g, h]) }
    };
    let failed = batch.names.iter().zip(&batch.streams).zip(statuses.as_chunks().0).filter_map(
        |((name, stream), bytes)| {
            let (request, name) = (*name)?;
            match piece_error(words(bytes), *stream, name, &batch.bytes) {
                Some(Ok(())) => None,
                Some(Err(source)) => Some((request, name, Some(source))),
                None => Some((request, name, None)),
            }
        },
    );
    match failed.min_by_key(|(request, name, _)| (*request, name.section, name.span, name.stream)) {
        None => Ok(()),
        Some((_, name, Some(source))) => {
            Err(DecodeError::Piece { section: name.section, span: name.span, source }.into())
        }
        Some((_, name, None)) => Err(CudaError::Silent { section: name.section, span: name.span }),
    }
}

/// Host rows of a decode: one contiguous f32 cache on the device, `[layer][plane][token][head][element]`.
impl<D: Device> KernelDecoder<D> {
    fn decode_to_sink(
        &self,
        head: &Head,
        object_prefix: &[u8],
        level: Level,
        tokens: Range<usize>,
        sink: &mut dyn KvSink,
    ) -> Result<(), CudaError> {
        let count = tokens.len();
        let planes = self.cpu.spec().layers.iter().flat_map(|layer| layer.layout.planes());
        let starts: Vec<usize> = planes
            .scan(0, |at, (heads, dim)| {
                let start = *at;
                *at += heads * dim * count;
                Some(start)
            })
            .collect();
        let bytes = self.cpu.spec().elements_per_token() * count * 4;
        let memory = self.device.allocate("pages", bytes)?;
        let layers = self.cpu.spec().layers.iter().zip(starts.as_chunks::<2>().0).map(|(layer, starts)| {
            let plane = |plane: usize| {
                let (heads, dim) = layer.layout.planes()[plane];
                let shape = PageShape {
                    blocks: 1,
                    block_tokens: count as u32,
                    heads: 0..heads,
                    head_dim: dim as u64,
                    dtype: Dtype::F32,
                };
                let base = memory.address() + 4 * starts[plane] as u64;
                let [layout, _] = shape.contiguous(base, base);
                (heads > 0).then_some(layout)
            };
            [plane(0), plane(1)]
        });
        let pages = PagedKv { layers: layers.collect(), block_tokens: count.max(1) as u32, blocks: 1 };
        let scopes = self.all_scopes(level);
        let request =
            ChunkRequest { head, object_prefix, scopes, tokens: tokens.clone(), blocks: &[0], first_slot: 0 };
        // SAFETY: the pages are this function's own memory, of the size that the layout takes.
        unsafe { self.decode_into(&[request], &pages)? };
        let mut rows = vec![0; bytes];
        self.device.download(&memory, &mut rows)?;
        let values: Vec<f32> = rows.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        self.write_rows(&values, &starts, tokens, sink);
        Ok(())
    }

    fn write_rows(&self, values: &[f32], starts: &[usize], tokens: Range<usize>, sink: &mut dyn KvSink) {
        let mut rows = Vec::new();
        for (layer, kv) in self.cpu.spec().layers.iter().enumerate() {
            for plane in Plane::ALL {
                let (heads, dim) = kv.layout.planes()[plane as usize];
                let start = starts[2 * layer + plane as usize];
                for head in 0..heads {
                    rows.clear();
                    for token in 0..tokens.len() {
                        let at = start + (token * heads + head) * dim;
                        rows.extend_from_slice(&values[at..at + dim]);
                    }
                    sink.write(layer, plane, head, tokens.start, &rows);
                }
            }
        }
    }
}

impl<D: Device> ChunkDecoder for KernelDecoder<D> {
    /// As the CPU decoder; a fault of the device is [`DecodeError::Device`].
    fn decode(
        &self,
        head: &Head,
        object_prefix: &[u8],
        level: Level,
        tokens: Range<usize>,
        sink: &mut dyn KvSink,
    ) -> Result<(), DecodeError> {
        self.decode_to_sink(head, object_prefix, level, tokens, sink).map_err(|error| match error {
            CudaError::Decode(error) => error,
            other => DecodeError::Device { cause: other.to_string() },
        })
    }
}
