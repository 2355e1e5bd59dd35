//! Predictions over one view of a load.

use std::time::Duration;

use kvasir_types::Level;

use super::{ChunkStatus, PolicyView};
use crate::fetcher::byte_rate::ByteRate;

/// Shares of the caution that plans are tried with, one after the other, until one is in time.
pub(super) const CAUTION_SHARES: [f64; 3] = [1.0, 0.5, 0.0];

/// A factor by which a time may be exceeded, of which a `share` is heeded.
pub(super) fn heeded(factor: f64, share: f64) -> f64 {
    factor * share + (1.0 - share)
}

/// Least time kept free between the end of a prefill and the deadline, for the hand-over.
const GPU_MARGIN_MIN: Duration = Duration::from_millis(2);
/// Time kept free, in multiples of the measured timer delay.
pub(super) const MARGIN_JITTERS: u32 = 2;

/// Predictions over one view. The link is one resource: transfers take their time one after another, in any
/// order.
pub(super) struct Forecast<'a> {
    pub(super) view: &'a PolicyView<'a>,
    /// Open chunks whose base has not arrived, in context order.
    pub(super) missing: Vec<usize>,
    /// When everything must be handed to the decoder, from the start of the load.
    pub(super) stop: Duration,
    /// When the GPU must have computed the last text chunk. Decoding others takes none of its time, unless a device decodes.
    pub(super) gpu_stop: Duration,
}

impl<'a> Forecast<'a> {
    pub(super) fn of(view: &'a PolicyView<'a>, margin: Duration) -> Self {
        let mut plan = Self { view, missing: Vec::new(), stop: Duration::ZERO, gpu_stop: Duration::ZERO };
        plan.missing = view.open().map(|(i, ..)| i).filter(|&i| plan.held(i).is_none()).collect();
        let decode: Duration = view.open().map(|(i, ..)| plan.decode_bound(i)).sum();
        plan.stop = view.deadline().saturating_sub(decode + margin);
        let handover = GPU_MARGIN_MIN.max(view.jitter * MARGIN_JITTERS).min(margin);
        plan.gpu_stop =
            if view.decodes_on_gpu { plan.stop } else { view.deadline().saturating_sub(handover) };
        plan
    }

    /// The level that a chunk's bytes suffice for.
    pub(super) fn held(&self, chunk: usize) -> Option<Level> {
        self.view.plan.chunks[chunk].level_of_prefix(self.view.chunks[chunk].have_bytes)
    }

    pub(super) fn is_idle(&self, chunk: usize) -> bool {
        self.view.chunks[chunk].status == ChunkStatus::Idle
    }

    /// Time until the GPU must have computed the last text chunk.
    pub(super) fn left_gpu_time(&self) -> Duration {
        self.gpu_stop.saturating_sub(self.view.now)
    }

    /// Time until the stop.
    pub(super) fn left_time(&self) -> Duration {
        self.stop.saturating_sub(self.view.now)
    }

    /// Expected time to decode a chunk at its present level.
    pub(super) fn decode_time(&self, chunk: usize) -> Duration {
        let plan = &self.view.plan.chunks[chunk];
        let level = self.held(chunk).unwrap_or(Level::BASE);
        self.view.decode.predict(plan.tokens.len(), plan.bytes_at(level))
    }

    /// The time that 99 of 100 such decodes stay within.
    pub(super) fn decode_bound(&self, chunk: usize) -> Duration {
        self.decode_time(chunk).mul_f64(self.view.decode.caution())
    }

    /// Time on the link for the rest of a chunk's base, multiplied by `caution` if its own transfer has not
    /// been seen yet.
    pub(super) fn base_time(&self, chunk: usize, caution: f64) -> Duration {
        let own = self.own_time(chunk);
        let left = self.base_left(chunk);
        own.or_else(|| self.view.chunk_rate.map(|rate| rate.time_for(left).mul_f64(caution)))
            .unwrap_or_default()
    }

    /// The same at the rate of its own transfer, if that was seen.
    pub(super) fn own_time(&self, chunk: usize) -> Option<Duration> {
        let own = self.view.own_rates.get(chunk).copied().flatten()?;
        Some(own.time_for(self.base_left(chunk)))
    }

    fn base_left(&self, chunk: usize) -> u64 {
        self.view.plan.chunks[chunk].bytes_at(Level::BASE).saturating_sub(self.view.chunks[chunk].have_bytes)
    }

    /// Time to compute a chunk from text on a GPU that neighbours use equally, with the same delay as the
    /// present computation.
    pub(super) fn compute_time(&self, chunk: usize) -> Duration {
        let alone =
            self.view.recompute.predict(self.view.plan.chunks[chunk].tokens).mul_f64(self.view.overdue);
        alone * (1 + self.view.neighbours.loads)
    }

    /// The factor within which 99 of 100 such computations stay.
    pub(super) fn compute_caution(&self, chunk: usize) -> f64 {
        self.view.recompute.caution(self.view.plan.chunks[chunk].tokens)
    }

    /// Time on the link from a chunk's base, or its bytes so far, to its finest level.
    pub(super) fn refine_time(&self, chunk: usize) -> Duration {
        let plan = &self.view.plan.chunks[chunk];
        let here = self.view.chunks[chunk].have_bytes.max(plan.bytes_at(Level::BASE));
        let rate = self.view.own_rates.get(chunk).copied().flatten().or(self.view.chunk_rate);
        rate.map_or(Duration::ZERO, |rate| {
            rate.time_for(plan.bytes_at(plan.top_level()).saturating_sub(here))
        })
    }

