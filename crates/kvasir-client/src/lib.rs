#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod error;
pub mod fetcher;
mod kv;
pub mod limits;
mod transport;

pub use error::{ApiError, ClientError};
pub use kv::{
    ChunkOutcome, ChunkReport, KvClient, LoadError, LoadFailure, LoadOptions, LoadPlan, LoadReport,
    StoreProgress, StoreReport, StoredPart,
};
pub use transport::{Client, ClientConfig, ObjectRange, ObjectRead, Token};
