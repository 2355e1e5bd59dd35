//! Writes decodes as traces that `kernels/gpu-check` replays on a machine with a GPU and without Rust: every buffer,
//! every launch, and what the CPU decoder gave.
#![allow(clippy::print_stdout, reason = "reports what it wrote")]

#[path = "../../kvasir-codec/tests/common/mod.rs"]
mod common;

use std::{
    fs,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use kvasir_codec::{ChunkDecoder, KvBuffer, container::Head};
use kvasir_cuda::{Device, DeviceError, DeviceEvent, DeviceFetch, DeviceMemory, KernelDecoder, Work};
use kvasir_kernels::Kernel;
use kvasir_types::{Level, Plane};

use common::{Noise, cache, setups};

/// "KVVSTRT1", little endian.
const MAGIC: u64 = 0x3154_5254_5356_564b;

/// Runs on the emulator and keeps everything.
#[derive(Debug, Default, Clone)]
struct Recorder(Arc<Mutex<Recording>>);

#[derive(Debug, Default)]
struct Recording {
    buffers: Vec<Buffer>,
    launches: Vec<u8>,
    launch_count: u32,
}

#[derive(Debug)]
struct Buffer {
    words: Vec<u64>,
    bytes: usize,
    label: &'static str,
    content: Option<Vec<u8>>,
}

#[derive(Debug)]
struct Memory {
    index: usize,
    address: u64,
}

/// The recorder runs a kernel when it is launched.
#[derive(Debug)]
struct Reached;

impl DeviceEvent for Reached {
    fn is_ready(&self) -> Result<bool, DeviceError> {
        Ok(true)
    }

    fn wait(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}

#[derive(Debug)]
struct Fetched(Vec<u8>);

impl DeviceFetch for Fetched {
    fn bytes(self) -> Result<Vec<u8>, DeviceError> {
        Ok(self.0)
    }
}

impl DeviceMemory for Memory {
    fn address(&self) -> u64 {
        self.address
    }
}

impl Recorder {
    /// Buffers stay for the life of the recorder: no two share an address.
    fn add(&self, label: &'static str, bytes: &[u8], uploaded: bool) -> Memory {
        let mut padded = bytes.to_vec();
        padded.resize((bytes.len() + 64).next_multiple_of(8), 0);
        let words: Vec<u64> = padded.as_chunks().0.iter().map(|b| u64::from_ne_bytes(*b)).collect();
        let address = words.as_ptr() as u64;
        let content = uploaded.then(|| bytes.to_vec());
        let mut recording = self.0.lock().expect("one thread");
        recording.buffers.push(Buffer { words, bytes: bytes.len(), label, content });
        Memory { index: recording.buffers.len() - 1, address }
    }
}

impl Device for Recorder {
    type Memory = Memory;
    type Event = Reached;
    type Fetch = Fetched;

    fn allocate(&self, label: &'static str, bytes: usize) -> Result<Memory, DeviceError> {
        Ok(self.add(label, &vec![0; bytes], false))
    }

    fn upload(&self, label: &'static str, bytes: &[u8]) -> Result<Memory, DeviceError> {
        Ok(self.add(label, bytes, true))
    }

    fn fetch(&self, memory: &Memory, offset: usize, bytes: usize) -> Result<Fetched, DeviceError> {
        let recording = self.0.lock().expect("one thread");
        let all: Vec<u8> =
            recording.buffers[memory.index].words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Ok(Fetched(all[offset..offset + bytes].to_vec()))
    }

    fn record(&self) -> Result<Reached, DeviceError> {
        Ok(Reached)
    }

    unsafe fn launch(
        &self,
        kernel: Kernel,
        work: Work,
        shared_bytes: usize,
        params: &[u8],
    ) -> Result<(), DeviceError> {
        let (exact, count) = match work {
            Work::Warps(count) => (0u32, count),
            Work::Ctas(count) => (1, count),
        };
        let grid = if exact == 1 { count as u32 } else { 1 };
        // SAFETY: the caller's promise.
        unsafe { kvasir_kernels_emulator::launch(kernel, grid, shared_bytes as u32, params) };
        let mut recording = self.0.lock().expect("one thread");
        for number in [kernel as u32, kernel.threads(), shared_bytes as u32, exact] {
            recording.launches.extend_from_slice(&number.to_le_bytes());
        }
        recording.launches.extend_from_slice(&(count as u64).to_le_bytes());
        put(&mut recording.launches, params);
        recording.launch_count += 1;
        Ok(())
    }
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// The trace, with the pages that the CPU decoder expects.
fn serialise(recording: &Recording, pages: &[u8], exact: bool) -> Vec<u8> {
    let mut out = MAGIC.to_le_bytes().to_vec();
    out.extend_from_slice(&(recording.buffers.len() as u32).to_le_bytes());
    for buffer in &recording.buffers {
        out.extend_from_slice(&(buffer.words.as_ptr() as u64).to_le_bytes());
        out.extend_from_slice(&(buffer.bytes as u64).to_le_bytes());
        put(&mut out, buffer.label.as_bytes());
        out.extend_from_slice(&u32::from(buffer.content.is_some()).to_le_bytes());
        put(&mut out, buffer.content.as_deref().unwrap_or_default());
    }
    out.extend_from_slice(&recording.launch_count.to_le_bytes());
    out.extend_from_slice(&recording.launches);
    let index = recording.buffers.iter().position(|buffer| buffer.label == "pages").expect("pages");
    out.extend_from_slice(&1u32.to_le_bytes());
    out.extend_from_slice(&(index as u32).to_le_bytes());
    out.extend_from_slice(&u32::from(exact).to_le_bytes());
    put(&mut out, pages);
    out
}

/// The CPU decoder's rows in the order of the decoder's own pages: `[layer][plane][token][head][element]`.
fn page_bytes(spec: &kvasir_types::ModelSpec, kv: &KvBuffer, tokens: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for (layer, shape) in spec.layers.iter().enumerate() {
        for plane in Plane::ALL {
            let (heads, dim) = shape.layout.planes()[plane as usize];
            for token in 0..tokens {
                for head in 0..heads {
                    let row = &kv.rows(layer, plane, head)[token * dim..(token + 1) * dim];
                    row.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
                }
            }
        }
    }
    out
}

fn main() {
    let folder = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| "target/gpu-traces".into()));
    fs::create_dir_all(&folder).expect("the folder can be made");
    for (index, setup) in setups().iter().enumerate() {
        for level in 0..setup.profile.level_count() {
            let tokens = 300;
            let text = Noise::new(7).tokens(tokens);
            let object = setup.encode(&text, 0, &cache(&setup.spec, &text, 8));
            let head = Head::parse(&object).expect("a whole object");
            let recorder = Recorder::default();
            let made =
                KernelDecoder::new(recorder.clone(), Arc::clone(&setup.spec), Arc::clone(&setup.profile));
            let decoder = made.expect("the profile fits").expect("the emulator works");
            let mut rows = KvBuffer::new(&setup.spec, tokens);
            decoder.decode(&head, &object, Level(level as u8), 0..tokens, &mut rows).expect("decodes");
            let expected = setup.decode(&object, level).expect("decodes");
            let pages = page_bytes(&setup.spec, &expected, tokens);
            let recording = recorder.0.lock().expect("one thread");
            let trace = serialise(&recording, &pages, setup.profile.is_direct());
            let path = folder.join(format!("small-{index}-level-{level}.trace"));
            fs::write(&path, &trace).expect("the trace can be written");
            println!("{} {} bytes", path.display(), trace.len());
        }
    }
}
