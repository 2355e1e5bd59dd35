//! The device behind the NVIDIA driver, which is loaded at run time.

use std::{
    collections::HashMap,
    ffi::{CString, c_void},
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, DevicePtr, DriverError, PinnedHostSlice, result,
    sys::{self, CUdevice_attribute, CUfunction_attribute},
};
use kvasir_kernels::Kernel;

use crate::{Device, DeviceError, DeviceMemory, Work, compile::Compiler};

/// Uploads at least this long go through pinned memory: pageable copies block the host.
const STAGED_BYTES_MIN: usize = 64 * 1024;
/// Pinned memory held for uploads: one chunk of an 8 B model at 2.5 bits an element.
const STAGING_BYTES: usize = 32 * 1024 * 1024;
/// Readable bytes behind an upload (FORMAT.md asks readers for 64).
const SLACK_BYTES: usize = 64;
/// Dynamic shared memory that needs no opt-in.
const SHARED_BYTES_PLAIN: usize = 48 * 1024;

/// One GPU: a stream for copies, a stream for kernels.
pub struct CudaDevice {
    context: Arc<CudaContext>,
    copies: Arc<CudaStream>,
    kernels: Arc<CudaStream>,
    multiprocessors: usize,
    compiler: Compiler,
    functions: Mutex<HashMap<Kernel, Function>>,
    staging: Mutex<Option<PinnedHostSlice<u8>>>,
}

/// A loaded entry point; its module is never unloaded while the context lives.
#[derive(Clone, Copy)]
struct Function(sys::CUfunction);

// SAFETY: function handles may be used from any thread whose current context is theirs.
unsafe impl Send for Function {}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ordinal = self.context.ordinal();
        f.debug_struct("CudaDevice").field("ordinal", &ordinal).finish_non_exhaustive()
    }
}

/// Device memory of a [`CudaDevice`].
#[derive(Debug)]
pub struct CudaMemory {
    slice: CudaSlice<u8>,
    address: u64,
    copies: Arc<CudaStream>,
    kernels: Arc<CudaStream>,
}

impl DeviceMemory for CudaMemory {
    fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        // Freed in the order of the copy stream: kernels that use it have to be over. A failure leaves a dead context,
        // where there is nothing to free.
        let _ = self.copies.join(&self.kernels);
    }
}

fn failed(call: &'static str) -> impl Fn(DriverError) -> DeviceError {
    move |error| DeviceError::Driver { call, code: format!("{error:?}") }
}

impl CudaDevice {
    /// Opens GPU `ordinal`. Kernels are compiled at first use and kept in `cache`.
    ///
    /// # Errors
    /// [`DeviceError::NoDriver`] without libcuda, else the driver's refusal. Never a panic.
    pub fn new(ordinal: usize, cache: PathBuf) -> Result<Self, DeviceError> {
        // SAFETY: only tries to open the library. Every other call of the driver panics without it.
        if !unsafe { sys::is_culib_present() } {
            return Err(DeviceError::NoDriver);
        }
        let context = CudaContext::new(ordinal).map_err(failed("open the GPU"))?;
        let capability = context.compute_capability().map_err(failed("name the architecture"))?;
        let count = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let multiprocessors = context.attribute(count).map_err(failed("count multiprocessors"))?;
        let mut driver = 0;
        // SAFETY: a place for the number.
        unsafe { sys::cuDriverGetVersion(&raw mut driver) }.result().map_err(failed("name its version"))?;
        let stream = || context.new_stream().map_err(failed("make a stream"));
        Ok(Self {
            copies: stream()?,
            kernels: stream()?,
            multiprocessors: multiprocessors.max(1).cast_unsigned() as usize,
            compiler: Compiler::new(cache, capability, driver),
            functions: Mutex::default(),
            staging: Mutex::default(),
            context,
        })
    }

    fn memory(&self, slice: CudaSlice<u8>) -> CudaMemory {
        let address = slice.device_ptr(&self.copies).0;
        let (copies, kernels) = (Arc::clone(&self.copies), Arc::clone(&self.kernels));
        CudaMemory { slice, address, copies, kernels }
    }

