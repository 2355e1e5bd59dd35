//! Memory of Python's tensors, borrowed: buffers, DLPack capsules, plain addresses. The only file with
//! `unsafe`.

use std::{
    ffi::{CStr, c_void},
    ops::Range,
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError},
};

use pyo3::{
    buffer::PyUntypedBuffer,
    exceptions::{PyBufferError, PyTypeError, PyValueError},
    prelude::*,
    types::{PyCapsule, PyDict, PyTuple},
};

/// DLPack's structures (`dlpack.h`, version 1).
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

#[repr(C)]
struct DlManaged {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

#[repr(C)]
struct DlManagedVersioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: DlTensor,
}

const DLPACK_MAJOR: u32 = 1;
const DLPACK_READ_ONLY: u64 = 1;
/// Device types whose memory the CPU reads and writes: its own, and pinned for CUDA or ROCm.
const HOST_DEVICES: [i32; 3] = [1, 3, 11];
/// More dimensions than any cache has.
const DIMENSIONS_MAX: usize = 8;

/// The owner that keeps the memory alive.
enum Owner {
    /// Released by its own `Drop`, which takes the GIL.
    Buffer(#[expect(dead_code, reason = "held")] PyUntypedBuffer),
    Managed(NonNull<DlManaged>),
    Versioned(NonNull<DlManagedVersioned>),
    /// The caller, by the contract of plain addresses.
    Caller,
}

// SAFETY: a DLPack tensor may be used and deleted from any thread (its specification asks that of the deleter).
unsafe impl Send for Owner {}
// SAFETY: nothing but `Drop` touches it.
unsafe impl Sync for Owner {}

impl Drop for Owner {
    fn drop(&mut self) {
        match self {
            Self::Buffer(_) | Self::Caller => {}
            Self::Managed(managed) => {
                // SAFETY: it was taken out of its capsule, so it is ours until it is deleted, here.
                let deleter = unsafe { managed.as_ref() }.deleter;
                if let Some(delete) = deleter {
                    // SAFETY: as above; a deleter is called once.
                    unsafe { delete(managed.as_ptr()) }
                }
            }
            Self::Versioned(managed) => {
                // SAFETY: it was taken out of its capsule, so it is ours until it is deleted, here.
                let deleter = unsafe { managed.as_ref() }.deleter;
                if let Some(delete) = deleter {
                    // SAFETY: as above; a deleter is called once.
                    unsafe { delete(managed.as_ptr()) }
                }
            }
        }
    }
}

/// A tensor in CPU memory. Strides are in bytes.
pub(crate) struct Memory {
    start: NonNull<u8>,
    /// As the exporter names it: `float32`, `bfloat16`, `uint16`, ….
    pub(crate) dtype: String,
    pub(crate) item_bytes: usize,
    pub(crate) shape: Vec<usize>,
    pub(crate) strides: Vec<isize>,
    pub(crate) is_read_only: bool,
    _owner: Owner,
}

// SAFETY: the pointer is to memory that `_owner` keeps; it is read and written by the rules of `Plane`.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Borrows a tensor: `(address, nbytes, shape, dtype)`, an object with the buffer protocol, or one with
    /// `__dlpack__`.
    ///
    /// # Errors
    /// If it is none of these, or in another device's memory.
    pub(crate) fn borrow(tensor: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(parts) = tensor.cast::<PyTuple>() {
            return Self::of_address(parts);
        }
        match PyUntypedBuffer::get(tensor) {
            Ok(buffer) => Self::of_buffer(buffer),
            Err(_) if tensor.hasattr("__dlpack__")? => Self::of_dlpack(tensor),
            Err(_) => {
                let kind = tensor.get_type().name()?;
                Err(PyTypeError::new_err(format!(
                    "{kind} is not a tensor: give an object with __dlpack__ or the buffer protocol, or (address, nbytes, shape, dtype)"
                )))
            }
        }
    }

