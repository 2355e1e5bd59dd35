//! Stream coders for particular CPUs: the only place with `unsafe`.
//!
//! Layout as in memchr: a [`Kernel`](kernel::Kernel) names the register file, one driver is generic over it, and a constructor
//! proves the CPU feature before a kernel can run. Every decoder is compared with the scalar one on every shape.

#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod aarch64;
mod dispatch;
#[cfg(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))]
mod kernel;
#[cfg(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))]
mod lockstep;
pub(crate) mod matmul;
mod row_kernel;
#[cfg(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))]
mod steps;
#[cfg(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))]
mod stream;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little"))))]
pub(crate) use crate::rans::stream::cell::Cell as StreamCell;
pub(crate) use dispatch::{ENCODED_AT_ONCE, StreamDecoder, StreamEncoder};
#[cfg(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))]
pub(crate) use kernel::KernelCell as StreamCell;
pub(crate) use row_kernel::RowKernel;
