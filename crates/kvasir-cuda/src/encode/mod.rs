//! Encoding on a device: rows in an engine's pages to objects. From the same symbols the same bytes as `CpuEncoder`.

mod batch;
mod collect;
mod partial;
mod resident;
mod run;

use std::{ops::Range, sync::Arc};

use kvasir_codec::{
    ChunkEncoder, ChunkInput, CpuEncoder, EncodeError, EncodeReport, KvSource, Profile, ProfileError,
};
use kvasir_types::{ChainLink, Loss, ModelSpec, Plane, ProfileHash};

use self::{
    batch::{EncodeBatch, EncodeChunk, EncodePhase},
    resident::EncodeProfile,
    run::{EncodeBuffers, EncodeRunner},
};
use crate::{
    CudaError, Device, DeviceMemory, PagedKv,
    dense::Dense,
    limits::STREAM_WORDS,
    tiles::{check_tiles, widest_rotated},
};

pub use partial::{ExactSpanRows, Partial};

/// Encodes chunks of one profile on a device.
#[derive(Debug)]
pub struct KernelEncoder<D: Device> {
    device: D,
    cpu: CpuEncoder,
    resident: EncodeProfile<D::Memory>,
    stream_words: usize,
}

/// A chunk in an engine's pages, and the other fields of its object.
#[derive(Debug, Clone, Copy)]
pub struct EncodeRequest<'a> {
    /// The chunk's tokens.
    pub tokens: &'a [u32],
    /// The token before the chunk, if there is one and it may be stored.
    pub preceding_token: Option<u32>,
    /// Absolute position of the first token.
    pub first_position: u64,
    /// Where the chunk attaches to its chain.
    pub link: ChainLink,
    /// The loss of the prefix over which the KV was computed.
    pub beneath: Loss,
    /// The sequence's block table.
    pub blocks: &'a [i32],
    /// Position of the first token in the sequence's pages.
    pub first_slot: u32,
}

/// KV that is read on the device.
struct DeviceResidentKv;

impl KvSource for DeviceResidentKv {
    fn read(&self, _: usize, _: Plane, _: usize, _: Range<usize>, out: &mut [f32]) {
        debug_assert!(out.is_empty(), "rows are gathered by kernels");
    }
}

impl<'a> EncodeRequest<'a> {
    fn input(&self) -> ChunkInput<'a> {
        ChunkInput {
            tokens: self.tokens,
            preceding_token: self.preceding_token,
            first_position: self.first_position,
            link: self.link,
            beneath: self.beneath,
            kv: &DeviceResidentKv,
        }
    }
}

impl<D: Device> KernelEncoder<D> {
    /// An encoder for a model. Uploads the profile.
    ///
    /// # Errors
    /// [`ProfileError`] where the profile is of another model; [`CudaError::ExactLevel`], [`CudaError::SharedMemory`]; else the
    /// device's.
    pub fn new(
        device: D,
        spec: Arc<ModelSpec>,
        profile: Arc<Profile>,
    ) -> Result<Result<Self, CudaError>, ProfileError> {
        let cpu = CpuEncoder::new(spec, profile)?;
        if cpu.profile().lossy_levels() < cpu.profile().level_count() {
            return Ok(Err(CudaError::ExactLevel));
        }
        let views = (0..cpu.scope_count()).filter_map(|scope| cpu.scope_view(scope));
        let rotated = views.map(|view| widest_rotated(&view)).max().unwrap_or_default();
        if let Err(error) = check_tiles(&device, rotated) {
            return Ok(Err(error));
        }
        let resident = EncodeProfile::new(&device, &cpu);
        Ok(resident.map(|resident| Self { device, cpu, resident, stream_words: STREAM_WORDS }))
    }

