//! Memory, events and copies of a [`CudaDevice`](crate::CudaDevice). They may outlive it, and share its context and streams.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use cudarc::driver::{CudaContext, CudaEvent as RawEvent, CudaStream, DriverError, result, sys};

use crate::{
    DeviceError, DeviceEvent, DeviceMemory, DeviceReadback,
    staging::{Staging, StagingBuffer},
};

/// The state that memory needs after its device is dropped.
pub(crate) struct Shared {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) copies: Arc<CudaStream>,
    pub(crate) kernels: Arc<CudaStream>,
    /// For copies out of an engine's pages, which wait for nothing.
    pub(crate) reads: Arc<CudaStream>,
    pub(crate) staging: Staging,
    /// Whether a copy was queued that no kernel waits for yet.
    copied: Mutex<bool>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

pub(crate) fn failed(call: &'static str) -> impl Fn(DriverError) -> DeviceError {
    move |error| DeviceError::Driver { call, code: format!("{error:?}") }
}

impl Shared {
    pub(crate) fn new(context: Arc<CudaContext>) -> Result<Self, DriverError> {
        Ok(Self {
            copies: context.new_stream()?,
            kernels: context.new_stream()?,
            reads: context.new_stream()?,
            staging: Staging::default(),
            copied: Mutex::new(false),
            context,
        })
    }

    pub(crate) fn is_pooled(&self) -> bool {
        self.context.has_async_alloc()
    }

    /// Makes later kernels start after every copy queued so far.
    pub(crate) fn order_copies(&self) -> Result<(), DriverError> {
        // Under the lock: a thread that finds `false` may launch at once, so another's order must already be queued.
        let mut copied = self.copied();
        if *copied {
            self.kernels.join(&self.copies)?;
            *copied = false;
        }
        Ok(())
    }

    pub(crate) fn copied(&self) -> MutexGuard<'_, bool> {
        self.copied.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Device memory of a [`CudaDevice`](crate::CudaDevice).
#[derive(Debug)]
pub struct CudaMemory {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    pub(crate) shared: Arc<Shared>,
}

impl DeviceMemory for CudaMemory {
    fn address(&self) -> u64 {
        self.address
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        // After the kernels that use it, not on the copy stream: copies must not wait for kernels. A failure
        // means a dead context, in which nothing needs to be freed.
        let _ = self.shared.context.bind_to_thread();
        let _ = self.shared.order_copies();
        if self.shared.is_pooled() {
            // SAFETY: from `malloc_async`, freed once, after all that was queued with it.
            let _ = unsafe { result::free_async(self.address, self.shared.kernels.cu_stream()) };
        } else {
            let _ = self.shared.kernels.synchronize();
            // SAFETY: from `malloc_sync`, freed once, and nothing uses it any more.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

/// A point in the stream of kernels.
#[derive(Debug)]
pub struct CudaEvent(pub(crate) RawEvent);

impl CudaEvent {
    /// The driver's handle, for an engine's own stream to wait on (`cuStreamWaitEvent`); it lives as long as this.
    pub fn cu_event(&self) -> sys::CUevent {
        self.0.cu_event()
    }

    /// Milliseconds from this point to `later`; both have to be reached.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn milliseconds_to(&self, later: &Self) -> Result<f32, DeviceError> {
        self.0.elapsed_ms(&later.0).map_err(failed("read the elapsed time"))
    }
}

impl DeviceEvent for CudaEvent {
    fn is_ready(&self) -> Result<bool, DeviceError> {
        self.0.try_is_complete().map_err(failed("query an event"))
    }

    fn wait(&self) -> Result<(), DeviceError> {
        // The first error may be an older one, which cudarc returns instead of waiting.
        self.0.synchronize().or_else(|_| self.0.synchronize()).map_err(failed("wait for the kernels"))
    }
}

/// Bytes on their way back from a [`CudaDevice`](crate::CudaDevice).
#[derive(Debug)]
pub struct CudaReadback {
    pub(crate) buffer: StagingBuffer,
    pub(crate) bytes: usize,
    pub(crate) shared: Arc<Shared>,
}

impl DeviceReadback for CudaReadback {
    fn bytes(mut self) -> Result<Vec<u8>, DeviceError> {
        self.buffer.wait().map_err(failed("copy from the device"))?;
        let bytes = self.buffer.as_mut_slice()[..self.bytes].to_vec();
        self.shared.staging.put(self.buffer);
        Ok(bytes)
    }
}
