//! Errors of a device, grouped by what to do about them.

use kvasir_codec::{DecodeError, EncodeError};

/// The device or its software reported an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// No libcuda.
    #[error("no NVIDIA driver: libcuda is not installed on this machine; decode on the CPU instead")]
    NoDriver,
    /// No NVRTC.
    #[error(
        "no NVRTC: libnvrtc (CUDA 13) is not installed or not on the library path, and the kernels are not precompiled"
    )]
    NoCompiler,
    /// The driver refused a call.
    #[error("the driver refused to {call}: {code}")]
    Driver {
        /// The operation.
        call: &'static str,
        /// The driver's own words.
        code: String,
    },
    /// The kernels do not compile for this device.
    #[error("{source_file} does not compile for {architecture}: {log}")]
    Compile {
        /// The translation unit.
        source_file: &'static str,
        /// e.g. `sm_90`.
        architecture: String,
        /// The compiler's log.
        log: String,
    },
    /// The cache directory cannot be used.
    #[error("the kernel cache at {path} cannot be {verb}: {cause}")]
    Cache {
        /// File or folder.
        path: String,
        /// `read` or `written`.
        verb: &'static str,
        /// The system's words.
        cause: String,
    },
}

/// A decode or an encode that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The object is faulty; the error is the CPU decoder's.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The chunk is faulty; the error is the CPU encoder's.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The profile of an encoder has an exact level.
    #[error(
        "the exact level of a lossless profile is encoded by `CpuEncoder`: use it, or a profile without one"
    )]
    ExactLevel,
    /// Sums of ranks that do not belong together.
    #[error("the partial sums do not belong together: {what}")]
    Partial {
        /// The reason.
        what: &'static str,
    },
    /// Some spans must be stored exactly, and their rows are missing.
    #[error(
        "{spans} spans are stored exactly: collect their rows from every rank with `rows`, then finish again"
    )]
    RowsMissing {
        /// How many.
        spans: usize,
    },
    /// A kernel did not report on a stream.
    #[error("a kernel did not report on section {section}, span {span}: this is a bug, please report it")]
    NoStatus {
        /// Section.
        section: usize,
        /// Span.
        span: usize,
    },
    /// A kernel did not report the status of a piece.
    #[error(
        "a kernel did not report on a piece of scope {scope}, span {span}: this is a bug, please report it"
    )]
    NoEncodeStatus {
        /// Scope.
        scope: usize,
        /// Span.
        span: usize,
    },
    /// The request does not fit the engine's pages.
    #[error("the pages do not fit the request: {what}")]
    Pages {
        /// What is wrong and what would be valid.
        what: &'static str,
    },
    /// A rotated head that the tiles of this device do not hold. Found before anything is launched.
    #[error(
        "rotated heads of {elements} elements take {needed} bytes of shared memory, and a block of this GPU has at most \
         {max}: the CPU codes them"
    )]
    SharedMemory {
        /// Elements of the head.
        elements: usize,
        /// Bytes that a block would take.
        needed: usize,
        /// The most that a block may take.
        max: usize,
    },
    /// More work than one launch addresses.
    #[error("one batch has {found} {what}, but at most {max} are possible; decode fewer chunks per batch")]
    Batch {
        /// The exceeded quantity.
        what: &'static str,
        /// How much.
        found: u64,
        /// The most.
        max: u64,
    },
}
