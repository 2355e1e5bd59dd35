//! The task of a load: carries out what the core says, tells it what happened, hands over what is ready.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use kvasir_codec::ChunkDecoder;
use kvasir_types::{Level, ModelId, TokenRange};
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep_until},
};

use super::{
    Arrival, LoadError, LoadFailure, RecomputeCause,
    assembly::{Assembly, Defect, Identity},
    cut,
    decode::{Context, DecodeQueue, Decoded, Handed, Unit, units},
    fetch::{Cut, Fetch, Reports},
    in_context, join,
    progress::LayerProgress,
    stream::{LayerReady, LoadEvent, Output},
};
use crate::{
    fetcher::{Action, Event, Fetcher, RequestId, TextMode},
    kv::learned::Learned,
    limits::{DECODE_CONCURRENCY, REPAIR_TIME_MAX, REPAIRS_PER_CHUNK},
    transport::{Busy, ObjectName, Routes},
};

/// What the shell keeps of a chunk besides its bytes.
#[derive(Debug, Default)]
pub(super) struct ChunkState {
    /// Requests that failed.
    failures: u32,
    repairs_begun: u32,
    repairs_pending: u32,
    /// A decode that waits for repairs.
    waiting: Option<Level>,
    units_left: usize,
    /// Tokens whose decode failed. They are given back once nothing writes to this chunk's pages any more.
    undecodable: Vec<TokenRange>,
    took: Duration,
    /// Given to the engine to compute and not reported back yet.
    text_due: bool,
    /// Worst predicted loss of what was handed over.
    pub(super) loss: f64,
}

/// A load under way.
pub(super) struct Driver {
    pub(super) policy: &'static str,
    pub(super) model_id: ModelId,
    pub(super) identity: Identity,
    pub(super) decoders: Vec<Arc<dyn ChunkDecoder>>,
    pub(super) routes: Arc<Routes>,
    pub(super) context: Arc<Context>,
    pub(super) text: TextMode,
    pub(super) kl_bound: f64,
    pub(super) fetcher: Fetcher,
    pub(super) assemblies: Vec<Assembly>,
    pub(super) chunks: Vec<ChunkState>,
    pub(super) progress: LayerProgress,
    pub(super) sender: mpsc::Sender<Arrival>,
    pub(super) outputs: mpsc::UnboundedSender<Output>,
    pub(super) started: Instant,
    pub(super) run: Running,
    pub(super) learned: Arc<Learned>,
    /// Uploads step aside while this lives, and other loads take their share.
    pub(super) busy: Busy,
}

/// What changes all the time.
#[derive(Default)]
pub(super) struct Running {
    pub(super) now: Duration,
    reads: BTreeMap<RequestId, AbortHandle>,
    /// Reads, repairs and decodes; dropped with the load, which aborts them.
    tasks: JoinSet<()>,
    queue: DecodeQueue,
    decoding: usize,
    wake: Option<Instant>,
    pub(super) failures: Vec<LoadFailure>,
    pub(super) recompute: Vec<TokenRange>,
    pub(super) flagged: Vec<TokenRange>,
    pub(super) observed: Vec<(TokenRange, Duration)>,
    pub(super) repairs: u64,
    pub(super) stale_rows: usize,
    done: bool,
}

impl Driver {
    pub(super) async fn run(mut self, mut arrivals: mpsc::Receiver<Arrival>, tail: Option<TokenRange>) {
        if let Some(range) = tail.filter(|tail| !tail.is_empty()) {
            self.send(LoadEvent::Recompute { range, cause: RecomputeCause::NotStored });
        }
        self.feed(Event::Start);
        while !self.run.done {
            self.busy.misses(self.fetcher.missing_bytes());
            let wake = self.run.wake;
            let sleep = async {
                match wake {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // The load holds a sender itself, so the channel never closes.
                Some(arrival) = arrivals.recv() => self.take_in(arrival),
                neighbours = self.busy.neighbours() => {
                    self.advance(Instant::now());
                    self.feed(Event::Neighbours(neighbours));
                }
                () = sleep => {
                    self.run.wake = None;
                    self.advance(Instant::now());
                    self.feed(Event::Tick);
                }
            }
            while self.run.tasks.try_join_next().is_some() {}
        }
        self.run.tasks.abort_all();
        let (outputs, learned) = (self.outputs.clone(), Arc::clone(&self.learned));
        let (client, slo) = (self.routes.client().clone(), self.fetcher.plan().slo);
        let report = self.into_report();
        learned.learn(&report);
        // What operators see of SLOs comes from here. Nobody waits for it, and one that is lost is no loss.
        let record = report.record(slo);
        tokio::spawn(async move { client.report_load(&record).await });
        // A load that was dropped has no use for it.
        let _ = outputs.send(Output::Event(LoadEvent::Done { report: Box::new(report) }));
    }

    fn advance(&mut self, at: Instant) {
        self.run.now = self.run.now.max(at.saturating_duration_since(self.started));
    }

    fn send(&self, event: LoadEvent) {
        // Bounded by the plan: a few events a chunk. A load that was dropped has no use for them.
        let _ = self.outputs.send(Output::Event(event));
    }

    fn take_in(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Bytes { request, chunk, at, offset, bytes } => {
                if request.is_some_and(|request| !self.run.reads.contains_key(&request)) {
                    return; // cancelled: the core does not count them, so they will be read again
                }
                self.advance(at);
                self.on_bytes(request, chunk, offset, &bytes);
            }
            Arrival::Ended { request, chunk, at, result } => {
                if self.run.reads.remove(&request).is_none() {
                    return;
                }
                self.advance(at);
                match result {
                    Ok(()) => self.feed(Event::Completed { request }),
                    Err(error) => {
                        let permanent = !error.is_retryable();
                        self.chunks[chunk].failures += 1;
                        self.fail(chunk, error.into());
                        self.feed(Event::Failed { request, permanent });
                    }
                }
            }
            Arrival::Repaired { chunk, at } => {
                self.advance(at);
                self.chunks[chunk].repairs_pending -= 1;
                if self.chunks[chunk].repairs_pending == 0
                    && let Some(level) = self.chunks[chunk].waiting.take()
                {
                    self.decode(chunk, level);
                }
            }
            Arrival::Decoded { at, decoded } => {
                self.advance(at);
                self.on_decoded(decoded);
            }
            Arrival::Computed { range, took } => {
                self.advance(Instant::now());
                self.on_computed(range, took);
            }
        }
    }

