//! The state of a load and its transitions. [`super::core`] makes the decisions.

use std::{collections::BTreeMap, time::Duration};

use kvasir_types::{Level, TokenRange};

use super::{
    ChunkFetchState, ChunkStatus, FetchPlan, PolicyView,
    chunk_rates::ChunkRates,
    config::{FetcherConfig, TextMode},
    event::{FetcherAction, FetcherEvent, Neighbours, RequestId},
    in_flight::InFlightRequest,
    meter::{Meter, after_silence},
};

/// Assumed remaining time of an overdue text chunk.
const OVERDUE_MIN: Duration = Duration::from_millis(2);
/// A prefill is overdue from this multiple of its predicted time.
const OVERDUE_FROM: f64 = 1.05;
/// Assumed remaining time of an overdue prefill beyond its quantile, as a share of its time so far.
const OVERDUE_MORE: f64 = 0.25;
/// Share of the observed timer delay that remains after the next wake-up.
const JITTER_KEEP: f64 = 0.9;

/// The state of a load, without its policy.
#[derive(Debug)]
pub(super) struct LoadState {
    pub(super) plan: FetchPlan,
    pub(super) config: FetcherConfig,
    pub(super) meter: Meter,
    pub(super) chunks: Vec<ChunkFetchState>,
    pub(super) requests: BTreeMap<RequestId, InFlightRequest>,
    pub(super) rates: ChunkRates,
    pub(super) next_request: u64,
    text_started: Duration,
    /// The latest wake-up's delay, or the remainder of an earlier one's.
    jitter: Duration,
    deferred: Duration,
    neighbours: Neighbours,
}

impl LoadState {
    pub(super) fn new(plan: FetchPlan, config: FetcherConfig) -> Self {
        let count = plan.chunks.len();
        Self {
            chunks: vec![ChunkFetchState::default(); count],
            rates: ChunkRates::new(count),
            meter: Meter::new(config.estimator, plan.first_byte),
            requests: BTreeMap::new(),
            next_request: 0,
            text_started: Duration::ZERO,
            jitter: Duration::ZERO,
            deferred: Duration::ZERO,
            neighbours: Neighbours::default(),
            plan,
            config,
        }
    }

    /// Applies an event to the state.
    pub(super) fn apply_event(
        &mut self,
        event: FetcherEvent,
        now: Duration,
        actions: &mut Vec<FetcherAction>,
    ) {
        match event {
            FetcherEvent::Start | FetcherEvent::Tick => {}
            FetcherEvent::Neighbours(neighbours) => self.neighbours = neighbours,
            FetcherEvent::Bytes { request, bytes } => self.on_bytes(request, bytes, now, actions),
            FetcherEvent::Found { request, bytes } => self.on_found(request, bytes, now, actions),
            FetcherEvent::Completed { request } => self.on_end(request, now, false, actions),
            FetcherEvent::Failed { request, permanent } => self.on_end(request, now, permanent, actions),
            FetcherEvent::Decoded { chunk, took } => {
                if let Some(ChunkStatus::Decoding { level }) = self.status(chunk) {
                    let plan = &self.plan.chunks[chunk];
                    self.config.decode.observe(plan.tokens.len(), plan.bytes_at(level), took);
                    self.chunks[chunk].resolve(ChunkStatus::Ready { level }, now);
                }
            }
            FetcherEvent::DecodeFailed { chunk } => {
                if let Some(ChunkStatus::Decoding { .. }) = self.status(chunk) {
                    self.send_as_text(chunk, now, actions);
                }
            }
            FetcherEvent::Recomputed { chunk, took } => {
                if self.chunks.get(chunk).is_some_and(ChunkFetchState::is_computing) {
                    self.cancel_request_of(chunk, now, actions);
                    let tokens = self.plan.chunks[chunk].tokens;
                    match took {
                        Some(took) => self.config.recompute.observe(tokens, took),
                        None => self.deferred += self.config.recompute.predict(tokens),
                    }
                    self.chunks[chunk].resolve(ChunkStatus::Text { done: true }, now);
                    self.text_started = now;
                }
            }
        }
    }

