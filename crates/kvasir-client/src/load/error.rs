//! Why reads and decodes of a load fail.

use std::time::Duration;

use crate::Error;

/// A request or decode that failed.
#[derive(Debug)]
pub struct LoadFailure {
    /// Index of the chunk.
    pub chunk: usize,
    /// When, since the load began.
    pub at: Duration,
    /// Why.
    pub error: LoadError,
}

/// Why a chunk's read or decode failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The read failed.
    #[error(transparent)]
    Read(#[from] Error),
    /// A piece failed its checksum.
    #[error("bytes {start}..{end} are damaged: {what}")]
    Damaged {
        /// First byte of the piece.
        start: u64,
        /// One past its last byte.
        end: u64,
        /// What failed.
        what: String,
    },
    /// The bytes are not the chunk's: wrong, corrupt, or of other tokens.
    #[error("the object is not usable: {0}")]
    Object(String),
}
