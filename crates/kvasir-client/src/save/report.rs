//! What a save did.

use std::time::Duration;

use kvasir_types::{ObjectDigest, ProfileHash, SeqHash, TokenRange};

/// One finished chunk of a save, as it happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaveProgress {
    /// Chunks finished so far, this one included.
    pub finished: usize,
    /// Chunks in all.
    pub chunks: usize,
    /// Bytes uploaded so far.
    pub bytes: u64,
}

/// What became of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkOutcome {
    /// Uploaded, and durable.
    Stored {
        /// Its object.
        object_digest: ObjectDigest,
        /// What it was encoded with: not the profile in force where that one does not fit the chunk.
        profile_hash: ProfileHash,
        /// Size of the object.
        bytes: u64,
        /// False when the very same object was there already.
        created: bool,
        /// Time spent encoding.
        encode: Duration,
        /// Time spent uploading.
        upload: Duration,
    },
    /// Its tokens are stored already, or it is a tail with too few new ones.
    AlreadyThere,
    /// It was computed over a prefix that was loaded too coarsely to build on.
    TooLossy,
}

/// What a save did with one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkSaveReport {
    /// The chunk's tokens.
    pub tokens: TokenRange,
    /// Its identity.
    pub seq_hash: SeqHash,
    /// What became of it.
    pub outcome: ChunkOutcome,
}

/// What a save did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaveReport {
    /// One entry per chunk, in order.
    pub chunks: Vec<ChunkSaveReport>,
    /// Whole duration.
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
