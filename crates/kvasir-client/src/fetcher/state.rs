//! The state of a load and its transitions; decisions are made in [`super::core`].

use std::{collections::BTreeMap, time::Duration};

use kvasir_types::{Level, TokenRange};

use super::{
    ChunkState, FetchPlan, Status, View,
    core::{ChunkTimeline, FETCH_ATTEMPTS_MAX, FetcherConfig, TextMode},
    event::{Action, Event, Neighbours, RequestId},
    meter::{Meter, Transfer, after_silence},
    peers::{self, Expectation, Progress},
    rate::ByteRate,
};

/// What an overdue text chunk is taken to need still.
const OVERDUE_MIN: Duration = Duration::from_millis(2);

#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) chunk: usize,
    end: u64,
    transfer: Transfer,
    progress: Progress,
    last: Duration,
}

impl Request {
    fn flowing(&self) -> bool {
        self.transfer.first.is_some()
    }
}

/// Everything a load knows, but for the policy.
#[derive(Debug)]
pub(super) struct LoadState {
    pub(super) plan: FetchPlan,
    pub(super) config: FetcherConfig,
    pub(super) meter: Meter,
    pub(super) chunks: Vec<ChunkState>,
    pub(super) timeline: Vec<ChunkTimeline>,
    pub(super) requests: BTreeMap<RequestId, Request>,
    /// The rate that a chunk's own transfer had when last seen.
    own_rates: Vec<Option<ByteRate>>,
    /// The same, of transfers that stopped in terms of what the link does now; and for how many samples of the link.
    expected_rates: (Vec<Option<ByteRate>>, usize),
    seen_at: Vec<Duration>,
    attempts: Vec<u32>,
    next_request: u64,
    text_started: Duration,
    deferred: Duration,
    neighbours: Neighbours,
}

impl LoadState {
    pub(super) fn new(plan: FetchPlan, config: FetcherConfig) -> Self {
        let count = plan.chunks.len();
        Self {
            chunks: vec![ChunkState { status: Status::Idle, have_bytes: 0 }; count],
            attempts: vec![0; count],
            own_rates: vec![None; count],
            expected_rates: (vec![None; count], 0),
            seen_at: vec![Duration::ZERO; count],
            timeline: vec![ChunkTimeline::default(); count],
            meter: Meter::new(config.estimator),
            requests: BTreeMap::new(),
            next_request: 0,
            text_started: Duration::ZERO,
            deferred: Duration::ZERO,
            neighbours: Neighbours::default(),
            plan,
            config,
        }
    }

    pub(super) fn take_in(&mut self, event: Event, now: Duration, actions: &mut Vec<Action>) {
        match event {
            Event::Start | Event::Tick => {}
            Event::Neighbours(neighbours) => self.neighbours = neighbours,
            Event::Bytes { request, bytes } => self.on_bytes(request, bytes, now),
            Event::Completed { request } => self.on_end(request, now, false, actions),
            Event::Failed { request, permanent } => self.on_end(request, now, permanent, actions),
            Event::Decoded { chunk, took } => {
                if let Some(Status::Decoding { level }) = self.status(chunk) {
                    let plan = &self.plan.chunks[chunk];
                    self.config.decode.observe(plan.tokens.len(), plan.bytes_at(level), took);
                    self.chunks[chunk].status = Status::Ready { level };
                    self.timeline[chunk].level = Some(level);
                    self.timeline[chunk].resolved = Some(now);
                }
            }
            Event::DecodeFailed { chunk } => {
                if let Some(Status::Decoding { .. }) = self.status(chunk) {
                    self.send_as_text(chunk, now, actions);
                }
            }
            Event::Recomputed { chunk, took } => {
                if self.status(chunk) == Some(Status::Text { done: false }) {
                    let tokens = self.plan.chunks[chunk].tokens;
                    match took {
                        Some(took) => self.config.recompute.observe(tokens, took),
                        None => self.deferred += self.config.recompute.predict(tokens),
                    }
                    self.chunks[chunk].status = Status::Text { done: true };
                    self.timeline[chunk].resolved = Some(now);
                    self.text_started = now;
                }
            }
        }
    }

    pub(super) fn status(&self, chunk: usize) -> Option<Status> {
        self.chunks.get(chunk).map(|c| c.status)
    }

