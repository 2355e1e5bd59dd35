//! Policies: which chunk to read next, at which level, or as text.

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
    /// Throughput estimate. Before the first sample: the plan's prior; without one, a lower bound if all
    /// responses were too short to measure. That is good for choosing a level, but no evidence of a slow
    /// link.
    pub rate: Option<ByteRate>,
    /// Expected rate of a chunk whose transfer has not been seen; `rate` is the link's, regardless of whose
    /// bytes it carries.
    pub chunk_rate: Option<ByteRate>,
    /// Factor by which the time may exceed that at `chunk_rate` (at least 1): one standard deviation of the
    /// observed rates, or an assumed one before that.
    pub caution: f64,
    /// Per chunk: the rate of its own transfer; if that stopped, the last rate scaled by the link's change
    /// since then.
    pub own_rates: &'a [Option<ByteRate>],
    /// Expected time to first byte of a request.
    pub first_byte: Duration,
    /// Time until the first byte of those in flight is due; zero once one of them flows, and if there is none.
    pub first_due: Duration,
    /// Requests in flight.
    pub in_flight: usize,
    /// Bytes still to arrive from them.
    pub in_flight_bytes: u64,
    /// Predicted time until the text chunks decided so far are computed.
    pub text_backlog: Duration,
    /// Factor by which the GPU's present computation already exceeds its prediction (at least 1).
    pub overdue: f64,
    /// Delay of this machine's timers so far.
    pub jitter: Duration,
    /// Whether computing happens during the fetching or after it.
    pub text_mode: TextMode,
    /// Whether the GPU that computes also decodes.
    pub decodes_on_gpu: bool,
    /// Loads that share the link and the GPU.
    pub neighbours: Neighbours,
    /// Prefill times.
    pub recompute: &'a RecomputeModel,
    /// Decode times.
    pub decode: &'a DecodeModel,
}

impl PolicyView<'_> {
    /// Undecided chunks, with their index.
    pub fn open(&self) -> impl DoubleEndedIterator<Item = (usize, &ChunkFetchState, &PlannedChunk)> {
        let pairs = self.chunks.iter().zip(&self.plan.chunks).enumerate();
        pairs.map(|(i, (state, plan))| (i, state, plan)).filter(|(_, state, _)| !state.is_settled())
    }

    /// When the last byte must have arrived and been decoded: text that is computed afterwards is subtracted.
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
}

/// A policy's next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyStep {
    /// Read the missing part of the prefix of `level`, for an idle or a hedged chunk.
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
    /// Compute an open chunk from text that is predicted to be late, and keep reading it; or start reading a
    /// chunk whose computation is late.
    Hedge {
        /// The chunk.
        chunk: usize,
    },
    /// Decode an open or hedged chunk at the best level that its bytes suffice for. A request for it is
    /// cancelled, and the GPU is not waited for.
    Finish {
        /// The chunk.
        chunk: usize,
    },
    /// Stop the request of a chunk; its bytes are kept, and it may be requested again.
    Pause {
        /// The chunk.
        chunk: usize,
    },
    /// Do nothing before the next event, or before `until`.
    Wait {
        /// Latest time of the next call.
        until: Option<Duration>,
    },
}

/// A streaming policy. After every event it is called repeatedly until it waits.
///
/// The core, not the policy, enforces the invariants: every chunk is resolved exactly once, a step that the
/// chunk's state does not allow is refused, a policy that waits for nothing is overruled (its open chunks are
/// computed from text), and a load that cannot beat recomputing is given up.
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

#[cfg(test)]
mod split_tests;

/// The first open chunk with a decodable prefix and no request: policies that fetch a chunk in one request
/// finish it.
fn finish_held(view: &PolicyView<'_>) -> Option<PolicyStep> {
    view.open()
        .find(|(_, state, plan)| {
            state.status == ChunkStatus::Idle && plan.level_of_prefix(state.have_bytes).is_some()
        })
        .map(|(chunk, _, _)| PolicyStep::Finish { chunk })
}
