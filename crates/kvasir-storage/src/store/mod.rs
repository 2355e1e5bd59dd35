//! Opening an object store from a typed configuration, and what it was found able to do.
//!
//! Decorators, innermost first: backend (its own retries off) ← [`ObservedStore`](crate::observe::ObservedStore) ← [`ResilientStore`] ← `SealedStore`,
//! where tenants have keys.

mod body;
mod breaker;
mod bucket;
mod budget;
mod concurrency_limit;
mod config;
mod error_class;
mod object_read;
mod open_store;
mod probe;
mod request_executor;
mod resilient;
mod s3;
mod unfinished;
mod upload;

pub(crate) use self::{bucket::Bucket, resilient::once};
pub use self::{
    config::{OpenError, StoreConfig, StoreKind},
    error_class::CallError,
    object_read::{ByteRange, ObjectRead},
    open_store::OpenStore,
    probe::{FormerLayout, StoreAbilities},
    resilient::ResilientStore,
    unfinished::UnfinishedUploads,
};
