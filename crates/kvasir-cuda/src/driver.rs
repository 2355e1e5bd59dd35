//! The device through the NVIDIA driver, which is loaded at run time.

use std::{
    collections::HashMap,
    ffi::{CString, c_void},
    fmt,
    ops::Range,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use cudarc::driver::{
    CudaContext, CudaStream, DriverError, result,
    sys::{self, CUdevice_attribute, CUevent_flags, CUfunction_attribute},
};
use kvasir_kernels::{KERNELS, Kernel, translation_unit_with};

use crate::{
    CudaEvent, CudaMemory, CudaReadback, Device, DeviceError, ExternalKernel, Work,
    compile::Compiler,
    driver_handles::{Entered, Handle, Shared, failed},
    staging::{BUFFER_BYTES_MAX, fill},
};

/// Readable bytes after an upload (FORMAT.md asks readers for 64).
const SLACK_BYTES: usize = 64;
/// Dynamic shared memory that needs no opt-in.
const SHARED_BYTES_PLAIN: usize = 48 * 1024;

/// One GPU: a stream for copies towards it, a stream for kernels and copies back, and one for copies out of an engine's pages.
pub struct CudaDevice {
    shared: Arc<Shared>,
    multiprocessors: usize,
    shared_bytes_max: usize,
    compiler: Compiler,
    /// By translation unit and entry point.
    functions: Mutex<HashMap<(&'static str, &'static str), Function>>,
    /// Dynamic shared memory that an entry point may take, where it is more than the plain size. Only raised: another thread may
    /// be about to launch.
    opted: Mutex<HashMap<Function, usize>>,
}

/// A loaded entry point; its module is never unloaded while the context lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Function(sys::CUfunction);

// SAFETY: function handles may be used from any thread whose current context is theirs.
unsafe impl Send for Function {}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ordinal = self.shared.context.ordinal();
        f.debug_struct("CudaDevice").field("ordinal", &ordinal).finish_non_exhaustive()
    }
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
        let _entered = Entered::new();
        let context = CudaContext::new(ordinal).map_err(failed("open the GPU"))?;
        let capability = context.compute_capability().map_err(failed("query the compute capability"))?;
        let count = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let multiprocessors = context.attribute(count).map_err(failed("count multiprocessors"))?;
        let most = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let shared_bytes_max = context.attribute(most).map_err(failed("query its shared memory"))?;
        let mut driver = 0;
        // SAFETY: a place for the number.
        unsafe { sys::cuDriverGetVersion(&raw mut driver) }.result().map_err(failed("name its version"))?;
        Ok(Self {
            shared: Arc::new(Shared::new(context).map_err(failed("create a stream or a memory pool"))?),
            multiprocessors: multiprocessors.max(1).cast_unsigned() as usize,
            shared_bytes_max: shared_bytes_max.max(0).cast_unsigned() as usize,
            compiler: Compiler::new(cache, capability, driver),
            functions: Mutex::default(),
            opted: Mutex::default(),
        })
    }

    /// The GPU's name.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn name(&self) -> Result<String, DeviceError> {
        self.shared.context.name().map_err(failed("name the GPU"))
    }

    /// Multiprocessors of the GPU.
    pub fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    /// The stream that kernels run on: for an engine to order its own work before a decode or an encode.
    pub fn stream(&self) -> sys::CUstream {
        self.shared.kernels.cu_stream()
    }

    /// Queues a copy on the device among the kernels: its memory bandwidth, to compare rates with.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn copy_on_device(&self, from: &CudaMemory, to: &CudaMemory) -> Result<(), DeviceError> {
        let _entered = Entered::new();
        let (shared, bytes) = (&self.shared, from.bytes.min(to.bytes));
        let queue = || {
            shared.context.bind_to_thread()?;
            shared.order_copies()?;
            // SAFETY: inside both memories, which are freed behind all queued work.
            unsafe { result::memcpy_dtod_async(to.address, from.address, bytes, shared.kernels.cu_stream()) }
        };
        queue().map_err(failed("copy on the device"))
    }

    /// Queues a kernel that is not the product's, as [`launch`](Device::launch) does.
    ///
    /// # Safety
    /// As [`launch`](Device::launch).
    ///
    /// # Errors
    /// As [`launch`](Device::launch).
    pub unsafe fn launch_external(
        &self,
        kernel: &ExternalKernel,
        work: Work,
        shared_bytes: usize,
        params: &[u8],
    ) -> Result<(), DeviceError> {
        let _entered = Entered::new();
        let unit = || {
            let text = translation_unit_with(kernel.source, kernel.files);
            Ok((self.compiler.cubin_of(kernel.source, &text)?, vec![kernel.name]))
        };
        let function = self.function(kernel.source, kernel.name, unit)?;
        // SAFETY: the caller's promise.
        unsafe { self.launch_function(function, kernel.threads, work, shared_bytes, params) }
    }

    /// An entry point. If it is not loaded yet, loads its translation unit: `unit` returns the cubin and its
    /// entry points.
    fn function(
        &self,
        source: &'static str,
        name: &'static str,
        unit: impl FnOnce() -> Result<(Vec<u8>, Vec<&'static str>), DeviceError>,
    ) -> Result<Function, DeviceError> {
        self.shared.context.bind_to_thread().map_err(failed("enter the context"))?;
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = functions.get(&(source, name)) {
            return Ok(*function);
        }
        let (cubin, names) = unit()?;
        // SAFETY: a whole cubin, from the compiler or its cache; the driver copies it.
        let module = unsafe { result::module::load_data(cubin.as_ptr().cast()) };
        let module = module.map_err(failed("load a kernel"))?;
        for entry in names {
            let symbol = CString::new(entry).expect("kernel names hold no zero");
            // SAFETY: the module was just loaded and is never unloaded.
            let function = unsafe { result::module::get_function(module, symbol) };
            functions.insert((source, entry), Function(function.map_err(failed("find a kernel"))?));
        }
        Ok(functions[&(source, name)])
    }

    /// The entry point of a kernel of the product.
    fn kernel(&self, kernel: Kernel) -> Result<Function, DeviceError> {
        self.function(kernel.source(), kernel.name(), || {
            let siblings = KERNELS.iter().filter(|other| other.source() == kernel.source());
            Ok((self.compiler.cubin(kernel.source())?, siblings.map(|kernel| kernel.name()).collect()))
        })
    }

    /// Queues an entry point after all copies queued so far.
    ///
    /// # Safety
    /// As [`launch`](Device::launch).
    unsafe fn launch_function(
        &self,
        function: Function,
        threads: u32,
        work: Work,
        shared_bytes: usize,
        params: &[u8],
    ) -> Result<(), DeviceError> {
        self.shared.order_copies().map_err(failed("order its streams"))?;
        self.opt_in(function, shared_bytes)?;
        let grid = self.grid(function, threads, work, shared_bytes)?;
        // Records hold u64, so they need its alignment.
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
                (threads, 1, 1),
                shared_bytes as u32,
                self.shared.kernels.cu_stream(),
                &mut pointers,
            )
        };
        launched.map_err(failed("launch a kernel"))
    }

    /// Lets an entry point take `shared_bytes` of shared memory.
    fn opt_in(&self, function: Function, shared_bytes: usize) -> Result<(), DeviceError> {
        let mut opted = self.opted.lock().unwrap_or_else(PoisonError::into_inner);
        let most = opted.entry(function).or_insert(SHARED_BYTES_PLAIN);
        if shared_bytes > *most {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function was loaded in this context.
            let set = unsafe {
                result::function::set_function_attribute(function.0, attribute, shared_bytes as i32)
            };
            set.map_err(failed("set the shared memory of a kernel"))?;
            *most = shared_bytes;
        }
        Ok(())
    }

    /// CTAs for `work`: as many as fit on the GPU at once if warps take items from a queue.
    fn grid(&self, function: Function, threads: u32, work: Work, shared: usize) -> Result<u32, DeviceError> {
        let items = match work {
            Work::Ctas(count) => return Ok(count as u32),
            Work::Warps(items) => items,
        };
        // SAFETY: the function was loaded in this context.
        let resident = unsafe {
            result::occupancy::max_active_block_per_multiprocessor(function.0, threads.cast_signed(), shared)
        };
        let resident = resident.map_err(failed("query the occupancy"))?.max(1).cast_unsigned() as usize;
        let needed = items.div_ceil(threads as usize / 32).max(1);
        Ok(needed.min(resident * self.multiprocessors) as u32)
    }

    /// Uninitialised memory of the copy stream.
    fn reserve(&self, bytes: usize) -> Result<CudaMemory, DriverError> {
        let shared = &self.shared;
        shared.context.bind_to_thread()?;
        let address = match &shared.pool {
            Some(pool) => pool.allocate(bytes, &shared.copies, &shared.kernels)?,
            // SAFETY: written by the caller before it is read.
            None => unsafe { result::malloc_sync(bytes)? },
        };
        Ok(CudaMemory { address, bytes, shared: Arc::clone(shared) })
    }

    /// Zeroes `bytes` bytes from `offset` on.
    fn clear(&self, memory: &CudaMemory, offset: usize, bytes: usize) -> Result<(), DriverError> {
        let stream = self.shared.copies.cu_stream();
        // SAFETY: inside the memory, which is freed behind all queued work.
        unsafe { result::memset_d8_async(memory.address + offset as u64, 0, bytes, stream)? };
        *self.shared.copied() = true;
        Ok(())
    }

    /// Fills the first `bytes` bytes.
    fn copy(&self, memory: &CudaMemory, bytes: usize, parts: &[(usize, &[u8])]) -> Result<(), DriverError> {
        let shared = &self.shared;
        for start in (0..bytes).step_by(BUFFER_BYTES_MAX) {
            let buffer_bytes = BUFFER_BYTES_MAX.min(bytes - start);
            let mut buffer = shared.staging.take(&shared.context, buffer_bytes)?;
            let staged = &mut buffer.as_mut_slice()[..buffer_bytes];
            fill(staged, start, parts);
            let address = memory.address + start as u64;
            // SAFETY: both live until the copy is done: `put` keeps the buffer, memory is freed behind all queued work.
            unsafe { result::memcpy_htod_async(address, staged, shared.copies.cu_stream())? };
            *shared.copied() = true;
            buffer.used_by(&shared.copies)?;
            shared.staging.put(buffer);
        }
        Ok(())
    }
}

