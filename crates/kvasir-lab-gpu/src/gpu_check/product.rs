//! The matrix product of basis profiles alone, at the sizes of the targets; the script times cuBLAS on the
//! same sizes.

use std::{error::Error, sync::Arc};

use kvasir_cuda::{CudaDevice, Device, DeviceMemory, Work};
use kvasir_kernels::{
    Dtype, Element, Kernel, Member, NONE, PageParams, PagePlane, Placement, Record, SynthesiseParams,
    SynthesiseTask, TILE_STRIDE, record_bytes,
};

use crate::{
    report::{Report, Row},
    timed::Timed,
};

/// Spans of 256 tokens, elements of a scope, rank, scopes.
const SIZES: [(&str, usize, usize, usize, usize, &str); 2] = [
    (
        "8B basis, 4 groups of 8 layers, r = 2,048",
        6,
        16_384,
        2_048,
        4,
        "0.7 to 1.0 ms; >= 60 % of cuBLAS, <= 1.3 ms in all",
    ),
    (
        "8B basis, all layers, r = 4,096",
        6,
        65_536,
        4_096,
        1,
        "1.3 to 1.8 ms; >= 60 % of cuBLAS, <= 2.3 ms in all",
    ),
];

/// Times both sizes, or a tiny one.
pub(crate) fn run(device: &Arc<CudaDevice>, small: bool, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let tiny = [("tiny basis", 1, 256, 64, 1, "-")];
    for &(what, spans, elements, rank, scopes, predicted) in if small { &tiny[..] } else { &SIZES[..] } {
        let bytes = scopes * elements * spans * 256 * 2;
        report.row(&Row { what: what.into(), operation: "product", bytes, predicted }, || {
            Ok((Some(milliseconds(device, (spans, elements, rank, scopes))?), None))
        })?;
    }
    Ok(())
}

fn milliseconds(
    device: &Arc<CudaDevice>,
    (spans, elements, rank, scopes): (usize, usize, usize, usize),
) -> Result<f64, Box<dyn Error>> {
    let timed = Timed::new(device);
    let (tokens, heads) = (256 * spans, elements / 128);
    // The values of operands do not affect the time on this part, but zeros would, so they are small and not
    // zero.
    let halves = |count: usize| {
        (0..count).flat_map(|i| (0x2c00u16 + (i % 509) as u16).to_le_bytes()).collect::<Vec<_>>()
    };
    let operands = timed.upload("operands", &halves(scopes * spans * 2 * 256 * rank))?;
    let basis = timed.upload("basis", &halves(scopes * elements * rank))?;
    let wide = timed.allocate("wide", scopes * spans * (rank / 32) * 4)?;
    let cache = timed.allocate("pages", scopes * elements * tokens * 2)?;
    let plane = PagePlane {
        base: cache.address(),
        block_stride: (scopes * elements * 16) as u64,
        token_stride: (scopes * elements) as u64,
        head_stride: 128,
        pack_stride: 0,
        pack: 0,
        block_tokens: 16,
        dtype: Dtype::Bf16 as u32,
        scale_inverse: 1.0,
        scale: 1.0,
        reserved: 0,
    };
    let member = |index: usize| Member {
        start: (index % heads * 128) as u32,
        dim: 128,
        plane: 0,
        head: index as u32,
        rope: NONE,
    };
    let members: Vec<_> = (0..scopes * heads).map(member).collect();
    let (mut placements, mut tasks) = (Vec::new(), Vec::new());
    for (scope, span) in (0..scopes).flat_map(|scope| (0..spans).map(move |span| (scope, span))) {
        let place = scope * spans + span;
        placements.push(Placement {
            members: (scope * heads) as u32,
            member_count: heads as u32,
            blocks: 0,
            slot: (span * 256) as u32,
            keep_from: 0,
            keep_to: 256,
            angles: 0,
            elements: 0,
        });
        tasks.extend((0..heads * 2).map(|index| SynthesiseTask {
            placement: place as u32,
            first: (index / 2 * 128) as u32,
            count: 128,
            tokens: 256,
            first_token: (index % 2 * 128) as u32,
            rank_padded: rank as u32,
            operands: (place * 2 * 256 * rank) as u32,
            rows: 256,
            basis: ((scope * elements + index / 2 * 128) * rank) as u32,
            wide: (place * rank / 32) as u32,
        }));
    }
    let up = |label, bytes: Vec<u8>| timed.upload(label, &bytes);
    let (members, planes) = (up("members", record_bytes(&members))?, up("planes", record_bytes(&[plane]))?);
    let (placements, records) =
        (up("placements", record_bytes(&placements))?, up("tasks", record_bytes(&tasks))?);
    let scales = up("elements", record_bytes(&vec![Element { gain: 1.0, mean: 0.0 }; elements]))?;
    let blocks = up("blocks", record_bytes(&(0..tokens as i32 / 16).collect::<Vec<_>>()))?;
    let pages = PageParams {
        placements: placements.address(),
        elements: scales.address(),
        members: members.address(),
        planes: planes.address(),
        blocks: blocks.address(),
        ..PageParams::default()
    };
    let params = SynthesiseParams {
        tasks: records.address(),
        operands: operands.address(),
        wide: wide.address(),
        basis: basis.address(),
        pages,
    };
    let mut record = Vec::new();
    params.write(&mut record);
    let mut least = f64::INFINITY;
    for _ in 0..5 {
        let shared = 4 * 128 * TILE_STRIDE as usize * 4;
        // SAFETY: every address is that of a live buffer with the records that the kernel expects.
        unsafe { timed.launch(Kernel::Synthesise, Work::Ctas(tasks.len()), shared, &record)? };
        least = least.min(timed.milliseconds()?);
    }
    Ok(least)
}