    fn of_address(parts: &Bound<'_, PyTuple>) -> PyResult<Self> {
        let (address, nbytes, shape, dtype): (usize, usize, Vec<usize>, String) =
            parts.extract().map_err(|_| {
                PyTypeError::new_err("a tensor as a tuple must be (address, nbytes, shape, dtype), e.g. (t.data_ptr(), t.nbytes, t.shape, \"bfloat16\")")
            })?;
        let item_bytes = match dtype.trim_start_matches("torch.") {
            "float32" => 4,
            "float16" | "bfloat16" | "uint16" => 2,
            "float8_e4m3fn" | "uint8" => 1,
            _ => return Err(PyTypeError::new_err(format!("{dtype} is not a dtype of a cache"))),
        };
        let needed = shape.iter().try_fold(item_bytes, |bytes: usize, count| bytes.checked_mul(*count));
        let start = NonNull::new(address as *mut u8);
        let (Some(start), true) = (start, needed == Some(nbytes)) else {
            return Err(PyValueError::new_err(format!(
                "a tensor of shape {shape:?} of {dtype} at {address:#x} does not have {nbytes} bytes"
            )));
        };
        let strides = dense_strides(&shape, item_bytes);
        let dtype = dtype.trim_start_matches("torch.").to_owned();
        Ok(Self { start, dtype, item_bytes, shape, strides, is_read_only: false, _owner: Owner::Caller })
    }

    fn of_buffer(buffer: PyUntypedBuffer) -> PyResult<Self> {
        if buffer.suboffsets().is_some() {
            return Err(PyBufferError::new_err("a buffer of pointers is not a tensor"));
        }
        let format = buffer.format().to_string_lossy().into_owned();
        let dtype = match format.trim_start_matches(['<', '=', '@', '|']) {
            "f" => "float32".to_owned(),
            "e" => "float16".to_owned(),
            "H" => "uint16".to_owned(),
            "B" | "c" => "uint8".to_owned(),
            other => format!("of buffer format {other:?}"),
        };
        Ok(Self {
            // An empty buffer may have no address.
            start: NonNull::new(buffer.buf_ptr().cast()).unwrap_or(NonNull::dangling()),
            dtype,
            item_bytes: buffer.item_size(),
            shape: buffer.shape().to_vec(),
            strides: buffer.strides().to_vec(),
            is_read_only: buffer.readonly(),
            _owner: Owner::Buffer(buffer),
        })
    }

    fn of_dlpack(tensor: &Bound<'_, PyAny>) -> PyResult<Self> {
        const VERSIONED: &CStr = c"dltensor_versioned";
        const UNVERSIONED: &CStr = c"dltensor";
        // Check before the export, which for another device would wait for its queue.
        let (device, _): (i32, i32) = tensor.call_method0("__dlpack_device__")?.extract()?;
        if !HOST_DEVICES.contains(&device) {
            return Err(PyBufferError::new_err(
                "the tensor is not in CPU memory: give a CPU tensor, and copy between devices yourself",
            ));
        }
        let py = tensor.py();
        let versions = PyDict::new(py);
        versions.set_item("max_version", (DLPACK_MAJOR, 0))?;
        let exported = match tensor.call_method("__dlpack__", (), Some(&versions)) {
            // Exporters from before version 1 do not accept the argument.
            Err(error) if error.is_instance_of::<PyTypeError>(py) => tensor.call_method0("__dlpack__")?,
            other => other?,
        };
        let capsule = exported.cast::<PyCapsule>()?;
        if let Ok(pointer) = capsule.pointer_checked(Some(VERSIONED)) {
            let managed: NonNull<DlManagedVersioned> = pointer.cast();
            // SAFETY: a capsule of this name holds this structure, and it has not been taken yet.
            let parts = unsafe { managed.as_ref() };
            if parts.version[0] != DLPACK_MAJOR {
                return Err(PyBufferError::new_err(format!(
                    "DLPack version {} is not supported",
                    parts.version[0]
                )));
            }
            take(capsule, c"used_dltensor_versioned")?;
            let is_read_only = parts.flags & DLPACK_READ_ONLY != 0;
            return Self::of_dl_tensor(&parts.tensor, is_read_only, Owner::Versioned(managed));
        }
        let managed: NonNull<DlManaged> = capsule.pointer_checked(Some(UNVERSIONED))?.cast();
        take(capsule, c"used_dltensor")?;
        // SAFETY: a capsule of this name holds this structure, and it had not been taken.
        let parts = unsafe { managed.as_ref() };
        Self::of_dl_tensor(&parts.tensor, false, Owner::Managed(managed))
    }