impl Device for CudaDevice {
    type Memory = CudaMemory;
    type Event = CudaEvent;
    type Readback = CudaReadback;

    fn prepare(&self) -> Result<(), DeviceError> {
        let _entered = Entered::new();
        KERNELS.iter().try_for_each(|kernel| self.kernel(*kernel).map(drop))
    }

    fn shared_bytes_max(&self) -> usize {
        self.shared_bytes_max
    }

    fn allocate(&self, _label: &'static str, bytes: usize) -> Result<CudaMemory, DeviceError> {
        let _entered = Entered::new();
        let bytes = bytes.max(1);
        let memory = self.reserve(bytes).map_err(failed("allocate memory"))?;
        self.clear(&memory, 0, bytes).map_err(failed("clear memory"))?;
        Ok(memory)
    }

    fn upload_parts(
        &self,
        _label: &'static str,
        bytes: usize,
        parts: &[(usize, &[u8])],
    ) -> Result<CudaMemory, DeviceError> {
        let _entered = Entered::new();
        let memory = self.reserve(bytes + SLACK_BYTES).map_err(failed("allocate memory"))?;
        self.clear(&memory, bytes, SLACK_BYTES).map_err(failed("clear memory"))?;
        self.copy(&memory, bytes, parts).map_err(failed("copy to the device"))?;
        Ok(memory)
    }

