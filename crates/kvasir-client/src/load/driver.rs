//! The task of a load: executes the actions of the fetcher core and passes it the events of the load's parts.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use kvasir_types::{Level, TokenRange};
use tokio::{sync::mpsc, time::Instant};

use super::{
    DriverEvent, LearnedCosts, RecomputeCause,
    arrival::Arrival,
    clock::LoadClock,
    decode::{DecodeOutcome, UnitScope},
    decode_queue::{ChunkDecode, DecodeQueue},
    learned_costs::Trial,
    network::{ChunkBytes, Network, ReadEnd, ReceivedBytes},
    progress::LoadProgress,
    recorder::LoadRecorder,
};
use crate::{
    fetcher::{ChunkFetchState, Fetcher, FetcherAction, FetcherEvent, TextMode},
    rest::ActiveLoadGuard,
};

/// Runs one load. The core decides, and each part keeps its own state.
pub(super) struct LoadDriver {
    fetcher: Fetcher,
    network: Network,
    decodes: DecodeQueue,
    progress: LoadProgress,
    recorder: LoadRecorder,
    clock: LoadClock,
    events: mpsc::UnboundedSender<DriverEvent>,
    learned: Arc<LearnedCosts>,
    /// Held if this load tries what seems slow.
    trial: Option<Trial>,
    /// Registers this load: uploads yield to it, and other loads share the link with it.
    active: ActiveLoadGuard,
}

impl LoadDriver {
    pub(super) fn new(
        started: Instant,
        fetcher: Fetcher,
        network: Network,
        decodes: DecodeQueue,
        progress: LoadProgress,
        events: mpsc::UnboundedSender<DriverEvent>,
        (learned, trial): (Arc<LearnedCosts>, Option<Trial>),
    ) -> Self {
        let active = network.client().active_loads.begin(started + fetcher.plan().deadline());
        let recorder = LoadRecorder::new(fetcher.chunks().len());
        let clock = LoadClock::new(started);
        Self { fetcher, network, decodes, progress, recorder, clock, events, learned, trial, active }
    }

    /// Runs the load and reports; `tail` is the part that the plan does not cover.
    pub(super) async fn run(mut self, mut arrivals: mpsc::Receiver<Arrival>, tail: TokenRange) {
        if !tail.is_empty() {
            self.send(DriverEvent::Recompute { range: tail, cause: RecomputeCause::NotStored });
        }
        self.dispatch(FetcherEvent::Start);
        // Stale rows mean that the pages belong to another request: this one is gone, so the load can stop.
        while !self.fetcher.is_done() && !self.recorder.has_stale_rows() {
            self.active.set_missing_bytes(self.fetcher.missing_bytes());
            let (reading, decoding) = (self.network.is_reading(), self.decodes.is_decoding());
            let before = self.clock.now();
            tokio::select! {
                // The network itself holds a sender, so the channel never closes.
                Some(arrival) = arrivals.recv() => self.on_arrival(arrival),
                (outcome, chunk) = self.decodes.next() => self.on_decoded(outcome, chunk),
                neighbours = self.active.neighbours() => {
                    self.clock.advance(Instant::now());
                    self.dispatch(FetcherEvent::Neighbours(neighbours));
                }
                () = self.clock.wake() => self.dispatch(FetcherEvent::Tick),
            }
            self.recorder.record_passed(self.clock.now() - before, reading, decoding);
        }
        self.finish();
    }

    fn finish(self) {
        let (client, slo) = (self.network.client().clone(), self.fetcher.plan().slo);
        let reads = self.network.finish();
        let report = self.recorder.report(&self.fetcher, self.progress, reads, self.clock.now());
        let (on_device, is_trial) = (self.decodes.is_on_device(), self.trial.is_some());
        self.learned.learn(&self.fetcher, &report, on_device, is_trial);
        // Operators' SLO figures come from this report. It is best effort: nothing waits for it.
        let record = report.record(slo);
        tokio::spawn(async move { client.report_load(&record).await });
        // If the load was dropped, the receiver is gone; ignore that.
        let _ = self.events.send(DriverEvent::Done { report: Box::new(report) });
    }

    fn send(&self, event: DriverEvent) {
        // Bounded by the plan: a few events per chunk. If the load was dropped, the receiver is gone; ignore
        // that.
        let _ = self.events.send(event);
    }