    fn of_dl_tensor(tensor: &DlTensor, is_read_only: bool, owner: Owner) -> PyResult<Self> {
        let count = usize::try_from(tensor.dimensions).unwrap_or(usize::MAX);
        if !(1..=DIMENSIONS_MAX).contains(&count) || tensor.lanes != 1 || !tensor.bits.is_multiple_of(8) {
            return Err(PyValueError::new_err(
                "a tensor with these elements or dimensions cannot be a cache",
            ));
        }
        // SAFETY: a tensor has as many lengths as dimensions, and this one has some.
        let lengths = unsafe { std::slice::from_raw_parts(tensor.shape, count) };
        let shape: Vec<usize> = lengths.iter().map(|length| *length as usize).collect();
        let item_bytes = usize::from(tensor.bits / 8);
        let strides = if tensor.strides.is_null() {
            dense_strides(&shape, item_bytes)
        } else {
            // SAFETY: where there are strides, there are as many as dimensions.
            let strides = unsafe { std::slice::from_raw_parts(tensor.strides, count) };
            strides.iter().map(|stride| *stride as isize * item_bytes as isize).collect()
        };
        let dtype = match (tensor.code, tensor.bits) {
            (2, 32) => "float32".to_owned(),
            (2, 16) => "float16".to_owned(),
            (4, 16) => "bfloat16".to_owned(),
            (1, 16) => "uint16".to_owned(),
            (1, 8) => "uint8".to_owned(),
            (10, 8) => "float8_e4m3fn".to_owned(),
            (code, bits) => format!("of DLPack type {code} with {bits} bits"),
        };
        let start = tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize);
        let start = NonNull::new(start).unwrap_or(NonNull::dangling());
        Ok(Self { start, dtype, item_bytes, shape, strides, is_read_only, _owner: owner })
    }

    /// Address of the first element.
    pub(crate) fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }
}

/// Marks a capsule's tensor as taken.
fn take(capsule: &Bound<'_, PyCapsule>, name: &'static CStr) -> PyResult<()> {
    // SAFETY: a capsule, the GIL held, and a name with static lifetime.
    match unsafe { pyo3::ffi::PyCapsule_SetName(capsule.as_ptr(), name.as_ptr()) } {
        0 => Ok(()),
        _ => Err(PyErr::fetch(capsule.py())),
    }
}

fn dense_strides(shape: &[usize], item_bytes: usize) -> Vec<isize> {
    let mut stride = item_bytes as isize;
    let mut strides: Vec<isize> = (shape.iter().rev())
        .map(|length| {
            let this = stride;
            stride = stride.saturating_mul(*length as isize);
            this
        })
        .collect();
    strides.reverse();
    strides
}

/// Bytes of one or more tensors or buffers, concatenated.
pub(crate) struct Page {
    /// Each part with its size in bytes.
    parts: Vec<(Memory, usize)>,
}

