//! The task of a load: runs the actions of the fetcher core, feeds it events, and reports what is ready.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use kvasir_codec::ChunkDecoder;
use kvasir_types::{Level, ModelId, TokenRange};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use super::{
    LoadError, LoadFailure, RecomputeCause,
    arrival::Arrival,
    assembly::{Defect, ExpectedTokens, ObjectAssembly},
    decode::{DecodeContext, DecodeOutcome, DecodeUnit, DecodedUnit, decode_units},
    fetch::{ArrivalSink, FetchTask, PartSizing},
    progress::LayerProgress,
    report::{ChunkReport, LoadReport, ReadReport},
    state::{ChunkLoadState, DriverState},
    stream::{LayerReady, LoadEvent, LoadOutput},
    token_ranges::{context_range, covers, insert_range, remove_range},
};
use crate::{
    fetcher::{ChunkFetchState, Fetcher, FetcherAction, FetcherEvent, PlannedChunk, RequestId, TextMode},
    kv::learned_costs::LearnedCosts,
    limits::{DECODE_CONCURRENCY, REPAIR_TIME_MAX, REPAIRS_PER_CHUNK},
    transport::{ActiveLoadGuard, ObjectName, Routes},
};

/// Runs one load.
pub(super) struct LoadDriver {
    pub(super) policy: &'static str,
    pub(super) model_id: ModelId,
    pub(super) expected: ExpectedTokens,
    pub(super) decoders: Vec<Arc<dyn ChunkDecoder>>,
    pub(super) routes: Arc<Routes>,
    pub(super) context: Arc<DecodeContext>,
    pub(super) text: TextMode,
    pub(super) kl_bound: f64,
    pub(super) fetcher: Fetcher,
    pub(super) assemblies: Vec<ObjectAssembly>,
    pub(super) chunks: Vec<ChunkLoadState>,
    pub(super) progress: LayerProgress,
    pub(super) sender: mpsc::Sender<Arrival>,
    pub(super) outputs: mpsc::UnboundedSender<LoadOutput>,
    pub(super) started: Instant,
    pub(super) state: DriverState,
    pub(super) learned: Arc<LearnedCosts>,
    /// Registers this load: uploads yield to it, and other loads share the link with it.
    pub(super) active: ActiveLoadGuard,
}

impl LoadDriver {
    pub(super) async fn run(mut self, mut arrivals: mpsc::Receiver<Arrival>, tail: Option<TokenRange>) {
        if let Some(range) = tail.filter(|tail| !tail.is_empty()) {
            self.send(LoadEvent::Recompute { range, cause: RecomputeCause::NotStored });
        }
        self.dispatch(FetcherEvent::Start);
        while !self.state.done {
            self.active.set_missing_bytes(self.fetcher.missing_bytes());
            let wake = self.state.wake;
            let sleep = async {
                match wake {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // The load holds a sender itself, so the channel never closes.
                Some(arrival) = arrivals.recv() => self.on_arrival(arrival),
                neighbours = self.active.neighbours() => {
                    self.advance(Instant::now());
                    self.dispatch(FetcherEvent::Neighbours(neighbours));
                }
                () = sleep => {
                    self.state.wake = None;
                    self.advance(Instant::now());
                    self.dispatch(FetcherEvent::Tick);
                }
            }
            while self.state.tasks.try_join_next().is_some() {}
        }
        self.state.tasks.abort_all();
        let (outputs, learned) = (self.outputs.clone(), Arc::clone(&self.learned));
        let (client, slo) = (self.routes.client().clone(), self.fetcher.plan().slo);
        let report = self.into_report();
        learned.learn(&report);
        // What operators see of SLOs comes from here. Nobody waits for it, and one that is lost is no loss.
        let record = report.record(slo);
        tokio::spawn(async move { client.report_load(&record).await });
        // A load that was dropped has no use for it.
        let _ = outputs.send(LoadOutput::Event(LoadEvent::Done { report: Box::new(report) }));
    }

    fn advance(&mut self, at: Instant) {
        self.state.now = self.state.now.max(at.saturating_duration_since(self.started));
    }

    fn send(&self, event: LoadEvent) {
        // Bounded by the plan: a few events a chunk. A load that was dropped has no use for them.
        let _ = self.outputs.send(LoadOutput::Event(event));
    }

    fn on_arrival(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Bytes { request, chunk, at, offset, bytes } => {
                if request.is_some_and(|request| !self.state.reads.contains_key(&request)) {
                    return; // cancelled: the core does not count them, so they will be read again
                }
                self.advance(at);
                self.on_bytes(request, chunk, offset, &bytes);
            }
            Arrival::Ended { request, chunk, at, result } => {
                if self.state.reads.remove(&request).is_none() {
                    return;
                }
                self.advance(at);
                match result {
                    Ok(()) => self.dispatch(FetcherEvent::Completed { request }),
                    Err(error) => {
                        let permanent = !error.is_retryable();
                        self.chunks[chunk].failures += 1;
                        self.fail(chunk, error.into());
                        self.dispatch(FetcherEvent::Failed { request, permanent });
                    }
                }
            }
            Arrival::Repaired { chunk, at } => {
                self.advance(at);
                self.chunks[chunk].repairs_pending -= 1;
                if self.chunks[chunk].repairs_pending == 0
                    && let Some(level) = self.chunks[chunk].pending_decode.take()
                {
                    self.decode(chunk, level);
                }
            }
            Arrival::Decoded(outcome) => {
                self.advance(outcome.at);
                self.on_decoded(outcome);
            }
            Arrival::Computed { range, took } => {
                self.advance(Instant::now());
                self.on_computed(range, took);
            }
        }
    }