    /// The same encoder with other room for a stream's words; pieces that do not fit are coded on the host. For tests.
    pub fn with_stream_words(mut self, words: usize) -> Self {
        self.stream_words = words;
        self
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Encodes several chunks out of an engine's pages: all levels of all of them in one launch a kernel.
    ///
    /// # Safety
    /// The planes of `pages` are device memory of the layout they say, of [`PagedKv::blocks`] blocks, and nobody writes
    /// the rows asked for until this returns.
    ///
    /// # Errors
    /// See [`CudaError`]; values are never the reason: spans with values that are not finite or out of range are stored
    /// as they are.
    pub unsafe fn encode_from(
        &self,
        requests: &[EncodeRequest<'_>],
        pages: &PagedKv,
    ) -> Result<Vec<(Vec<u8>, EncodeReport)>, CudaError> {
        self.check_whole(pages)?;
        let batch = self.build(requests, Some(pages), EncodePhase::Whole)?;
        let buffers = EncodeBuffers::new(&self.device, &batch, Some(pages), self.cpu.spec(), None)?;
        let runner =
            EncodeRunner { device: &self.device, resident: &self.resident, batch: &batch, buffers: &buffers };
        // SAFETY: the caller's promise; `build` checked block tables against the cache.
        let results = unsafe { runner.encode(self.tables())? };
        let forced = (0..batch.sites.len()).filter(|site| results.flags[*site] != 0).collect::<Vec<_>>();
        // SAFETY: as above.
        let rows = unsafe { self.whole_rows(requests, pages, &forced)? };
        let exact = self.exact_rows(&batch, &buffers)?;
        self.objects(requests, &batch, &buffers, &results, &exact, &rows)
    }

    fn tables(&self) -> (usize, usize) {
        let bank = self.cpu.profile().bank();
        (bank.stage_tables().len(), bank.trit_tables().len())
    }

    /// A whole object needs every head of every layer.
    fn check_whole(&self, pages: &PagedKv) -> Result<(), CudaError> {
        let views = (0..self.cpu.scope_count()).filter_map(|scope| self.cpu.scope_view(scope));
        if views.flat_map(|view| view.members).all(|member| pages.place(&member).is_some()) {
            Ok(())
        } else {
            Err(CudaError::Pages {
                what: "an object needs all heads and layers; encode a rank's share with `partial`",
            })
        }
    }

    fn build(
        &self,
        requests: &[EncodeRequest<'_>],
        pages: Option<&PagedKv>,
        phase: EncodePhase,
    ) -> Result<EncodeBatch, CudaError> {
        let mut batch = EncodeBatch::new(&self.cpu, pages, self.stream_words);
        for (index, request) in requests.iter().enumerate() {
            let exact = self.cpu.exact_prefix(&request.input())?;
            if let Some(pages) = pages {
                let first = u64::from(request.first_slot);
                pages.check_blocks(request.blocks, first..first + request.tokens.len() as u64)?;
            }
            batch.add(&self.cpu, &self.resident, phase, index, &EncodeChunk { request, exact })?;
        }
        Ok(batch)
    }
}

impl<D: Device> ChunkEncoder for KernelEncoder<D> {
    /// As the CPU encoder; a fault of the device is [`EncodeError::Device`].
    fn encode(&self, input: &ChunkInput<'_>) -> Result<Vec<u8>, EncodeError> {
        self.cpu.exact_prefix(input)?; // before memory is taken for its tokens
        self.encode_source(input).map_err(|error| match error {
            CudaError::Encode(error) => error,
            other => EncodeError::Device { cause: other.to_string() },
        })
    }

    fn profile_hash(&self) -> ProfileHash {
        self.cpu.profile_hash()
    }

    fn level_count(&self) -> usize {
        self.cpu.level_count()
    }
}

impl<D: Device> KernelEncoder<D> {
    /// Rows of a host source by way of a contiguous f32 cache on the device, `[layer][plane][token][head][element]`.
    fn encode_source(&self, input: &ChunkInput<'_>) -> Result<Vec<u8>, CudaError> {
        let count = input.tokens.len();
        let dense = Dense::new(self.cpu.spec(), count);
        let (mut cache, mut rows) = (vec![0u8; dense.bytes()], Vec::new());
        for (layer, kv) in self.cpu.spec().layers.iter().enumerate() {
            for plane in Plane::ALL {
                let (heads, dim) = kv.layout.planes()[plane as usize];
                let start = dense.starts[2 * layer + plane as usize];
                for head in 0..heads {
                    rows.clear();
                    rows.resize(dim * count, 0.0);
                    input.kv.read(layer, plane, head, 0..count, &mut rows);
                    for (index, value) in rows.iter().enumerate() {
                        let at = 4 * (start + (index / dim * heads + head) * dim + index % dim);
                        cache[at..at + 4].copy_from_slice(&value.to_le_bytes());
                    }
                }
            }
        }
        let memory = self.device.upload("pages", &cache)?;
        let pages = dense.pages(memory.address());
        let request = EncodeRequest {
            tokens: input.tokens,
            preceding_token: input.preceding_token,
            first_position: input.first_position,
            link: input.link,
            beneath: input.beneath,
            blocks: &[0],
            first_slot: 0,
        };
        // SAFETY: the pages are this function's own memory, of the size that the layout takes.
        let mut objects = unsafe { self.encode_from(&[request], &pages)? };
        Ok(objects.remove(0).0)
    }
}
