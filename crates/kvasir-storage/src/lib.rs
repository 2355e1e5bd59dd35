#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod cache;
mod chunks;
mod error;
pub mod eviction;
pub mod gc;
pub mod hot;
pub mod index;
pub mod journal;
pub mod layout;
pub mod limits;
mod lookup;
mod models;
mod namespaces;
pub mod observe;
mod read;
mod rebuild;
mod scrub;
mod secret;
mod spool;
mod storage;
pub mod store;
pub mod trace;
pub mod transitions;

pub use error::StorageError;
pub use kvasir_container::FORMAT_VERSION;
pub use lookup::Query;
pub use read::{ByteRange, ObjectRead};
pub use rebuild::RebuildProgress;
pub use scrub::ScrubReport;
pub use secret::Secret;
pub use storage::{Settings, Storage};
