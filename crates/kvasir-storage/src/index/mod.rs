//! The hot index: the known chunks, matched block by block. It is a cache of the store, never authoritative.
//!
//! One sorted map holds the rows of objects, those of removals (`removed`), the positions in other
//! replicas' journals (`log_position`) and that of a scrub (`scrub_position`). Objects have two kinds of
//! rows. A *position* groups the chunks after one parent (`position`): a context's chunks are neighbours.
//!
//! ```text
//! i · scope 8 · position 11 · seq_hash 8 · object digest 8                           → the row · CRC32C of key and value
//! m · scope 8 · position 11 · block hash 4 … (one per block) · 00000000 · seq_hash 8   → CRC32C of the key
//! row = version and flags 1 · rest of seq_hash 24 and digest 24 · profile 32 · kl_beneath 4
//!       · varints: tokens, first position, head bytes, object bytes, number of levels, bytes of each
//!       · block hash 4 … where the chunk is alone at its position
//! ```
//! Whole contexts are found in the `i` rows alone: they are adjacent, so they are scanned, and a chunk is
//! confirmed by its full seq_hash. If chunks have siblings, their block hashes are in `m` rows, which form a
//! radix tree: the longest match among any number of them takes one seek and its two neighbours. `scope`
//! identifies (tenant, model), so a lookup never reads rows of another tenant. Block hashes are cut to 4
//! bytes (0 becomes 1: 0 ends the list). A false match therefore needs a 32-bit collision at exactly the
//! divergence (one lookup in 4 billion for each sibling there) and costs at most a block, and readers compare
//! the tokens in the object. On disk a row names its profile by two bytes (`profile_ids`).
//! `examples/index_cost.rs` measures the cost per chunk.

mod database;
mod expiry;
#[cfg(test)]
mod hooked;
mod hot;
mod key;
mod lineage;
mod log_position;
mod memory;
mod packed_lineage;
mod placement;
mod position;
mod prefix_index;
mod profile_ids;
mod removed;
mod row;
mod scope;
mod scrub_position;
mod sled_index;
mod truncated;
mod walk;

pub use database::{HotIndex, Visit};
pub use hot::Index;
pub(crate) use log_position::LogPosition;
pub use memory::MemoryIndex;
pub(crate) use prefix_index::PrefixIndex;
pub use removed::RemovedRow;
pub(crate) use row::prefer;
#[cfg(test)]
pub(crate) use row::tests as tests_support;
pub use row::{IndexEntry, IndexRow};
pub use scope::Scope;
pub use sled_index::SledIndex;
pub use walk::{MatchedChunk, Search, Walk};

/// An index that cannot continue.
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
