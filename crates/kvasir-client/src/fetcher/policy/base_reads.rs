//! The order in which bases are read, and which reads pause for others.

use std::time::Duration;

use kvasir_types::Level;

use super::{PolicyStep, forecast::Forecast, split::Split};

/// Transfer time of bases to keep in flight, as a share of the SLO.
const LOOKAHEAD: f64 = 0.02;
/// Among chunks whose base has begun, the one with most of it continues first; shares are compared in this
/// many steps.
const HERE_STEPS: u64 = 16;
/// Bases whose remaining times are within this factor end at about the same time.
const ABOUT: f64 = 1.5;
/// Maximum number of times that a chunk is stopped for another.
const PAUSES_MAX: u8 = 2;

/// The state of base reads.
#[derive(Debug, Clone)]
pub(super) struct BaseReads {
    /// How often each chunk was stopped for another.
    pauses: Vec<u8>,
}

impl BaseReads {
    pub(super) const fn new() -> Self {
        Self { pauses: Vec::new() }
    }

    /// A missing chunk in flight to stop while others wait: one too many for the link, since half of two bases
    /// is worth nothing and one whole base is.
    pub(super) fn stopped(&mut self, plan: &Forecast<'_>, split: &Split) -> Option<PolicyStep> {
        let (view, count) = (plan.view, plan.view.chunks.len());
        self.pauses.resize(count, 0);
        let own = |i: usize| view.own_rates.get(i).copied().flatten();
        let flowing = || plan.missing.iter().copied().filter(|&i| !plan.is_idle(i) && own(i).is_some());
        // A load with slack lets others go first.
        if plan.yields()
            && let Some(chunk) = flowing().find(|&i| self.pauses[i] < PAUSES_MAX)
        {
            self.pauses[chunk] += 1;
            return Some(PolicyStep::Pause { chunk });
        }
        // A chunk that arrives too late and that the GPU computes makes room for chunks that arrive in time.
        let others = plan.missing.iter().any(|&i| plan.is_idle(i) && !split.texts.contains(&i));
        if others && let Some(chunk) = flowing().find(|&i| split.is_hopeless(plan, i)) {
            return Some(PolicyStep::Pause { chunk });
        }
        let reading = || plan.missing.iter().copied().filter(|&i| !plan.is_idle(i));
        // Of those that will finish about last, one waits while the others keep the pipe full: first one that the GPU computes,
        // then the frontmost, which the GPU reaches first; last one that the GPU waits for.
        if flowing().next().is_none() || reading().count() < 2 {
            return None;
        }
        let slowest = reading().map(|i| plan.base_time(i, 1.0)).max()?;
        let about_last = reading().filter(|&i| plan.base_time(i, 1.0).mul_f64(ABOUT) >= slowest);
        let is_text = |i: usize| split.texts.contains(&i);
        let gates = |i: usize| !is_text(i) && split.texts.last().is_some_and(|&text| i < text);
        let last = about_last.min_by_key(|&i| (!is_text(i), gates(i), i))?;
        if plan.bases_in_flight().saturating_sub(plan.base_time(last, 1.0)) <= Self::lookahead(plan) {
            return None;
        }
        if self.pauses[last] >= PAUSES_MAX {
            return None;
        }
        self.pauses[last] += 1;
        Some(PolicyStep::Pause { chunk: last })
    }

    /// Whether a base that the GPU computes fits on the link beside all that the link has to bring, by the cautious forecast.
    fn fits_beside(plan: &Forecast<'_>, split: &Split, chunk: usize) -> bool {
        let own = plan.missing.iter().filter(|i| !split.texts.contains(i));
        let own: Duration = own.map(|&i| plan.base_time(i, plan.view.caution)).sum();
        own + plan.base_time(chunk, 1.0) <= plan.left_time()
    }

    /// How much transfer time to keep in flight: enough to hide round trips.
    pub(super) fn lookahead(plan: &Forecast<'_>) -> Duration {
        (plan.view.first_byte * 2).max(plan.view.plan.slo.mul_f64(LOOKAHEAD))
    }

    /// Whether another base may begin: the pipe is not full, or only one transfer has been seen, which cannot
    /// show whether the link is slow or just the transfer.
    pub(super) fn may_begin(plan: &Forecast<'_>) -> bool {
        let view = plan.view;
        let known = view.own_rates.iter().flatten().count();
        let alone = view.in_flight <= 1 && known < 2;
        view.in_flight == 0 || alone || plan.bases_in_flight() <= Self::lookahead(plan)
    }

    /// The next missing chunk to read: first a base that a text chunk waits for; then the link's own, from
    /// the back; then the GPU's, also from the back, since the GPU may not get that far.
    pub(super) fn next(plan: &Forecast<'_>, split: &Split) -> Option<usize> {
        let last_text = split.texts.last().copied().unwrap_or(0);
        let texts = |i: &usize| split.texts.contains(i);
        let fresh =
            || plan.missing.iter().copied().filter(|&i| plan.is_idle(i) && !split.is_hopeless(plan, i));
        let own = || fresh().filter(|i| !texts(i));
        let gating = own().find(|&i| i < last_text);
        gating.or_else(|| Self::from_back(plan, own())).or_else(|| {
            let fits = |i: &usize| Self::fits_beside(plan, split, *i);
            Self::from_back(plan, fresh().filter(fits))
        })
    }

    /// The last of the given chunks, since the GPU computes from the front. A base that has begun precedes
    /// one that has not: half a base is worth nothing. A short chunk at the end follows the whole ones, since
    /// it costs the GPU little as well.
    pub(super) fn from_back(plan: &Forecast<'_>, chunks: impl Iterator<Item = usize>) -> Option<usize> {
        let bytes = |i: usize| plan.view.plan.chunks[i].bytes_at(Level::BASE);
        let whole = (0..plan.view.chunks.len()).map(bytes).max().unwrap_or(0).max(1);
        let here = |i: usize| plan.view.chunks[i].have_bytes * HERE_STEPS / whole;
        chunks.max_by_key(|&i| (2 * bytes(i) >= whole, here(i), i))
    }
}

#[cfg(test)]
#[path = "base_reads_tests.rs"]
mod tests;
