//! Rates of encode and decode, with large chunks compared once: layouts, levels, chunks in one launch; the latency of a chunk from host bytes to rows.
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
    shapes::Shape,
    timed::Timed,
};

/// Tokens per page, as in vLLM.
const BLOCK_TOKENS: u32 = 16;
/// Repetitions; the best counts.
const ROUNDS: usize = 5;
/// The contents of pages before a decode.
const POISON: u8 = 0xa5;
type MakeLayout = fn(&PageShape, u64, u64) -> [PlaneLayout; 2];
const LAYOUTS: [(&str, MakeLayout); 5] = [
    ("flash", |shape, base, _| shape.flash(base)),
    ("HND", |shape, base, _| shape.hnd(base)),
    ("K|V joined", |shape, base, _| shape.joined(base)),
    ("dim/x packed", |shape, base, second| shape.packed(base, second)),
    ("contiguous", |shape, base, second| shape.contiguous(base, second)),
];

struct Pages {
    pages: PagedKv,
    memory: Vec<CudaMemory>,
}

fn pages(
    device: &Timed,
    shape: &Shape,
    slots: usize,
    make: MakeLayout,
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
    Ok(Pages { pages: PagedKv { layers, block_tokens: BLOCK_TOKENS, blocks }, memory })
}

/// Kernel and wall time of the best of some rounds.
fn best(
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

/// Whether one chunk's rows in `flash` pages equal the CPU decoder's, and everything else is unchanged.
fn rows_are_right(
    timed: &Timed,
    shape: &Shape,
    object: &[u8],
    level: u8,
    (cache, blocks): (&Pages, &[i32]),
) -> Result<bool, Box<dyn Error>> {
    let head = Head::parse(object)?;
    let tokens = head.header.token_count as usize;
    let cpu = CpuDecoder::new(Arc::new(shape.spec.clone()), Arc::new(shape.profile.clone()))?;
    let mut rows = Bf16Buffer::new(&shape.spec, tokens);
    cpu.decode(&head, object, Level(level), 0..tokens, &mut rows)?;
    for (layer, memory) in cache.memory.iter().enumerate() {
        let [(heads, dim), _] = shape.spec.layers[layer].layout.planes();
        let plane_bytes = cache.pages.blocks as usize * BLOCK_TOKENS as usize * heads * dim * 2;
        let mut expected = vec![POISON; 2 * plane_bytes];
        for (plane, head) in
            Plane::ALL.into_iter().flat_map(|plane| (0..heads).map(move |head| (plane, head)))
        {
            for (token, row) in rows.rows(layer, plane, head).chunks_exact(dim).enumerate() {
                let slot = blocks[token / 16] as usize * 16 + token % 16;
                let at = plane as usize * plane_bytes + (slot * heads + head) * dim * 2;
                let bytes = row.iter().flat_map(|value| value.to_le_bytes());
                expected[at..at + dim * 2].iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
            }
        }
        if !alike(&timed.read_back(memory, 0, expected.len())?.bytes()?, &expected, shape.profile.is_direct())
        {
            println!("FAIL {}, {tokens} tokens, level {level}: layer {layer} differs", shape.name);
            return Ok(false);
        }
    }
    Ok(true)
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

/// The decode targets of a level, from the design and the issue.
fn predicted(shape: &Shape, level: u8) -> &'static str {
    match (shape.profile.is_direct(), level) {
        (true, 0) => "1,100 to 1,400 GB/s; >= 1,000",
        (true, _) => "600 to 800 GB/s; >= 600",
        (false, _) => {
            "entropy adds <= 10 % to the product with 4 chunks; 1,536 tokens <= 1.3 (8 layers), <= 2.3 ms (all)"
        }
    }
}

/// All rows of a shape; returns whether the decoded rows were correct.
pub(crate) fn run(
    device: &Arc<CudaDevice>,
    shape: &Shape,
    report: &mut Report,
) -> Result<bool, Box<dyn Error>> {
    let mut same = true;
    let timed = Timed::new(device);
    let (spec, profile) = (Arc::new(shape.spec.clone()), Arc::new(shape.profile.clone()));
    let encoder = KernelEncoder::new(timed.clone(), Arc::clone(&spec), Arc::clone(&profile))??;
    let decoder = KernelDecoder::new(timed.clone(), Arc::clone(&spec), Arc::clone(&profile))??;
    for &tokens in &shape.tokens {
        let bytes = tokens * spec.elements_per_token() * 2;
        let text = Noise::new(1).tokens(tokens);
        let mut noise = Noise::new(2);
        let plane_bytes = 2 * tokens.next_multiple_of(16) * bytes / tokens / spec.layers.len().max(1);
        let content: Vec<u8> =
            (0..plane_bytes / 2).flat_map(|_| bf16::from_f32(noise.normal() * 2.0).to_le_bytes()).collect();
        let cache = pages(&timed, shape, tokens, LAYOUTS[0].1, Some(&content))?;
        let blocks: Vec<i32> = (0..tokens.div_ceil(16) as i32).collect();
        let request = EncodeRequest {
            tokens: &text,
            preceding_token: None,
            first_position: 0,
            link: ChainLink::first([9; 32].into()),
            beneath: Loss::NONE,
            blocks: &blocks,
            first_slot: 0,
        };
        let mut object = Vec::new();
        let (kernels, wall) = best(&timed, || {
            // SAFETY: the planes are those of `cache`.
            object = unsafe { encoder.encode_from(&[request], &cache.pages)? }.remove(0).0;
            Ok(())
        })?;
        let what = format!("{}, {tokens} tokens x 1", shape.name);
        let predicted = "no model; >= 150";
        report.add(&Row {
            what,
            step: "encode, all levels",
            bytes,
            kernels_ms: Some(kernels),
            wall_ms: Some(wall),
            predicted,
        });
        drop(cache);
        same &= decode_rows(&timed, &decoder, shape, (tokens, bytes, &object), report)?;
    }
    Ok(same)
}

fn decode_rows(
    timed: &Timed,
    decoder: &KernelDecoder<Timed>,
    shape: &Shape,
    (tokens, bytes, object): (usize, usize, &[u8]),
    report: &mut Report,
) -> Result<bool, Box<dyn Error>> {
    let (head, mut same) = (Head::parse(object)?, true);
    for &chunks in &shape.chunks {
        let slots = tokens.next_multiple_of(16) * chunks;
        // One chunk for latency in every layout, several for throughput.
        let layouts =
            if chunks == shape.chunks[shape.chunks.len() / 2] { &LAYOUTS[..] } else { &LAYOUTS[..1] };
        for (name, make) in layouts {
            let cache = pages(timed, shape, slots, *make, None)?;
            let contiguous = *name == "contiguous";
            let mut kv = cache.pages.clone();
            if contiguous {
                (kv.block_tokens, kv.blocks) = (slots as u32, 1);
            }
            let blocks: Vec<i32> = if contiguous { vec![0] } else { (0..slots as i32 / 16).rev().collect() };
            for (level, step) in [(0, "decode, base"), (1, "decode, base + refinement")] {
                let requests: Vec<_> = (0..chunks)
                    .map(|index| ChunkRequest {
                        head: &head,
                        object_prefix: object,
                        scopes: decoder.all_scopes(Level(level)),
                        tokens: 0..tokens,
                        blocks: &blocks,
                        first_slot: (index * tokens.next_multiple_of(16)) as u32,
                    })
                    .collect();
                let (kernels, wall) = best(timed, || {
                    // SAFETY: the planes are those of `cache`.
                    unsafe { decoder.decode_into(&requests, &kv)? };
                    Ok(())
                })?;
                if chunks == 1 && *name == "flash" {
                    same &= rows_are_right(timed, shape, object, level, (&cache, &blocks))?;
                }
                let what = format!("{}, {tokens} tokens x {chunks}, {name}", shape.name);
                let predicted = predicted(shape, level);
                let bytes = bytes * chunks;
                report.add(&Row {
                    what,
                    step,
                    bytes,
                    kernels_ms: Some(kernels),
                    wall_ms: Some(wall),
                    predicted,
                });
            }
        }
    }
    Ok(same)
}
