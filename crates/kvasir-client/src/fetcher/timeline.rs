//! What became of a chunk, and when.

use std::time::Duration;

use kvasir_types::Level;

/// What became of a chunk, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChunkTimeline {
    /// The level it was decoded at; `None` for text.
    pub level: Option<Level>,
    /// Bytes that arrived for it, wasted ones included.
    pub bytes: u64,
    /// First request sent.
    pub started: Option<Duration>,
    /// Last byte arrived.
    pub fetched: Option<Duration>,
    /// Decoded, or computed, or handed to the engine as text.
    pub resolved: Option<Duration>,
    /// Requests sent for it.
    pub requests: u32,
}
