//! The launches of an encode, and their results.

use kvasir_kernels::{
    ANALYSIS_DEPTH, ANALYSIS_TILE, AnalyseParams, EncodeParams, GatherParams, Kernel, PieceState,
    QuantiseParams, StreamState, record_bytes,
};

use super::{batch::EncodeBatch, resident::EncodeProfile};
use crate::{
    CudaError, Device, DeviceError, DeviceMemory, DeviceReadback, PagedKv, Work,
    limits::{OUTPUT_BYTES_MIN, OUTPUT_BYTES_PER_VALUE},
    paging::PagingBuffers,
    queue::{LAUNCHES_MAX, Queue},
    resident::index_u32,
    tiles::tile_bytes,
};

/// A batch's arrays on the device.
#[derive(Debug)]
pub(super) struct EncodeBuffers<M> {
    paging: PagingBuffers<M>,
    factors: M,
    ranges: M,
    flags: M,
    counters: M,
    pub(super) values: M,
    pub(super) coefficients: M,
    steps: M,
    pub(super) rows: M,
}

impl<M: DeviceMemory> EncodeBuffers<M> {
    /// `sums` are the coefficients, if they are already available.
    pub(super) fn new<D: Device<Memory = M>>(
        device: &D,
        batch: &EncodeBatch,
        pages: Option<&PagedKv>,
        spec: &kvasir_types::ModelSpec,
        sums: Option<&[f32]>,
    ) -> Result<Self, CudaError> {
        Ok(Self {
            paging: PagingBuffers::new(device, &batch.paging, pages, spec)?,
            factors: device.upload("factors", &batch.factors)?,
            ranges: device.upload("ranges", &record_bytes(&batch.ranges))?,
            flags: device.allocate("flags", batch.sites.len() * 4)?,
            counters: device.allocate("counters", LAUNCHES_MAX * 4)?,
            values: device.allocate("values", batch.values * 4)?,
            coefficients: match sums {
                Some(sums) => device.upload("coefficients", &record_bytes(sums))?,
                None => device.allocate("coefficients", batch.coefficients * 4)?,
            },
            steps: device.allocate("steps", batch.steps * 4)?,
            rows: device.allocate("rows", batch.rows * 4)?,
        })
    }
}

/// Additional input of the coding kernels, and their output.
#[derive(Debug)]
pub(super) struct CodingBuffers<M> {
    widths: M,
    piece_states: M,
    stream_states: M,
    lanes: M,
    words: M,
    output: M,
    output_used: M,
    output_bytes: usize,
}

impl<M: DeviceMemory> CodingBuffers<M> {
    fn new<D: Device<Memory = M>>(device: &D, batch: &EncodeBatch) -> Result<Self, CudaError> {
        let output_bytes = OUTPUT_BYTES_MIN + batch.values * OUTPUT_BYTES_PER_VALUE;
        index_u32(output_bytes)?;
        Ok(Self {
            widths: device.allocate("widths", batch.widths)?,
            piece_states: device.allocate("piece states", batch.pieces.len() * size_of::<PieceState>())?,
            stream_states: device.allocate("stream states", batch.slots.len() * size_of::<StreamState>())?,
            lanes: device.allocate("lanes", batch.slots.len() * 128)?,
            words: device.allocate("words", batch.words() * 2)?,
            output: device.allocate("output", output_bytes)?,
            output_used: device.allocate("output used", 4)?,
            output_bytes,
        })
    }
}

/// The output of the coding kernels, on the host.
#[derive(Debug, Default)]
pub(super) struct EncodeResults {
    /// One a site: whether a value is not finite or out of range.
    pub(super) flags: Vec<u32>,
    pub(super) pieces: Vec<PieceState>,
    pub(super) output: Vec<u8>,
}

pub(super) struct EncodeRunner<'r, D: Device> {
    pub(super) device: &'r D,
    pub(super) resident: &'r EncodeProfile<D::Memory>,
    pub(super) batch: &'r EncodeBatch,
    pub(super) buffers: &'r EncodeBuffers<D::Memory>,
}