    fn on_bytes(&mut self, id: RequestId, bytes: u64, now: Duration) {
        let flowing = self.requests.values().filter(|r| r.flowing()).count();
        let Some(request) = self.requests.get_mut(&id) else { return };
        let state = &mut self.chunks[request.chunk];
        let bytes = bytes.min(request.end - state.have_bytes);
        if request.transfer.first.is_none() {
            request.transfer.first = Some((now, bytes));
            self.meter.on_first_byte(now.saturating_sub(request.transfer.sent), bytes, flowing == 0);
        } else {
            let any = now.saturating_sub(self.meter.last_arrival().max(request.transfer.sent));
            request.progress.add(bytes, any, now.saturating_sub(request.last), flowing as u32);
        }
        request.last = now;
        request.transfer.bytes += bytes;
        state.have_bytes += bytes;
        if let Some(rate) = request.progress.rate() {
            self.own_rates[request.chunk] = Some(rate);
            self.seen_at[request.chunk] = now;
            self.expected_rates.0[request.chunk] = Some(rate);
        }
        let line = &mut self.timeline[request.chunk];
        line.bytes += bytes;
        line.fetched = Some(now);
        self.meter.on_bytes(now, bytes);
        if self.meter.samples().len() != self.expected_rates.1 {
            self.expect_of_stopped();
        }
    }

    /// What stopped while the link was slow would go at what the link does by now, but for the caution that what was not
    /// seen deserves: some transfers are slow for reasons of their own.
    fn expect_of_stopped(&mut self) {
        self.expected_rates.1 = self.meter.samples().len();
        let caution = self.expectation(self.meter.last_arrival()).caution;
        for (chunk, state) in self.chunks.iter().enumerate() {
            if !matches!(state.status, Status::Fetching { .. })
                && let Some(own) = self.own_rates[chunk]
            {
                let by_link = self.meter.since(own, self.seen_at[chunk]).scaled(1.0 / caution);
                self.expected_rates.0[chunk] = Some(if by_link > own { by_link } else { own });
            }
        }
    }

    fn on_end(&mut self, id: RequestId, now: Duration, permanent: bool, actions: &mut Vec<Action>) {
        let Some(request) = self.requests.remove(&id) else { return };
        self.meter_transfer(&request, now);
        let chunk = request.chunk;
        let Status::Fetching { level } = self.chunks[chunk].status else { return };
        self.chunks[chunk].status = Status::Idle;
        if self.chunks[chunk].have_bytes >= request.end {
            return;
        }
        if permanent || self.attempts[chunk] >= FETCH_ATTEMPTS_MAX {
            self.settle_with_what_is_here(chunk, now, actions);
        } else {
            self.fetch(chunk, level, now, actions);
        }
    }

    fn meter_transfer(&mut self, request: &Request, now: Duration) {
        self.meter.on_transfer(now, &request.transfer);
        if self.requests.is_empty() {
            self.meter.on_idle(now);
        }
    }

    /// Stops a chunk's request; what arrived stays.
    pub(super) fn pause(&mut self, chunk: usize, now: Duration, actions: &mut Vec<Action>) {
        self.cancel_request_of(chunk, now, actions);
        self.chunks[chunk].status = Status::Idle;
    }

    pub(super) fn settle_with_what_is_here(
        &mut self,
        chunk: usize,
        now: Duration,
        actions: &mut Vec<Action>,
    ) {
        self.cancel_request_of(chunk, now, actions);
        match self.plan.chunks[chunk].level_of_prefix(self.chunks[chunk].have_bytes) {
            Some(level) => {
                self.chunks[chunk].status = Status::Decoding { level };
                actions.push(Action::Decode { chunk, level });
            }
            None => self.send_as_text(chunk, now, actions),
        }
    }

    pub(super) fn send_as_text(&mut self, chunk: usize, now: Duration, actions: &mut Vec<Action>) {
        self.cancel_request_of(chunk, now, actions);
        if !self.chunks.iter().any(|c| c.status == Status::Text { done: false }) {
            self.text_started = now;
        }
        self.chunks[chunk].status = Status::Text { done: false };
        actions.push(Action::Recompute { chunk });
    }

    fn cancel_request_of(&mut self, chunk: usize, now: Duration, actions: &mut Vec<Action>) {
        let found = self.requests.iter().find(|(_, r)| r.chunk == chunk).map(|(&id, &r)| (id, r));
        if let Some((id, request)) = found {
            self.requests.remove(&id);
            self.meter_transfer(&request, now);
            actions.push(Action::Cancel { request: id });
        }
    }

