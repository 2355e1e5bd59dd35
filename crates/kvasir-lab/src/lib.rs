#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod budget;
mod chunk;
mod commands;
pub mod codecs;
mod error;
pub mod eviction;
pub mod insights;
pub mod quality;
pub mod speed;
pub mod streaming;

pub use commands::main;
pub use chunk::{Chunk, Coded, KvCodec};
pub use error::BenchError;