    /// Whether a chunk's base would arrive in time if it had the link to itself.
    pub(super) fn arrives(&self, chunk: usize) -> bool {
        let latency = if self.is_idle(chunk) { self.view.first_byte } else { self.view.first_due };
        latency + self.base_time(chunk, 1.0) <= self.left_time()
    }

    /// Whether loads with less slack come first: a cautious forecast says that their bases and then this
    /// load's own arrive in time, even at this load's share of the link.
    pub(super) fn yields(&self) -> bool {
        let ahead = self.view.neighbours.urgent_bytes;
        let Some(rate) = self.view.chunk_rate.filter(|_| ahead > 0) else { return false };
        let own: u64 = self.missing.iter().map(|&i| self.base_left(i)).sum();
        rate.time_for(ahead + own).mul_f64(self.view.caution) < self.left_time()
    }

    /// Time until the bases of the missing chunks, except the first `skip`, have arrived and the last is
    /// decoded.
    fn bases_time(&self, skip: usize, caution: f64) -> Duration {
        let rest = self.missing.get(skip..).unwrap_or_default();
        let Some(&last) = rest.last() else { return Duration::ZERO };
        let link: Duration = rest.iter().map(|&i| self.base_time(i, caution)).sum();
        self.wait_for(rest.iter().copied()) + link + self.decode_time(last)
    }

    /// Latency before the next new request's bytes that the bases in transfer do not hide.
    pub(super) fn wait(&self) -> Duration {
        if self.view.in_flight == 0 {
            return self.view.first_byte;
        }
        self.view.first_byte.saturating_sub(self.bases_in_flight()).max(self.view.first_due)
    }

    /// Latency on the way to these missing bases: those that are requested wait for no further request.
    pub(super) fn wait_for(&self, mut missing: impl Iterator<Item = usize>) -> Duration {
        if missing.any(|i| self.is_idle(i)) { self.wait() } else { self.view.first_due }
    }

    /// For an engine that computes after the load: the number of missing chunks, from the front, to leave to
    /// it, so that fetching and then computing meets the deadline with the least computing by the cautious forecast.
    /// If no number does, less caution is tried; then the number that comes closest.
    pub(super) fn deferred_texts(&self) -> usize {
        let remaining = self.view.remaining();
        if self.view.chunk_rate.is_none() {
            return 0;
        }
        let finish = |k: usize, share: f64| {
            let bound = |&i: &usize| {
                let mean = self.view.recompute.predict(self.view.plan.chunks[i].tokens);
                mean.mul_f64(heeded(self.compute_caution(i), share))
            };
            let texts: Duration = self.missing.iter().take(k).map(bound).sum();
            self.bases_time(k, heeded(self.view.caution, share)) + self.view.text_backlog + texts
        };
        let counts = || 0..=self.missing.len();
        let in_time = |share: f64| counts().find(|&k| finish(k, share) <= remaining);
        let closest = || counts().min_by_key(|&k| finish(k, 0.0)).unwrap_or(0);
        CAUTION_SHARES.into_iter().find_map(in_time).unwrap_or_else(closest)
    }

    /// Remaining time of the bases in flight.
    pub(super) fn bases_in_flight(&self) -> Duration {
        self.missing.iter().filter(|&&i| !self.is_idle(i)).map(|&i| self.base_time(i, 1.0)).sum()
    }

    fn in_flight_time(&self, mean: ByteRate) -> Duration {
        let pending = self.view.chunks.iter().enumerate().filter_map(|(i, state)| match state.status {
            ChunkStatus::Fetching { level } => {
                let left = self.view.plan.chunks[i].bytes_at(level).saturating_sub(state.have_bytes);
                Some(self.view.own_rates.get(i).copied().flatten().unwrap_or(mean).time_for(left))
            }
            _ => None,
        });
        pending.sum()
    }

    /// The refinement of an idle chunk (of `only`, if given) that removes the most loss per second of the
    /// link, among those that arrive before the stop, after `ahead` bytes of other loads.
    pub(super) fn best_refinement(&self, only: Option<usize>, ahead: u64) -> Option<(usize, Level)> {
        let view = self.view;
        let mean = view.chunk_rate.or(view.rate)?;
        let in_flight = self.in_flight_time(mean) + mean.time_for(ahead);
        let mut best: Option<(f64, usize, Level)> = None;
        for (i, state, plan) in view.open().filter(|(i, ..)| only.is_none_or(|only| only == *i)) {
            let Some(level) = self.held(i) else { continue };
            let rate = view.own_rates.get(i).copied().flatten().unwrap_or(mean);
            if state.status != ChunkStatus::Idle {
                continue;
            }
            for target in (level.0 + 1..=plan.top_level().0).map(Level) {
                let bytes = plan.bytes_at(target).saturating_sub(state.have_bytes).max(1);
                let time = rate.time_for(bytes);
                if view.now + self.wait() + in_flight + time > self.stop {
                    break;
                }
                let loss = plan.loss_at(level) - plan.loss_at(target);
                let value = loss * plan.tokens.len() as f64 / time.as_secs_f64().max(1e-9);
                if best.is_none_or(|(so_far, ..)| value > so_far) {
                    best = Some((value, i, target));
                }
            }
        }
        best.map(|(_, chunk, level)| (chunk, level))
    }
}
