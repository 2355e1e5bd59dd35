//! One chunk of a load: its stage, its bytes, and when it passed from stage to stage.

use std::time::Duration;

use kvasir_types::Level;

/// The stage of a chunk.
///
/// ```text
/// Idle ⇄ Fetching      either ──► Decoding, Hedged or Text
/// Text (not done)      ──► Hedged, where the GPU is late with it
/// Hedged               ──► Decoding (read, and the GPU would be late) or Text (computed first, or its read failed)
/// Decoding             ──► Ready, or Text (failed)
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChunkStatus {
    /// Nothing is under way; bytes of an earlier request may be there.
    #[default]
    Idle,
    /// A request for the prefix of `level` is in flight.
    Fetching {
        /// The level asked for.
        level: Level,
    },
    /// Handed to the decoder at `level`.
    Decoding {
        /// The level.
        level: Level,
    },
    /// Decoded at `level`; final.
    Ready {
        /// The level.
        level: Level,
    },
    /// Being computed from text, and read at the coarsest level too. What was read is decoded where the GPU would be late.
    Hedged {
        /// Whether a request is in flight.
        reading: bool,
    },
    /// To be computed from text. `done`, which is final, once it was computed or taken over by the engine.
    Text {
        /// Whether it is resolved.
        done: bool,
    },
}

/// What became of a chunk of the plan so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChunkFetchState {
    /// Its stage.
    pub status: ChunkStatus,
    /// Bytes of its object's prefix that are here, wasted ones included.
    pub have_bytes: u64,
    /// First request sent.
    pub started: Option<Duration>,
    /// Last byte arrived.
    pub fetched: Option<Duration>,
    /// Decoded, or computed, or handed to the engine as text.
    pub resolved: Option<Duration>,
    /// Requests sent for it.
    pub requests: u32,
    /// Requests sent since the policy last asked for one.
    pub(super) attempts: u32,
}

impl ChunkFetchState {
    /// Whether its fate is decided, or out of the policy's hands but for its reading.
    pub const fn is_settled(&self) -> bool {
        !matches!(self.status, ChunkStatus::Idle | ChunkStatus::Fetching { .. })
    }

    /// Whether the GPU has it, or is to have it.
    pub const fn is_computing(&self) -> bool {
        matches!(self.status, ChunkStatus::Text { done: false } | ChunkStatus::Hedged { .. })
    }

    /// Whether its KV is where the engine wants it, or was given to the engine to compute.
    pub const fn is_resolved(&self) -> bool {
        matches!(self.status, ChunkStatus::Ready { .. } | ChunkStatus::Text { done: true })
    }

    /// The level it was decoded at; `None` for text, and before it is decoded.
    pub const fn level(&self) -> Option<Level> {
        match self.status {
            ChunkStatus::Ready { level } => Some(level),
            _ => None,
        }
    }

    /// Its KV is there, or computing it is the engine's.
    pub(super) fn resolve(&mut self, status: ChunkStatus, now: Duration) {
        self.status = status;
        self.resolved = Some(now);
    }
}
