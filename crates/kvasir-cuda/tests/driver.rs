//! The code that calls the driver, on a driver that is the emulator (or on a real one, where there is one): streams, events,
//! pinned memory, loading and launching. The test starts itself again with the fake driver's folder on the library path.

#[path = "../../kvasir-codec/tests/common/mod.rs"]
mod common;

use std::{ptr, sync::Arc};

use common::{Noise, cache, setups};
use cudarc::driver::sys;
use kvasir_codec::{ChunkDecoder, ChunkEncoder, ChunkInput, DecodeError, KvBuffer, container::Head};
use kvasir_cuda::{
    ChunkRequest, CudaDecoder, CudaDevice, CudaEncoder, CudaError, Device, DeviceError, DeviceEvent,
    DeviceMemory, DeviceReadback, Dtype, KernelDecoder, KernelEncoder, PageShape, PagedKv, Work,
};
use kvasir_kernels::{DecodeParams, Kernel, record_bytes};
use kvasir_types::{ChainLink, Level, Loss};

/// The device; `None` after the test ran in a process with the fake driver.
fn device(test: &str) -> Option<(CudaDevice, tempfile::TempDir)> {
    let folder = tempfile::tempdir().expect("a folder");
    match CudaDevice::new(0, folder.path().join("kernels")) {
        Ok(device) => Some((device, folder)),
        // No driver, or one that finds no GPU.
        Err(_) => {
            kvasir_kernels_emulator::test_again(test, kvasir_kernels_emulator::FAKE_DRIVER);
            None
        }
    }
}

/// Makes a context current that is the caller's own: on a GPU, none. Returns a check that it still is.
fn callers_context(device: &CudaDevice) -> impl Fn(&str) + use<> {
    let is_fake = device.name().expect("has one") == "Kvasir emulator";
    let own: sys::CUcontext = ptr::without_provenance_mut(if is_fake { 0x20 } else { 0 });
    // SAFETY: the fake driver looks into no context.
    unsafe { sys::cuCtxSetCurrent(own) }.result().expect("is set");
    move |call| {
        let mut current = ptr::null_mut();
        // SAFETY: a place for the context.
        unsafe { sys::cuCtxGetCurrent(&raw mut current) }.result().expect("says");
        assert_eq!(current, own, "after {call}");
    }
}

#[test]
fn chunks_decode_and_encode_through_the_driver() {
    let Some((device, _folder)) = device("chunks_decode_and_encode_through_the_driver") else { return };
    let device = Arc::new(device);
    for setup in &setups()[..3] {
        let decoder: KernelDecoder<Arc<CudaDevice>> =
            KernelDecoder::new(Arc::clone(&device), Arc::clone(&setup.spec), Arc::clone(&setup.profile))
                .expect("fits")
                .expect("works");
        let encoder =
            KernelEncoder::new(Arc::clone(&device), Arc::clone(&setup.spec), Arc::clone(&setup.profile))
                .expect("fits")
                .expect("works");
        for tokens in [300, 40] {
            let text = Noise::new(3).tokens(tokens);
            let kv = cache(&setup.spec, &text, 6);
            let input = ChunkInput {
                tokens: &text,
                preceding_token: None,
                first_position: 0,
                link: ChainLink::first([9; 32].into()),
                beneath: Loss::NONE,
                kv: &kv,
            };
            let object = encoder.encode(&input).expect("encodes");
            assert!(!setup.profile.is_direct() || object == setup.encode(&text, 0, &kv), "other bytes");
            let head = Head::parse(&object).expect("whole");
            let mut rows = KvBuffer::new(&setup.spec, tokens);
            decoder.decode(&head, &object, Level(1), 0..tokens, &mut rows).expect("decodes");
            let cpu = setup.decode(&object, 1).expect("decodes");
            let scale = cpu.as_slice().iter().fold(0f32, |most, v| most.max(v.abs()));
            let most = if setup.profile.is_direct() { 0.0 } else { 2e-6 * scale };
            let near = |(a, b): (&f32, &f32)| (a - b).abs() <= most;
            assert!(cpu.as_slice().iter().zip(rows.as_slice()).all(near));
        }
    }
}

