//! Pinned host memory for copies in both directions, used again once the copy is done: pageable copies block the host, and
//! pinning takes longer than most copies.

use std::{
    ffi::c_void,
    sync::{Arc, Mutex, PoisonError},
};

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result};

/// Smallest block: small copies share few sizes.
const BLOCK_BYTES_MIN: usize = 64 * 1024;
/// Pinned memory beyond which uploads wait for earlier ones: four chunks of an 8 B model at 2.5 bits an element.
const STAGING_BYTES_MAX: usize = 128 * 1024 * 1024;

/// A pinned block, and the copy that last used it.
#[derive(Debug)]
pub(crate) struct Block {
    memory: *mut c_void,
    bytes: usize,
    busy: Option<CudaEvent>,
    context: Arc<CudaContext>,
}

// SAFETY: the memory belongs to the block alone, and pinned memory may be used from any thread.
unsafe impl Send for Block {}

impl Block {
    fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self, DriverError> {
        context.bind_to_thread()?;
        // SAFETY: a size; flag 1 lets every context use it.
        let memory = unsafe { result::malloc_host(bytes, 1)? };
        // SAFETY: fresh memory of this size: bytes that are read must have been written once.
        unsafe { std::ptr::write_bytes(memory.cast::<u8>(), 0, bytes) };
        Ok(Self { memory, bytes, busy: None, context: Arc::clone(context) })
    }

    /// Its bytes, for a copy that has not been queued yet or is done.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: `bytes` bytes, initialised, owned; callers wait for copies before they look.
        unsafe { std::slice::from_raw_parts_mut(self.memory.cast(), self.bytes) }
    }

    /// What `stream` has queued so far uses the block.
    pub(crate) fn used_by(&mut self, stream: &CudaStream) -> Result<(), DriverError> {
        self.busy = Some(stream.record_event(None)?);
        Ok(())
    }

    /// Waits for the copy that uses it.
    pub(crate) fn wait(&mut self) -> Result<(), DriverError> {
        self.busy.take().map_or(Ok(()), |event| event.synchronize())
    }

    fn is_free(&self) -> bool {
        self.busy.as_ref().is_none_or(CudaEvent::is_complete)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let _ = self.wait();
        let _ = self.context.bind_to_thread();
        // SAFETY: from `malloc_host`, and no copy uses it any more. A failure leaves a dead context.
        let _ = unsafe { result::free_host(self.memory) };
    }
}

/// The pool.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    blocks: Mutex<Vec<Block>>,
}

impl Staging {
    /// A block of at least `bytes` bytes that no copy uses.
    pub(crate) fn take(&self, context: &Arc<CudaContext>, bytes: usize) -> Result<Block, DriverError> {
        let bytes = bytes.max(BLOCK_BYTES_MIN).next_power_of_two();
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(free) = blocks.iter().position(|block| block.bytes == bytes && block.is_free()) {
            return Ok(blocks.remove(free));
        }
        let held: usize = blocks.iter().map(|block| block.bytes).sum();
        if held + bytes > STAGING_BYTES_MAX
            && let Some(oldest) = blocks.iter().position(|block| block.bytes >= bytes)
        {
            let mut block = blocks.remove(oldest);
            drop(blocks);
            block.wait()?;
            return Ok(block);
        }
        drop(blocks);
        Block::new(context, bytes)
    }

    /// Gives a block back; the copy that uses it may still be under way.
    pub(crate) fn put(&self, block: Block) {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.push(block);
        let held: usize = blocks.iter().map(|block| block.bytes).sum();
        if held > 2 * STAGING_BYTES_MAX {
            blocks.remove(0);
        }
    }
}