    fn read_back(
        &self,
        memory: &CudaMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<CudaReadback, DeviceError> {
        assert!(offset + bytes <= memory.bytes, "the range to read back must be within the memory");
        let _entered = Entered::new();
        let shared = &self.shared;
        let queue = || {
            shared.context.bind_to_thread()?;
            shared.order_copies()?;
            let mut buffer = shared.staging.take(&shared.context, bytes)?;
            if bytes > 0 {
                let from = memory.address + offset as u64;
                let to = &mut buffer.as_mut_slice()[..bytes];
                // SAFETY: inside the memory; the buffer is the readback's, which waits before it is read or freed.
                unsafe { result::memcpy_dtoh_async(to, from, shared.kernels.cu_stream())? };
            }
            buffer.used_by(&shared.kernels)?;
            Ok(buffer)
        };
        let buffer = queue().map_err(failed("copy from the device"))?;
        Ok(CudaReadback { buffer, bytes, shared: Arc::clone(shared) })
    }

    unsafe fn launch(
        &self,
        kernel: Kernel,
        work: Work,
        shared_bytes: usize,
        params: &[u8],
    ) -> Result<(), DeviceError> {
        let _entered = Entered::new();
        let function = self.kernel(kernel)?;
        // SAFETY: the caller's promise.
        unsafe { self.launch_function(function, kernel.threads(), work, shared_bytes, params) }
    }

    unsafe fn write(&self, bytes: &[u8], places: &[(u64, Range<usize>)]) -> Result<(), DeviceError> {
        let _entered = Entered::new();
        let shared = &self.shared;
        let copy = || {
            shared.context.bind_to_thread()?;
            shared.order_copies()?;
            let mut buffer = shared.staging.take(&shared.context, bytes.len())?;
            buffer.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
            let queued = places.iter().try_for_each(|(address, part)| {
                let staged = &buffer.as_mut_slice()[part.clone()];
                // SAFETY: the caller's promise; the buffer is not used for anything else before the copies are done.
                unsafe { result::memcpy_htod_async(*address, staged, shared.kernels.cu_stream()) }
            });
            // Of copies that were queued before one that was not, too.
            buffer.used_by(&shared.kernels)?;
            buffer.wait()?;
            shared.staging.put(buffer);
            queued
        };
        copy().map_err(failed("copy to the device"))
    }

    unsafe fn read(&self, out: &mut [u8], places: &[(u64, Range<usize>)]) -> Result<(), DeviceError> {
        let _entered = Entered::new();
        let shared = &self.shared;
        let copy = || {
            shared.context.bind_to_thread()?;
            let mut buffer = shared.staging.take(&shared.context, out.len())?;
            let queued = places.iter().try_for_each(|(address, part)| {
                let staged = &mut buffer.as_mut_slice()[part.clone()];
                // SAFETY: the caller's promise; the buffer is not used for anything else before the copies are done.
                unsafe { result::memcpy_dtoh_async(staged, *address, shared.reads.cu_stream()) }
            });
            // Of copies that were queued before one that was not, too.
            buffer.used_by(&shared.reads)?;
            buffer.wait()?;
            queued?;
            Ok(buffer)
        };
        let mut buffer = copy().map_err(failed("copy out of the pages"))?;
        out.copy_from_slice(&buffer.as_mut_slice()[..out.len()]);
        shared.staging.put(buffer);
        Ok(())
    }

    fn pinned_bytes(&self) -> usize {
        self.shared.staging.bytes()
    }

    fn drain(&self) {
        let _entered = Entered::new();
        let kernels = &self.shared.kernels;
        // The first error may be an older one, which cudarc returns instead of waiting. After a second one the context is
        // dead, and so are its kernels.
        let _ = kernels.synchronize().or_else(|_| kernels.synchronize());
    }

    fn record(&self) -> Result<CudaEvent, DeviceError> {
        let _entered = Entered::new();
        self.shared.order_copies().map_err(failed("order its streams"))?;
        record_on(&self.shared.kernels)
    }

    fn record_copies(&self) -> Result<CudaEvent, DeviceError> {
        let _entered = Entered::new();
        record_on(&self.shared.copies)
    }
}

/// An event with a time.
fn record_on(stream: &CudaStream) -> Result<CudaEvent, DeviceError> {
    let event = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
    Ok(CudaEvent(Handle::new(event.map_err(failed("record an event"))?)))
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
