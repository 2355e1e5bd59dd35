//! Stream coders for particular CPUs: the only place with `unsafe`.
//!
//! Layout as in memchr: a [`Kernel`](kernel::Kernel) names the register file, one driver is generic over it, and a constructor
//! proves the CPU feature before a kernel can run. Every decoder is compared with the scalar one on every shape.

mod dispatch;
#[cfg(target_arch = "x86_64")]
mod kernel;
mod rows;
#[cfg(target_arch = "x86_64")]
mod x86_64;

pub(crate) use dispatch::{StreamDecoder, StreamEncoder};
pub(crate) use rows::RowKernel;