#[test]
fn layers_become_ready_one_after_the_other() {
    let Some((device, _folder)) = device("layers_become_ready_one_after_the_other") else { return };
    let (setup, device) = (&setups()[0], Arc::new(device));
    let decoder =
        KernelDecoder::new(Arc::clone(&device), Arc::clone(&setup.spec), Arc::clone(&setup.profile))
            .expect("fits")
            .expect("works");
    let text = Noise::new(3).tokens(280);
    let object = setup.encode(&text, 0, &cache(&setup.spec, &text, 6));
    let mut damaged = object.clone();
    damaged.iter_mut().step_by(61).for_each(|byte| *byte ^= 1);
    let mut planes = Vec::new();
    let memories: Vec<_> = (setup.spec.layers.iter())
        .map(|layer| {
            let [(heads, dim), (_, other)] = layer.layout.planes();
            let shape = PageShape {
                blocks: 20,
                block_tokens: 16,
                heads: 0..heads,
                head_dim: dim.max(other) as u64,
                dtype: Dtype::Bf16,
            };
            let memory =
                device.allocate("layer", 2 * 20 * 16 * heads * dim.max(other) * 2).expect("there is room");
            planes.push(shape.flash(memory.address()).map(|plane| (heads > 0).then_some(plane)));
            memory
        })
        .collect();
    let pages = PagedKv { layers: planes, block_tokens: 16, blocks: 20 };
    let blocks: Vec<i32> = (0..18).rev().collect();
    let head = Head::parse(&object).expect("whole");
    let request = |object| ChunkRequest {
        head: &head,
        object_prefix: object,
        scopes: decoder.all_scopes(Level(1)),
        tokens: 0..280,
        blocks: &blocks,
        first_slot: 0,
    };
    // SAFETY: the planes are those of `memories`.
    let mut pending = unsafe { decoder.submit(&[request(&object)], &pages) }.expect("submits");
    let groups: Vec<_> = pending.layer_groups().collect();
    assert!(!groups.is_empty());
    pending.wait_layer(groups[0].start).expect("decodes");
    let event = pending.layer_event(groups[groups.len() - 1].start).expect("is there");
    while !event.is_ready().expect("no fault") {}
    pending.wait().expect("decodes");
    let first = device.read_back(&memories[0], 0, 64).and_then(DeviceReadback::bytes).expect("copies");
    assert!(first.iter().any(|byte| *byte != 0) || blocks[0] != 0);
    // Dropped at once: the rows may be there or not, nothing is used after it was freed.
    // SAFETY: as above.
    drop(unsafe { decoder.submit(&[request(&object)], &pages) }.expect("submits"));
    // Damaged bytes are found before anything is queued.
    // SAFETY: as above.
    let refused = unsafe { decoder.decode_into(&[request(&damaged)], &pages) };
    assert!(matches!(refused, Err(CudaError::Decode(DecodeError::Container(_)))), "{refused:?}");
}

#[test]
fn bytes_are_written_where_they_belong_behind_the_kernels() {
    let Some((device, _folder)) = device("bytes_are_written_where_they_belong_behind_the_kernels") else {
        return;
    };
    let memory = device.allocate("cache", 64).expect("there is room");
    let at = |offset: u64| memory.address() + offset;
    // SAFETY: both places are inside the memory.
    unsafe { device.write(&[1, 2, 3, 4, 5], &[(at(8), 0..2), (at(60), 2..5)]) }.expect("writes");
    // SAFETY: the driver refuses an address that it does not know, as a real one may.
    let refused = unsafe { device.write(&[9], &[(8, 0..1)]) };
    assert!(matches!(refused, Err(DeviceError::Driver { .. })), "{refused:?}");
    // SAFETY: inside the memory.
    unsafe { device.write(&[6], &[(at(0), 0..1)]) }.expect("writes after a refusal");
    let found = device.read_back(&memory, 0, 64).and_then(DeviceReadback::bytes).expect("copies");
    let mut expected = vec![0; 64];
    (expected[0], expected[8], expected[9]) = (6, 1, 2);
    expected[60..63].copy_from_slice(&[3, 4, 5]);
    assert_eq!(found, expected);
}

