//! The peers' kernels decode what their encoders wrote: a benchmark against a wrong decoder would say nothing. Through the driver,
//! or, where there is none or it finds no GPU, again in a process on the fake driver, which ends it where a kernel writes outside
//! of its memory.

use kvasir_cuda::{CudaDevice, Device, DeviceMemory, DeviceReadback, ExternalKernel, Work};
use kvasir_kernels::{Record, record_bytes};
use kvasir_lab_gpu::{
    FAKE_DRIVER,
    encoders::{channels, slots},
    kernels::{PEER_CHANNELS_KERNEL, PEER_SLOTS_KERNEL, PeerChannelsParams, PeerSlotsParams},
};

#[path = "../../kvasir-codec/tests/common/noise.rs"]
mod noise;

use noise::Noise;

/// The device; `None` after the test ran in a process with the fake driver.
#[allow(clippy::print_stderr, reason = "why it is no GPU; --nocapture shows it")]
fn device(test: &str) -> Option<(CudaDevice, tempfile::TempDir)> {
    let folder = tempfile::tempdir().expect("a folder");
    match CudaDevice::new(0, folder.path().join("kernels")) {
        Ok(device) => Some((device, folder)),
        Err(reason) => {
            eprintln!("{test}: not run on a GPU ({reason}), but on the fake driver");
            kvasir_kernels_emulator::test_again(test, FAKE_DRIVER);
            None
        }
    }
}

fn symbols(count: usize) -> Vec<u8> {
    let mut noise = Noise::new(5);
    (0..count).map(|_| (noise.normal() * 1.4 + 7.5).clamp(0.0, 14.0) as u8).collect()
}

fn expected(symbols: &[u8]) -> Vec<u8> {
    symbols.iter().flat_map(|s| half::bf16::from_f32(0.25 * (f32::from(*s) - 7.0)).to_le_bytes()).collect()
}

/// # Safety
/// As [`Device::launch`].
unsafe fn launch<R: Record>(
    device: &CudaDevice,
    kernel: &ExternalKernel,
    work: Work,
    shared: usize,
    params: &R,
) {
    let mut record = Vec::new();
    params.write(&mut record);
    // SAFETY: the caller's promise.
    unsafe { device.launch_external(kernel, work, shared, &record) }.expect("runs");
}

#[test]
fn a_slot_table_decoder_like_dietgpus() {
    let Some((device, _folder)) = device("a_slot_table_decoder_like_dietgpus") else { return };
    let symbols = symbols(3 * 4_096);
    let coded = slots(&symbols);
    let up = |bytes: &[u8]| device.upload("peer", bytes).expect("device memory");
    let (bytes, table, counter) = (up(&coded.bytes), up(&record_bytes(&coded.table)), up(&[0; 4]));
    let (blocks, output) = (up(&record_bytes(&coded.blocks)), up(&vec![0xa5; symbols.len() * 2]));
    let params = PeerSlotsParams {
        bytes: bytes.address(),
        blocks: blocks.address(),
        table: table.address(),
        counter: counter.address(),
        output: output.address(),
        block_count: coded.blocks.len() as u32,
        scale: 0.25,
    };
    // SAFETY: every address is that of a live buffer with the records that the kernel expects.
    unsafe { launch(&device, &PEER_SLOTS_KERNEL, Work::Warps(coded.blocks.len()), 8_192, &params) };
    let out =
        device.read_back(&output, 0, symbols.len() * 2).and_then(DeviceReadback::bytes).expect("copies");
    assert!(out == expected(&symbols));
}

#[test]
fn a_channel_decoder_like_cachegens() {
    let Some((device, _folder)) = device("a_channel_decoder_like_cachegens") else { return };
    let (count, tokens) = (200, 96);
    let symbols = symbols(count * tokens);
    let coded = channels(&symbols, count);
    let up = |bytes: &[u8]| device.upload("peer", bytes).expect("device memory");
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
    // SAFETY: as above.
    unsafe { launch(&device, &PEER_CHANNELS_KERNEL, Work::Ctas(count.div_ceil(128)), 0, &params) };
    let out =
        device.read_back(&output, 0, symbols.len() * 2).and_then(DeviceReadback::bytes).expect("copies");
    assert!(out == expected(&symbols));
}
