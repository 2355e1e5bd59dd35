//! A device that is the CPU: memory with canaries, kernels run by the emulator.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender},
    },
    time::Duration,
};

use kvasir_kernels::Kernel;

use crate::{Device, DeviceError, DeviceEvent, DeviceMemory, DeviceReadback, Work};

/// Bytes before and behind every buffer that nobody may touch.
const CANARY_BYTES: usize = 256;
const CANARY: u8 = 0xc7;
/// Readable zeros behind a buffer's own bytes.
const SLACK_BYTES: usize = 64;
/// Shared memory of a CTA on an H100.
const SHARED_BYTES_MAX: usize = 227 * 1024;

/// Memories of a label: how many were made, how many there are, and how many there were at most.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct MemoryCount {
    pub(super) made: usize,
    pub(super) now: usize,
    pub(super) most: usize,
}

type MemoryCounts = Arc<Mutex<BTreeMap<&'static str, MemoryCount>>>;

#[derive(Debug, Default)]
pub(super) struct EmulatedDevice {
    launches: Mutex<Vec<Kernel>>,
    /// The launch that the driver refuses, counted from 0.
    fails_at: Mutex<Option<usize>>,
    /// Copies towards it so far.
    copies: AtomicUsize,
    /// Where on the host the parts were that were copied towards it, with the label.
    copied_from: Mutex<Vec<(&'static str, Range<usize>)>>,
    /// Calls so far, and the one that is refused.
    calls: AtomicUsize,
    refused: Mutex<Option<usize>>,
    /// The call from which on all are refused.
    gone_at: Mutex<Option<usize>>,
    /// Shared memory of a CTA, if it is not an H100's.
    shared_bytes_max: Mutex<Option<usize>>,
    /// Told when the next read has begun; it ends when it is told to.
    held_read: Mutex<Option<(Sender<()>, Receiver<()>)>>,
    /// Launches before the last point of the queue that somebody waited for.
    waited: Arc<AtomicUsize>,
    memories: MemoryCounts,
}

#[derive(Debug)]
pub(super) struct EmulatedMemory {
    label: &'static str,
    counts: MemoryCounts,
    // u64 for alignment.
    words: Mutex<Vec<u64>>,
    address: u64,
    bytes: usize,
}

/// The emulator runs a kernel when it is launched: every point of its queues is behind us. A launch takes a millisecond, and so
/// does a copy.
#[derive(Debug)]
pub(super) struct EmulatedEvent {
    /// Launches before it, or copies.
    before: usize,
    waited: Arc<AtomicUsize>,
}

impl DeviceEvent for EmulatedEvent {
    fn is_ready(&self) -> Result<bool, DeviceError> {
        Ok(true)
    }

    fn wait(&self) -> Result<(), DeviceError> {
        self.waited.fetch_max(self.before, Ordering::Relaxed);
        Ok(())
    }

    fn milliseconds_to(&self, later: &Self) -> Result<f32, DeviceError> {
        Ok((later.before - self.before) as f32)
    }
}

#[derive(Debug)]
pub(super) struct EmulatedReadback(Vec<u8>);

impl DeviceReadback for EmulatedReadback {
    fn bytes(self) -> Result<Vec<u8>, DeviceError> {
        Ok(self.0)
    }
}

/// The addresses of bytes.
pub(super) fn host_range(bytes: &[u8]) -> Range<usize> {
    let start = bytes.as_ptr().addr();
    start..start + bytes.len()
}

impl EmulatedDevice {
    /// Kernels launched so far.
    pub(super) fn launched(&self) -> Vec<Kernel> {
        self.launches.lock().expect("not poisoned").clone()
    }

    /// Refuses the `n`th launch after those so far, and all after it.
    pub(super) fn fail_at(&self, n: usize) {
        *self.fails_at.lock().expect("not poisoned") = Some(self.launched().len() + n);
    }

    /// Refuses the `n`th call after those so far, of any kind but writes, once.
    pub(super) fn refuse(&self, n: usize) {
        *self.refused.lock().expect("not poisoned") = Some(self.calls() + n);
    }

