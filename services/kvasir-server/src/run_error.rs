//! Why a service cannot start.

use std::net::SocketAddr;

use kvasir_storage::index::IndexError;
use kvasir_store::{FormerLayout, OpenError};

use crate::{auth::AuthError, encryption_keys::EncryptionKeysError, tls::TlsError};

/// A service that cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The address is taken or not ours.
    #[error("listening at {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The listener is at an address that the configuration does not allow.
    #[error("the address {0}")]
    Address(String),
    /// Credentials that cannot be read.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// Certificates that cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Keys that cannot be read.
    #[error(transparent)]
    Keys(#[from] EncryptionKeysError),
    /// The store's settings are impossible.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The store has a bucket of an earlier layout.
    #[error(transparent)]
    Layout(#[from] FormerLayout),
    /// All slots of the hot index are taken.
    #[error("the hot index under {directory}: {source}; check cache.directory")]
    Index {
        /// The directory.
        directory: String,
        /// Why.
        source: IndexError,
    },
}
