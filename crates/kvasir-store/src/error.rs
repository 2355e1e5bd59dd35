//! Errors of requests to the store.

use kvasir_api::ErrorCode;

use crate::seal::SealError;

/// The store failed, or this replica's handling of its responses did.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The object store failed or cannot be reached.
    #[error("{operation}: {source}")]
    Request {
        /// The operation.
        operation: &'static str,
        /// The store's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An object is sealed under a key that is not available.
    #[error("{reason}")]
    KeyLost {
        /// Which key, and whose.
        reason: String,
    },
    /// One of our records in the store cannot be read.
    #[error("{what} in the store cannot be read: {reason}")]
    Damaged {
        /// What.
        what: &'static str,
        /// The cause.
        reason: String,
    },
    /// An internal task panicked: a bug.
    #[error("an internal task failed: {0}")]
    Task(#[from] tokio::task::JoinError),
}

impl StoreError {
    /// Names the operation in which the store failed; for `map_err`.
    pub fn request(operation: &'static str) -> impl Fn(object_store::Error) -> Self {
        move |source| match SealError::of(&source) {
            Some(error) if error.is_lost_key() => Self::KeyLost { reason: error.to_string() },
            Some(error @ (SealError::Plain { .. } | SealError::AlteredRecord { .. })) => {
                Self::Damaged { what: "a record of a sealed tenant", reason: error.to_string() }
            }
            _ => Self::Request { operation, source: source.into() },
        }
    }

    /// A failure of this replica that counts like one of the store: it may be retried.
    pub fn own(operation: &'static str, reason: &str) -> Self {
        Self::Request { operation, source: reason.into() }
    }

    /// The code on the wire.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Request { .. } => ErrorCode::StoreUnavailable,
            Self::KeyLost { .. } => ErrorCode::KeyLost,
            Self::Damaged { .. } | Self::Task(_) => ErrorCode::Internal,
        }
    }
}
