#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod blocking;
mod error;
pub mod fetcher;
mod kv;
pub mod limits;
mod transport;

pub use error::{ApiError, ClientError};
pub use kv::{
    Admission, BlockTable, ChunkOutcome, ChunkReport, DropPolicy, KvClient, LayerReady, Load, LoadError,
    LoadEvent, LoadFailure, LoadOptions, LoadPlan, LoadReport, PageRef, PageStore, QueueConfig, QueueStats,
    ReadReport, RecomputeCause, Refusal, Shard, StoreOptions, StoreOutcome, StoreProgress, StoreQueue,
    StoreReport, StoreTicket, StoredPart, Urgency,
};
pub use transport::{
    Client, ClientConfig, DirectStore, EventStream, ObjectRange, ObjectRead, RequestClass, Token, Told,
};
