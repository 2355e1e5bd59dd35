//! The codec on a GPU: chunks into the engine's paged blocks and back, kernels compiled at first use.
#![doc = include_str!("../README.md")]

mod batch;
mod buffers;
mod compile;
#[cfg(feature = "client")]
mod decode_slots;
mod decoder;
mod dense;
mod device;
mod driver;
mod driver_handles;
mod encode;
mod error;
mod external;
mod factors;
mod host_rows;
mod limits;
mod lower;
mod memory_pool;
#[cfg(feature = "client")]
mod page_claims;
#[cfg(feature = "client")]
mod page_rows;
#[cfg(feature = "client")]
mod page_store;
mod pages;
mod paging;
mod pending;
mod piece;
mod queue;
mod resident;
mod staging;
mod tiles;

pub use compile::precompile;
pub use decoder::{ChunkRequest, KernelDecoder};
pub use device::{Device, DeviceEvent, DeviceMemory, DeviceReadback, Work};
pub use driver::CudaDevice;
pub use driver_handles::{CudaEvent, CudaMemory, CudaReadback};
pub use encode::{EncodeRequest, ExactSpanRows, KernelEncoder, Partial};
pub use error::{CudaError, DeviceError};
pub use external::ExternalKernel;
pub use kvasir_kernels::Dtype;
#[cfg(feature = "client")]
pub use page_store::{CudaPages, DevicePages};
pub use pages::{PageShape, PagedKv, PlaneLayout};
pub use pending::PendingDecode;
pub use piece::decode_piece;

/// Decodes chunks on an NVIDIA GPU.
pub type CudaDecoder = KernelDecoder<CudaDevice>;
/// Encodes chunks on an NVIDIA GPU.
pub type CudaEncoder = KernelEncoder<CudaDevice>;

#[cfg(test)]
mod tests;