    pub(super) fn status(&self, chunk: usize) -> Option<ChunkStatus> {
        self.chunks.get(chunk).map(|c| c.status)
    }

    pub(super) fn settle_with_what_is_here(
        &mut self,
        chunk: usize,
        now: Duration,
        actions: &mut Vec<FetcherAction>,
    ) {
        self.cancel_request_of(chunk, now, actions);
        match self.held(chunk) {
            Some(level) => {
                self.chunks[chunk].status = ChunkStatus::Decoding { level };
                actions.push(FetcherAction::Decode { chunk, level });
            }
            None => self.send_as_text(chunk, now, actions),
        }
    }

    pub(super) fn send_as_text(&mut self, chunk: usize, now: Duration, actions: &mut Vec<FetcherAction>) {
        self.cancel_request_of(chunk, now, actions);
        self.compute(chunk, ChunkStatus::Text { done: false }, now, actions);
    }

    /// Computes a chunk whose base has not arrived, and reads it as well.
    pub(super) fn hedge(&mut self, chunk: usize, now: Duration, actions: &mut Vec<FetcherAction>) {
        if self.chunks[chunk].is_computing() {
            self.chunks[chunk].status = ChunkStatus::Hedged { reading: false };
            return;
        }
        let reading = matches!(self.chunks[chunk].status, ChunkStatus::Fetching { .. });
        self.compute(chunk, ChunkStatus::Hedged { reading }, now, actions);
    }

    fn compute(
        &mut self,
        chunk: usize,
        status: ChunkStatus,
        now: Duration,
        actions: &mut Vec<FetcherAction>,
    ) {
        if !self.chunks.iter().any(ChunkFetchState::is_computing) {
            self.text_started = now;
        }
        self.chunks[chunk].status = status;
        actions.push(FetcherAction::Recompute { chunk });
    }

    /// Decodes a hedged chunk whose base has arrived if the GPU is expected to finish too late.
    pub(super) fn withdraw_if_late(&mut self, chunk: usize, now: Duration, actions: &mut Vec<FetcherAction>) {
        if now + self.text_backlog(now) > self.plan.deadline() {
            self.withdraw(chunk, now, actions);
        }
    }

    /// Decodes a hedged chunk whose base has arrived, without waiting for the GPU.
    pub(super) fn withdraw(&mut self, chunk: usize, now: Duration, actions: &mut Vec<FetcherAction>) {
        if let Some(level) = self.held(chunk)
            && matches!(self.chunks[chunk].status, ChunkStatus::Hedged { .. })
        {
            self.cancel_request_of(chunk, now, actions);
            actions.push(FetcherAction::Withdraw { chunk });
            self.chunks[chunk].status = ChunkStatus::Decoding { level };
            self.text_started = now;
            actions.push(FetcherAction::Decode { chunk, level });
        }
    }

    /// The level that a chunk's bytes suffice for.
    pub(super) fn held(&self, chunk: usize) -> Option<Level> {
        self.plan.chunks[chunk].level_of_prefix(self.chunks[chunk].have_bytes)
    }

