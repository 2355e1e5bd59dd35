//! Rates of encode and decode, with one chunk compared: layouts, levels, chunks in one launch; the latency of a chunk from host bytes to rows.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::{error::Error, sync::Arc, time::Instant};

use half::bf16;
use kvasir_codec::{Bf16Buffer, ChunkDecoder, CpuDecoder, container::Head};
use kvasir_cuda::{
    ChunkRequest, CudaDevice, CudaMemory, Device, DeviceMemory, DeviceReadback, Dtype, EncodeRequest,
    KernelDecoder, KernelEncoder, PageShape, PagedKv, PlaneLayout,
};
use kvasir_types::{ChainLink, KvLayout, Level, Loss, Plane};

use crate::{
    common::Noise,
    report::{Report, Row},
    shapes::{Shape, value},
    timed::Timed,
};

/// Tokens per page, as in vLLM.
pub(crate) const BLOCK_TOKENS: u32 = 16;
/// Repetitions; the best counts.
const ROUNDS: usize = 5;
/// The contents of pages before a decode.
const POISON: u8 = 0xa5;
type MakeLayout = fn(&PageShape, u64, u64) -> [PlaneLayout; 2];
/// A layout and its name.
pub(crate) type Layout = (&'static str, MakeLayout);
/// The one of most rows, and the only one that is compared.
pub(crate) const FLASH: Layout = ("flash", |shape, base, _| shape.flash(base));
/// The others.
pub(crate) const LAYOUTS: [Layout; 4] = [
    ("HND", |shape, base, _| shape.hnd(base)),
    ("K|V joined", |shape, base, _| shape.joined(base)),
    ("dim/x packed", |shape, base, second| shape.packed(base, second)),
    ("contiguous", |shape, base, second| shape.contiguous(base, second)),
];

/// A cache on the device.
pub(crate) struct Pages {
    pub(crate) kv: PagedKv,
    memory: Vec<CudaMemory>,
}

pub(crate) fn pages(
    device: &Timed,
    shape: &Shape,
    slots: usize,
    (_, make): Layout,
    content: Option<&[u8]>,
) -> Result<Pages, Box<dyn Error>> {
    let blocks = slots.div_ceil(BLOCK_TOKENS as usize) as u64;
    let (mut layers, mut memory) = (Vec::new(), Vec::new());
    for layer in &shape.spec.layers {
        let KvLayout::Gqa { kv_heads, head_dim } = layer.layout else {
            return Err("only GQA is timed".into());
        };
        let (kv_heads, head_dim) = (kv_heads as usize, head_dim as usize);
        let page = PageShape {
            blocks,
            block_tokens: BLOCK_TOKENS,
            heads: 0..kv_heads,
            head_dim: head_dim as u64,
            dtype: Dtype::Bf16,
        };
        let plane = blocks as usize * BLOCK_TOKENS as usize * kv_heads * head_dim * 2;
        let own = match content {
            Some(content) => device.upload("pages", &content[..2 * plane])?,
            None => device.upload("pages", &vec![POISON; 2 * plane])?,
        };
        layers.push(make(&page, own.address(), own.address() + plane as u64).map(Some));
        memory.push(own);
    }
    Ok(Pages { kv: PagedKv { layers, block_tokens: BLOCK_TOKENS, blocks }, memory })
}

/// Kernel and wall time of the best of some rounds.
pub(crate) fn best(
    timed: &Timed,
    mut work: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<(f64, f64), Box<dyn Error>> {
    let mut least = (f64::INFINITY, f64::INFINITY);
    for _ in 0..ROUNDS {
        timed.milliseconds()?;
        let start = Instant::now();
        work()?;
        let wall = start.elapsed().as_secs_f64() * 1e3;
        least = (least.0.min(timed.milliseconds()?), least.1.min(wall));
    }
    Ok(least)
}

/// A chunk's rows in pages, and their encoder.
pub(crate) struct Source {
    timed: Timed,
    encoder: KernelEncoder<Timed>,
    cache: Pages,
    text: Vec<u32>,
    blocks: Vec<i32>,
}

impl Source {
    pub(crate) fn new(
        device: &Arc<CudaDevice>,
        shape: &Shape,
        tokens: usize,
    ) -> Result<Self, Box<dyn Error>> {
        let timed = Timed::new(device);
        let (spec, profile) = (Arc::clone(&shape.spec), Arc::clone(&shape.profile));
        let encoder = KernelEncoder::new(timed.clone(), spec, profile)??;
        let slots = tokens.next_multiple_of(BLOCK_TOKENS as usize);
        let values = slots * shape.spec.elements_per_token() / shape.spec.layers.len();
        let mut noise = Noise::new(2);
        let content: Vec<u8> =
            (0..values).flat_map(|_| bf16::from_f32(value(&mut noise)).to_le_bytes()).collect();
        let cache = pages(&timed, shape, slots, FLASH, Some(&content))?;
        let blocks = (0..slots as i32 / BLOCK_TOKENS.cast_signed()).collect();
        Ok(Self { timed, encoder, cache, text: Noise::new(1).tokens(tokens), blocks })
    }

    pub(crate) fn encode(&self) -> Result<Vec<u8>, Box<dyn Error>> {
        let request = EncodeRequest {
            tokens: &self.text,
            preceding_token: None,
            first_position: 0,
            link: ChainLink::first([9; 32].into()),
            beneath: Loss::NONE,
            blocks: &self.blocks,
            first_slot: 0,
        };
        // SAFETY: the planes are those of `cache`.
        Ok(unsafe { self.encoder.encode_from(&[request], &self.cache.kv)? }.remove(0).0)
    }

    pub(crate) fn time(&self, shape: &Shape, report: &mut Report) -> Result<(), Box<dyn Error>> {
        let tokens = self.text.len();
        let row = Row {
            what: format!("{}, {tokens} tokens x 1", shape.name),
            operation: "encode, all levels",
            bytes: tokens * shape.spec.elements_per_token() * 2,
            predicted: "no model; >= 150",
        };
        report.row(&row, || {
            let (kernels, wall) = best(&self.timed, || self.encode().map(drop))?;
            Ok((Some(kernels), Some(wall)))
        })
    }
}

/// A chunk of a shape, and its decoders.
pub(crate) struct Subject {
    pub(crate) timed: Timed,
    pub(crate) shape: Shape,
    pub(crate) cpu: CpuDecoder,
    decoder: KernelDecoder<Timed>,
    pub(crate) object: Vec<u8>,
    pub(crate) head: Head,
}

impl Subject {
    pub(crate) fn new(
        device: &Arc<CudaDevice>,
        shape: Shape,
        object: Vec<u8>,
    ) -> Result<Self, Box<dyn Error>> {
        let timed = Timed::new(device);
        let (spec, profile) = (Arc::clone(&shape.spec), Arc::clone(&shape.profile));
        let cpu = CpuDecoder::new(Arc::clone(&spec), Arc::clone(&profile))?;
        let decoder = KernelDecoder::new(timed.clone(), spec, profile)??;
        let head = Head::parse(&object)?;
        Ok(Self { timed, shape, cpu, decoder, object, head })
    }

    pub(crate) fn tokens(&self) -> usize {
        self.head.header.token_count as usize
    }

    /// Slots of whole pages for the chunk.
    pub(crate) fn slots(&self) -> usize {
        self.tokens().next_multiple_of(BLOCK_TOKENS as usize)
    }

    /// bf16 bytes of its rows.
    pub(crate) fn bytes(&self) -> usize {
        self.tokens() * self.shape.spec.elements_per_token() * 2
    }

    /// The base, and one refinement.
    pub(crate) fn levels(&self) -> [Level; 2] {
        let finest = self.shape.profile.lossy_levels().saturating_sub(1) as u8;
        let base = self.shape.base;
        [base, Level((base.0 + 1).min(finest))]
    }

    /// What a decode of a level is called, and its prediction and target, from the design and the issue.
    fn decode_of(&self, level: Level) -> (&'static str, &'static str) {
        let profile = &self.shape.profile;
        let predicted = match (profile.is_direct(), level == self.shape.base) {
            (true, true) => "1,100 to 1,400 GB/s; >= 1,000",
            (true, false) => "600 to 800 GB/s; >= 600",
            (false, _) => {
                "entropy adds <= 10 % to the product with 4 chunks; 1,536 tokens <= 1.3 (8 layers), <= 2.3 ms (all)"
            }
        };
        if level.index() >= profile.lossy_levels() {
            ("decode, exact level", "no model; faster than the CPU's row")
        } else if level == self.shape.base {
            ("decode, base", predicted)
        } else {
            ("decode, base + refinement", predicted)
        }
    }

    /// A row of `chunks` times the chunk in one launch; one chunk in `flash` is compared. Returns whether it was correct.
    pub(crate) fn decode(
        &self,
        level: Level,
        chunks: usize,
        layout: Layout,
        report: &mut Report,
    ) -> Result<bool, Box<dyn Error>> {
        let (tokens, slots, name) = (self.tokens(), self.slots() * chunks, layout.0);
        let (operation, predicted) = self.decode_of(level);
        let what = format!("{}, {tokens} tokens x {chunks}, {name}", self.shape.name);
        let mut same = true;
        report.row(&Row { what, operation, bytes: self.bytes() * chunks, predicted }, || {
            let cache = pages(&self.timed, &self.shape, slots, layout, None)?;
            let mut kv = cache.kv.clone();
            let mut blocks: Vec<i32> = (0..slots as i32 / BLOCK_TOKENS.cast_signed()).rev().collect();
            if name == "contiguous" {
                (kv.block_tokens, kv.blocks, blocks) = (slots as u32, 1, vec![0]);
            }
            let requests: Vec<_> = (0..chunks)
                .map(|index| ChunkRequest {
                    head: &self.head,
                    object_prefix: &self.object,
                    scopes: self.decoder.all_scopes(level),
                    tokens: 0..tokens,
                    blocks: &blocks,
                    first_slot: (index * self.slots()) as u32,
                })
                .collect();
            let (kernels, wall) = best(&self.timed, || {
                // SAFETY: the planes are those of `cache`.
                unsafe { self.decoder.decode_into(&requests, &kv)? };
                Ok(())
            })?;
            if chunks == 1 && name == FLASH.0 {
                same = self.rows_are_right(level, &cache, &blocks, 1)?;
            }
            Ok((Some(kernels), Some(wall)))
        })?;
        Ok(same)
    }

    /// The same by the CPU.
    pub(crate) fn decode_on_cpu(&self, level: Level, report: &mut Report) -> Result<(), Box<dyn Error>> {
        let what = format!("{}, {} tokens x 1", self.shape.name, self.tokens());
        let predicted = "to compare; all cores";
        report.row(&Row { what, operation: "decode on the CPU", bytes: self.bytes(), predicted }, || {
            let mut rows = Bf16Buffer::new(&self.shape.spec, self.tokens());
            let (_, wall) = best(&self.timed, || self.decode_to(level, &mut rows))?;
            Ok((None, Some(wall)))
        })
    }

    fn decode_to(&self, level: Level, rows: &mut Bf16Buffer) -> Result<(), Box<dyn Error>> {
        Ok(self.cpu.decode(&self.head, &self.object, level, 0..self.tokens(), rows)?)
    }

    /// The rows that the CPU decodes.
    pub(crate) fn expected(&self, level: Level) -> Result<Bf16Buffer, Box<dyn Error>> {
        let mut rows = Bf16Buffer::new(&self.shape.spec, self.tokens());
        self.decode_to(level, &mut rows)?;
        Ok(rows)
    }

    /// Whether `flash` pages hold the CPU decoder's rows, `chunks` times in the order of `blocks`, and everything else is unchanged.
    pub(crate) fn rows_are_right(
        &self,
        level: Level,
        cache: &Pages,
        blocks: &[i32],
        chunks: usize,
    ) -> Result<bool, Box<dyn Error>> {
        let (shape, rows, page) = (&self.shape, self.expected(level)?, BLOCK_TOKENS as usize);
        for (layer, memory) in cache.memory.iter().enumerate() {
            let [(heads, dim), _] = shape.spec.layers[layer].layout.planes();
            let plane_bytes = cache.kv.blocks as usize * page * heads * dim * 2;
            let mut expected = vec![POISON; 2 * plane_bytes];
            for (plane, head) in
                Plane::ALL.into_iter().flat_map(|plane| (0..heads).map(move |head| (plane, head)))
            {
                for (token, row) in rows.rows(layer, plane, head).chunks_exact(dim).enumerate() {
                    let row: Vec<u8> = row.iter().flat_map(|value| value.to_le_bytes()).collect();
                    for place in (0..chunks).map(|chunk| chunk * self.slots() + token) {
                        let slot = blocks[place / page] as usize * page + place % page;
                        let at = plane as usize * plane_bytes + (slot * heads + head) * dim * 2;
                        expected[at..at + row.len()].copy_from_slice(&row);
                    }
                }
            }
            let found = self.timed.read_back(memory, 0, expected.len())?.bytes()?;
            if !alike(&found, &expected, shape.profile.is_direct()) {
                println!("FAIL {}, {} tokens, level {level}: layer {layer}", shape.name, self.tokens());
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether pages are equal; pages of a basis may differ in the order of f32 sums before rounding to bf16.
fn alike(pages: &[u8], expected: &[u8], exactly: bool) -> bool {
    let values = |bytes: &[u8]| -> Vec<f32> {
        bytes.as_chunks().0.iter().map(|two| bf16::from_le_bytes(*two).to_f32()).collect()
    };
    pages == expected || {
        let (a, b) = (values(pages), values(expected));
        let most = b.iter().fold(0f32, |most, x| most.max(x.abs()));
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= b.abs() / 128.0 + 2e-6 * most;
        !exactly && a.len() == b.len() && a.iter().zip(&b).all(near)
    }
}
