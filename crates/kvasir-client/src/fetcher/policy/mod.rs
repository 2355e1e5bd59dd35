//! Which chunk to read next, at which level, or as text.

mod base_reads;
mod cachegen;
mod fixed;
mod forecast;
mod progressive;
mod split;

use std::{fmt, time::Duration};

use kvasir_types::Level;

pub use cachegen::CacheGen;
pub use fixed::Fixed;
pub use progressive::Progressive;

use super::{
    ChunkFetchState, ChunkStatus, FetchPlan, Neighbours, PlannedChunk, TextMode,
    byte_rate::ByteRate,
    cost::{DecodeModel, RecomputeModel},
};

/// A read-only view of a load, for its policy.
#[derive(Debug, Clone, Copy)]
pub struct PolicyView<'a> {
    /// Time since the load began.
    pub now: Duration,
    /// What to load.
    pub plan: &'a FetchPlan,
    /// One state per chunk of the plan.
    pub chunks: &'a [ChunkFetchState],
    /// Throughput estimate; the plan's prior before the first sample; without one a lower bound, when all answers were
    /// too short to measure: good for choosing a level, no reason to think the link slow.
    pub rate: Option<ByteRate>,
    /// What to expect of a chunk whose transfer was not seen yet; `rate` is the link's, whoever's bytes it carries.
    pub chunk_rate: Option<ByteRate>,
    /// How many times longer than at `chunk_rate` that may well take (at least 1): one standard deviation of what was
    /// seen, and of what is assumed before.
    pub caution: f64,
    /// Per chunk: the rate its own transfer has, or, if it stopped, had when last seen times by how much the link has
    /// become quicker since.
    pub own_rates: &'a [Option<ByteRate>],
    /// Expected time to first byte of a request.
    pub first_byte: Duration,
    /// Requests in flight.
    pub in_flight: usize,
    /// Bytes that they will still bring.
    pub in_flight_bytes: u64,
    /// Predicted time until the text chunks decided so far are computed.
    pub text_backlog: Duration,
    /// How many times longer than predicted the GPU takes already for what it computes now (at least 1).
    pub overdue: f64,
    /// How late this machine has been with timers.
    pub jitter: Duration,
    /// Whether that happens beside the fetching or after it.
    pub text_mode: TextMode,
    /// Loads that share the link and the GPU.
    pub neighbours: Neighbours,
    /// Prefill times.
    pub recompute: &'a RecomputeModel,
    /// Decode times.
    pub decode: &'a DecodeModel,
}

impl PolicyView<'_> {
    /// Chunks whose fate is open, with their index.
    pub fn open(&self) -> impl DoubleEndedIterator<Item = (usize, &ChunkFetchState, &PlannedChunk)> {
        let pairs = self.chunks.iter().zip(&self.plan.chunks).enumerate();
        pairs.map(|(i, (state, plan))| (i, state, plan)).filter(|(_, state, _)| !state.is_settled())
    }

    /// When the last byte must be here and decoded: text that is computed afterwards comes off.
    pub fn deadline(&self) -> Duration {
        match self.text_mode {
            TextMode::Overlapped => self.plan.deadline(),
            TextMode::Deferred => self.plan.deadline().saturating_sub(self.text_backlog),
        }
    }

    /// Time until the last chunk must be resolved.
    pub fn remaining(&self) -> Duration {
        self.plan.deadline().saturating_sub(self.now)
    }

    /// Predicted time to decode `chunk` at `level`.
    pub fn decode_time(&self, chunk: &PlannedChunk, level: Level) -> Duration {
        self.decode.predict(chunk.tokens.len(), chunk.bytes_at(level))
    }
}

/// A policy's next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyStep {
    /// Read what is missing of an idle chunk's prefix of `level`, or of a hedged one's.
    Fetch {
        /// The chunk.
        chunk: usize,
        /// The level.
        level: Level,
    },
    /// Compute an open chunk from text. A request for it is cancelled.
    Text {
        /// The chunk.
        chunk: usize,
    },
    /// Compute an open chunk from text that is predicted to be late so, and go on reading it; or read one, too, that is being
    /// computed and late.
    Hedge {
        /// The chunk.
        chunk: usize,
    },
    /// Decode an open chunk, or a hedged one, at the best level its bytes suffice for. A request for it is cancelled, and the
    /// GPU is not waited for.
    Finish {
        /// The chunk.
        chunk: usize,
    },
    /// Stop the request of a chunk; its bytes stay, and it may be asked for again.
    Pause {
        /// The chunk.
        chunk: usize,
    },
    /// Nothing to do before the next event, or before `until`.
    Wait {
        /// When to be asked again at the latest.
        until: Option<Duration>,
    },
}

/// A streaming policy. Asked again and again until it waits, after every event.
///
/// The core, not the policy, guards what must always hold: every chunk is resolved exactly once, a step that
/// is not possible in the chunk's state is refused, a policy that waits for nothing is overruled (what it left
/// open is computed from text), and a load that cannot beat recompute is given up.
pub trait Policy: Send + fmt::Debug {
    /// Short name for reports.
    fn name(&self) -> &'static str;

    /// The next step.
    fn next(&mut self, view: &PolicyView<'_>) -> PolicyStep;

    /// Whether the core may give up a load that is predicted to take longer than computing it.
    fn may_give_up(&self, text_mode: TextMode) -> bool {
        let _ = text_mode;
        true
    }
}

/// The first open chunk that holds a decodable prefix and waits for nothing: policies that fetch a chunk in one
/// go finish it.
fn finish_held(view: &PolicyView<'_>) -> Option<PolicyStep> {
    view.open()
        .find(|(_, state, plan)| {
            state.status == ChunkStatus::Idle && plan.level_of_prefix(state.have_bytes).is_some()
        })
        .map(|(chunk, _, _)| PolicyStep::Finish { chunk })
}
