//! Errors that prevent a service from starting.

use std::net::SocketAddr;

use kvasir_storage::index::IndexError;
use kvasir_store::{FormerLayout, OpenError};

/// A service that cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The address is in use or not local.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
    /// The configuration does not allow the listener's address, or names a domain of buckets that cannot be one.
    #[error("{0}")]
    Address(String),
    /// A file of credentials, certificates or keys cannot be used.
    #[error("{0}")]
    Files(String),
    /// The store's settings are invalid.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The store has a bucket of an earlier layout.
    #[error(transparent)]
    Layout(#[from] FormerLayout),
    /// The hot index cannot be opened: all of its slots are in use.
    #[error("the hot index under {directory}: {source}; check cache.directory")]
    Index {
        /// The directory.
        directory: String,
        /// The cause.
        source: IndexError,
    },
}
