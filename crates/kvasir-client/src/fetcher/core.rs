//! The fetcher's state machine.

use std::time::Duration;

use kvasir_types::{Level, TokenRange};

use super::{
    ChunkFetchState, ChunkStatus, FetchPlan, Policy, PolicyStep,
    byte_rate::ByteRate,
    config::{FetcherConfig, TextMode},
    cost::{DecodeModel, RecomputeModel},
    event::{FetcherAction, FetcherEvent},
    state::LoadState,
};

/// A load is given up if its predicted time exceeds this times the time to compute it.
const GIVE_UP_RATIO: f64 = 1.1;

/// A plan that the core rejects.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "every chunk needs 1 to 8 levels of non-decreasing size and one loss per level, and must start where the previous one ends"
)]
pub struct InvalidPlan;

/// The sans-IO fetcher: `on(event, now) -> actions`. It holds no clock, socket or thread, so the tokio shell
/// and the simulator run exactly the same decisions, and the same sequence of events gives the same sequence
/// of actions.
///
/// Guarantees for any order of events and any policy: every chunk is resolved exactly once (one
/// [`FetcherAction::Decode`], or one [`FetcherAction::Recompute`] that was not withdrawn, or a failed decode
/// followed by a recompute); at most one request per chunk is in flight; [`FetcherAction::Done`] is sent last
/// and once, and is eventually sent if requests, decodes and recomputes end.
#[derive(Debug)]
pub struct Fetcher {
    policy: Box<dyn Policy>,
    state: LoadState,
    wake: Option<Duration>,
    started: bool,
    done: bool,
    gave_up: bool,
}

impl Fetcher {
    /// A fetcher for one load.
    ///
    /// # Errors
    /// [`InvalidPlan`] if the plan's chunks are not contiguous or their levels not increasing.
    pub fn new(plan: FetchPlan, policy: Box<dyn Policy>, config: FetcherConfig) -> Result<Self, InvalidPlan> {
        if !plan.is_valid() {
            return Err(InvalidPlan);
        }
        let state = LoadState::new(plan, config);
        Ok(Self { policy, state, wake: None, started: false, done: false, gave_up: false })
    }

    /// Applies one event and returns the actions to take. `now` is the time since the load began and never decreases.
    pub fn on(&mut self, event: FetcherEvent, now: Duration) -> Vec<FetcherAction> {
        let mut actions = Vec::new();
        if self.done || (!self.started && event != FetcherEvent::Start) {
            return actions;
        }
        match event {
            FetcherEvent::Start => self.started = true,
            FetcherEvent::Tick => {
                if let Some(late) = self.wake.take().and_then(|at| now.checked_sub(at)) {
                    self.state.on_late_wake(late);
                }
            }
            _ => {}
        }
        self.state.apply_event(event, now, &mut actions);
        self.give_up_if_hopeless(now, &mut actions);
        self.follow_policy(now, &mut actions);
        if self.state.chunks.iter().all(ChunkFetchState::is_resolved) {
            self.done = true;
            actions.push(FetcherAction::Done);
        }
        actions
    }

    /// Gives up a load that will miss its deadline *and* is predicted to take longer than computing: open
    /// chunks are decoded from the bytes that have arrived, and chunks without a base are computed.
    fn give_up_if_hopeless(&mut self, now: Duration, actions: &mut Vec<FetcherAction>) {
        if !self.policy.may_give_up(self.state.config.text_mode) {
            return;
        }
        let view = self.state.view(now);
        let mut compute = view.text_backlog;
        let mut bytes = view.in_flight_bytes;
        let mut open = Vec::new();
        for (chunk, state, plan) in view.open() {
            let base = plan.bytes_at(Level::BASE).saturating_sub(state.have_bytes);
            if state.status == ChunkStatus::Idle && base == 0 {
                continue;
            }
            if state.status == ChunkStatus::Idle {
                bytes += base;
            }
            compute += view.recompute.predict(plan.tokens);
            open.push(chunk);
        }
        let hopeless = match view.chunk_rate {
            Some(rate) => {
                now + rate.time_for(bytes) > self.state.plan.deadline()
                    && rate.time_for(bytes) > compute.mul_f64(GIVE_UP_RATIO)
            }
            // Nothing measured: wait no longer than computing everything takes, or until the deadline if
            // bytes arrived.
            None => {
                let heard = self.state.chunks.iter().any(|c| c.have_bytes > 0);
                let patience = if heard { compute.max(self.state.plan.deadline()) } else { compute };
                !self.state.requests.is_empty() && now > patience
            }
        };
        if hopeless && !open.is_empty() {
            self.gave_up = true;
            for chunk in open {
                self.state.settle_with_what_is_here(chunk, now, actions);
            }
        }
    }

    fn follow_policy(&mut self, now: Duration, actions: &mut Vec<FetcherAction>) {
        // Each step settles a chunk or sends a request, so a well-behaved policy waits after at most this
        // many.
        let overlapped = self.state.config.text_mode == TextMode::Overlapped;
        let steps_max = self.state.chunks.len() * (kvasir_types::LEVELS_MAX + 2) + 1;
        for _ in 0..steps_max {
            let computing = |c: &ChunkFetchState| overlapped && c.is_computing();
            if self.state.chunks.iter().all(|c| c.is_settled() && !computing(c)) {
                return;
            }
            match self.policy.next(&self.state.view(now)) {
                PolicyStep::Wait { until } => return self.wait(until, now, actions),
                step if self.apply(step, now, actions) => {}
                _ => break, // a step that is not possible
            }
        }
        self.wait(None, now, actions);
    }

