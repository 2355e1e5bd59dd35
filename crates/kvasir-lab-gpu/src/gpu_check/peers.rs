//! Comparison in the same run: decoders of other systems on symbols of the same statistics, and zstd on the
//! CPU.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::{error::Error, sync::Arc, time::Instant};

use half::bf16;
use kvasir_cuda::{CudaDevice, Device, DeviceEvent, DeviceMemory, DeviceReadback, ExternalKernel, Work};
use kvasir_kernels::{Record, record_bytes};
use kvasir_lab_gpu::{
    encoders::{channels, slots},
    kernels::{PEER_CHANNELS_KERNEL, PEER_SLOTS_KERNEL, PeerChannelsParams, PeerSlotsParams},
};

use crate::{
    common::Noise,
    report::{Report, Row},
    timed::Timed,
};

/// Runs all of them.
pub(crate) fn run(device: &Arc<CudaDevice>, small: bool, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let timed = Timed::new(device);
    copies(device, small, report)?;
    let (tokens, count) = if small { (64, 128) } else { (256, 65_536) };
    let mut noise = Noise::new(5);
    let symbols: Vec<u8> =
        (0..tokens * count).map(|_| (noise.normal() * 1.4 + 7.5).clamp(0.0, 14.0) as u8).collect();
    let expected: Vec<u8> =
        symbols.iter().flat_map(|s| bf16::from_f32(0.25 * (f32::from(*s) - 7.0)).to_le_bytes()).collect();
    let row = |operation, predicted| {
        let what = format!("peer, {tokens} tokens x {count} channels");
        Row { what, operation, bytes: expected.len(), predicted }
    };
    let output = timed.allocate("output", expected.len())?;
    let up = |bytes: &[u8]| timed.upload("peer", bytes);
    report.row(&row("DietGPU-like slot table", "published: 250 to 410 Gsym/s on an A100"), || {
        let coded = slots(&symbols);
        let (bytes, table, blocks) =
            (up(&coded.bytes)?, up(&record_bytes(&coded.table))?, up(&record_bytes(&coded.blocks))?);
        let mut least = f64::INFINITY;
        for _ in 0..5 {
            let counter = up(&[0; 4])?;
            let params = PeerSlotsParams {
                bytes: bytes.address(),
                blocks: blocks.address(),
                table: table.address(),
                counter: counter.address(),
                output: output.address(),
                block_count: coded.blocks.len() as u32,
                scale: 0.25,
            };
            launch(&timed, &PEER_SLOTS_KERNEL, Work::Warps(coded.blocks.len()), 8_192, &params)?;
            least = least.min(timed.milliseconds()?);
        }
        check(&timed, &output, &expected)?;
        Ok((Some(least), None))
    })?;
    let predicted = "90 to 120 GB/s (12 times our instructions); ours >= 10x";
    report.row(&row("CacheGen-shaped", predicted), || {
        let coded = channels(&symbols, count);
        let (bytes, starts) = (up(&coded.bytes)?, up(&record_bytes(&coded.starts))?);
        let distributions = up(&record_bytes(&coded.distributions))?;
        let params = PeerChannelsParams {
            bytes: bytes.address(),
            starts: starts.address(),
            distributions: distributions.address(),
            output: output.address(),
            tokens: tokens as u32,
            channels: count as u32,
            scale: 0.25,
            reserved: 0,
        };
        let mut least = f64::INFINITY;
        for _ in 0..5 {
            launch(&timed, &PEER_CHANNELS_KERNEL, Work::Ctas(count.div_ceil(128)), 0, &params)?;
            least = least.min(timed.milliseconds()?);
        }
        check(&timed, &output, &expected)?;
        Ok((Some(least), None))
    })?;
    report.row(&row("zstd -1, one CPU core, symbols", "-"), || {
        let packed = zstd::bulk::compress(&symbols, 1)?;
        let start = Instant::now();
        let back = zstd::bulk::decompress(&packed, symbols.len())?;
        let wall = start.elapsed().as_secs_f64() * 1e3;
        assert!(back == symbols, "zstd returns its input");
        Ok((None, Some(wall)))
    })
}

/// The memory bandwidth of the device: bytes read and written.
fn copies(device: &Arc<CudaDevice>, small: bool, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let bytes = if small { 1 << 16 } else { 1 << 30 };
    let row = Row {
        what: "device memory".into(),
        operation: "copy, read + written",
        bytes: 2 * bytes,
        predicted: "about 4,300 GB/s",
    };
    report.row(&row, || {
        let (from, to) = (device.allocate("from", bytes)?, device.allocate("to", bytes)?);
        let mut least = f64::INFINITY;
        for _ in 0..7 {
            let start = device.record()?;
            device.copy_on_device(&from, &to)?;
            let end = device.record()?;
            end.wait()?;
            least = least.min(f64::from(start.milliseconds_to(&end)?));
        }
        Ok((Some(least), None))
    })
}

fn launch<R: Record>(
    timed: &Timed,
    kernel: &ExternalKernel,
    work: Work,
    shared: usize,
    params: &R,
) -> Result<(), Box<dyn Error>> {
    let mut record = Vec::new();
    params.write(&mut record);
    // SAFETY: the records hold addresses of the caller's live buffers.
    unsafe { timed.launch_external(kernel, work, shared, &record)? };
    Ok(())
}

fn check(timed: &Timed, output: &kvasir_cuda::CudaMemory, expected: &[u8]) -> Result<(), Box<dyn Error>> {
    let found = timed.read_back(output, 0, expected.len())?.bytes()?;
    if found == expected { Ok(()) } else { Err("the output of a peer's decoder differs".into()) }
}
