//! Kvasir's policy: all bases first, then the refinements with the largest gain per second of the link, until
//! the deadline.

use std::time::Duration;

use kvasir_types::Level;

use super::{
    ChunkFetchState, ChunkStatus, PlannedChunk, Policy, PolicyStep, PolicyView,
    base_reads::BaseReads,
    forecast::{Forecast, MARGIN_JITTERS},
    split::Split,
};
use crate::fetcher::TextMode;

/// Fewest and most requests in flight: the next one's round trip hides behind the bytes of the previous ones.
const DEPTH: (usize, usize) = (3, 16);
/// Least share of the SLO kept free before the deadline for timer and hand-over jitter, and the largest,
/// whatever was measured.
const MARGIN: (f64, f64) = (0.02, 0.25);
/// If the GPU serves others, the link has this share of the SLO to deliver before the first chunk is
/// computed.
const PATIENCE_SPARING: f64 = 0.05;
/// Bounds of the interval between checks of a silent link; a sixteenth of the SLO in between.
const RELOOK: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// The split is recomputed when a chunk changes, and otherwise this often per SLO.
const RESPLIT: u32 = 200;
/// The price of computing everything, in shares of the loss that the bases alone would leave.
const GPU_PRICE: f64 = 0.05;
/// The same if the GPU serves others: it computes only what the deadline requires.
const GPU_PRICE_SPARING: f64 = 1e3;

/// Kvasir's policy, over nested levels (a level is a byte prefix, so refining costs only the difference):
///
/// 1. Level 0 of every chunk that the link is to load. GPU and link are two resources. Whenever the GPU is
///    free, the policy computes the best split of *all* open chunks again, from the cautious forecast of the
///    link. The GPU computes from the front, where it needs no loaded prefix, and the link reads from the
///    back. If the rate falls later, the front is already computed, and nothing is assigned to the GPU before
///    it is free.
/// 2. Refinements by predicted loss removed per second of the link, as long as they are predicted to arrive.
/// 3. Bases are requested in sequence once the pipe is full. One that the GPU computes as well is read only while it
///    delays none that the link has to bring.
///    The last chunks of the GPU are also read while the link is otherwise idle, because an idle link would
///    not show that it has recovered. A chunk that even the GPU would finish too late is computed *and* read,
///    and so is a chunk for which the GPU is late: the read data is decoded at the last moment that is in
///    time.
/// 4. A chunk is decoded as soon as none of its refinements fits any more. At the stop time (the deadline
///    minus what each remaining decode stays within in 99 of 100 cases), refinements in flight are cancelled and
///    everything is decoded as it is.
///
/// 5. Loads that share the link take turns by slack. No load refines while another lacks a base, and a load
///    with slack starts no base while one with an earlier deadline lacks one.
///
/// Refinements may be planned at the full estimated rate: a wrong guess costs the refinement, never the deadline.
#[derive(Debug, Clone)]
pub struct Progressive {
    base_reads: BaseReads,
    gpu_price: f64,
    /// How long to wait for a silent link before the GPU begins, as a share of the SLO.
    patience: f64,
    /// The current split, the time it was made, and the number of open and missing chunks then.
    split: (Split, Option<(Duration, usize, usize)>),
}

impl Default for Progressive {
    fn default() -> Self {
        Self::new()
    }
}

impl Progressive {
    /// The policy for an engine that waits for this load: idle GPU time is spent on quality, since text loses
    /// nothing.
    pub const fn new() -> Self {
        Self::priced(GPU_PRICE, 0.0)
    }

    /// The policy for a GPU that serves others as well: it computes only what the deadline requires.
    pub const fn sparing() -> Self {
        Self::priced(GPU_PRICE_SPARING, PATIENCE_SPARING)
    }

    const fn priced(gpu_price: f64, patience: f64) -> Self {
        Self { base_reads: BaseReads::new(), gpu_price, patience, split: (Split::given(Vec::new()), None) }
    }

