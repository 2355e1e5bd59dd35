//! What the codec needs of a device. The driver is one implementation, the tests' emulator another: everything above
//! this trait runs, and is tested, without a GPU.

use std::fmt::Debug;

use kvasir_kernels::Kernel;

use crate::DeviceError;

/// How much work a launch has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Items that warps take from a queue: the device chooses how many warps it keeps.
    Warps(usize),
    /// Exactly so many CTAs.
    Ctas(usize),
}

/// A device with one in-order queue of work.
pub trait Device: Debug + Send + Sync {
    /// Memory on the device, freed when dropped.
    type Memory: DeviceMemory;

    /// Zeroed memory. `label` says what it is for.
    ///
    /// # Errors
    /// [`DeviceError`], out of memory above all.
    fn allocate(&self, label: &'static str, bytes: usize) -> Result<Self::Memory, DeviceError>;

    /// Memory with a copy of `bytes`, behind which 64 readable bytes follow.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    fn upload(&self, label: &'static str, bytes: &[u8]) -> Result<Self::Memory, DeviceError>;

    /// Copies memory back, after all work queued so far.
    ///
    /// # Errors
    /// [`DeviceError`]; a fault of an earlier launch shows here.
    fn download(&self, memory: &Self::Memory, bytes: &mut [u8]) -> Result<(), DeviceError>;

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
}

/// Memory on a device.
pub trait DeviceMemory: Debug + Send + Sync {
    /// Its first byte, as kernels see it.
    fn address(&self) -> u64;
}
