#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod cache;
mod chunks;
mod contexts;
mod error;
pub mod events;
pub mod eviction;
mod explain;
pub mod gc;
pub mod hot;
mod hot_reads;
pub mod index;
pub mod journal;
pub mod layout;
pub mod limits;
mod lookup;
mod models;
mod namespaces;
pub mod observe;
pub mod presign;
mod read;
mod rebuild;
mod registry;
mod removal;
mod scrub;
pub mod seal;
mod secret;
mod spool;
mod storage;
pub mod store;
pub mod trace;
pub mod transitions;
mod uploads;
mod usage;

pub use contexts::{CollectedContexts, Pins};
pub use error::StorageError;
pub use kvasir_container::FORMAT_VERSION;
pub use lookup::Query;
pub use namespaces::salt_record;
pub use read::{ByteRange, ObjectRead};
pub use rebuild::RebuildProgress;
pub use removal::Removal;
pub use scrub::ScrubReport;
pub use secret::Secret;
pub use storage::{DirectSettings, Settings, Storage};
