//! The codec on a GPU: chunks into the engine's paged blocks, kernels compiled at first use.
#![doc = include_str!("../README.md")]

mod batch;
mod compile;
mod decoder;
mod device;
mod driver;
mod error;
mod lower;
mod pages;
mod resident;

pub use decoder::{ChunkRequest, KernelDecoder};
pub use device::{Device, DeviceMemory, Work};
pub use driver::{CudaDevice, CudaMemory};
pub use error::{CudaError, DeviceError};
pub use kvasir_kernels::Dtype;
pub use pages::{PageShape, PagedKv, PlaneLayout};

/// Decodes chunks on an NVIDIA GPU.
pub type CudaDecoder = KernelDecoder<CudaDevice>;

#[cfg(test)]
mod tests;