impl<D: Device> EncodeRunner<'_, D> {
    fn launch_gather(&self, queue: &mut Queue<'_, D>) -> Result<(), DeviceError> {
        let (batch, buffers) = (self.batch, self.buffers);
        if batch.gather.iter().all(Vec::is_empty) {
            return Ok(());
        }
        buffers.paging.launch_angles(queue, &self.resident.frequencies)?;
        let targets = [&buffers.values, &buffers.coefficients, &buffers.steps, &buffers.rows];
        for (tasks, target) in batch.gather.iter().zip(targets).filter(|(tasks, _)| !tasks.is_empty()) {
            let params = GatherParams {
                tasks: queue.upload(tasks)?,
                counter: queue.counter(),
                values: target.address(),
                flags: buffers.flags.address(),
                pages: buffers.paging.params(
                    &self.resident.elements,
                    &self.resident.frequencies,
                    batch.gather_columns,
                ),
                task_count: tasks.len() as u32,
                reserved: 0,
            };
            let shared = tile_bytes(batch.gather_columns);
            queue.launch(Kernel::Gather, Work::Warps(tasks.len()), shared, &params)?;
        }
        if !batch.analyse.is_empty() {
            let params = AnalyseParams {
                tasks: queue.upload(&batch.analyse)?,
                steps: buffers.steps.address(),
                coefficients: buffers.coefficients.address(),
                matrices: self.resident.analysis.address(),
                ranges: buffers.ranges.address(),
            };
            let shared = 2 * ANALYSIS_DEPTH as usize * ANALYSIS_TILE as usize * 4;
            queue.launch(Kernel::Analyse, Work::Ctas(batch.analyse.len()), shared, &params)?;
        }
        Ok(())
    }

    fn launch_quantise(&self, queue: &mut Queue<'_, D>) -> Result<(), DeviceError> {
        let tasks = &self.batch.quantise;
        if tasks.is_empty() {
            return Ok(());
        }
        let params = QuantiseParams {
            tasks: queue.upload(tasks)?,
            counter: queue.counter(),
            coefficients: self.buffers.coefficients.address(),
            values: self.buffers.values.address(),
            flags: self.buffers.flags.address(),
            factors: self.buffers.factors.address(),
            matrices: self.resident.matrices.address(),
            task_count: tasks.len() as u32,
            reserved: 0,
        };
        queue.launch(Kernel::Quantise, Work::Warps(tasks.len()), 0, &params)
    }

    fn launch_coding(
        &self,
        queue: &mut Queue<'_, D>,
        coded: &CodingBuffers<D::Memory>,
        (stage_tables, trit_tables): (usize, usize),
    ) -> Result<(), DeviceError> {
        let (batch, resident) = (self.batch, self.resident);
        let base = EncodeParams {
            pieces: queue.upload(&batch.pieces)?,
            slots: queue.upload(&batch.slots)?,
            counter: 0,
            values: self.buffers.values.address(),
            plans: resident.plans.address(),
            codings: resident.codings.address(),
            symbols: resident.symbols.address(),
            inverted: resident.inverted.address(),
            flags: self.buffers.flags.address(),
            widths: coded.widths.address(),
            piece_states: coded.piece_states.address(),
            stream_states: coded.stream_states.address(),
            lanes: coded.lanes.address(),
            words: coded.words.address(),
            output: coded.output.address(),
            output_used: coded.output_used.address(),
            output_bytes: coded.output_bytes as u32,
            piece_count: batch.pieces.len() as u32,
            stream_count: batch.slots.len() as u32,
            stage_tables: stage_tables as u32,
            trit_tables: trit_tables as u32,
            reserved: 0,
        };
        let (pieces, streams) = (Work::Warps(batch.pieces.len()), Work::Warps(batch.slots.len()));
        let bank_bytes = stage_tables * 256 + trit_tables * 128;
        let quarters = Work::Warps(4 * batch.slots.len());
        let launches = [
            (Kernel::Measure, quarters, 0),
            (Kernel::Cut, pieces, 0),
            (Kernel::Encode, streams, bank_bytes),
            (Kernel::Place, pieces, 0),
            (Kernel::Pack, streams, 0),
        ];
        for (kernel, work, shared) in launches {
            let params = EncodeParams { counter: queue.counter(), ..base };
            queue.launch(kernel, work, shared, &params)?;
        }
        Ok(())
    }

    /// Rows or coefficients, as requested by the batch.
    ///
    /// # Safety
    /// The planes that the batch was built for are device memory of the layout they say.
    pub(super) unsafe fn gather(&self) -> Result<Vec<u32>, CudaError> {
        // SAFETY: all addresses in the records are those of memory in `buffers`, `resident` and, as the caller promises, the
        // pages; a device frees memory behind the kernels that were queued.
        let mut queue = unsafe { Queue::new(self.device, &self.buffers.counters) };
        self.launch_gather(&mut queue)?;
        self.flags()
    }

    fn flags(&self) -> Result<Vec<u32>, CudaError> {
        let bytes = self.device.read_back(&self.buffers.flags, 0, self.batch.sites.len() * 4)?.bytes()?;
        Ok(words(&bytes))
    }

    /// Everything, from rows or coefficients to pieces.
    ///
    /// # Safety
    /// As [`gather`](Self::gather).
    pub(super) unsafe fn encode(&self, tables: (usize, usize)) -> Result<EncodeResults, CudaError> {
        let coded = CodingBuffers::new(self.device, self.batch)?;
        // SAFETY: as in `gather`, and memory in `coded`.
        let mut queue = unsafe { Queue::new(self.device, &self.buffers.counters) };
        self.launch_gather(&mut queue)?;
        self.launch_quantise(&mut queue)?;
        if !self.batch.pieces.is_empty() {
            self.launch_coding(&mut queue, &coded, tables)?;
        }
        let read_back = |memory, bytes| self.device.read_back(memory, 0, bytes);
        let used = read_back(&coded.output_used, 4)?;
        let states = read_back(&coded.piece_states, self.batch.pieces.len() * size_of::<PieceState>())?;
        let flags = self.flags()?;
        let used = words(&used.bytes()?).first().copied().unwrap_or_default() as usize;
        let output = read_back(&coded.output, used.min(coded.output_bytes))?.bytes()?;
        let states = words(&states.bytes()?);
        let state = |w: &[u32; 6]| {
            let [active, raw_bytes, bytes, offset, code, reserved] = *w;
            PieceState { active, raw_bytes, bytes, offset, code, reserved }
        };
        Ok(EncodeResults { flags, pieces: states.as_chunks().0.iter().map(state).collect(), output })
    }
}

pub(super) fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
}

pub(super) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// Records that are read back contain only words.
const _: () = assert!(size_of::<PieceState>() == 24);
