//! Pinned host memory for copies in both directions, used again once the copy is done: pageable copies block the host, and
//! pinning takes longer than most copies.

use std::{
    ffi::c_void,
    sync::{Arc, Mutex, PoisonError},
};

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result};

use crate::driver_handles::{Entered, Handle};

/// Smallest buffer: small copies share few sizes.
const BUFFER_BYTES_MIN: usize = 64 * 1024;
/// Pinned memory beyond which uploads wait for earlier ones: four chunks of an 8 B model at 2.5 bits per element.
const STAGING_BYTES_MAX: usize = 128 * 1024 * 1024;
/// Most bytes of an upload that one buffer takes: a larger batch goes through several, and none is pinned for it alone.
pub(crate) const BUFFER_BYTES_MAX: usize = STAGING_BYTES_MAX / 4;

/// A pinned buffer, and the copy that last used it.
#[derive(Debug)]
pub(crate) struct StagingBuffer {
    memory: *mut c_void,
    bytes: usize,
    busy: Option<CudaEvent>,
    context: Handle<Arc<CudaContext>>,
}

// SAFETY: the memory belongs to the buffer alone, and pinned memory may be used from any thread.
unsafe impl Send for StagingBuffer {}

impl StagingBuffer {
    fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self, DriverError> {
        context.bind_to_thread()?;
        // SAFETY: a size; flag 1 lets every context use it.
        let memory = unsafe { result::malloc_host(bytes, 1)? };
        // SAFETY: fresh memory of this size: bytes that are read must have been written once.
        unsafe { std::ptr::write_bytes(memory.cast::<u8>(), 0, bytes) };
        Ok(Self { memory, bytes, busy: None, context: Handle::new(Arc::clone(context)) })
    }

    /// Its bytes, for a copy that has not been queued yet or is done.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: `bytes` bytes, initialised, owned; callers wait for copies before they look.
        unsafe { std::slice::from_raw_parts_mut(self.memory.cast(), self.bytes) }
    }

    /// Records that the work queued on `stream` so far uses the buffer.
    pub(crate) fn used_by(&mut self, stream: &CudaStream) -> Result<(), DriverError> {
        // Without an event nobody can wait for the copy later, and the memory may be freed next.
        let recorded = stream.record_event(None).inspect_err(|_| {
            let _ = stream.synchronize().or_else(|_| stream.synchronize());
        })?;
        self.busy = Some(recorded);
        Ok(())
    }

    /// Waits for the copy that uses it.
    pub(crate) fn wait(&mut self) -> Result<(), DriverError> {
        // The first error may be an older one, which cudarc returns instead of waiting.
        self.busy.take().map_or(Ok(()), |event| event.synchronize().or_else(|_| event.synchronize()))
    }

    fn is_free(&self) -> bool {
        self.busy.as_ref().is_none_or(CudaEvent::is_complete)
    }
}

impl Drop for StagingBuffer {
    fn drop(&mut self) {
        let _entered = Entered::new();
        let _ = self.wait();
        let _ = self.context.bind_to_thread().or_else(|_| self.context.bind_to_thread()); // as in `wait`
        // SAFETY: from `malloc_host`, and no copy uses it any more. A failure leaves a dead context.
        let _ = unsafe { result::free_host(self.memory) };
    }
}

/// Fills `staged`, which begins at byte `start` of an upload, with the parts that lie there and zeros elsewhere. Parts are as
/// [`upload_parts`](crate::Device::upload_parts) takes them.
pub(crate) fn fill(staged: &mut [u8], start: usize, parts: &[(usize, &[u8])]) {
    let mut filled = 0;
    let first = parts.partition_point(|(offset, part)| offset + part.len() <= start);
    for (offset, part) in &parts[first..] {
        if *offset >= start + staged.len() {
            break;
        }
        let (from, skipped) = (offset.saturating_sub(start), start.saturating_sub(*offset));
        let count = (part.len() - skipped).min(staged.len() - from);
        staged[filled..from].fill(0);
        staged[from..from + count].copy_from_slice(&part[skipped..skipped + count]);
        filled = from + count;
    }
    staged[filled..].fill(0);
}

/// The pool.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    buffers: Mutex<Vec<StagingBuffer>>,
}

impl Staging {
    /// A buffer of at least `bytes` bytes that no copy uses.
    pub(crate) fn take(
        &self,
        context: &Arc<CudaContext>,
        bytes: usize,
    ) -> Result<StagingBuffer, DriverError> {
        let bytes = bytes.max(BUFFER_BYTES_MIN).next_power_of_two();
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(free) = buffers.iter().position(|buffer| buffer.bytes == bytes && buffer.is_free()) {
            return Ok(buffers.remove(free));
        }
        let held: usize = buffers.iter().map(|buffer| buffer.bytes).sum();
        if held + bytes > STAGING_BYTES_MAX
            && let Some(oldest) = buffers.iter().position(|buffer| buffer.bytes >= bytes)
        {
            let mut buffer = buffers.remove(oldest);
            drop(buffers);
            buffer.wait()?;
            return Ok(buffer);
        }
        drop(buffers);
        StagingBuffer::new(context, bytes)
    }

    /// Bytes of the buffers that it keeps, in use by copies or not.
    pub(crate) fn bytes(&self) -> usize {
        let buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        buffers.iter().map(|buffer| buffer.bytes).sum()
    }

    /// Returns a buffer to the pool; the copy that uses it may still be running.
    pub(crate) fn put(&self, buffer: StagingBuffer) {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        buffers.push(buffer);
        let mut held: usize = buffers.iter().map(|buffer| buffer.bytes).sum();
        let mut surplus = Vec::new();
        while held > 2 * STAGING_BYTES_MAX {
            surplus.push(buffers.remove(0));
            held -= surplus[surplus.len() - 1].bytes;
        }
        drop(buffers); // a buffer that is dropped waits for its copy
    }
}
