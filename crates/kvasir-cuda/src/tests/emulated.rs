//! A device that is the CPU: memory with canaries, kernels run by the emulator.

use std::sync::Mutex;

use kvasir_kernels::Kernel;

use crate::{Device, DeviceError, DeviceMemory, Work};

/// Bytes before and behind every buffer that nobody may touch.
const CANARY_BYTES: usize = 256;
const CANARY: u8 = 0xc7;
/// Readable zeros behind a buffer's own bytes.
const SLACK_BYTES: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Emulated {
    launches: Mutex<Vec<Kernel>>,
}

#[derive(Debug)]
pub(super) struct Memory {
    label: &'static str,
    // u64 for alignment.
    words: Mutex<Vec<u64>>,
    address: u64,
    bytes: usize,
}

impl Emulated {
    /// Kernels launched so far.
    pub(super) fn launched(&self) -> Vec<Kernel> {
        self.launches.lock().expect("not poisoned").clone()
    }
}

impl Memory {
    fn new(label: &'static str, bytes: &[u8]) -> Self {
        let padded = (bytes.len() + SLACK_BYTES).next_multiple_of(8);
        let mut all = vec![CANARY; CANARY_BYTES];
        all.extend_from_slice(bytes);
        all.resize(CANARY_BYTES + padded, 0);
        all.resize(2 * CANARY_BYTES + padded, CANARY);
        let words: Vec<u64> = all.as_chunks().0.iter().map(|b| u64::from_ne_bytes(*b)).collect();
        let address = words.as_ptr() as u64 + CANARY_BYTES as u64;
        Self { label, words: Mutex::new(words), address, bytes: bytes.len() }
    }

    fn all(&self) -> Vec<u8> {
        self.words.lock().expect("not poisoned").iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn check(&self) {
        let all = self.all();
        let inner = CANARY_BYTES..all.len() - CANARY_BYTES;
        let touched = all.iter().enumerate().find(|(i, byte)| !inner.contains(i) && **byte != CANARY);
        assert!(touched.is_none(), "a kernel wrote outside of {}: byte {:?}", self.label, touched);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.check();
        }
    }
}

impl DeviceMemory for Memory {
    fn address(&self) -> u64 {
        self.address
    }
}

impl Device for Emulated {
    type Memory = Memory;

    fn allocate(&self, label: &'static str, bytes: usize) -> Result<Memory, DeviceError> {
        Ok(Memory::new(label, &vec![0; bytes]))
    }

    fn upload(&self, label: &'static str, bytes: &[u8]) -> Result<Memory, DeviceError> {
        Ok(Memory::new(label, bytes))
    }

    fn download(&self, memory: &Memory, bytes: &mut [u8]) -> Result<(), DeviceError> {
        memory.check();
        assert!(bytes.len() <= memory.bytes);
        bytes.copy_from_slice(&memory.all()[CANARY_BYTES..CANARY_BYTES + bytes.len()]);
        Ok(())
    }

    unsafe fn launch(
        &self,
        kernel: Kernel,
        work: Work,
        shared_bytes: usize,
        params: &[u8],
    ) -> Result<(), DeviceError> {
        let grid = match work {
            // Fewer warps than items and more than one block: queues and strides are exercised.
            Work::Warps(items) => (items / 16).clamp(1, 2) as u32,
            Work::Ctas(count) => count as u32,
        };
        // SAFETY: the caller's promise.
        unsafe { kvasir_kernels_emulator::launch(kernel, grid, shared_bytes as u32, params) };
        self.launches.lock().expect("not poisoned").push(kernel);
        Ok(())
    }
}
