//! CacheGen's Algorithm 1 (SIGCOMM'24, section 5.3).

use kvasir_types::Level;

use super::{Policy, Status, Step, View, finish_held};

/// Algorithm 1, chunk after chunk:
///
/// ```text
/// remaining <- SLO - elapsed
/// if time_recompute <= remaining: send the chunk as text
/// else: send it at the best level with size(all remaining chunks, level) / throughput <= remaining
/// ```
///
/// Both estimates are over *all remaining* chunks (text loses nothing, so it wins whenever it fits; judged by
/// one chunk alone it would always win first and leave the rest no time). Throughput is what the load's
/// estimator says; [`EstimatorKind::LastChunk`](crate::fetcher::EstimatorKind::LastChunk) is the paper's.
/// Before the first measurement: the prior throughput if there is one, else the medium level. Where the paper
/// names no level because none fits, the coarsest is sent. One chunk is on the wire at a time.
#[derive(Debug, Clone, Copy, Default)]
pub struct CacheGen {
    requests: ConcurrentRequests,
}

/// Expected-delay scaling for batched requests: with `N` requests that contain a chunk index, one
/// configuration costs `N` times one request's.
#[derive(Debug, Clone, Copy)]
struct ConcurrentRequests(u32);

impl Default for ConcurrentRequests {
    fn default() -> Self {
        Self(1)
    }
}

impl CacheGen {
    /// Algorithm 1 for one of `requests` requests that are served as one batch (at least 1).
    pub fn batched(requests: u32) -> Self {
        Self { requests: ConcurrentRequests(requests.max(1)) }
    }

    fn level(self, view: &View<'_>) -> Level {
        let top = view.open().map(|(_, _, plan)| plan.top_level()).max().unwrap_or(Level::BASE);
        let Some(rate) = view.rate else { return Level(top.0 / 2) };
        let remaining = view.deadline().saturating_sub(view.now);
        let fits = |level: &Level| rate.time_for(view.bytes_to(*level)) * self.requests.0 <= remaining;
        (0..=top.0).rev().map(Level).find(fits).unwrap_or(Level::BASE)
    }
}

impl Policy for CacheGen {
    fn name(&self) -> &'static str {
        "cachegen"
    }

    fn next(&mut self, view: &View<'_>) -> Step {
        if let Some(step) = finish_held(view) {
            return step;
        }
        let Some((chunk, _, plan)) = view.open().find(|(_, state, _)| state.status == Status::Idle) else {
            return Step::Wait { until: None };
        };
        if view.in_flight > 0 {
            return Step::Wait { until: None };
        }
        if view.recompute_open() * self.requests.0 <= view.remaining() {
            return Step::Text { chunk };
        }
        Step::Fetch { chunk, level: self.level(view).min(plan.top_level()) }
    }
}
