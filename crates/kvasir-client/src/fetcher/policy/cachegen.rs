//! CacheGen's Algorithm 1 (SIGCOMM'24, section 5.3).

use std::time::Duration;

use kvasir_types::Level;

use super::{ChunkStatus, Policy, PolicyStep, PolicyView, TextMode, finish_held};

/// Algorithm 1, chunk after chunk:
///
/// ```text
/// remaining <- SLO - elapsed
/// if time_recompute <= remaining: send the chunk as text
/// else: send it at the best level with size(all remaining chunks, level) / throughput <= remaining
/// ```
///
/// Both estimates cover *all remaining* chunks. (Text has no loss, so it wins whenever it fits; judged for
/// one chunk alone it would always win first and leave no time for the rest.) Throughput comes from the
/// load's estimator; [`EstimatorKind::LastChunk`](crate::fetcher::EstimatorKind::LastChunk) is the paper's.
/// Before the first measurement, the policy uses the prior throughput if there is one, else the medium level.
/// If no level fits, for which the paper names none, it sends the coarsest. One chunk is on the wire at a
/// time.
#[derive(Debug, Clone, Default)]
pub struct CacheGen {
    /// `sharing[c]`: requests of the batch that contain chunk `c`; 1 past its end.
    sharing: Vec<u32>,
    /// As published: no load is given up.
    patient: bool,
    /// Requests in flight beyond the first.
    ahead: usize,
}

impl CacheGen {
    /// Algorithm 1 for one request of a batch: with `N_c` requests that contain chunk index `c`, a
    /// configuration of that chunk costs `N_c` times one request's.
    pub const fn batched(sharing: Vec<u32>) -> Self {
        Self { sharing, patient: false, ahead: 0 }
    }

    /// As published: a load that cannot beat recomputing continues.
    #[must_use]
    pub fn without_giving_up(mut self) -> Self {
        self.patient = true;
        self
    }

    /// With up to `depth` requests in flight, which hides round trips; the published algorithm has one.
    #[must_use]
    pub fn pipelined(mut self, depth: usize) -> Self {
        self.ahead = depth.saturating_sub(1);
        self
    }

    fn requests(&self, chunk: usize) -> u32 {
        self.sharing.get(chunk).copied().unwrap_or(1).max(1)
    }

    fn level(&self, view: &PolicyView<'_>) -> Level {
        let top = view.open().map(|(_, _, plan)| plan.top_level()).max().unwrap_or(Level::BASE);
        let Some(rate) = view.rate else { return Level(top.0 / 2) };
        let remaining = view.deadline().saturating_sub(view.now);
        // The measured rate is this request's share of the link while the same number of requests had its
        // last chunk.
        let measured = view.chunks.iter().rposition(|c| c.have_bytes > 0).map_or(1, |i| self.requests(i));
        let size = |level: Level| -> f64 {
            let missing = view.open().map(|(i, state, plan)| {
                plan.bytes_at(level).saturating_sub(state.have_bytes) as f64 * f64::from(self.requests(i))
            });
            missing.sum::<f64>() / f64::from(measured)
        };
        let fits = |level: &Level| rate.time_for(size(*level) as u64) <= remaining;
        (0..=top.0).rev().map(Level).find(fits).unwrap_or(Level::BASE)
    }

    fn recompute(&self, view: &PolicyView<'_>) -> Duration {
        let own = view.open().map(|(i, _, plan)| view.recompute.predict(plan.tokens) * self.requests(i));
        view.text_backlog + own.sum::<Duration>()
    }
}

impl Policy for CacheGen {
    fn name(&self) -> &'static str {
        "cachegen"
    }

    fn next(&mut self, view: &PolicyView<'_>) -> PolicyStep {
        if let Some(step) = finish_held(view) {
            return step;
        }
        let Some((chunk, _, plan)) = view.open().find(|(_, state, _)| state.status == ChunkStatus::Idle)
        else {
            return PolicyStep::Wait { until: None };
        };
        if view.in_flight > self.ahead {
            return PolicyStep::Wait { until: None };
        }
        if self.recompute(view) <= view.remaining() {
            return PolicyStep::Text { chunk };
        }
        PolicyStep::Fetch { chunk, level: self.level(view).min(plan.top_level()) }
    }

    fn may_give_up(&self, _: TextMode) -> bool {
        !self.patient
    }
}