    fn on_bytes(&mut self, request: Option<RequestId>, chunk: usize, offset: u64, bytes: &[u8]) {
        let (fresh, defects) = self.assemblies[chunk].take_in(offset, bytes, &self.identity);
        for defect in defects {
            self.repair(chunk, defect);
        }
        if let Some(request) = request.filter(|_| fresh > 0) {
            self.feed(Event::Bytes { request, bytes: fresh });
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
        self.run.repairs += 1;
        let (routes, sender, object) = (Arc::clone(&self.routes), self.sender.clone(), self.name(chunk));
        let left = self.fetcher.plan().deadline().saturating_sub(self.run.now);
        self.run.tasks.spawn(async move {
            let mut reports = Reports { request: None, chunk, arrivals: sender.clone() };
            let read = routes.read(&object, range, true, &mut reports);
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
        self.run.failures.push(LoadFailure { chunk, at: self.run.now, error });
    }

    /// Gives the core an event and carries its actions out.
    fn feed(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.fetcher.on(event, self.run.now) {
                match action {
                    Action::Fetch { request, chunk, end, .. } => self.fetch(request, chunk, end),
                    Action::Cancel { request } => {
                        if let Some(read) = self.run.reads.remove(&request) {
                            read.abort();
                        }
                    }
                    Action::Decode { chunk, level } if self.chunks[chunk].repairs_pending > 0 => {
                        self.chunks[chunk].waiting = Some(level);
                    }
                    Action::Decode { chunk, level } => self.decode(chunk, level),
                    Action::Recompute { chunk } => events.extend(self.as_text(chunk)),
                    Action::Withdraw { chunk } => self.withdraw(chunk),
                    Action::WakeAt(at) => self.run.wake = Some(self.started + at),
                    Action::Done => self.run.done = true,
                }
            }
        }
    }

    fn fetch(&mut self, request: RequestId, chunk: usize, end: u64) {
        // What the core counts is how many bytes of the prefix are here; which ones, is the assembly's affair.
        let missing = self.assemblies[chunk].missing(end);
        let rate = self.fetcher.samples().last().map(|(_, rate)| *rate).or(self.fetcher.plan().prior_rate);
        let cut = Cut::new(rate, self.routes.client().first_bytes.quantile(0.5));
        let fetch = Fetch {
            routes: Arc::clone(&self.routes),
            object: self.name(chunk),
            chunk,
            request,
            parts: cut.parts(&missing),
            at_once: cut.at_once,
            failures: self.chunks[chunk].failures,
        };
        let handle = self.run.tasks.spawn(fetch.run(self.sender.clone()));
        self.run.reads.insert(request, handle);
    }

    fn decode(&mut self, chunk: usize, level: Level) {
        let first_token = self.assemblies[chunk].object().first_token;
        let Some(verified) = self.assemblies[chunk].finish(level) else {
            self.feed(Event::DecodeFailed { chunk });
            return;
        };
        let units = units((chunk, first_token), &verified, &self.decoders[chunk], &self.context);
        if units.is_empty() {
            self.feed(Event::DecodeFailed { chunk });
            return;
        }
        for (tokens, _) in verified.runs.iter().filter(|(_, level)| level.is_none()) {
            self.give_back(in_context(first_token, tokens), RecomputeCause::Failed);
        }
        self.chunks[chunk].units_left = units.len();
        units.into_iter().for_each(|unit| self.run.queue.push(unit));
        self.pump();
    }

    /// Keeps the blocking threads of this load busy.
    fn pump(&mut self) {
        while self.run.decoding < DECODE_CONCURRENCY
            && let Some(unit) = self.run.queue.pop()
        {
            self.run.decoding += 1;
            let (context, sender) = (Arc::clone(&self.context), self.sender.clone());
            self.run.tasks.spawn(async move {
                let decoded = decode_elsewhere(unit, context).await;
                let _ = sender.send(decoded).await;
            });
        }
    }

    fn on_decoded(&mut self, decoded: Decoded) {
        self.run.decoding -= 1;
        self.pump();
        let Decoded { chunk, rank, layers, tokens, level, took, result } = decoded;
        match result {
            Ok(Handed::Written { stale_rows: 0 }) => self.hand_over(chunk, rank, layers, tokens, level),
            Ok(Handed::Written { stale_rows }) => {
                // The request is gone and its pages are another's: there is nobody to load for.
                self.run.stale_rows += stale_rows;
                self.run.done = true;
                return;
            }
            Ok(Handed::Rows(rows)) => {
                let _ = self.outputs.send(Output::Rows { first_token: tokens.start, rows });
                self.hand_over(chunk, rank, layers, tokens, level);
            }
            Err(error) => {
                self.fail(chunk, error);
                join(&mut self.chunks[chunk].undecodable, tokens);
            }
        }
        let state = &mut self.chunks[chunk];
        state.took += took;
        state.units_left -= 1;
        if state.units_left == 0 {
            for tokens in std::mem::take(&mut state.undecodable) {
                self.give_back(tokens, RecomputeCause::Failed);
            }
            let whole = self.fetcher.plan().chunks[chunk].tokens;
            let nothing = covers(&self.run.recompute, whole);
            let took = self.chunks[chunk].took;
            self.feed(if nothing { Event::DecodeFailed { chunk } } else { Event::Decoded { chunk, took } });
        }
    }

    fn hand_over(
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
            join(&mut self.run.flagged, token_range);
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

    /// Tokens that the engine has to compute; said once.
    fn give_back(&mut self, range: TokenRange, cause: RecomputeCause) {
        if covers(&self.run.recompute, range) {
            return;
        }
        join(&mut self.run.recompute, range);
        self.progress.give_back(range);
        self.send(LoadEvent::Recompute { range, cause });
    }

    /// A chunk that the engine computes came over the link first.
    fn withdraw(&mut self, chunk: usize) {
        let range = self.fetcher.plan().chunks[chunk].tokens;
        self.chunks[chunk].text_due = false;
        cut(&mut self.run.recompute, range);
        self.progress.take_back(range);
        self.send(LoadEvent::Withdrawn { range });
    }

    fn as_text(&mut self, chunk: usize) -> Option<Event> {
        let failed = self.run.failures.iter().any(|failure| failure.chunk == chunk);
        let cause = if failed { RecomputeCause::Failed } else { RecomputeCause::Text };
        self.give_back(self.fetcher.plan().chunks[chunk].tokens, cause);
        match self.text {
            TextMode::Overlapped => {
                self.chunks[chunk].text_due = true;
                None
            }
            // The engine computes it after the load.
            TextMode::Deferred => Some(Event::Recomputed { chunk, took: None }),
        }
    }

    fn on_computed(&mut self, range: TokenRange, took: Duration) {
        let mut within = 0;
        for chunk in 0..self.chunks.len() {
            let tokens = self.fetcher.plan().chunks[chunk].tokens;
            let inside = range.start <= tokens.start && tokens.end <= range.end;
            if self.chunks[chunk].text_due && inside {
                self.chunks[chunk].text_due = false;
                within += 1;
                let share = tokens.len() as f64 / range.len().max(1) as f64;
                self.feed(Event::Recomputed { chunk, took: Some(took.mul_f64(share)) });
            }
        }
        if within == 0 {
            self.run.observed.push((range, took));
        }
    }
}

async fn decode_elsewhere(unit: Unit, context: Arc<Context>) -> Arrival {
    let (chunk, rank, layers, level) = (unit.chunk, unit.rank, unit.layers.clone(), unit.level);
    let tokens = unit.context_tokens();
    tokio::task::spawn_blocking(move || unit.run(&context)).await.unwrap_or_else(|error| {
        let result = Err(LoadError::Read(error.into()));
        let decoded = Decoded { chunk, rank, layers, tokens, level, took: Duration::ZERO, result };
        Arrival::Decoded { at: Instant::now(), decoded }
    })
}

/// Whether sorted, disjoint, joined ranges hold all of `range`.
fn covers(ranges: &[TokenRange], range: TokenRange) -> bool {
    ranges.iter().any(|r| r.start <= range.start && range.end <= r.end)
}