#[test]
fn bytes_are_read_beside_the_kernels() {
    let Some((device, _folder)) = device("bytes_are_read_beside_the_kernels") else { return };
    let [cache, other] = ["cache", "other"].map(|label| device.allocate(label, 64).expect("there is room"));
    let content: Vec<u8> = (0..64).collect();
    let at = |offset: u64| cache.address() + offset;
    // SAFETY: inside the memory.
    unsafe { device.write(&content, &[(at(0), 0..64)]) }.expect("writes");
    device.copy_on_device(&cache, &other).expect("is queued among the kernels");
    let behind = device.record().expect("records");
    let mut found = vec![0; 8];
    // SAFETY: both places are inside the memory, and nobody writes there.
    unsafe { device.read(&mut found, &[(at(40), 0..3), (at(7), 3..8)]) }.expect("reads");
    assert_eq!(found, [40, 41, 42, 7, 8, 9, 10, 11]);
    // A GPU may have got there by itself. The fake driver does nothing that nobody waits for.
    let is_fake = device.name().expect("has one") == "Kvasir emulator";
    assert!(!(is_fake && behind.is_ready().expect("no fault")), "the read waited for what kernels do");
    // SAFETY: the driver refuses an address that it does not know, as a real one may.
    let refused = unsafe { device.read(&mut found, &[(at(0), 0..2), (8, 2..3)]) };
    assert!(matches!(refused, Err(DeviceError::Driver { .. })), "{refused:?}");
    // SAFETY: inside the memory.
    unsafe { device.read(&mut found[..2], &[(at(62), 0..2)]) }.expect("reads after a refusal");
    assert_eq!(found[..2], [62, 63]);
    device.drain();
    assert!(behind.is_ready().expect("no fault"));
}

/// Whatever call the driver refuses, once: an error or the right bytes, nothing used after it was freed, and what comes next is
/// right again.
#[test]
fn every_call_of_the_driver_may_be_refused() {
    let Some((device, folder)) = device("every_call_of_the_driver_may_be_refused") else { return };
    if device.name().expect("has one") != "Kvasir emulator" {
        return; // a GPU refuses nothing on demand
    }
    let open = |ordinal: usize| CudaDevice::new(ordinal, folder.path().join("kernels"));
    let (setup, device) = (&setups()[2], Arc::new(device));
    let decoder =
        KernelDecoder::new(Arc::clone(&device), Arc::clone(&setup.spec), Arc::clone(&setup.profile))
            .expect("fits")
            .expect("works");
    let text = Noise::new(3).tokens(40);
    let object = setup.encode(&text, 0, &cache(&setup.spec, &text, 6));
    let head = Head::parse(&object).expect("whole");
    let memory = device.allocate("cache", 64).expect("there is room");
    let content: Vec<u8> = (0..64).collect();
    let work = || -> Result<(KvBuffer, Vec<u8>), String> {
        let (mut rows, mut found) = (KvBuffer::new(&setup.spec, 40), vec![0; 64]);
        decoder.decode(&head, &object, Level(1), 0..40, &mut rows).map_err(|error| error.to_string())?;
        let places = [(memory.address(), 0..64)];
        // SAFETY: all of the memory.
        unsafe { device.write(&content, &places) }.map_err(|error| error.to_string())?;
        // SAFETY: as above.
        unsafe { device.read(&mut found, &places) }.map_err(|error| error.to_string())?;
        Ok((rows, found))
    };
    let right = work().expect("nothing is refused").0;
    let is_right = |done: &(KvBuffer, Vec<u8>)| done.0.as_slice() == right.as_slice() && done.1 == content;
    let (mut errors, is_own) = (0, callers_context(&device));
    for n in 0.. {
        // The fake driver's way to be told.
        assert!(open(1_000 + n).is_err());
        let done = work();
        is_own("a call that is refused");
        let was_refused = open(999).is_ok();
        errors += usize::from(done.is_err());
        assert!(done.as_ref().map_or(was_refused, is_right), "call {n}: {:?}", done.err());
        if !was_refused {
            break;
        }
        assert!(work().is_ok_and(|done| is_right(&done)), "after call {n}");
    }
    assert!(errors > 20, "{errors}");
}

