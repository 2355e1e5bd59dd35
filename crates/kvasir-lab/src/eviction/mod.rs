//! Replays KV-cache request traces through the eviction policies of `kvasir-storage`, and those compared with them.
//!
//! Semantics: a request looks its blocks up from the start; a block counts as hit only if all blocks before it
//! in the request hit. Then all its blocks are used (those present) or taken in (the others), in prefix order.
//! Blocks have equal size; capacities are shares of the trace's unique blocks.

mod belady;
mod curve;
mod day;
mod lane;
pub mod policies;
mod profile;
mod quality;
mod replay;
mod report;
mod routes;
mod study;

pub use curve::{CurveRow, compare_curve};
pub use day::{DAY_SECONDS, conversations};
pub use lane::Tally;
pub use policies::{Baseline, ComparedPolicy, ParseComparedPolicyError};
pub use profile::{ClassProfile, TimeHistogram, TraceProfile};
pub use quality::{EvictedUnit, LevelQualities, QualityHits, quality_weighted_hits};
pub use replay::{Replay, ReplayOptions, ReplayRow, TraceSource, replay};
pub use report::{ClassReuse, ClassRow, EvictReport, PolicySummary, Row, TraceFacts};
pub use routes::{RoutesRow, SharedTemplate, Spreading, spread};
pub use study::{StudyTrace, study_traces};

/// Prefill time of an engine: linear in tokens plus attention over the tokens before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RecomputeModel {
    /// Seconds per token.
    pub seconds_per_token: f64,
    /// Seconds per token and token before it.
    pub seconds_per_pair: f64,
}

impl Default for RecomputeModel {
    /// An 8B model (32 layers, hidden size 4,096) on one GPU that sustains 156 TFLOP/s: 2 × 8e9 FLOP per
    /// token and 4 × 32 × 4,096 FLOP per pair.
    fn default() -> Self {
        Self { seconds_per_token: 16e9 / 156e12, seconds_per_pair: 524_288.0 / 156e12 }
    }
}

impl RecomputeModel {
    /// Seconds to compute the tokens `start..end` over `start` cached ones.
    pub fn seconds(&self, start: u64, end: u64) -> f64 {
        let (start, end) = (start as f64, end as f64);
        (end - start) * self.seconds_per_token + (end * end - start * start) / 2.0 * self.seconds_per_pair
    }
}

#[cfg(test)]
mod tests;
