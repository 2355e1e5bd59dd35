//! What can go wrong on a device, in terms of what to do about it.

use kvasir_codec::DecodeError;

/// The device or its software says no.
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
        /// What was asked.
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

/// A decode that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The object, as the CPU decoder would say.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A kernel did not report on a stream.
    #[error("a kernel did not report on section {section}, span {span}: this is a bug, please report it")]
    Silent {
        /// Section.
        section: usize,
        /// Span.
        span: usize,
    },
    /// The request does not fit the engine's pages.
    #[error("the pages do not fit the request: {what}")]
    Pages {
        /// What is wrong and what would be right.
        what: &'static str,
    },
    /// More work than one launch addresses.
    #[error("one batch has {found} {what}, the most is {max}: decode fewer chunks at once")]
    Batch {
        /// What there is too much of.
        what: &'static str,
        /// How much.
        found: u64,
        /// The most.
        max: u64,
    },
}