impl Page {
    /// Borrows parts, each as accepted by [`Memory::borrow`].
    ///
    /// # Errors
    /// As there; if the bytes of a part are not contiguous; if they will be written but are read-only.
    pub(crate) fn borrow(parts: &[Bound<'_, PyAny>], is_written: bool) -> PyResult<Self> {
        let part = |tensor| {
            let memory = Memory::borrow(tensor)?;
            let elements: usize = memory.shape.iter().product();
            // The stride of a dimension of one element is meaningless.
            let dense = dense_strides(&memory.shape, memory.item_bytes);
            let mut dimensions = memory.shape.iter().zip(memory.strides.iter().zip(&dense));
            if elements > 0 && !dimensions.all(|(length, (stride, dense))| *length == 1 || stride == dense) {
                return Err(PyBufferError::new_err("the bytes are not contiguous: give a contiguous tensor"));
            }
            if is_written && memory.is_read_only {
                return Err(PyBufferError::new_err("the memory is read-only: give a bytearray or a tensor"));
            }
            let bytes = elements * memory.item_bytes;
            Ok((memory, bytes))
        };
        Ok(Self { parts: parts.iter().map(part).collect::<PyResult<_>>()? })
    }

    /// Size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.parts.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Appends a copy of it.
    pub(crate) fn copy_to(&self, out: &mut Vec<u8>) {
        for (memory, bytes) in &self.parts {
            // SAFETY: the kept memory has this many bytes, and its owner does not change it until the call
            // that reads it returns.
            out.extend_from_slice(unsafe { std::slice::from_raw_parts(memory.start.as_ptr(), *bytes) });
        }
    }

    /// Writes bytes, starting at `at`.
    pub(crate) fn write(&mut self, mut at: usize, mut bytes: &[u8]) {
        for (memory, length) in &self.parts {
            let (here, behind) = bytes.split_at(bytes.len().min(length.saturating_sub(at)));
            if !here.is_empty() {
                assert!(!memory.is_read_only, "borrowed to be written");
                // SAFETY: `at` is within the part, because some of the part is left.
                let start = unsafe { memory.start.add(at) };
                // SAFETY: the remaining bytes are within the part as well. They do not overlap the network's,
                // and no other code writes or reads them until the call that writes them returns.
                unsafe { std::ptr::copy_nonoverlapping(here.as_ptr(), start.as_ptr(), here.len()) }
            }
            (at, bytes) = (at.saturating_sub(*length), behind);
        }
        assert!(bytes.is_empty(), "within the page");
    }
}

/// The rows of one layer's K or V, `[heads, tokens, elements]`, in a tensor. Rows do not overlap.
pub(crate) struct Plane {
    memory: Arc<Memory>,
    offset: usize,
    heads: usize,
    tokens: usize,
    row_bytes: usize,
    head_stride: usize,
    token_stride: usize,
    /// Held by the writer: decoding threads may write the same rows one after another.
    writing: Mutex<()>,
}

impl Plane {
    /// `None` if rows overlap, elements are not adjacent, or rows are in descending order.
    pub(crate) fn new(memory: &Arc<Memory>, offset: usize, first_dimension: usize) -> Option<Self> {
        let shape = memory.shape.get(first_dimension..)?;
        let strides = memory.strides.get(first_dimension..)?;
        let (&[heads, tokens, elements], &[head, token, element]) = (shape, strides) else { return None };
        let row_bytes = elements.checked_mul(memory.item_bytes)?;
        // The stride of a dimension of one element is meaningless, and so are all strides if there are no
        // rows.
        let stride = |stride: isize, count: usize| {
            if count <= 1 || tokens == 0 {
                Some(row_bytes)
            } else {
                usize::try_from(stride).ok().filter(|s| *s >= row_bytes)
            }
        };
        let (head_stride, token_stride) = (stride(head, heads)?, stride(token, tokens)?);
        let is_dense = elements <= 1 || element == memory.item_bytes as isize;
        is_dense.then(|| Self {
            memory: Arc::clone(memory),
            offset,
            heads,
            tokens,
            row_bytes,
            head_stride,
            token_stride,
            writing: Mutex::new(()),
        })
    }

    /// Number of tokens with rows.
    pub(crate) const fn tokens(&self) -> usize {
        self.tokens
    }

    /// Values per row.
    pub(crate) fn elements(&self) -> usize {
        self.row_bytes / self.memory.item_bytes
    }

    /// Address of its beginning.
    pub(crate) fn address(&self) -> usize {
        self.memory.address() + self.offset
    }

    /// Address and length of each contiguous run of a head's rows.
    fn runs(&self, head: usize, tokens: Range<usize>) -> impl Iterator<Item = (NonNull<u8>, usize)> + '_ {
        assert!(
            head < self.heads && tokens.start <= tokens.end && tokens.end <= self.tokens,
            "head {head}, tokens {tokens:?} of {} heads and {} tokens",
            self.heads,
            self.tokens
        );
        let (count, rows) =
            if self.token_stride == self.row_bytes { (1, tokens.len()) } else { (tokens.len(), 1) };
        let count = if tokens.is_empty() { 0 } else { count };
        (0..count).map(move |run| {
            let offset = self.offset + head * self.head_stride + (tokens.start + run) * self.token_stride;
            // SAFETY: head and tokens are the tensor's, so this lies in its memory.
            (unsafe { self.memory.start.add(offset) }, rows * self.row_bytes)
        })
    }

    /// Passes the bytes of some rows of a head, in runs.
    pub(crate) fn read(&self, head: usize, tokens: Range<usize>, mut take: impl FnMut(&[u8])) {
        for (start, bytes) in self.runs(head, tokens) {
            // SAFETY: the run is within the kept memory, and its owner does not change it until the call that
            // reads it returns.
            take(unsafe { std::slice::from_raw_parts(start.as_ptr(), bytes) });
        }
    }

    /// Passes the bytes of some rows of a head for writing, in runs. The memory is not read-only.
    pub(crate) fn write(&self, head: usize, tokens: Range<usize>, mut put: impl FnMut(&mut [u8])) {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        for (start, bytes) in self.runs(head, tokens) {
            // SAFETY: the run is within the kept memory and holds no byte of other rows; writers of these
            // rows wait for the lock.
            put(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), bytes) });
        }
    }
}
