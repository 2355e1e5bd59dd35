//! Base of everything first, then what gains most per second of the link, until the deadline.

use std::time::Duration;

use kvasir_types::Level;

use super::{Policy, Status, Step, View, forecast::Forecast};
use crate::fetcher::TextMode;

/// Requests in flight: enough that the next one's round trip hides behind the bytes of those before.
const DEPTH: usize = 3;
/// Share of the SLO kept free before the deadline for timer and hand-over jitter.
const MARGIN: f64 = 0.02;
/// Without any word from the link, the first chunk is computed after this share of the SLO.
const PATIENCE: f64 = 0.05;
/// Bounds of how long silence goes unnoticed, a sixteenth of the SLO between them.
const RELOOK: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Kvasir's policy, over nested levels (a level is a byte prefix, so refining costs only the difference):
///
/// 1. Level 0 of every chunk. The link works from the back of the context, the GPU from its front, where
///    computing needs no loaded prefix; they meet where the deadline is met with the least computing. Each
///    chunk is given to the GPU at the moment the GPU is free for it and never before, on the *cautious*
///    forecast of the link: a rate that falls later finds the front already computed.
/// 2. Refinements by predicted loss removed per second of the link, as long as they are predicted to arrive.
/// 3. A chunk whose own transfer crawls while others are missing is paused, once, and comes last: it goes to
///    the GPU when it cannot arrive in time, as late as that allows.
/// 4. A chunk is decoded as soon as none of its refinements fits any more; at the stop time (deadline less the
///    decoding still to be done) refinements in flight are cancelled and everything is decoded as it is.
///
/// Refinements may be planned at the full estimated rate: a wrong guess costs the refinement, never the deadline.
#[derive(Debug, Clone, Default)]
pub struct Progressive {
    paused: Vec<bool>,
}

impl Progressive {
    /// The policy with its default constants.
    pub const fn new() -> Self {
        Self { paused: Vec::new() }
    }

    fn was_paused(&self, chunk: usize) -> bool {
        self.paused.get(chunk).copied().unwrap_or(false)
    }

    /// A missing chunk in flight that hogs the link while others wait.
    fn crawling(&mut self, plan: &Forecast<'_>) -> Option<Step> {
        let others = plan.missing.iter().any(|&i| plan.is_idle(i) && !self.was_paused(i));
        if !others {
            return None;
        }
        let fair = plan.left_time() / plan.missing.len().max(1) as u32;
        let slow = |&&i: &&usize| {
            !plan.is_idle(i) && !self.was_paused(i) && plan.own_time(i).is_some_and(|t| t > fair)
        };
        let chunk = plan.missing.iter().find(slow).copied()?;
        self.paused.resize(plan.view.chunks.len(), false);
        self.paused[chunk] = true;
        Some(Step::Pause { chunk })
    }

    /// The next missing chunk to read: from the back; those paused come last, the quickest first.
    fn next_base(&self, plan: &Forecast<'_>) -> Option<usize> {
        let idle = || plan.missing.iter().copied().filter(|&i| plan.is_idle(i));
        let fresh = idle().filter(|&i| !self.was_paused(i)).next_back();
        fresh.or_else(|| idle().min_by_key(|&i| plan.base_time(i, 1.0)))
    }

    /// What the GPU is to do now, or from when on it must be looked at again.
    fn text(plan: &Forecast<'_>) -> Result<Step, Option<Duration>> {
        let view = plan.view;
        let Some(&first) = plan.missing.first() else { return Err(None) };
        let compute = |i: usize| view.recompute.predict(view.plan.chunks[i].tokens);
        if view.recompute_open() <= plan.left_time() {
            return Ok(Step::Text { chunk: first }); // text loses nothing and fits
        }
        if view.text_mode == TextMode::Deferred {
            return if plan.deferred_texts() > 0 { Ok(Step::Text { chunk: first }) } else { Err(None) };
        }
        if !view.text_backlog.is_zero() {
            return Err(None);
        }
        if view.rate.is_none() {
            let patience = view.plan.slo.mul_f64(PATIENCE);
            return if view.now < patience { Err(Some(patience)) } else { Ok(Step::Text { chunk: first }) };
        }
        let at_risk = plan.missing.iter().filter(|&&i| !plan.arrives(i)).count();
        if plan.bases_time(0, view.caution) <= plan.left_time() && at_risk == 0 {
            return Err(None);
        }
        let in_time = compute(first) <= plan.left_time();
        if !in_time && compute(first) > plan.bases_time(0, 1.0) {
            return Err(None); // the network is the better hope
        }
        let held_before = (0..first).filter(|&i| !view.chunks[i].is_settled()).map(|i| plan.decode_time(i));
        let decodes: Duration = held_before.clone().sum();
        // Chunks before it would be decoded as they are: that can wait as long as the deadline allows.
        let all: Duration = plan.missing.iter().filter(|&&i| !plan.arrives(i)).map(|&i| compute(i)).sum();
        let latest = plan.stop.saturating_sub(all.max(compute(first)) + decodes);
        if held_before.count() > 0 && view.now < latest {
            return Err(Some(latest));
        }
        Ok(Step::Text { chunk: first })
    }

    /// A held chunk that is to be decoded now.
    fn finish(plan: &Forecast<'_>) -> Option<Step> {
        let view = plan.view;
        let last_text = view.chunks.iter().rposition(|c| c.status == Status::Text { done: false });
        let over = |i: usize| view.now >= plan.stop || last_text.is_some_and(|text| i < text);
        let exhausted = |i: usize| {
            plan.is_idle(i) && plan.missing.is_empty() && plan.best_refinement(Some(i)).is_none()
        };
        let held = view.open().map(|(i, ..)| i).filter(|&i| plan.held(i).is_some());
        held.into_iter().find(|&i| over(i) || exhausted(i)).map(|chunk| Step::Finish { chunk })
    }
}

impl Policy for Progressive {
    fn name(&self) -> &'static str {
        "progressive"
    }

    /// With a GPU of its own the policy falls back to it chunk by chunk.
    fn may_give_up(&self, text_mode: TextMode) -> bool {
        text_mode == TextMode::Deferred
    }

    fn next(&mut self, view: &View<'_>) -> Step {
        let plan = Forecast::of(view, view.plan.slo.mul_f64(MARGIN));
        let mut until = Some(plan.stop).filter(|&stop| view.now < stop);
        match Self::text(&plan) {
            Ok(step) => return step,
            Err(again) => until = [until, again].into_iter().flatten().min(),
        }
        if let Some(step) = self.crawling(&plan) {
            return step;
        }
        if let Some(step) = Self::finish(&plan) {
            return step;
        }
        if view.in_flight < DEPTH {
            if let Some(chunk) = self.next_base(&plan) {
                return Step::Fetch { chunk, level: Level::BASE };
            }
            if plan.missing.is_empty()
                && let Some((chunk, level)) = plan.best_refinement(None)
            {
                return Step::Fetch { chunk, level };
            }
        }
        // Silence sends no events; the forecast worsens all the same.
        let again = view.now + (view.plan.slo / 16).clamp(RELOOK.0, RELOOK.1);
        Step::Wait { until: [until, Some(again)].into_iter().flatten().min().filter(|_| view.in_flight > 0 || until.is_some()) }
    }
}
