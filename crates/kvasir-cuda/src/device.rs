//! The device operations that the codec needs. The driver is one implementation, the tests' emulator another:
//! everything above this trait runs, and is tested, without a GPU.

use std::{fmt::Debug, ops::Range};

use kvasir_kernels::Kernel;

use crate::DeviceError;

/// How much work a launch has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Items that warps take from a queue: the device chooses how many warps it keeps.
    Warps(usize),
    /// Exactly this many CTAs.
    Ctas(usize),
}

/// A device with two in-order queues: copies towards it, and kernels. A kernel starts after every copy that was queued
/// before it; copies do not wait for kernels, so that the next part's bytes travel while this one is decoded.
pub trait Device: Debug + Send + Sync {
    /// Memory on the device, freed when dropped, after the kernels that were queued until then.
    type Memory: DeviceMemory;
    /// A point in one of the queues.
    type Event: DeviceEvent;
    /// A copy on its way back.
    type Readback: DeviceReadback;

    /// Makes every kernel ready, so that no launch compiles one.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    fn prepare(&self) -> Result<(), DeviceError>;

    /// Most shared memory of a CTA, in bytes: a launch that takes more is refused. Unknown unless overridden.
    fn shared_bytes_max(&self) -> usize {
        usize::MAX
    }

    /// Zeroed memory. `label` describes its purpose.
    ///
    /// # Errors
    /// [`DeviceError`], out of memory above all.
    fn allocate(&self, label: &'static str, bytes: usize) -> Result<Self::Memory, DeviceError>;

    /// Memory of `bytes` bytes with a copy of each part at its offset and zeros elsewhere, followed by 64 readable
    /// bytes. Parts are in the order of their offsets, do not overlap, and end within `bytes`. They may be reused when
    /// this returns, even if the copy is still running.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    fn upload_parts(
        &self,
        label: &'static str,
        bytes: usize,
        parts: &[(usize, &[u8])],
    ) -> Result<Self::Memory, DeviceError>;

    /// As [`upload_parts`](Self::upload_parts), of one part.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    fn upload(&self, label: &'static str, bytes: &[u8]) -> Result<Self::Memory, DeviceError> {
        self.upload_parts(label, bytes.len(), &[(0, bytes)])
    }

    /// Queues a copy of `bytes` bytes from `offset` on, after all kernels queued so far.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn read_back(
        &self,
        memory: &Self::Memory,
        offset: usize,
        bytes: usize,
    ) -> Result<Self::Readback, DeviceError>;

    /// Queues a kernel, with `shared_bytes` of shared memory a CTA.
    ///
    /// # Safety
    /// `params` is the kernel's record, and every address in it is good for what the kernel reads and writes there
    /// until the queue is drained.
    ///
    /// # Errors
    /// [`DeviceError`] where the kernel cannot be compiled, loaded or launched.
    unsafe fn launch(
        &self,
        kernel: Kernel,
        work: Work,
        shared_bytes: usize,
        params: &[u8],
    ) -> Result<(), DeviceError>;

    /// Copies bytes to where they belong, after all kernels queued so far, and returns when they are there. A place is an
    /// address and the part of `bytes` for it.
    ///
    /// # Safety
    /// Every address is good for writes of its part's length.
    ///
    /// # Errors
    /// [`DeviceError`].
    unsafe fn write(&self, bytes: &[u8], places: &[(u64, Range<usize>)]) -> Result<(), DeviceError>;

    /// Copies bytes from where they are to `out`, and returns when they are there. Beside both queues: it waits for nothing
    /// that was queued, and nothing waits for it. A place is an address and the part of `out` for it.
    ///
    /// # Safety
    /// Every address is good for reads of its part's length. Nobody writes there meanwhile what the caller is to see.
    ///
    /// # Errors
    /// [`DeviceError`].
    unsafe fn read(&self, out: &mut [u8], places: &[(u64, Range<usize>)]) -> Result<(), DeviceError>;

    /// An event after all kernels queued so far, and what they wait for.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn record(&self) -> Result<Self::Event, DeviceError>;

    /// An event after all copies towards the device queued so far.
    ///
    /// # Errors
    /// [`DeviceError`].
    fn record_copies(&self) -> Result<Self::Event, DeviceError>;

    /// Bytes of the host's memory that it keeps pinned for copies.
    fn pinned_bytes(&self) -> usize {
        0
    }

    /// Returns when no kernel that was queued so far runs any more, done or faulted. For use after an error: it needs nothing
    /// that a driver could refuse.
    fn drain(&self);
}

/// Memory on a device.
pub trait DeviceMemory: Debug + Send + Sync {
    /// Its first byte, as kernels see it.
    fn address(&self) -> u64;

    /// Its size in bytes.
    fn bytes(&self) -> usize;
}

/// A point in one of a device's queues.
pub trait DeviceEvent: Debug + Send + Sync {
    /// Whether everything before it is done.
    ///
    /// # Errors
    /// [`DeviceError`] where a kernel before it faulted.
    fn is_ready(&self) -> Result<bool, DeviceError>;

    /// Waits until everything before it is done.
    ///
    /// # Errors
    /// As [`is_ready`](Self::is_ready).
    fn wait(&self) -> Result<(), DeviceError>;

    /// Milliseconds from this point to a later one of the same queue, by the device's clock. Waits for both.
    ///
    /// # Errors
    /// As [`is_ready`](Self::is_ready).
    fn milliseconds_to(&self, later: &Self) -> Result<f32, DeviceError>;
}

/// Bytes on their way back.
pub trait DeviceReadback: Debug + Send {
    /// Waits for them.
    ///
    /// # Errors
    /// [`DeviceError`]; a fault of an earlier launch shows here.
    fn bytes(self) -> Result<Vec<u8>, DeviceError>;
}

impl<D: Device> Device for std::sync::Arc<D> {
    type Memory = D::Memory;
    type Event = D::Event;
    type Readback = D::Readback;

    fn prepare(&self) -> Result<(), DeviceError> {
        (**self).prepare()
    }

    fn shared_bytes_max(&self) -> usize {
        (**self).shared_bytes_max()
    }

    fn allocate(&self, label: &'static str, bytes: usize) -> Result<Self::Memory, DeviceError> {
        (**self).allocate(label, bytes)
    }

    fn upload_parts(
        &self,
        label: &'static str,
        bytes: usize,
        parts: &[(usize, &[u8])],
    ) -> Result<Self::Memory, DeviceError> {
        (**self).upload_parts(label, bytes, parts)
    }

    fn read_back(
        &self,
        memory: &Self::Memory,
        offset: usize,
        bytes: usize,
    ) -> Result<Self::Readback, DeviceError> {
        (**self).read_back(memory, offset, bytes)
    }

    unsafe fn launch(
        &self,
        kernel: Kernel,
        work: Work,
        shared_bytes: usize,
        params: &[u8],
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { (**self).launch(kernel, work, shared_bytes, params) }
    }

    unsafe fn write(&self, bytes: &[u8], places: &[(u64, Range<usize>)]) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { (**self).write(bytes, places) }
    }

    unsafe fn read(&self, out: &mut [u8], places: &[(u64, Range<usize>)]) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { (**self).read(out, places) }
    }

    fn record(&self) -> Result<Self::Event, DeviceError> {
        (**self).record()
    }

    fn record_copies(&self) -> Result<Self::Event, DeviceError> {
        (**self).record_copies()
    }

    fn pinned_bytes(&self) -> usize {
        (**self).pinned_bytes()
    }

    fn drain(&self) {
        (**self).drain();
    }
}