    /// The GPU's next step, or the time of the next check.
    fn text(plan: &Forecast<'_>, split: &Split) -> Result<PolicyStep, Option<Duration>> {
        let view = plan.view;
        if view.text_mode == TextMode::Deferred {
            // What is left to the engine takes as long whenever that is decided, so the others are read first.
            let count = plan.deferred_texts();
            let due = count > 0 && count == plan.missing.len();
            let texts = plan.missing.first().filter(|_| due);
            return texts.map(|&chunk| PolicyStep::Text { chunk }).ok_or(None);
        }
        if !view.text_backlog.is_zero() {
            return Err(None);
        }
        let Some(&chunk) = split.texts.first() else { return Err(None) };
        let before = || (0..chunk).filter(|&i| !view.chunks[i].is_settled());
        if before().any(|i| plan.held(i).is_none()) {
            return Err(None); // it waits for the link
        }
        // The chunks before it would be decoded as they are: that can wait as long as the deadline allows.
        let decodes: Duration = before().map(|i| plan.decode_bound(i)).sum();
        let computes: Duration = split.texts.iter().map(|&i| plan.compute_time(i)).sum();
        let latest = plan.gpu_stop.saturating_sub(computes + decodes);
        if before().next().is_some() && view.now < latest {
            return Err(Some(latest));
        }
        let late = view.now + plan.compute_time(chunk) > view.deadline();
        Ok(if late && plan.held(chunk).is_none() {
            PolicyStep::Hedge { chunk }
        } else {
            PolicyStep::Text { chunk }
        })
    }

    /// Number of requests in flight that hides a round trip.
    fn depth(plan: &Forecast<'_>) -> usize {
        let view = plan.view;
        let base =
            |chunk: &PlannedChunk| view.chunk_rate.map(|rate| rate.time_for(chunk.bytes_at(Level::BASE)));
        let shortest = view.plan.chunks.iter().filter_map(base).min().unwrap_or(view.first_byte);
        let covering = view.first_byte.as_secs_f64() / shortest.as_secs_f64().max(1e-6);
        (DEPTH.0 + covering as usize).min(DEPTH.1)
    }

    /// If the GPU is late with a chunk, the chunk is read as well, and decoded at the last moment that meets
    /// the deadline. It is requested so early that its first byte follows the last of the other bases.
    fn rescue(plan: &Forecast<'_>, bases_done: bool) -> Result<PolicyStep, Option<Duration>> {
        let view = plan.view;
        let Some(chunk) = view.chunks.iter().position(ChunkFetchState::is_computing) else {
            return Err(None);
        };
        let latest = plan.stop.saturating_sub(plan.decode_bound(chunk));
        let bases_requested = plan.missing.iter().all(|&i| !plan.is_idle(i));
        let may_read = bases_done
            || bases_requested
                && view.in_flight < Self::depth(plan)
                && plan.bases_in_flight() <= BaseReads::lookahead(plan);
        match (view.chunks[chunk].status, plan.held(chunk)) {
            (ChunkStatus::Hedged { .. }, Some(_)) if view.now >= latest => Ok(PolicyStep::Finish { chunk }),
            (ChunkStatus::Hedged { .. }, Some(_)) => Err(Some(latest)),
            (ChunkStatus::Hedged { reading: false }, None) if may_read => {
                Ok(PolicyStep::Fetch { chunk, level: Level::BASE })
            }
            (ChunkStatus::Text { .. }, None) if view.overdue > 1.0 => Ok(PolicyStep::Hedge { chunk }),
            _ => Err(None),
        }
    }

    fn split(&mut self, plan: &Forecast<'_>) -> Split {
        let view = plan.view;
        let bound = |chunk: usize| plan.compute_time(chunk).mul_f64(plan.compute_caution(chunk));
        let compute_all: Duration = view.open().map(|(i, ..)| bound(i)).sum();
        if compute_all <= plan.left_gpu_time() && view.text_backlog.is_zero() {
            // Text loses nothing and fits.
            return Split::given(view.open().map(|(i, ..)| i).collect());
        }
        if view.text_mode == TextMode::Deferred {
            let count = plan.deferred_texts();
            return Split::given(plan.missing.iter().copied().take(count).collect());
        }
        if view.chunk_rate.is_none() {
            let patience = view.plan.slo.mul_f64(self.patience);
            let first = plan.missing.first().filter(|_| view.now >= patience).copied();
            return Split::given(first.into_iter().collect());
        }
        let key = (view.open().count(), plan.missing.len());
        let fresh = |&(at, open, missing): &(Duration, usize, usize)| {
            (open, missing) == key && view.now < at + view.plan.slo / RESPLIT
        };
        if self.split.1.as_ref().is_none_or(|made| !fresh(made)) {
            self.split = (Split::best(plan, self.gpu_price), Some((view.now, key.0, key.1)));
        }
        self.split.0.clone()
    }