    fn on_bytes(&mut self, request: Option<RequestId>, chunk: usize, offset: u64, bytes: &[u8]) {
        let (fresh, defects) = self.assemblies[chunk].insert(offset, bytes, &self.expected);
        for defect in defects {
            self.repair(chunk, defect);
        }
        if let Some(request) = request.filter(|_| fresh > 0) {
            self.dispatch(FetcherEvent::Bytes { request, bytes: fresh });
        }
    }

    /// Damaged bytes are read once more, through the service, beside the core: their quality is at stake, not the
    /// plan. What stays damaged is decoded at a lower level or computed.
    fn repair(&mut self, chunk: usize, defect: Defect) {
        let (range, error) = match defect {
            Defect::Head { range, what } => (range, LoadError::Object(what)),
            Defect::Piece { range, what } => {
                (range.clone(), LoadError::Damaged { start: range.start, end: range.end, what })
            }
        };
        self.fail(chunk, error);
        let state = &mut self.chunks[chunk];
        if state.repairs_begun >= REPAIRS_PER_CHUNK {
            return;
        }
        state.repairs_begun += 1;
        state.repairs_pending += 1;
        self.state.repairs += 1;
        let (routes, sender, object) = (Arc::clone(&self.routes), self.sender.clone(), self.name(chunk));
        let left = self.fetcher.plan().deadline().saturating_sub(self.state.now);
        self.state.tasks.spawn(async move {
            let mut sink = ArrivalSink { request: None, chunk, arrivals: sender.clone() };
            let read = routes.read(&object, range, true, &mut sink);
            // An error leaves the bytes damaged, which is all there is to know.
            let _ = tokio::time::timeout(left.min(REPAIR_TIME_MAX), read).await;
            let _ = sender.send(Arrival::Repaired { chunk, at: Instant::now() }).await;
        });
    }

    fn name(&self, chunk: usize) -> ObjectName {
        let object = self.assemblies[chunk].object();
        ObjectName { model_id: self.model_id, seq_hash: object.seq_hash, object_digest: object.object_digest }
    }

    fn fail(&mut self, chunk: usize, error: LoadError) {
        tracing::debug!(chunk, %error, "a part of a load failed");
        self.state.failures.push(LoadFailure { chunk, at: self.state.now, error });
    }