    fn on_arrival(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Bytes { read, at, offset, bytes, from_link } => {
                self.clock.advance(at);
                let left = self.fetcher.plan().deadline().saturating_sub(self.clock.now());
                let received = self.network.on_bytes(read, offset, &bytes, left);
                let Some(ReceivedBytes { chunk, fresh, defects }) = received else { return };
                for error in defects {
                    self.recorder.record_failure(chunk, self.clock.now(), error);
                }
                if let Some((request, bytes)) = fresh {
                    self.dispatch(if from_link {
                        FetcherEvent::Bytes { request, bytes }
                    } else {
                        FetcherEvent::Found { request, bytes }
                    });
                }
            }
            Arrival::Ended { read, at, result } => {
                self.clock.advance(at);
                match self.network.on_ended(read, result) {
                    Some(ReadEnd::Completed { request }) => {
                        self.dispatch(FetcherEvent::Completed { request })
                    }
                    Some(ReadEnd::Failed { request, chunk, error }) => {
                        let permanent = !error.is_retryable();
                        self.recorder.record_failure(chunk, self.clock.now(), error.into());
                        self.dispatch(FetcherEvent::Failed { request, permanent });
                    }
                    Some(ReadEnd::Repaired { chunk, level }) => self.decode(chunk, level),
                    None => {}
                }
            }
            Arrival::Computed { range, took } => {
                self.clock.advance(Instant::now());
                self.on_computed(range, took);
            }
        }
    }

    /// Passes an event to the core and executes the resulting actions.
    fn dispatch(&mut self, event: FetcherEvent) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.fetcher.on(event, self.clock.now()) {
                match action {
                    FetcherAction::Fetch { request, chunk, end, .. } => {
                        let measured = self.fetcher.samples().last().map(|(_, rate)| *rate);
                        let rate = measured.or(self.fetcher.plan().prior_rate);
                        self.network.fetch(request, chunk, end, rate);
                    }
                    FetcherAction::Cancel { request } => self.network.cancel(request),
                    FetcherAction::Decode { chunk, level } => self.decode(chunk, level),
                    FetcherAction::Recompute { chunk } => events.extend(self.choose_recompute(chunk)),
                    FetcherAction::Withdraw { chunk } => {
                        let withdrawn = self.progress.withdraw(self.tokens(chunk));
                        self.send(withdrawn);
                    }
                    FetcherAction::WakeAt(at) => self.clock.wake_at(at),
                    FetcherAction::Done => {}
                }
            }
        }
    }

    fn tokens(&self, chunk: usize) -> TokenRange {
        self.fetcher.plan().chunks[chunk].tokens
    }

    fn decode(&mut self, chunk: usize, level: Level) {
        let queued = match self.network.take_verified(chunk, level) {
            ChunkBytes::Verified(verified) => self.decodes.push(chunk, self.tokens(chunk).start, &verified),
            ChunkBytes::Unusable => None,
            ChunkBytes::Repairing => return,
        };
        let Some(damaged) = queued else { return self.dispatch(FetcherEvent::DecodeFailed { chunk }) };
        for tokens in damaged {
            self.return_for_recompute(tokens, RecomputeCause::Failed);
        }
    }

    fn on_decoded(&mut self, outcome: DecodeOutcome, chunk_decode: Option<ChunkDecode>) {
        self.clock.advance(outcome.at);
        let DecodeOutcome { scope, took, by, on_device, result, .. } = outcome;
        self.recorder.record_decode(took, by);
        if let Some(run) = on_device {
            self.recorder.record_device_times(run.times);
            self.learned.observe_device_run(&run);
        }
        let chunk = scope.chunk;
        match result {
            Ok(0) => self.report_layers(scope),
            Ok(stale_rows) => return self.recorder.record_stale_rows(stale_rows),
            Err(error) => self.recorder.record_failure(chunk, self.clock.now(), error),
        }
        let Some(ChunkDecode { took, undecodable, .. }) = chunk_decode else { return };
        for tokens in undecodable {
            self.return_for_recompute(tokens, RecomputeCause::Failed);
        }
        self.dispatch(if self.progress.is_recomputed(self.tokens(chunk)) {
            FetcherEvent::DecodeFailed { chunk }
        } else {
            FetcherEvent::Decoded { chunk, took }
        });
    }

    /// Reports layers that are in place.
    fn report_layers(&mut self, scope: UnitScope) {
        let loss = self.network.loss_of(scope.chunk, scope.level);
        self.recorder.record_loss(scope.chunk, loss);
        let ready = self.progress.layers_ready(scope, loss);
        self.send(ready);
    }

    /// Reports, once, tokens that the engine must compute.
    fn return_for_recompute(&mut self, range: TokenRange, cause: RecomputeCause) {
        if let Some(event) = self.progress.recompute(range, cause) {
            self.send(event);
        }
    }

    /// Hands a chunk to the engine to compute, during or after the load.
    fn choose_recompute(&mut self, chunk: usize) -> Option<FetcherEvent> {
        let failed = self.recorder.has_failed(chunk);
        let cause = if failed { RecomputeCause::Failed } else { RecomputeCause::Text };
        self.return_for_recompute(self.tokens(chunk), cause);
        // In deferred mode, the engine computes it after the load.
        (self.fetcher.text_mode() == TextMode::Deferred)
            .then_some(FetcherEvent::Recomputed { chunk, took: None })
    }

    /// The engine computed a range in `took`: chunks handed to it, or other tokens that the cost model learns
    /// from.
    fn on_computed(&mut self, range: TokenRange, took: Duration) {
        let mut within = false;
        for chunk in 0..self.fetcher.chunks().len() {
            let tokens = self.tokens(chunk);
            let inside = range.start <= tokens.start && tokens.end <= range.end;
            if inside && self.fetcher.chunks().get(chunk).is_some_and(ChunkFetchState::is_computing) {
                within = true;
                let took = took.mul_f64(tokens.len() as f64 / range.len().max(1) as f64);
                self.learned.observe_prefill(tokens, took);
                self.recorder.record_recompute(took);
                self.dispatch(FetcherEvent::Recomputed { chunk, took: Some(took) });
            }
        }
        if !within {
            self.learned.observe_prefill(range, took);
            self.recorder.record_prefill(range, took);
        }
    }
}
