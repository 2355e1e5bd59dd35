#![doc = include_str!("../README.md")]
//!
//!
//! - [`Client`]: the REST API, one method per route, typed errors, retries under a budget.
//! - [`KvClient`]: the four interfaces of CacheGen over it: an engine computes KV, [`KvClient::store_kv`] encodes
//!   and uploads it, [`KvClient::lookup`] finds the longest stored prefix of some tokens, and
//!   [`KvClient::get_kv`] streams it back within a time budget.
//! - [`fetcher`]: the sans-IO core that decides what to read, shared with the simulator.
//!
//! No global state, nothing read from the environment; every future may be dropped at any time.

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
pub use transport::{Client, ClientConfig, ObjectRange, ObjectRead};