    pub(super) fn view(&self, now: Duration) -> PolicyView<'_> {
        let pending = self.requests.values().map(|r| r.end - self.chunks[r.chunk].have_bytes).sum();
        let silent = self.silent(now);
        let flows = |chunk: usize| self.requests.values().any(|r| r.chunk == chunk && r.flowing());
        let expected = self.rates.expectation(&self.meter, self.plan.prior_rate, now, flows);
        PolicyView {
            now,
            plan: &self.plan,
            chunks: &self.chunks,
            rate: self.meter.rate(silent, self.plan.prior_rate),
            chunk_rate: expected.rate.map(|rate| after_silence(rate, silent)),
            caution: expected.caution,
            own_rates: self.rates.expected(),
            first_byte: self.meter.first_byte(),
            first_due: self.first_due(now),
            in_flight: self.requests.len(),
            in_flight_bytes: pending,
            text_backlog: self.text_backlog(now),
            overdue: self.overdue(now),
            jitter: self.jitter,
            text_mode: self.config.text_mode,
            decodes_on_gpu: self.config.decodes_on_gpu,
            neighbours: self.neighbours,
            recompute: &self.config.recompute,
            decode: &self.config.decode,
        }
    }

    fn first_due(&self, now: Duration) -> Duration {
        let mut requests = self.requests.values();
        if requests.clone().any(InFlightRequest::flowing) {
            return Duration::ZERO;
        }
        let sent = requests.next().map(|request| request.transfer.sent);
        sent.map_or(Duration::ZERO, |sent| (sent + self.meter.first_byte()).saturating_sub(now))
    }

    fn text_backlog(&self, now: Duration) -> Duration {
        let model = &self.config.recompute;
        let computing = || {
            let pairs = self.chunks.iter().zip(&self.plan.chunks);
            pairs.filter(|(state, _)| state.is_computing()).map(|(_, plan)| plan.tokens)
        };
        let total: Duration = computing().map(|tokens| model.predict(tokens)).sum();
        if self.config.text_mode == TextMode::Deferred {
            return self.deferred + total;
        }
        let running = now.saturating_sub(self.text_started);
        // An overdue prefill may need the time of the slowest in a hundred; beyond that, more than a little.
        let total = if self.overdue(now) > 1.0 {
            let slow: Duration =
                computing().map(|tokens| model.predict(tokens).mul_f64(model.caution(tokens))).sum();
            slow.max(running.mul_f64(1.0 + OVERDUE_MORE))
        } else {
            total
        };
        self.deferred + total.saturating_sub(running).max(total.min(OVERDUE_MIN))
    }

    /// Factor by which the GPU's present computation already exceeds its prediction, beyond the detection
    /// threshold.
    fn overdue(&self, now: Duration) -> f64 {
        let mut pairs = self.chunks.iter().zip(&self.plan.chunks);
        let Some((_, first)) = pairs.find(|(c, _)| c.is_computing()) else { return 1.0 };
        let predicted = self.config.recompute.predict(first.tokens).as_secs_f64().max(1e-6);
        let ratio = now.saturating_sub(self.text_started).as_secs_f64() / predicted;
        let runs = self.config.text_mode == TextMode::Overlapped;
        if runs && ratio > OVERDUE_FROM { ratio } else { 1.0 }
    }

    /// A wake-up was late by this much.
    pub(super) fn on_late_wake(&mut self, late: Duration) {
        self.jitter = late.max(self.jitter.mul_f64(JITTER_KEEP));
    }

    /// Bytes of bases that have not arrived yet.
    pub(super) fn missing_bytes(&self) -> u64 {
        let open = self.chunks.iter().zip(&self.plan.chunks).filter(|(state, _)| !state.is_settled());
        open.map(|(state, plan)| plan.bytes_at(Level::BASE).saturating_sub(state.have_bytes)).sum()
    }

    /// Token ranges computed from text, adjacent ones joined.
    pub(super) fn text_ranges(&self) -> Vec<TokenRange> {
        let mut ranges: Vec<TokenRange> = Vec::new();
        for (state, plan) in self.chunks.iter().zip(&self.plan.chunks) {
            if !matches!(state.status, ChunkStatus::Text { .. } | ChunkStatus::Hedged { .. }) {
                continue;
            }
            match ranges.last_mut() {
                Some(last) if last.end == plan.tokens.start => last.end = plan.tokens.end,
                _ => ranges.push(plan.tokens),
            }
        }
        ranges
    }
}
