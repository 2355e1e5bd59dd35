#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod blocking;
mod error;
pub mod fetcher;
mod kv;
pub mod limits;
mod pages;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod transport;

pub use error::{ApiError, ClientError};
pub use kv::{
    AdmissionPolicy, ChunkOutcome, ChunkReport, ChunkStoreReport, DropPolicy, KvClient, LayerReady, Load,
    LoadError, LoadEvent, LoadFailure, LoadOptions, LoadPlan, LoadReport, QueueConfig, QueueStats,
    ReadReport, RecomputeCause, StoreOptions, StoreOutcome, StoreProgress, StoreQueue, StoreRefusal,
    StoreReport, StoreTicket, Urgency,
};
pub use pages::{BlockTable, HostPages, PageRef, PageRows, PageStore, Rows, Shard};
pub use transport::{
    BearerToken, Client, ClientConfig, DirectStore, EventMessage, EventStream, ObjectRange, ObjectRead,
    RequestClass,
};