/// What an engine does next on the thread is meant for the GPU that it had made current, whatever is called here.
#[test]
fn the_callers_context_stays_current() {
    let Some((device, folder)) = device("the_callers_context_stays_current") else { return };
    let open = |ordinal: usize| CudaDevice::new(ordinal, folder.path().join("kernels"));
    let is_own = callers_context(&device);
    drop(open(0).expect("is there"));
    is_own("a device was opened and dropped");
    assert!(open(77).is_err());
    is_own("a device was not there");
    device.prepare().expect("compiles");
    is_own("prepare");
    let from = device.upload("from", &[7; 64]).expect("copies");
    is_own("upload");
    let to = device.allocate("to", 64).expect("there is room");
    is_own("allocate");
    device.copy_on_device(&from, &to).expect("is queued");
    is_own("copy_on_device");
    let event = device.record().expect("records");
    is_own("record");
    drop(device.record_copies().expect("records"));
    is_own("record_copies");
    while !event.is_ready().expect("no fault") {}
    is_own("is_ready");
    event.wait().expect("no fault");
    is_own("wait");
    event.milliseconds_to(&event).expect("is reached");
    is_own("milliseconds_to");
    let readback = device.read_back(&to, 0, 64).expect("is queued");
    is_own("read_back");
    assert_eq!(readback.bytes().expect("copies"), [7; 64]);
    is_own("bytes");
    let (mut found, place) = ([0], [(to.address(), 0..1)]);
    // SAFETY: inside the memory.
    unsafe { device.write(&[9], &place) }.expect("writes");
    is_own("write");
    // SAFETY: as above.
    unsafe { device.read(&mut found, &place) }.expect("reads");
    is_own("read");
    // SAFETY: the driver refuses an address that it does not know, as a real one may.
    assert!(unsafe { device.write(&[9], &[(8, 0..1)]) }.is_err());
    is_own("a write that is refused");
    device.drain();
    is_own("drain");
    drop(event);
    is_own("an event was dropped");
    drop((device, from));
    is_own("memory was dropped");
    drop(to);
    is_own("the last memory was dropped");
}

/// By the clock of the device: on the fake driver a kernel takes a millisecond, and so does a copy of a megabyte.
#[test]
fn events_tell_the_time_of_copies_and_of_kernels() {
    let Some((device, _folder)) = device("events_tell_the_time_of_copies_and_of_kernels") else { return };
    let first_copy = device.record_copies().expect("records");
    let _bytes = device.upload("bytes", &vec![7; 3_000_000]).expect("copies");
    let counter = device.allocate("counter", 4).expect("there is room");
    let last_copy = device.record_copies().expect("records");
    let first_kernel = device.record().expect("records");
    let params = record_bytes(&[DecodeParams { counter: counter.address(), ..DecodeParams::default() }]);
    for _ in 0..2 {
        // SAFETY: of no task and no table, only the counter is used.
        unsafe { device.launch(Kernel::Direct1, Work::Warps(1), 40 * 1_024, &params) }.expect("launches");
    }
    let last_kernel = device.record().expect("records");
    let copies = first_copy.milliseconds_to(&last_copy).expect("is reached");
    let kernels = first_kernel.milliseconds_to(&last_kernel).expect("is reached");
    if device.name().expect("has one") == "Kvasir emulator" {
        assert!((copies - 3.0).abs() < 1e-3 && (kernels - 2.0).abs() < 1e-3, "{copies}, {kernels}");
    } else {
        assert!(copies > 0.0 && kernels > 0.0, "{copies}, {kernels}");
    }
}

/// The fake driver has two GPUs, and refuses copies on one while the context of the other is current.
#[test]
fn two_devices_keep_apart() {
    let Some((first, folder)) = device("two_devices_keep_apart") else { return };
    let Ok(second) = CudaDevice::new(1, folder.path().join("kernels")) else {
        return; // a machine with one GPU
    };
    let is_own = callers_context(&first);
    let devices = [&first, &second];
    let memories = devices.map(|device| device.upload("bytes", &[7; 64]).expect("copies"));
    for (index, device) in devices.iter().enumerate() {
        let place = |of: usize| [(memories[of].address() + 8, 0..1)];
        // SAFETY: inside the device's own memory.
        unsafe { device.write(&[index as u8], &place(index)) }.expect("writes");
        if device.name().expect("has one") == "Kvasir emulator" {
            // SAFETY: the fake driver refuses what is not the device's.
            assert!(unsafe { device.write(&[9], &place(1 - index)) }.is_err());
        }
    }
    for (index, (device, memory)) in devices.iter().zip(&memories).enumerate() {
        let found = device.read_back(memory, 0, 64).and_then(DeviceReadback::bytes).expect("copies");
        assert_eq!(found[7..10], [7, index as u8, 7]);
    }
    drop((second, memories));
    is_own("the memory of two devices was dropped");
}

