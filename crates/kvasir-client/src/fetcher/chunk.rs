//! One chunk of a load: its stage, its bytes, and the times of its transitions.

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
    /// No request is in flight; bytes of an earlier one may have arrived.
    #[default]
    Idle,
    /// A request for the prefix of `level` is in flight.
    Fetching {
        /// The requested level.
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
    /// Being computed from text, and read at the coarsest level as well. The bytes read are decoded if the
    /// GPU would be late.
    Hedged {
        /// Whether a request is in flight.
        reading: bool,
    },
    /// To be computed from text. `done` is final: the chunk was computed or taken over by the engine.
    Text {
        /// Whether it is resolved.
        done: bool,
    },
}

/// The state of a chunk of the plan so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChunkFetchState {
    /// Its stage.
    pub status: ChunkStatus,
    /// Bytes of the object's prefix that have arrived, including wasted ones.
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
    /// Whether the chunk's outcome is decided, or only its read is still up to the policy.
    pub const fn is_settled(&self) -> bool {
        !matches!(self.status, ChunkStatus::Idle | ChunkStatus::Fetching { .. })
    }

    /// Whether the GPU computes the chunk or will.
    pub const fn is_computing(&self) -> bool {
        matches!(self.status, ChunkStatus::Text { done: false } | ChunkStatus::Hedged { .. })
    }

    /// Whether its KV is in place, or the engine took it over to compute.
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

    /// Marks the chunk resolved: its KV is in place, or the engine will compute it.
    pub(super) fn resolve(&mut self, status: ChunkStatus, now: Duration) {
        self.status = status;
        self.resolved = Some(now);
    }
}