    /// Loads a kernel, and all others of its translation unit on the way.
    fn function(&self, kernel: Kernel) -> Result<Function, DeviceError> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = functions.get(&kernel) {
            return Ok(*function);
        }
        let cubin = self.compiler.cubin(kernel.source())?;
        // SAFETY: a whole cubin, from the compiler or its cache; the driver copies it.
        let module = unsafe { result::module::load_data(cubin.as_ptr().cast()) };
        let module = module.map_err(failed("load a kernel"))?;
        for other in kvasir_kernels::KERNELS.iter().filter(|k| k.source() == kernel.source()) {
            let name = CString::new(other.name()).expect("kernel names hold no zero");
            // SAFETY: the module was just loaded and is never unloaded.
            let function = unsafe { result::module::get_function(module, name) };
            functions.insert(*other, Function(function.map_err(failed("find a kernel"))?));
        }
        Ok(functions[&kernel])
    }

    /// CTAs for `work`: as many as fit the GPU at once where warps take items from a queue.
    fn grid(
        &self,
        function: Function,
        kernel: Kernel,
        work: Work,
        shared: usize,
    ) -> Result<u32, DeviceError> {
        let items = match work {
            Work::Ctas(count) => return Ok(count as u32),
            Work::Warps(items) => items,
        };
        let threads = kernel.threads();
        // SAFETY: the function was loaded in this context.
        let resident = unsafe {
            result::occupancy::max_active_block_per_multiprocessor(function.0, threads.cast_signed(), shared)
        };
        let resident = resident.map_err(failed("tell the occupancy"))?.max(1).cast_unsigned() as usize;
        let needed = items.div_ceil(threads as usize / 32).max(1);
        Ok(needed.min(resident * self.multiprocessors) as u32)
    }

    /// Copies through pinned memory, a part at a time.
    fn upload_staged(&self, bytes: &[u8], slice: &mut CudaSlice<u8>) -> Result<(), DriverError> {
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        if staging.is_none() {
            // SAFETY: written before it is read, below.
            *staging = Some(unsafe { self.context.alloc_pinned(STAGING_BYTES)? });
        }
        let Some(pinned) = staging.as_mut() else { return Ok(()) };
        for (index, part) in bytes.chunks(STAGING_BYTES).enumerate() {
            let start = index * STAGING_BYTES;
            // Waits for the copy before, which read the same memory.
            self.copies.synchronize()?;
            pinned.as_mut_slice()?[..part.len()].copy_from_slice(part);
            let source = &pinned.as_slice()?[..part.len()];
            self.copies.memcpy_htod(source, &mut slice.slice_mut(start..start + part.len()))?;
        }
        self.copies.synchronize()
    }
}

impl Device for CudaDevice {
    type Memory = CudaMemory;

    fn allocate(&self, _label: &'static str, bytes: usize) -> Result<CudaMemory, DeviceError> {
        let slice = self.copies.alloc_zeros(bytes.max(1)).map_err(failed("allocate memory"))?;
        Ok(self.memory(slice))
    }

    fn upload(&self, _label: &'static str, bytes: &[u8]) -> Result<CudaMemory, DeviceError> {
        let mut slice =
            self.copies.alloc_zeros(bytes.len() + SLACK_BYTES).map_err(failed("allocate memory"))?;
        let copied = if bytes.len() >= STAGED_BYTES_MIN {
            self.upload_staged(bytes, &mut slice)
        } else if bytes.is_empty() {
            Ok(())
        } else {
            self.copies.memcpy_htod(bytes, &mut slice.slice_mut(..bytes.len()))
        };
        copied.map_err(failed("copy to the device"))?;
        Ok(self.memory(slice))
    }

    fn download(&self, memory: &CudaMemory, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let copied = if bytes.is_empty() {
            Ok(())
        } else {
            self.kernels.memcpy_dtoh(&memory.slice.slice(..bytes.len()), bytes)
        };
        copied.and_then(|()| self.kernels.synchronize()).map_err(failed("copy from the device"))
    }

    unsafe fn launch(
        &self,
        kernel: Kernel,
        work: Work,
        shared_bytes: usize,
        params: &[u8],
    ) -> Result<(), DeviceError> {
        self.context.bind_to_thread().map_err(failed("enter the context"))?;
        // What was uploaded has to be there.
        self.kernels.join(&self.copies).map_err(failed("order its streams"))?;
        let function = self.function(kernel)?;
        if shared_bytes > SHARED_BYTES_PLAIN {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function was loaded in this context.
            let set = unsafe {
                result::function::set_function_attribute(function.0, attribute, shared_bytes as i32)
            };
            set.map_err(failed("give a kernel its shared memory"))?;
        }
        let grid = self.grid(function, kernel, work, shared_bytes)?;
        // Records hold u64: give them their alignment.
        let mut record: Vec<u64> = params
            .chunks(8)
            .map(|part| {
                let mut word = [0; 8];
                word[..part.len()].copy_from_slice(part);
                u64::from_ne_bytes(word)
            })
            .collect();
        let mut pointers = [record.as_mut_ptr().cast::<c_void>()];
        // SAFETY: one parameter, the record, which the driver copies; the rest is the caller's promise.
        let launched = unsafe {
            result::launch_kernel(
                function.0,
                (grid, 1, 1),
                (kernel.threads(), 1, 1),
                shared_bytes as u32,
                self.kernels.cu_stream(),
                &mut pointers,
            )
        };
        launched.map_err(failed("launch a kernel"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Holds on machines without a driver; with one, opening GPU 0 works or is refused in the driver's words.
    #[test]
    fn a_missing_driver_is_an_error_and_no_panic() {
        let folder = tempfile::tempdir().expect("a folder");
        // SAFETY: only tries to open the library.
        let present = unsafe { sys::is_culib_present() };
        match CudaDevice::new(0, folder.path().to_owned()) {
            Err(DeviceError::NoDriver) => assert!(!present),
            Ok(_) | Err(_) => assert!(present),
        }
    }
}