    /// Refuses the `n`th call after those so far, of any kind but writes, and all after it.
    pub(super) fn be_gone(&self, n: usize) {
        *self.gone_at.lock().expect("not poisoned") = Some(self.calls() + n);
    }

    /// Has less shared memory a CTA from now on.
    pub(super) fn limit_shared(&self, bytes: usize) {
        *self.shared_bytes_max.lock().expect("not poisoned") = Some(bytes);
    }

    /// Holds the next read: it says when it has begun, and waits for leave to end.
    pub(super) fn hold_read(&self, begun: Sender<()>, may_end: Receiver<()>) {
        *self.held_read.lock().expect("not poisoned") = Some((begun, may_end));
    }

    /// Copies towards it so far.
    pub(super) fn copies(&self) -> usize {
        self.copies.load(Ordering::Relaxed)
    }

    /// Where on the host the parts were that were copied towards it under a label.
    pub(super) fn copied_from(&self, label: &'static str) -> Vec<Range<usize>> {
        let copied = self.copied_from.lock().expect("not poisoned");
        copied.iter().filter(|(of, _)| *of == label).map(|(_, part)| part.clone()).collect()
    }

    /// Calls so far.
    pub(super) fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    fn call(&self, call: &'static str) -> Result<(), DeviceError> {
        let this = self.calls.fetch_add(1, Ordering::Relaxed);
        let is_gone = self.gone_at.lock().expect("not poisoned").is_some_and(|from| this >= from);
        let mut refused = self.refused.lock().expect("not poisoned");
        if is_gone || refused.take_if(|refused| *refused == this).is_some() {
            return Err(DeviceError::Driver { call, code: "CUDA_ERROR_OUT_OF_MEMORY".into() });
        }
        Ok(())
    }

    /// Number of launches that somebody waited for.
    pub(super) fn waited(&self) -> usize {
        self.waited.load(Ordering::Relaxed)
    }

    /// Its memories of a label.
    pub(super) fn memories(&self, label: &'static str) -> MemoryCount {
        self.memories.lock().expect("not poisoned").get(label).copied().unwrap_or_default()
    }
}

impl EmulatedMemory {
    fn new(label: &'static str, bytes: &[u8], counts: &MemoryCounts) -> Self {
        let padded = (bytes.len() + SLACK_BYTES).next_multiple_of(8);
        let mut all = vec![CANARY; CANARY_BYTES];
        all.extend_from_slice(bytes);
        all.resize(CANARY_BYTES + padded, 0);
        all.resize(2 * CANARY_BYTES + padded, CANARY);
        let words: Vec<u64> = all.as_chunks().0.iter().map(|b| u64::from_ne_bytes(*b)).collect();
        let address = words.as_ptr() as u64 + CANARY_BYTES as u64;
        {
            let mut counts = counts.lock().expect("not poisoned");
            let count = counts.entry(label).or_default();
            (count.made, count.now) = (count.made + 1, count.now + 1);
            count.most = count.most.max(count.now);
        }
        Self { label, counts: Arc::clone(counts), words: Mutex::new(words), address, bytes: bytes.len() }
    }

    fn all(&self) -> Vec<u8> {
        self.words.lock().expect("not poisoned").iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// Some of its bytes, as they are now.
    pub(super) fn peek(&self, offset: usize, bytes: usize) -> Vec<u8> {
        assert!(offset + bytes <= self.bytes);
        // SAFETY: inside the buffer, which is not moved before it is dropped.
        unsafe { std::slice::from_raw_parts((self.address as usize + offset) as *const u8, bytes) }.to_vec()
    }

    fn check(&self) {
        let all = self.all();
        let inner = CANARY_BYTES..all.len() - CANARY_BYTES;
        let touched = all.iter().enumerate().find(|(i, byte)| !inner.contains(i) && **byte != CANARY);
        assert!(touched.is_none(), "a kernel wrote outside of {}: byte {:?}", self.label, touched);
    }
}

impl Drop for EmulatedMemory {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.check();
            let mut counts = self.counts.lock().expect("not poisoned");
            counts.entry(self.label).or_default().now -= 1;
        }
    }
}

