#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod body;
mod body_limit;
mod breaker;
mod budget;
pub mod cache;
mod concurrency_limit;
mod config;
mod error;
mod error_class;
mod file_body;
mod file_folders;
mod file_list;
mod file_staged;
mod file_store;
mod file_thread;
pub mod layout;
pub mod limits;
pub mod observe;
mod open_store;
mod presign;
mod probe;
mod request_executor;
mod resilient;
mod s3;
pub mod seal;
mod secret;
pub mod trace;
mod unfinished;
mod upload;

pub use body_limit::of_tenant;
pub use config::{OpenError, StoreConfig, StoreKind};
pub use error::StoreError;
pub use error_class::CallError;
pub use file_store::{Synced, synced};
pub use open_store::OpenStore;
pub use presign::Presigner;
pub use probe::{FormerLayout, StoreAbilities};
pub use resilient::{ResilientStore, once};
pub use secret::Secret;
pub use unfinished::{Unfinished, UnfinishedUploads};