    /// Passes an event to the core and executes its actions.
    fn dispatch(&mut self, event: FetcherEvent) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.fetcher.on(event, self.state.now) {
                match action {
                    FetcherAction::Fetch { request, chunk, end, .. } => self.fetch(request, chunk, end),
                    FetcherAction::Cancel { request } => {
                        if let Some(read) = self.state.reads.remove(&request) {
                            read.abort();
                        }
                    }
                    FetcherAction::Decode { chunk, level } if self.chunks[chunk].repairs_pending > 0 => {
                        self.chunks[chunk].pending_decode = Some(level);
                    }
                    FetcherAction::Decode { chunk, level } => self.decode(chunk, level),
                    FetcherAction::Recompute { chunk } => events.extend(self.choose_recompute(chunk)),
                    FetcherAction::Withdraw { chunk } => self.withdraw(chunk),
                    FetcherAction::WakeAt(at) => self.state.wake = Some(self.started + at),
                    FetcherAction::Done => self.state.done = true,
                }
            }
        }
    }

    fn fetch(&mut self, request: RequestId, chunk: usize, end: u64) {
        // What the core counts is how many bytes of the prefix are here; which ones, is the assembly's affair.
        let missing = self.assemblies[chunk].missing(end);
        let rate = self.fetcher.samples().last().map(|(_, rate)| *rate).or(self.fetcher.plan().prior_rate);
        let sizing = PartSizing::new(rate, self.routes.client().first_byte_latencies.quantile(0.5));
        let task = FetchTask {
            routes: Arc::clone(&self.routes),
            object: self.name(chunk),
            chunk,
            request,
            parts: sizing.split(&missing),
            concurrency: sizing.concurrency,
            failures: self.chunks[chunk].failures,
        };
        let handle = self.state.tasks.spawn(task.run(self.sender.clone()));
        self.state.reads.insert(request, handle);
    }

    fn decode(&mut self, chunk: usize, level: Level) {
        let first_token = self.assemblies[chunk].object().first_token;
        let Some(verified) = self.assemblies[chunk].finish(level) else {
            self.dispatch(FetcherEvent::DecodeFailed { chunk });
            return;
        };
        let units = decode_units((chunk, first_token), &verified, &self.decoders[chunk], &self.context);
        if units.is_empty() {
            self.dispatch(FetcherEvent::DecodeFailed { chunk });
            return;
        }
        for (tokens, _) in verified.runs.iter().filter(|(_, level)| level.is_none()) {
            self.return_for_recompute(context_range(first_token, tokens), RecomputeCause::Failed);
        }
        self.chunks[chunk].units_left = units.len();
        units.into_iter().for_each(|unit| self.state.decode_queue.push(unit));
        self.schedule_decodes();
    }

    /// Starts queued decode units, up to [`DECODE_CONCURRENCY`] at a time.
    fn schedule_decodes(&mut self) {
        while self.state.decoding < DECODE_CONCURRENCY
            && let Some(unit) = self.state.decode_queue.pop()
        {
            self.state.decoding += 1;
            let (context, sender) = (Arc::clone(&self.context), self.sender.clone());
            self.state.tasks.spawn(async move {
                let outcome = decode_on_blocking_thread(unit, context).await;
                let _ = sender.send(Arrival::Decoded(outcome)).await;
            });
        }
    }

    fn on_decoded(&mut self, outcome: DecodeOutcome) {
        self.state.decoding -= 1;
        self.schedule_decodes();
        let DecodeOutcome { chunk, rank, layers, tokens, level, took, result, .. } = outcome;
        match result {
            Ok(DecodedUnit::Written { stale_rows: 0 }) => {
                self.report_layers(chunk, rank, layers, tokens, level)
            }
            Ok(DecodedUnit::Written { stale_rows }) => {
                // The request is gone and its pages are another's: there is nobody to load for.
                self.state.stale_rows += stale_rows;
                self.state.done = true;
                return;
            }
            Ok(DecodedUnit::Rows(rows)) => {
                let _ = self.outputs.send(LoadOutput::Rows { first_token: tokens.start, rows });
                self.report_layers(chunk, rank, layers, tokens, level);
            }
            Err(error) => {
                self.fail(chunk, error);
                insert_range(&mut self.chunks[chunk].undecodable, tokens);
            }
        }
        let state = &mut self.chunks[chunk];
        state.decode_time += took;
        state.units_left -= 1;
        if state.units_left == 0 {
            for tokens in std::mem::take(&mut state.undecodable) {
                self.return_for_recompute(tokens, RecomputeCause::Failed);
            }
            let whole = self.fetcher.plan().chunks[chunk].tokens;
            let nothing = covers(&self.state.recompute, whole);
            let took = self.chunks[chunk].decode_time;
            self.dispatch(if nothing {
                FetcherEvent::DecodeFailed { chunk }
            } else {
                FetcherEvent::Decoded { chunk, took }
            });
        }
    }

    /// Reports layers that are in place.
    fn report_layers(
        &mut self,
        chunk: usize,
        rank: usize,
        layers: std::ops::Range<usize>,
        token_range: TokenRange,
        level: Level,
    ) {
        let loss = self.fetcher.plan().chunks[chunk].loss_at(level);
        let beneath = f64::from(self.assemblies[chunk].object().kl_beneath);
        self.chunks[chunk].loss = self.chunks[chunk].loss.max(loss);
        let predicted_kl = loss + beneath;
        let flagged = predicted_kl > self.kl_bound;
        if flagged {
            insert_range(&mut self.state.flagged, token_range);
        }
        self.progress.add(rank, layers.clone(), token_range);
        let layers_complete = self.progress.complete(rank);
        self.send(LoadEvent::LayerReady(LayerReady {
            rank,
            layers,
            token_range,
            level,
            predicted_kl,
            flagged,
            layers_complete,
        }));
    }

    /// Reports tokens that the engine must compute, once.
    fn return_for_recompute(&mut self, range: TokenRange, cause: RecomputeCause) {
        if covers(&self.state.recompute, range) {
            return;
        }
        insert_range(&mut self.state.recompute, range);
        self.progress.exclude(range);
        self.send(LoadEvent::Recompute { range, cause });
    }

    /// Withdraws a chunk from the engine: its bytes arrived before the engine computed it.
    fn withdraw(&mut self, chunk: usize) {
        let range = self.fetcher.plan().chunks[chunk].tokens;
        self.chunks[chunk].recompute_pending = false;
        remove_range(&mut self.state.recompute, range);
        self.progress.include(range);
        self.send(LoadEvent::Withdrawn { range });
    }

    /// Has the engine compute a chunk, during the load or after it.
    fn choose_recompute(&mut self, chunk: usize) -> Option<FetcherEvent> {
        let failed = self.state.failures.iter().any(|failure| failure.chunk == chunk);
        let cause = if failed { RecomputeCause::Failed } else { RecomputeCause::Text };
        self.return_for_recompute(self.fetcher.plan().chunks[chunk].tokens, cause);
        match self.text {
            TextMode::Overlapped => {
                self.chunks[chunk].recompute_pending = true;
                None
            }
            // The engine computes it after the load.
            TextMode::Deferred => Some(FetcherEvent::Recomputed { chunk, took: None }),
        }
    }

    fn on_computed(&mut self, range: TokenRange, took: Duration) {
        let mut within = 0;
        for chunk in 0..self.chunks.len() {
            let tokens = self.fetcher.plan().chunks[chunk].tokens;
            let inside = range.start <= tokens.start && tokens.end <= range.end;
            if self.chunks[chunk].recompute_pending && inside {
                self.chunks[chunk].recompute_pending = false;
                within += 1;
                let share = tokens.len() as f64 / range.len().max(1) as f64;
                self.dispatch(FetcherEvent::Recomputed { chunk, took: Some(took.mul_f64(share)) });
            }
        }
        if within == 0 {
            self.state.observed.push((range, took));
        }
    }

    /// The report of a load that is over.
    fn into_report(self) -> LoadReport {
        let plan = self.fetcher.plan();
        let of = |(chunk, plan): (&ChunkFetchState, &PlannedChunk)| ChunkReport {
            tokens: plan.tokens,
            level: chunk.level(),
            loss: chunk.level().map_or(0.0, |level| plan.loss_at(level)),
            bytes: chunk.have_bytes,
            started: chunk.started,
            fetched: chunk.fetched,
            resolved: chunk.resolved,
            requests: chunk.requests,
        };
        let chunks: Vec<ChunkReport> = self.fetcher.chunks().iter().zip(&plan.chunks).map(of).collect();
        let beneath = |((line, state), assembly): ((&ChunkReport, &ChunkLoadState), &ObjectAssembly)| {
            line.level.map_or(0.0, |_| state.loss + f64::from(assembly.object().kl_beneath))
        };
        let kl_beneath =
            chunks.iter().zip(&self.chunks).zip(&self.assemblies).map(beneath).fold(0.0, f64::max);
        let (recompute_model, decode_model) = self.fetcher.models();
        let mut recompute_model = recompute_model.clone();
        for (range, took) in &self.state.observed {
            recompute_model.observe(*range, *took);
        }
        LoadReport {
            policy: self.policy,
            bytes: chunks.iter().map(|line| line.bytes).sum(),
            chunks,
            recompute: self.state.recompute,
            samples: self.fetcher.samples().to_vec(),
            elapsed: self.state.now,
            gave_up: self.fetcher.gave_up(),
            recompute_model,
            decode_model: decode_model.clone(),
            failures: self.state.failures,
            reads: ReadReport { repairs: self.state.repairs, ..self.routes.counters.report() },
            flagged: self.state.flagged,
            kl_beneath,
            stale_rows: self.state.stale_rows,
        }
    }
}

async fn decode_on_blocking_thread(unit: DecodeUnit, context: Arc<DecodeContext>) -> DecodeOutcome {
    let (chunk, rank, layers, level) = (unit.chunk, unit.rank, unit.layers.clone(), unit.level);
    let tokens = unit.context_tokens();
    tokio::task::spawn_blocking(move || unit.run(&context)).await.unwrap_or_else(|error| {
        let result = Err(LoadError::Read(error.into()));
        let (took, at) = (Duration::ZERO, Instant::now());
        DecodeOutcome { chunk, rank, layers, tokens, level, took, at, result }
    })
}
