//! A pool of device memory in which no allocation makes a stream wait for another.

use std::{ffi::c_int, mem, ptr};

use cudarc::driver::{CudaContext, CudaStream, DriverError, sys};

/// A pool of the device's own. When the GPU is full, the default pool would give the stream of copies memory that kernels still
/// use, and let all later copies wait for them. Memory that nobody uses goes back to the GPU at the next wait, as the default
/// pool's does.
#[derive(Debug)]
pub(crate) struct MemoryPool(sys::CUmemoryPool);

// SAFETY: the driver lets any thread use a pool.
unsafe impl Send for MemoryPool {}
// SAFETY: as above, several at a time too.
unsafe impl Sync for MemoryPool {}

impl MemoryPool {
    pub(crate) fn new(context: &CudaContext) -> Result<Self, DriverError> {
        // SAFETY: numbers and a pointer that may be null; the fields that are not set below are to be zero.
        let mut props: sys::CUmemPoolProps = unsafe { mem::zeroed() };
        props.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        props.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        props.location.id = context.cu_device();
        let mut pool = ptr::null_mut();
        // SAFETY: properties, and a place for the pool.
        unsafe { sys::cuMemPoolCreate(&raw mut pool, &raw const props) }.result()?;
        let (pool, mut is_allowed) = (Self(pool), c_int::from(false));
        let reuse = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
        // SAFETY: a pool, and an attribute that is an int.
        unsafe { sys::cuMemPoolSetAttribute(pool.0, reuse, (&raw mut is_allowed).cast()) }.result()?;
        Ok(pool)
    }

    /// Uninitialised memory for what is queued on `copies` from now on. If the GPU is full, waits here for what is queued on
    /// `kernels`, and with it for the memory whose end is queued there.
    pub(crate) fn allocate(
        &self,
        bytes: usize,
        copies: &CudaStream,
        kernels: &CudaStream,
    ) -> Result<u64, DriverError> {
        let mut address = 0;
        let mut allocate = || {
            // SAFETY: a pool, a stream of its GPU, and a place for the address.
            unsafe { sys::cuMemAllocFromPoolAsync(&raw mut address, bytes, self.0, copies.cu_stream()) }
                .result()
        };
        match allocate() {
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                kernels.synchronize()?;
                allocate()?;
            }
            other => other?,
        }
        Ok(address)
    }
}

impl Drop for MemoryPool {
    fn drop(&mut self) {
        // SAFETY: destroyed once. The driver keeps it until memory whose end is queued is free.
        let _ = unsafe { sys::cuMemPoolDestroy(self.0) };
    }
}
