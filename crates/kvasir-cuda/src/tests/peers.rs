//! The peers' kernels decode what their encoders wrote: a benchmark against a wrong decoder would say nothing.

use kvasir_kernels::{Kernel, PeerBlock, PeerChannelsParams, PeerSlotsParams, Record, record_bytes};

use super::{common::Noise, emulated::Emulated};
use crate::{Device, DeviceFetch, DeviceMemory, Work};

#[path = "../../peers/mod.rs"]
mod encoders;

use encoders::{channels, slots};

fn symbols(count: usize) -> Vec<u8> {
    let mut noise = Noise::new(5);
    (0..count).map(|_| (noise.normal() * 1.4 + 7.5).clamp(0.0, 14.0) as u8).collect()
}

fn expected(symbols: &[u8]) -> Vec<u8> {
    symbols.iter().flat_map(|s| half::bf16::from_f32(0.25 * (f32::from(*s) - 7.0)).to_le_bytes()).collect()
}

#[test]
fn a_slot_table_decoder_like_dietgpus() {
    let (device, symbols) = (Emulated::default(), symbols(3 * 4_096));
    let coded = slots(&symbols);
    let up = |bytes: &[u8]| device.upload("peer", bytes).expect("host memory");
    let (bytes, table, counter) = (up(&coded.bytes), up(&record_bytes(&coded.table)), up(&[0; 4]));
    let records: Vec<PeerBlock> = coded.blocks.clone();
    let (blocks, output) = (up(&record_bytes(&records)), up(&vec![0xa5; symbols.len() * 2]));
    let params = PeerSlotsParams {
        bytes: bytes.address(),
        blocks: blocks.address(),
        table: table.address(),
        counter: counter.address(),
        output: output.address(),
        block_count: records.len() as u32,
        scale: 0.25,
    };
    let mut record = Vec::new();
    params.write(&mut record);
    // SAFETY: every address is that of a live buffer with the records that the kernel expects.
    unsafe { device.launch(Kernel::PeerSlots, Work::Warps(records.len()), 8_192, &record) }.expect("runs");
    let out = device.fetch(&output, 0, symbols.len() * 2).and_then(DeviceFetch::bytes).expect("host memory");
    assert!(out == expected(&symbols));
}

#[test]
fn a_channel_decoder_like_cachegens() {
    let (count, tokens) = (200, 96);
    let (device, symbols) = (Emulated::default(), symbols(count * tokens));
    let coded = channels(&symbols, count);
    let up = |bytes: &[u8]| device.upload("peer", bytes).expect("host memory");
    let (bytes, starts) = (up(&coded.bytes), up(&record_bytes(&coded.starts)));
    let (distributions, output) =
        (up(&record_bytes(&coded.distributions)), up(&vec![0xa5; symbols.len() * 2]));
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
    let mut record = Vec::new();
    params.write(&mut record);
    // SAFETY: as above.
    unsafe { device.launch(Kernel::PeerChannels, Work::Ctas(count.div_ceil(128)), 0, &record) }
        .expect("runs");
    let out = device.fetch(&output, 0, symbols.len() * 2).and_then(DeviceFetch::bytes).expect("host memory");
    assert!(out == expected(&symbols));
}