    /// Applies a step; false when the chunk's state does not allow it.
    fn apply(&mut self, step: PolicyStep, now: Duration, actions: &mut Vec<FetcherAction>) -> bool {
        match step {
            PolicyStep::Wait { .. } => false,
            PolicyStep::Fetch { chunk, level } => {
                let idle = [ChunkStatus::Idle, ChunkStatus::Hedged { reading: false }];
                let possible = self.state.status(chunk).is_some_and(|status| idle.contains(&status))
                    && self.state.plan.chunks[chunk].bytes_at(level) > self.state.chunks[chunk].have_bytes;
                if possible {
                    self.state.start_fetch(chunk, level, now, actions);
                }
                possible
            }
            PolicyStep::Pause { chunk } => {
                let reads = Some(ChunkStatus::Hedged { reading: true });
                let possible = matches!(self.state.status(chunk), Some(ChunkStatus::Fetching { .. }))
                    || self.state.status(chunk) == reads;
                if possible {
                    self.state.pause(chunk, now, actions);
                }
                possible
            }
            PolicyStep::Text { chunk } => {
                let possible = self.state.chunks.get(chunk).is_some_and(|c| !c.is_settled());
                if possible {
                    self.state.send_as_text(chunk, now, actions);
                }
                possible
            }
            PolicyStep::Hedge { chunk } => {
                let computing = Some(ChunkStatus::Text { done: false });
                let possible = self.state.chunks.get(chunk).is_some_and(|c| !c.is_settled())
                    || self.state.status(chunk) == computing;
                let possible = possible && self.state.held(chunk).is_none();
                if possible {
                    self.state.hedge(chunk, now, actions);
                }
                possible
            }
            PolicyStep::Finish { chunk } => {
                let hedged = matches!(self.state.status(chunk), Some(ChunkStatus::Hedged { .. }));
                if hedged && self.state.held(chunk).is_some() {
                    self.state.withdraw(chunk, now, actions);
                    return true;
                }
                let possible = self.state.chunks.get(chunk).is_some_and(|c| !c.is_settled())
                    && self.state.held(chunk).is_some();
                if possible {
                    self.state.settle_with_what_is_here(chunk, now, actions);
                }
                possible
            }
        }
    }

    fn wait(&mut self, until: Option<Duration>, now: Duration, actions: &mut Vec<FetcherAction>) {
        let until = until.filter(|&t| t > now);
        if self.state.requests.is_empty() && until.is_none() {
            // No further event will come for the open chunks: settle them now.
            let open: Vec<usize> = self.state.view(now).open().map(|(i, ..)| i).collect();
            for chunk in open {
                self.state.settle_with_what_is_here(chunk, now, actions);
            }
            return;
        }
        let wake = [until, self.stall_check(now)].into_iter().flatten().min();
        if let Some(at) = wake.filter(|&at| self.wake.is_none_or(|w| at < w || w <= now)) {
            self.wake = Some(at);
            actions.push(FetcherAction::WakeAt(at));
        }
    }

    /// When to check again whether the link has died: a silent link sends no events.
    fn stall_check(&self, now: Duration) -> Option<Duration> {
        let step = (self.state.plan.slo / 8).clamp(Duration::from_millis(20), Duration::from_secs(1));
        (!self.state.requests.is_empty() && self.policy.may_give_up(self.state.config.text_mode))
            .then(|| now + step)
    }

    /// The state of each chunk so far.
    pub fn chunks(&self) -> &[ChunkFetchState] {
        &self.state.chunks
    }

    /// Name of the policy.
    pub fn policy(&self) -> &'static str {
        self.policy.name()
    }

    /// When text chunks are computed.
    pub fn text_mode(&self) -> TextMode {
        self.state.config.text_mode
    }

    /// Throughput samples: when, and how much.
    pub fn samples(&self) -> &[(Duration, ByteRate)] {
        self.state.meter.samples()
    }

    /// Token ranges computed from text, adjacent ones joined.
    pub fn text_ranges(&self) -> Vec<TokenRange> {
        self.state.text_ranges()
    }

    /// Bytes of bases that the load still lacks. Its [`Neighbours`](super::Neighbours) wait for them before
    /// they refine.
    pub fn missing_bytes(&self) -> u64 {
        self.state.missing_bytes()
    }

    /// Whether the load was given up because computing the rest was predicted to be faster.
    pub fn gave_up(&self) -> bool {
        self.gave_up
    }

    /// Whether [`FetcherAction::Done`] was sent.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// The plan.
    pub fn plan(&self) -> &FetchPlan {
        &self.state.plan
    }

    /// The cost models as fitted so far, for the next load.
    pub fn models(&self) -> (&RecomputeModel, &DecodeModel) {
        (&self.state.config.recompute, &self.state.config.decode)
    }
}
