//! The report of a save.

use std::time::Duration;

use kvasir_types::{ObjectDigest, ProfileHash, SeqHash, TokenRange};

/// One finished chunk of a save, as it happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaveProgress {
    /// Chunks finished so far, including this one.
    pub finished: usize,
    /// Total number of chunks.
    pub chunks: usize,
    /// Bytes uploaded so far.
    pub bytes: u64,
}

/// The outcome of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkOutcome {
    /// Uploaded, and durable.
    Stored {
        /// Its object.
        object_digest: ObjectDigest,
        /// The profile that encoded it: not the one in force if that does not fit the chunk.
        profile_hash: ProfileHash,
        /// Size of the object.
        bytes: u64,
        /// False if the identical object already existed.
        created: bool,
        /// Time spent encoding.
        encode: Duration,
        /// Time spent uploading.
        upload: Duration,
    },
    /// Its tokens are already stored, at whatever quality, or it is a tail with too few new ones.
    AlreadyThere,
    /// It was computed over a prefix that was loaded too coarsely to build on.
    TooLossy,
}

/// The outcome of one chunk of a save.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkSaveReport {
    /// The chunk's tokens.
    pub tokens: TokenRange,
    /// Its identity.
    pub seq_hash: SeqHash,
    /// The outcome.
    pub outcome: ChunkOutcome,
}

/// The report of a save.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaveReport {
    /// One entry per chunk, in order.
    pub chunks: Vec<ChunkSaveReport>,
    /// Total duration.
    pub elapsed: Duration,
}

impl SaveReport {
    /// Bytes uploaded.
    pub fn bytes(&self) -> u64 {
        self.chunks
            .iter()
            .map(|c| if let ChunkOutcome::Stored { bytes, .. } = c.outcome { bytes } else { 0 })
            .sum()
    }
}
