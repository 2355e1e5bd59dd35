#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod budget;
mod chunk;
pub mod codecs;
mod commands;
mod error;
pub mod eviction;
pub mod insights;
pub mod quality;
pub mod speed;
pub mod streaming;

pub use chunk::{Chunk, Coded, KvCodec};
pub use commands::main;
pub use error::BenchError;
