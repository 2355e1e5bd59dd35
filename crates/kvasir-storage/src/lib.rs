#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![allow(unexpected_cfgs, reason = "`fuzzing` is set by the builds of fuzz targets")]

mod blocking;
mod bucket;
mod catalog;
mod chain_cache;
mod changes;
mod checked_json;
mod contexts;
mod error;
mod explain;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod hot;
pub mod index;
mod ingest;
mod lifecycle;
pub mod limits;
mod listing;
mod lookup;
pub mod memory;
mod object_read;
mod private_files;
mod read;
mod removal;
mod storage;
pub mod transitions;

pub use catalog::{Catalog, salt_record};
pub use changes::{
    Changes, JournalReading, events,
    ledger::{Reservation, Stored, StoredQuota},
};
pub use contexts::{ContextFilter, Contexts};
pub use error::{
    CatalogError, ChunkError, ChunkMismatch, ContextError, DirectUnavailable, ObjectError, PutError,
    QuotaError, UploadError, UrlError,
};
pub use ingest::{
    AnnouncedBody, DirectUploads, Ingest, PartContent, PutChunk, PutObject, PutPart, StoredPart,
};
pub use kvasir_container::FORMAT_VERSION;
/// Observers of requests to the store.
pub use kvasir_store::observe;
pub use lifecycle::{Lifecycle, ProgressAnswer, RebuildProgress, ScrubReport, SealReport, WorkShare, gc};
pub use lookup::{Lookup, Query};
pub use object_read::{ByteRange, ObjectRead};
pub use private_files::private_directory;
pub use read::{
    DirectReads, KeyListing, KeyPage, ListedObject, ObjectStatus, OpaqueObject, Reads, Selection,
};
pub use removal::Removal;
pub use storage::{DirectSettings, Settings, Storage};
