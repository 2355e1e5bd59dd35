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
    AdmissionPolicy, BlockTable, ChunkOutcome, ChunkReport, ChunkStoreReport, DropPolicy, KvClient,
    LayerReady, Load, LoadError, LoadEvent, LoadFailure, LoadOptions, LoadPlan, LoadReport, PageRef,
    PageStore, QueueConfig, QueueStats, ReadReport, RecomputeCause, Shard, StoreOptions, StoreOutcome,
    StoreProgress, StoreQueue, StoreRefusal, StoreReport, StoreTicket, Urgency,
};
pub use transport::{
    BearerToken, Client, ClientConfig, DirectStore, EventMessage, EventStream, ObjectRange, ObjectRead,
    RequestClass,
};
