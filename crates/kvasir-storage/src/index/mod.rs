//! The hot index: which chunks there are, matched block by block. A cache of the store, never the truth.
//!
//! **One row a chunk**, and its key *is* the sequence of its block hashes, so that sorted order is a radix tree and
//! the longest match among any number of siblings is one seek and its two neighbours:
//!
//! ```text
//! key   = scope 8 · parent_hash 32 · block hash 3 … (one per block) · 000000 · object digest 8
//! value = version 1 · tokens 4 · first position 8 · kl_beneath 4 · head bytes 4 · object bytes 8 · seq_hash 32
//!         · rest of object digest 24 · profile 32 · levels 1 · level bytes 8 each · CRC32C of key and value 4
//! ```
//! A chunk of 1,536 tokens costs 339 + 154 bytes, about twice that in sled's file. `scope` is of (tenant, model), so that no tenant's rows are met in
//! another's lookups. Block hashes are cut to 3 bytes (0 becomes 1: 0 ends the list); whole chunks are confirmed by
//! their full seq_hash, so a false match needs a 24-bit collision at exactly the divergence (about 1e-7 a lookup), costs
//! at most a block, and readers compare the tokens that the object holds.

mod hot;
mod memory;
mod row;
#[cfg(test)]
pub(crate) use row::tests as tests_support;
mod sled_index;
mod walk;

pub use hot::{HotIndex, Index};
pub use memory::MemoryIndex;
pub use row::{IndexRow, Scope};
pub use sled_index::SledIndex;
pub(crate) use walk::prefer;
pub use walk::{Step, Walk};

/// An index that cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// A row or page failed its checksum.
    #[error("the index is corrupt: {what}")]
    Corrupt {
        /// What failed.
        what: String,
    },
    /// Another process holds the database.
    #[error("the index is locked by another process")]
    Locked,
    /// The disk failed.
    #[error("the index cannot be read or written: {0}")]
    Io(String),
}