    fn wait(view: &PolicyView<'_>, until: Option<Duration>) -> PolicyStep {
        // A silent link sends no events, but the forecast worsens.
        let again = view.now + (view.plan.slo / 16).clamp(RELOOK.0, RELOOK.1);
        let computing = view.chunks.iter().any(ChunkFetchState::is_computing);
        let waits = view.in_flight > 0 || until.is_some() || computing;
        PolicyStep::Wait { until: [until, Some(again)].into_iter().flatten().min().filter(|_| waits) }
    }

    /// A held chunk to decode now.
    fn finish(plan: &Forecast<'_>, link_is_free: bool) -> Option<PolicyStep> {
        let view = plan.view;
        let last_text = view.chunks.iter().rposition(ChunkFetchState::is_computing);
        let over = |i: usize| view.now >= plan.stop || last_text.is_some_and(|text| i < text);
        // A chunk that only waits for the bases of others may still be refined.
        let exhausted =
            |i: usize| plan.is_idle(i) && link_is_free && plan.best_refinement(Some(i), 0).is_none();
        let held = view.open().map(|(i, ..)| i).filter(|&i| plan.held(i).is_some());
        held.into_iter().find(|&i| over(i) || exhausted(i)).map(|chunk| PolicyStep::Finish { chunk })
    }
}

impl Policy for Progressive {
    fn name(&self) -> &'static str {
        "progressive"
    }

    /// With its own GPU the policy falls back to it chunk by chunk.
    fn may_give_up(&self, text_mode: TextMode) -> bool {
        text_mode == TextMode::Deferred
    }

    fn next(&mut self, view: &PolicyView<'_>) -> PolicyStep {
        let least = view.plan.slo.mul_f64(MARGIN.0);
        let margin = least.max(view.jitter * MARGIN_JITTERS).min(view.plan.slo.mul_f64(MARGIN.1));
        let plan = Forecast::of(view, margin);
        let split = self.split(&plan);
        let mut until = Some(plan.stop).filter(|&stop| view.now < stop);
        match Self::text(&plan, &split) {
            Ok(step) => return step,
            Err(again) => until = [until, again].into_iter().flatten().min(),
        }
        if let Some(step) = self.base_reads.stopped(&plan, &split) {
            return step;
        }
        let given_up = |i: usize| split.texts.contains(&i) && split.is_hopeless(&plan, i);
        let bases_done = plan.missing.iter().all(|&i| given_up(i));
        if view.text_mode == TextMode::Overlapped {
            match Self::rescue(&plan, bases_done) {
                Ok(step) => return step,
                Err(again) => until = [until, again].into_iter().flatten().min(),
            }
        }
        if let Some(step) = Self::finish(&plan, bases_done) {
            return step;
        }
        if view.in_flight < Self::depth(&plan) {
            if let Some(chunk) = BaseReads::next(&plan, &split) {
                if plan.yields() || !BaseReads::may_begin(&plan) {
                    return Self::wait(view, until);
                }
                return PolicyStep::Fetch { chunk, level: Level::BASE };
            }
            if bases_done
                && split.is_in_time(&plan)
                && let Some((chunk, level)) = plan.best_refinement(None, view.neighbours.missing_bytes)
            {
                return PolicyStep::Fetch { chunk, level };
            }
            // First those that no transfer is known of.
            let idle = || plan.missing.iter().copied().filter(|&i| plan.is_idle(i));
            let unknown = idle().filter(|&i| plan.own_time(i).is_none());
            if view.in_flight == 0
                && let Some(chunk) =
                    BaseReads::from_back(&plan, unknown).or_else(|| BaseReads::from_back(&plan, idle()))
            {
                return PolicyStep::Fetch { chunk, level: Level::BASE };
            }
            // Nothing else can be read: a chunk that the GPU will finish late may still arrive earlier.
            let hedged = |&i: &usize| {
                view.chunks[i].status == ChunkStatus::Hedged { reading: false } && plan.held(i).is_none()
            };
            if view.in_flight == 0
                && let Some(chunk) = (0..view.chunks.len()).find(hedged)
            {
                return PolicyStep::Fetch { chunk, level: Level::BASE };
            }
        }
        Self::wait(view, until)
    }
}