    fn fetch(&mut self, chunk: usize, level: Level, now: Duration, actions: &mut Vec<Action>) {
        let end = self.plan.chunks[chunk].bytes_at(level);
        let start = self.chunks[chunk].have_bytes;
        let id = RequestId(self.next_request);
        self.next_request += 1;
        self.attempts[chunk] += 1;
        self.chunks[chunk].status = Status::Fetching { level };
        self.timeline[chunk].requests += 1;
        self.timeline[chunk].started.get_or_insert(now);
        let transfer = Transfer { sent: now, first: None, bytes: 0 };
        self.requests.insert(id, Request { chunk, end, transfer, progress: Progress::default(), last: now });
        actions.push(Action::Fetch { request: id, chunk, start, end });
    }

    /// Begins to read what is missing of `level`; asked for by the policy, so attempts count afresh.
    pub(super) fn start_fetch(
        &mut self,
        chunk: usize,
        level: Level,
        now: Duration,
        actions: &mut Vec<Action>,
    ) {
        self.attempts[chunk] = 0;
        self.fetch(chunk, level, now, actions);
    }

    /// For how long bytes that are due have been missing.
    fn silent(&self, now: Duration) -> Duration {
        // Bytes are due at once on a flowing request, after some patience on one that was just sent.
        let patience = 4 * self.meter.first_byte() + Duration::from_millis(50);
        let due = |r: &Request| match r.transfer.first {
            Some(_) => self.meter.last_arrival(),
            None => self.meter.last_arrival().max(r.transfer.sent + patience),
        };
        now.saturating_sub(self.requests.values().map(due).min().unwrap_or(now))
    }

    fn expectation(&self, now: Duration) -> Expectation {
        let flows = |chunk: usize| self.requests.values().any(|r| r.chunk == chunk && r.flowing());
        let own = self.own_rates.iter().zip(&self.seen_at).enumerate();
        let seen = own.filter_map(|(chunk, (rate, &at))| Some(((*rate)?, at, flows(chunk))));
        peers::expect(seen, self.plan.prior_rate, now)
    }

    pub(super) fn view(&self, now: Duration) -> View<'_> {
        let pending = self.requests.values().map(|r| r.end - self.chunks[r.chunk].have_bytes).sum();
        let (silent, expected) = (self.silent(now), self.expectation(now));
        View {
            now,
            plan: &self.plan,
            chunks: &self.chunks,
            rate: self.meter.rate(silent, self.plan.prior_rate),
            chunk_rate: expected.rate.map(|rate| after_silence(rate, silent)),
            caution: expected.caution,
            own_rates: &self.expected_rates.0,
            first_byte: self.meter.first_byte(),
            in_flight: self.requests.len(),
            in_flight_bytes: pending,
            text_backlog: self.text_backlog(now),
            text_mode: self.config.text_mode,
            neighbours: self.neighbours,
            recompute: &self.config.recompute,
            decode: &self.config.decode,
        }
    }

    fn text_backlog(&self, now: Duration) -> Duration {
        let waiting = self.chunks.iter().zip(&self.plan.chunks);
        let waiting = waiting.filter(|(c, _)| c.status == Status::Text { done: false });
        let total: Duration = waiting.map(|(_, p)| self.config.recompute.predict(p.tokens)).sum();
        let running = match self.config.text_mode {
            TextMode::Overlapped => now.saturating_sub(self.text_started),
            TextMode::Deferred => Duration::ZERO,
        };
        // Overdue is not done: others may be on the GPU before it.
        let pending = total.saturating_sub(running).max(total.min(OVERDUE_MIN));
        self.deferred + pending
    }

    /// Bytes of bases that are not here yet.
    pub(super) fn missing_bytes(&self) -> u64 {
        let open = self.chunks.iter().zip(&self.plan.chunks).filter(|(state, _)| !state.is_settled());
        open.map(|(state, plan)| plan.bytes_at(Level::BASE).saturating_sub(state.have_bytes)).sum()
    }

    /// Token ranges that are computed from text, neighbours joined.
    pub(super) fn text_ranges(&self) -> Vec<TokenRange> {
        let mut ranges: Vec<TokenRange> = Vec::new();
        for (state, plan) in self.chunks.iter().zip(&self.plan.chunks) {
            if !matches!(state.status, Status::Text { .. }) {
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
