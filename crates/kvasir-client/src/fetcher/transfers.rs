//! The requests of a load: start, progress, end, cancellation.

use std::time::Duration;

use kvasir_types::Level;

use super::{
    ChunkStatus,
    config::FETCH_ATTEMPTS_MAX,
    event::{FetcherAction, RequestId},
    in_flight::InFlightRequest,
    meter::Transfer,
    state::LoadState,
    transfer_rate::TransferProgress,
};

impl LoadState {
    pub(super) fn on_bytes(
        &mut self,
        id: RequestId,
        bytes: u64,
        now: Duration,
        actions: &mut Vec<FetcherAction>,
    ) {
        let flowing = self.requests.values().filter(|r| r.flowing()).count();
        let Some(request) = self.requests.get_mut(&id) else { return };
        let chunk = request.chunk;
        let state = &mut self.chunks[chunk];
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
        state.fetched = Some(now);
        let rate = request.progress.rate();
        self.meter.on_bytes(now, bytes);
        if let Some(rate) = rate {
            self.rates.record(chunk, rate, now);
        }
        let requests = &self.requests;
        self.rates.on_link_change(&self.meter, |chunk| requests.values().any(|r| r.chunk == chunk));
        self.withdraw_if_late(chunk, now, actions);
    }

    /// Bytes were already here.
    pub(super) fn on_found(
        &mut self,
        id: RequestId,
        bytes: u64,
        now: Duration,
        actions: &mut Vec<FetcherAction>,
    ) {
        let Some(request) = self.requests.get(&id) else { return };
        let chunk = request.chunk;
        let state = &mut self.chunks[chunk];
        state.have_bytes += bytes.min(request.end - state.have_bytes);
        state.fetched = Some(now);
        self.withdraw_if_late(chunk, now, actions);
    }

    pub(super) fn on_end(
        &mut self,
        id: RequestId,
        now: Duration,
        permanent: bool,
        actions: &mut Vec<FetcherAction>,
    ) {
        let Some(request) = self.requests.remove(&id) else { return };
        self.meter_transfer(&request, now);
        let chunk = request.chunk;
        match self.chunks[chunk].status {
            // The base has arrived, and is held in case the GPU is late.
            ChunkStatus::Hedged { .. } if self.held(chunk).is_some() => {
                self.chunks[chunk].status = ChunkStatus::Hedged { reading: false };
            }
            // The GPU computes it anyway.
            ChunkStatus::Hedged { .. } => self.chunks[chunk].status = ChunkStatus::Text { done: false },
            ChunkStatus::Fetching { level } => {
                self.chunks[chunk].status = ChunkStatus::Idle;
                if self.chunks[chunk].have_bytes >= request.end {
                    return;
                }
                if permanent || self.chunks[chunk].attempts >= FETCH_ATTEMPTS_MAX {
                    self.settle_with_what_is_here(chunk, now, actions);
                } else {
                    self.fetch(chunk, level, now, actions);
                }
            }
            ChunkStatus::Idle
            | ChunkStatus::Decoding { .. }
            | ChunkStatus::Ready { .. }
            | ChunkStatus::Text { .. } => {}
        }
    }

    fn meter_transfer(&mut self, request: &InFlightRequest, now: Duration) {
        self.meter.on_transfer(now, &request.transfer);
        if self.requests.is_empty() {
            self.meter.on_idle(now);
        }
    }

    /// Stops a chunk's request; bytes that arrived are kept.
    pub(super) fn pause(&mut self, chunk: usize, now: Duration, actions: &mut Vec<FetcherAction>) {
        self.cancel_request_of(chunk, now, actions);
        let hedged = matches!(self.chunks[chunk].status, ChunkStatus::Hedged { .. });
        self.chunks[chunk].status =
            if hedged { ChunkStatus::Hedged { reading: false } } else { ChunkStatus::Idle };
    }

    pub(super) fn cancel_request_of(
        &mut self,
        chunk: usize,
        now: Duration,
        actions: &mut Vec<FetcherAction>,
    ) {
        let found = self.requests.iter().find(|(_, r)| r.chunk == chunk).map(|(&id, &r)| (id, r));
        if let Some((id, request)) = found {
            self.requests.remove(&id);
            self.meter_transfer(&request, now);
            actions.push(FetcherAction::Cancel { request: id });
        }
    }

    fn fetch(&mut self, chunk: usize, level: Level, now: Duration, actions: &mut Vec<FetcherAction>) {
        let end = self.plan.chunks[chunk].bytes_at(level);
        let id = RequestId(self.next_request);
        self.next_request += 1;
        let state = &mut self.chunks[chunk];
        let start = state.have_bytes;
        let hedged = matches!(state.status, ChunkStatus::Hedged { .. });
        state.status =
            if hedged { ChunkStatus::Hedged { reading: true } } else { ChunkStatus::Fetching { level } };
        state.attempts += 1;
        state.requests += 1;
        state.started.get_or_insert(now);
        let transfer = Transfer { sent: now, first: None, bytes: 0 };
        self.requests.insert(
            id,
            InFlightRequest { chunk, end, transfer, progress: TransferProgress::default(), last: now },
        );
        actions.push(FetcherAction::Fetch { request: id, chunk, start, end });
    }

    /// Starts reading the missing part of `level`. The policy asked for it, so attempts are counted from
    /// zero.
    pub(super) fn start_fetch(
        &mut self,
        chunk: usize,
        level: Level,
        now: Duration,
        actions: &mut Vec<FetcherAction>,
    ) {
        self.chunks[chunk].attempts = 0;
        self.fetch(chunk, level, now, actions);
    }

    /// For how long due bytes have been missing.
    pub(super) fn silent(&self, now: Duration) -> Duration {
        // Bytes are due at once on an active request, and after a grace period on one that was just sent: less where nothing
        // has come yet and the plan knows when it should.
        let is_known = self.plan.first_byte.is_some() && !self.meter.has_first_byte();
        let patience = self.meter.first_byte() * if is_known { 2 } else { 4 } + Duration::from_millis(50);
        let due = |r: &InFlightRequest| match r.transfer.first {
            Some(_) => self.meter.last_arrival(),
            None => self.meter.last_arrival().max(r.transfer.sent + patience),
        };
        now.saturating_sub(self.requests.values().map(due).min().unwrap_or(now))
    }
}
