//! Errors of reads and decodes of a load.

use std::time::Duration;

use crate::Error;

/// A failed request or decode.
#[derive(Debug)]
pub struct LoadFailure {
    /// Index of the chunk.
    pub chunk: usize,
    /// Time since the load began.
    pub at: Duration,
    /// The cause.
    pub error: LoadError,
}

/// The cause of a failed read or decode of a chunk.
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
        /// The first failed check.
        what: String,
    },
    /// The bytes are not the chunk's: wrong, corrupt, or of other tokens.
    #[error("the object is not usable: {0}")]
    Object(String),
}
