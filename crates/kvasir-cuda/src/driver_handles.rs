//! Memory, events and copies of a [`CudaDevice`](crate::CudaDevice). They may outlive it, and share its context and streams.

use std::{
    fmt,
    mem::ManuallyDrop,
    ops::Deref,
    ptr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use cudarc::driver::{CudaContext, CudaEvent as RawEvent, CudaStream, DriverError, result, sys};

use crate::{
    DeviceError, DeviceEvent, DeviceMemory, DeviceReadback,
    memory_pool::MemoryPool,
    staging::{Staging, StagingBuffer},
};

/// A call under way. cudarc leaves its context current; when this is dropped, the context that was current on the thread before
/// is current again: what an engine calls next is meant for its own GPU.
#[derive(Debug)]
pub(crate) struct Entered(sys::CUcontext);

impl Entered {
    pub(crate) fn new() -> Self {
        // A driver that nobody has initialised yet refuses to say: none is current.
        Self(result::ctx::get_current().ok().flatten().unwrap_or(ptr::null_mut()))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        // SAFETY: it was current when the call began; null is none. A failure means that it was destroyed meanwhile.
        let _ = unsafe { result::ctx::set_current(self.0) };
    }
}

/// One of cudarc's handles. To drop one is a call, too.
#[derive(Debug)]
pub(crate) struct Handle<T>(ManuallyDrop<T>);

impl<T> Handle<T> {
    pub(crate) fn new(handle: T) -> Self {
        Self(ManuallyDrop::new(handle))
    }
}

impl<T> Deref for Handle<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        let _entered = Entered::new();
        // SAFETY: once, and nothing uses it after this.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

/// The state that memory needs after its device is dropped.
pub(crate) struct Shared {
    /// `None` on GPUs without pools. Destroyed before the context may be.
    pub(crate) pool: Option<MemoryPool>,
    pub(crate) context: Handle<Arc<CudaContext>>,
    pub(crate) copies: Handle<Arc<CudaStream>>,
    pub(crate) kernels: Handle<Arc<CudaStream>>,
    /// For copies out of an engine's pages, which wait for nothing.
    pub(crate) reads: Handle<Arc<CudaStream>>,
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
            pool: context.has_async_alloc().then(|| MemoryPool::new(&context)).transpose()?,
            copies: Handle::new(context.new_stream()?),
            kernels: Handle::new(context.new_stream()?),
            reads: Handle::new(context.new_stream()?),
            staging: Staging::default(),
            copied: Mutex::new(false),
            context: Handle::new(context),
        })
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
        let (_entered, context) = (Entered::new(), &self.shared.context);
        // After the kernels that use it, not on the copy stream: copies must not wait for kernels. A failure
        // means a dead context, in which nothing needs to be freed, or is an older error, which cudarc returns
        // instead of entering.
        let _ = context.bind_to_thread().or_else(|_| context.bind_to_thread());
        let _ = self.shared.order_copies();
        if self.shared.pool.is_some() {
            // SAFETY: from the pool, freed once, after all that was queued with it.
            let _ = unsafe { result::free_async(self.address, self.shared.kernels.cu_stream()) };
        } else {
            let _ = self.shared.kernels.synchronize();
            // SAFETY: from `malloc_sync`, freed once, and nothing uses it any more.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

/// A point in the stream of kernels, or of copies.
#[derive(Debug)]
pub struct CudaEvent(pub(crate) Handle<RawEvent>);

impl CudaEvent {
    /// The driver's handle, for an engine's own stream to wait on (`cuStreamWaitEvent`); it lives as long as this.
    pub fn cu_event(&self) -> sys::CUevent {
        self.0.cu_event()
    }
}

impl DeviceEvent for CudaEvent {
    fn is_ready(&self) -> Result<bool, DeviceError> {
        let _entered = Entered::new();
        self.0.try_is_complete().map_err(failed("query an event"))
    }

    fn wait(&self) -> Result<(), DeviceError> {
        let _entered = Entered::new();
        // The first error may be an older one, which cudarc returns instead of waiting.
        self.0.synchronize().or_else(|_| self.0.synchronize()).map_err(failed("wait for the kernels"))
    }

    fn milliseconds_to(&self, later: &Self) -> Result<f32, DeviceError> {
        let _entered = Entered::new();
        self.0.elapsed_ms(&later.0).map_err(failed("read the elapsed time"))
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
        let _entered = Entered::new();
        self.buffer.wait().map_err(failed("copy from the device"))?;
        let bytes = self.buffer.as_mut_slice()[..self.bytes].to_vec();
        self.shared.staging.put(self.buffer);
        Ok(bytes)
    }
}
