//! Base of everything first, then what gains most per byte, until the deadline.

use std::time::Duration;

use kvasir_types::Level;

use super::{Policy, Status, Step, View};

/// Requests in flight: enough that the next one's round trip hides behind the bytes of those before.
const DEPTH: usize = 3;
/// Share of the SLO kept free before the deadline for timer and hand-over jitter.
const MARGIN: f64 = 0.02;

/// Kvasir's policy, over nested levels (a level is a byte prefix, so refining costs only the difference):
///
/// 1. Level 0 of every chunk, in order. Where the network alone would miss the deadline, the chunks at the
///    front of what is missing go as text: GPU and network work at the same time, and the split is the
///    one that meets the deadline with the least recompute, or comes closest to it.
/// 2. Refinements by predicted loss removed per byte, as long as they are predicted to arrive in time.
/// 3. A chunk is decoded as soon as none of its refinements fits any more; at the stop time (deadline less the
///    decoding still to be done) refinements in flight are cancelled and everything is decoded as it is.
///
/// Refinements may be planned at the full estimated rate: a wrong guess costs the refinement, never the deadline.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progressive {
    _private: (),
}

impl Progressive {
    /// The policy with its default constants.
    pub const fn new() -> Self {
        Self { _private: () }
    }
}

fn held(view: &View<'_>, chunk: usize) -> Option<Level> {
    view.plan.chunks[chunk].level_of_prefix(view.chunks[chunk].have_bytes)
}

/// When everything must be handed to the decoder, from the start of the load.
fn stop_time(view: &View<'_>) -> Duration {
    let decode: Duration =
        view.open().map(|(i, _, plan)| view.decode_time(plan, held(view, i).unwrap_or(Level::BASE))).sum();
    view.deadline().saturating_sub(decode + view.plan.slo.mul_f64(MARGIN))
}

/// How many of the chunks without a base, from the front, to compute from text.
fn text_count(view: &View<'_>, missing: &[usize]) -> usize {
    let remaining = view.remaining();
    let text_time = |k: usize| -> Duration {
        let spans = missing.iter().take(k).filter_map(|&i| view.plan.chunks.get(i));
        view.text_backlog + spans.map(|c| view.recompute.predict(c.tokens)).sum::<Duration>()
    };
    if text_time(missing.len()) <= remaining && view.recompute_open() <= remaining {
        return missing.len(); // text loses nothing and fits
    }
    let Some(rate) = view.rate else { return 0 };
    let fetch_time = |k: usize| -> Duration {
        let bytes: u64 = missing
            .iter()
            .skip(k)
            .filter_map(|&i| view.plan.chunks.get(i))
            .map(|c| c.bytes_at(Level::BASE))
            .sum();
        if bytes + view.in_flight_bytes == 0 {
            return Duration::ZERO;
        }
        let last = view.plan.chunks.last().map_or(Duration::ZERO, |c| view.decode_time(c, Level::BASE));
        view.first_byte + rate.time_for(bytes + view.in_flight_bytes) + last
    };
    let finish = |k: usize| view.finish_of(fetch_time(k), text_time(k));
    (0..=missing.len())
        .find(|&k| finish(k) <= remaining)
        .unwrap_or_else(|| (0..=missing.len()).min_by_key(|&k| finish(k)).unwrap_or(0))
}

/// The refinement of an idle chunk that removes most loss per byte among those that arrive before `stop`.
fn best_refinement(view: &View<'_>, stop: Duration, only: Option<usize>) -> Option<(usize, Level)> {
    let rate = view.rate?;
    let wait = if view.in_flight == 0 { view.first_byte } else { Duration::ZERO };
    let mut best: Option<(f64, usize, Level)> = None;
    for (i, state, plan) in view.open().filter(|(i, ..)| only.is_none_or(|only| only == *i)) {
        let Some(level) = held(view, i) else { continue };
        if state.status != Status::Idle {
            continue;
        }
        for target in (level.0 + 1..=plan.top_level().0).map(Level) {
            let bytes = plan.bytes_at(target).saturating_sub(state.have_bytes).max(1);
            if view.now + wait + rate.time_for(view.in_flight_bytes + bytes) > stop {
                break;
            }
            let loss = plan.loss_at(level) - plan.loss_at(target);
            let value = loss * plan.tokens.len() as f64 / bytes as f64;
            if best.is_none_or(|(so_far, ..)| value > so_far) {
                best = Some((value, i, target));
            }
        }
    }
    best.map(|(_, chunk, level)| (chunk, level))
}

impl Policy for Progressive {
    fn name(&self) -> &'static str {
        "progressive"
    }

    fn next(&mut self, view: &View<'_>) -> Step {
        let idle_without_base = |&(i, state, _): &(usize, &super::ChunkState, &super::ChunkPlan)| {
            state.status == Status::Idle && held(view, i).is_none()
        };
        let missing: Vec<usize> = view.open().filter(idle_without_base).map(|(i, ..)| i).collect();
        let stop = stop_time(view);
        if let Some(&first) = missing.first() {
            if text_count(view, &missing) > 0 {
                return Step::Text { chunk: first };
            }
            if view.in_flight < DEPTH {
                return Step::Fetch { chunk: first, level: Level::BASE };
            }
        }
        let last_text = view.chunks.iter().rposition(|c| c.status == Status::Text { done: false });
        for (i, state, _) in view.open().filter(|&(i, ..)| held(view, i).is_some()) {
            let blocks_text = last_text.is_some_and(|text| i < text);
            let over = view.now >= stop || blocks_text;
            let idle = state.status == Status::Idle;
            if over || (idle && missing.is_empty() && best_refinement(view, stop, Some(i)).is_none()) {
                return Step::Finish { chunk: i };
            }
        }
        if missing.is_empty()
            && view.in_flight < DEPTH
            && let Some((chunk, level)) = best_refinement(view, stop, None)
        {
            return Step::Fetch { chunk, level };
        }
        Step::Wait { until: (view.now < stop).then_some(stop) }
    }
}
