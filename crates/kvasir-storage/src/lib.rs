#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod blocking;
mod cache;
mod catalog;
mod changes;
mod contexts;
mod error;
mod explain;
pub mod hot;
pub mod index;
mod ingest;
pub mod layout;
mod lifecycle;
pub mod limits;
mod lookup;
pub mod memory;
pub mod observe;
mod presign;
mod read;
mod removal;
pub mod seal;
mod secret;
mod storage;
pub mod store;
pub mod trace;
pub mod transitions;

pub use catalog::{Catalog, salt_record};
pub use changes::{
    Changes, events,
    ledger::{Reservation, Stored, StoredQuota},
};
pub use contexts::Contexts;
pub use error::{
    CatalogError, ChunkError, ChunkMismatch, ContextError, DirectUnavailable, PutError, QuotaError,
    StoreError, UploadError, UrlError,
};
pub use ingest::{DirectUploads, Ingest, PutChunk};
pub use kvasir_container::FORMAT_VERSION;
pub use lifecycle::{Lifecycle, RebuildProgress, ScrubReport, SealReport, gc};
pub use lookup::{Lookup, Query};
pub use read::{DirectReads, Reads, Selection};
pub use removal::Removal;
pub use secret::Secret;
pub use storage::{DirectSettings, Settings, Storage};
pub use store::{ByteRange, ObjectRead};
