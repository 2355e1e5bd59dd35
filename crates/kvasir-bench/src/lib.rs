#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod chunk;
pub mod codecs;
mod error;
pub mod quality;
pub mod speed;

pub use chunk::{Chunk, Coded, KvCodec};
pub use error::BenchError;