impl DeviceMemory for EmulatedMemory {
    fn address(&self) -> u64 {
        self.address
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Device for EmulatedDevice {
    type Memory = EmulatedMemory;
    type Event = EmulatedEvent;
    type Readback = EmulatedReadback;

    fn prepare(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn shared_bytes_max(&self) -> usize {
        self.shared_bytes_max.lock().expect("not poisoned").unwrap_or(SHARED_BYTES_MAX)
    }

    fn allocate(&self, label: &'static str, bytes: usize) -> Result<EmulatedMemory, DeviceError> {
        self.call("allocate memory")?;
        Ok(EmulatedMemory::new(label, &vec![0; bytes], &self.memories))
    }

    fn upload_parts(
        &self,
        label: &'static str,
        bytes: usize,
        parts: &[(usize, &[u8])],
    ) -> Result<EmulatedMemory, DeviceError> {
        self.call("copy to the device")?;
        self.copies.fetch_add(1, Ordering::Relaxed);
        let mut all = vec![0; bytes];
        let mut copied_from = self.copied_from.lock().expect("not poisoned");
        for (offset, part) in parts {
            all[*offset..][..part.len()].copy_from_slice(part);
            copied_from.push((label, host_range(part)));
        }
        Ok(EmulatedMemory::new(label, &all, &self.memories))
    }

    fn read_back(
        &self,
        memory: &EmulatedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<EmulatedReadback, DeviceError> {
        self.call("copy from the device")?;
        memory.check();
        assert!(offset + bytes <= memory.bytes);
        Ok(EmulatedReadback(memory.all()[CANARY_BYTES + offset..][..bytes].to_vec()))
    }

    unsafe fn write(&self, bytes: &[u8], places: &[(u64, Range<usize>)]) -> Result<(), DeviceError> {
        for (address, part) in places {
            let from = &bytes[part.clone()];
            // SAFETY: the caller's promise; addresses are those of host memory.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), *address as *mut u8, from.len()) };
        }
        Ok(())
    }

    unsafe fn read(&self, out: &mut [u8], places: &[(u64, Range<usize>)]) -> Result<(), DeviceError> {
        self.call("copy out of the pages")?;
        let held = self.held_read.lock().expect("not poisoned").take();
        if let Some((begun, may_end)) = held {
            begun.send(()).expect("is awaited");
            may_end.recv_timeout(Duration::from_secs(20)).expect("is told");
        }
        for (address, part) in places {
            let to = &mut out[part.clone()];
            // SAFETY: the caller's promise; addresses are those of host memory.
            unsafe { std::ptr::copy_nonoverlapping(*address as *const u8, to.as_mut_ptr(), to.len()) };
        }
        Ok(())
    }

    fn drain(&self) {
        self.waited.fetch_max(self.launched().len(), Ordering::Relaxed);
    }

    fn record(&self) -> Result<EmulatedEvent, DeviceError> {
        self.call("record an event")?;
        Ok(EmulatedEvent { before: self.launched().len(), waited: Arc::clone(&self.waited) })
    }

    fn record_copies(&self) -> Result<EmulatedEvent, DeviceError> {
        self.call("record an event")?;
        Ok(EmulatedEvent { before: self.copies(), waited: Arc::default() })
    }

    unsafe fn launch(
        &self,
        kernel: Kernel,
        work: Work,
        shared_bytes: usize,
        params: &[u8],
    ) -> Result<(), DeviceError> {
        self.call("launch a kernel")?;
        if (*self.fails_at.lock().expect("not poisoned")).is_some_and(|at| self.launched().len() >= at) {
            return Err(DeviceError::Driver { call: "launch", code: "CUDA_ERROR_OUT_OF_MEMORY".into() });
        }
        if shared_bytes > self.shared_bytes_max() {
            return Err(DeviceError::Driver { call: "launch", code: "CUDA_ERROR_INVALID_VALUE".into() });
        }
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