/// Kernels of the same text, architecture and driver are the same file of a cache, and a rehearsal may share one with a GPU.
#[test]
fn the_fake_driver_has_the_version_of_no_real_one() {
    let Some((device, _folder)) = device("the_fake_driver_has_the_version_of_no_real_one") else { return };
    let mut version = 0;
    // SAFETY: a place for the number.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result().expect("has one");
    // CUDA 1.0 was 1000; kernels that serve every driver are kept under 0.
    let is_fake = device.name().expect("has one") == "Kvasir emulator";
    assert_eq!(is_fake, (1..1_000).contains(&version), "{version}");
}

/// Another thread may be about to launch the same kernel with more.
#[test]
fn shared_memory_of_a_kernel_is_never_lowered() {
    let Some((device, _folder)) = device("shared_memory_of_a_kernel_is_never_lowered") else { return };
    let counter = device.allocate("counter", 4).expect("there is room");
    let params = record_bytes(&[DecodeParams { counter: counter.address(), ..DecodeParams::default() }]);
    for kib in [64, 40, 96, 80] {
        // SAFETY: of no task and no table, only the counter is used.
        unsafe { device.launch(Kernel::Direct1, Work::Warps(1), kib * 1_024, &params) }.expect("launches");
    }
    // One warp of each CTA took a number.
    let taken = device.read_back(&counter, 0, 4).and_then(DeviceReadback::bytes).expect("copies");
    assert_ne!(taken, [0; 4]);
}

/// A batch of any size goes through a few buffers, which the next one uses again.
#[test]
fn uploads_pin_no_memory_of_their_own() {
    let Some((device, _folder)) = device("uploads_pin_no_memory_of_their_own") else { return };
    let mut bytes: Vec<u8> = vec![0; 130 << 20];
    for (number, mib) in (0..).zip(bytes.chunks_mut(1 << 20)) {
        mib.fill(number);
    }
    for _ in 0..2 {
        let memory = device.upload("batch", &bytes).expect("there is room");
        let pinned = device.pinned_bytes();
        assert!(pinned <= 128 << 20, "{pinned}");
        // On both sides of where a piece ends and the next one begins.
        for mib in [0, 31, 32, 63, 64, 127, 128, 129] {
            let found = device.read_back(&memory, mib << 20, 2).and_then(DeviceReadback::bytes);
            assert_eq!(found.as_deref(), Ok(&bytes[mib << 20..][..2]));
        }
    }
}

/// On both sides of where one buffer ends and the next one begins, and in buffers that held something else before.
#[test]
fn parts_are_copied_to_their_offsets_and_zeros_between_them() {
    const BUFFER_BYTES: usize = 32 << 20;
    const BYTES: usize = BUFFER_BYTES + 100;
    let Some((device, _folder)) = device("parts_are_copied_to_their_offsets_and_zeros_between_them") else {
        return;
    };
    let read = |memory, at, bytes| {
        device.read_back(memory, at, bytes).and_then(DeviceReadback::bytes).expect("copies")
    };
    let before = device.upload("before", &vec![0xee; BYTES]).expect("there is room");
    assert_eq!(read(&before, BYTES - 2, 2), [0xee; 2]);
    let pinned = device.pinned_bytes();
    let parts: [(usize, &[u8]); 4] =
        [(3, &[1, 2]), (8, &[3]), (BUFFER_BYTES - 2, &[4, 5, 6, 7]), (BYTES - 9, &[8])];
    let memory = device.upload_parts("parts", BYTES, &parts).expect("there is room");
    assert_eq!(device.pinned_bytes(), pinned, "the same buffers");
    assert_eq!(read(&memory, 0, 12), [0, 0, 0, 1, 2, 0, 0, 0, 3, 0, 0, 0]);
    assert_eq!(read(&memory, BUFFER_BYTES - 5, 10), [0, 0, 0, 4, 5, 6, 7, 0, 0, 0]);
    assert_eq!(read(&memory, BYTES - 12, 12), [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0]);
}

/// The names that others use are of the real device.
#[test]
fn the_aliases_are_the_codecs_traits() {
    fn decodes<T: ChunkDecoder>() {}
    fn encodes<T: ChunkEncoder>() {}
    decodes::<CudaDecoder>();
    encodes::<CudaEncoder>();
}
