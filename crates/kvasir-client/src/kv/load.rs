//! `get_kv`: the tokio shell around the fetcher core.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::BytesMut;
use kvasir_codec::{KvBuffer, KvSink};
use kvasir_types::{Plane, TokenRange};
use tokio::{
    sync::{Semaphore, mpsc},
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep_until},
};

use super::{
    KvClient, LoadPlan,
    reads::{Arrival, Decode, Read, event_of},
    report::{ChunkReport, LoadError, LoadFailure, LoadReport},
};
use crate::{
    ClientError,
    fetcher::{
        Action, ByteRate, ChunkPlan, DecodeModel, EstimatorKind, Event, FetchPlan, Fetcher, FetcherConfig,
        Policy, Progressive, RecomputeModel, RequestId, TextMode,
    },
    limits::{ARRIVALS_QUEUE, DECODE_CONCURRENCY},
};

/// How a load is to be done.
#[derive(Debug)]
pub struct LoadOptions {
    /// Time to first token that is asked for, from now on.
    pub slo: Duration,
    /// Time the engine needs after the load (prefill of the suffix).
    pub suffix_time: Duration,
    /// Which levels to read when.
    pub policy: Box<dyn Policy>,
    /// Throughput estimator.
    pub estimator: EstimatorKind,
    /// Throughput of an earlier load ([`LoadReport::rate`]).
    pub prior_rate: Option<ByteRate>,
    /// What computing from text costs on this engine.
    pub recompute: RecomputeModel,
    /// What decoding costs here.
    pub decode: DecodeModel,
    /// Predicted loss of each level, coarsest first (the profile's predicted KL); a factor of three a level
    /// when absent.
    pub level_loss: Option<Vec<f64>>,
}

impl LoadOptions {
    /// [`Progressive`] within `slo`, with the harmonic mean of 20 samples.
    pub fn new(slo: Duration, recompute: RecomputeModel) -> Self {
        Self {
            slo,
            suffix_time: Duration::ZERO,
            policy: Box::new(Progressive::new()),
            estimator: EstimatorKind::Harmonic,
            prior_rate: None,
            recompute,
            decode: DecodeModel::from_seconds(5e-6, 1e-8),
            level_loss: None,
        }
    }
}

impl KvClient {
    /// Streams the plan's chunks within the SLO and writes their KV to `sink`, token positions counted from the
    /// context's start. What the sink does not get is in the report's `recompute` ranges: the engine computes
    /// them. A failing network or service therefore is no error, only more to compute.
    ///
    /// Chunks are verified (head, checksums, identity) and decoded on blocking threads while the next ones are
    /// on the wire. Dropping the future stops the load; the sink is only ever written from within it.
    ///
    /// # Errors
    /// [`ClientError::Config`] when the options' level losses do not fit the objects.
    pub async fn get_kv(
        &self,
        plan: &LoadPlan,
        options: LoadOptions,
        sink: &mut (dyn KvSink + Send),
    ) -> Result<LoadReport, ClientError> {
        let policy = options.policy.name();
        let config = FetcherConfig {
            estimator: options.estimator,
            recompute: options.recompute.clone(),
            decode: options.decode.clone(),
            text_mode: TextMode::Deferred,
        };
        let fetch_plan = fetch_plan(plan, &options);
        let fetcher = Fetcher::new(fetch_plan, options.policy, config).map_err(|_| ClientError::Config {
            what: "the level losses must be as many as the objects' levels".into(),
        })?;
        let (sender, arrivals) = mpsc::channel(ARRIVALS_QUEUE);
        let chunk_count = plan.chunks.len();
        let load = Load {
            client: self,
            plan,
            fetcher,
            started: Instant::now(),
            now: Duration::ZERO,
            buffers: vec![BytesMut::new(); chunk_count],
            read_failures: vec![0; chunk_count],
            reads: BTreeMap::new(),
            tasks: JoinSet::new(),
            decode_slots: Arc::new(Semaphore::new(DECODE_CONCURRENCY)),
            sender,
            arrivals,
            wake: None,
            failures: Vec::new(),
            done: false,
        };
        Ok(load.run(sink).await.into_report(policy))
    }
}

fn fetch_plan(plan: &LoadPlan, options: &LoadOptions) -> FetchPlan {
    let chunk = |c: &kvasir_api::ChunkMatch| {
        let tokens = TokenRange { start: c.first_token, end: c.first_token + u64::from(c.matched_tokens) };
        let mut chunk = ChunkPlan::with_default_loss(tokens, c.level_bytes.clone());
        if let Some(loss) = &options.level_loss {
            chunk.loss.clone_from(loss);
        }
        chunk
    };
    FetchPlan {
        chunks: plan.chunks.iter().map(chunk).collect(),
        slo: options.slo,
        suffix_time: options.suffix_time,
        prior_rate: options.prior_rate,
    }
}

/// A load under way.
struct Load<'a> {
    client: &'a KvClient,
    plan: &'a LoadPlan,
    fetcher: Fetcher,
    started: Instant,
    now: Duration,
    buffers: Vec<BytesMut>,
    read_failures: Vec<u32>,
    reads: BTreeMap<RequestId, AbortHandle>,
    /// Reads and decodes; dropped with the load, which aborts the reads.
    tasks: JoinSet<()>,
    decode_slots: Arc<Semaphore>,
    sender: mpsc::Sender<Arrival>,
    arrivals: mpsc::Receiver<Arrival>,
    wake: Option<Instant>,
    failures: Vec<LoadFailure>,
    done: bool,
}

impl Load<'_> {
    async fn run(mut self, sink: &mut (dyn KvSink + Send)) -> Self {
        self.feed(Event::Start);
        while !self.done {
            let wake = self.wake;
            let sleep = async {
                match wake {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // The load holds a sender itself, so the channel never closes.
                Some(arrival) = self.arrivals.recv() => self.take_in(arrival, sink).await,
                () = sleep => {
                    self.wake = None;
                    self.advance(Instant::now());
                    self.feed(Event::Tick);
                }
            }
            while self.tasks.try_join_next().is_some() {}
        }
        self.tasks.abort_all();
        self
    }

    fn advance(&mut self, at: Instant) {
        self.now = self.now.max(at.saturating_duration_since(self.started));
    }

    async fn take_in(&mut self, arrival: Arrival, sink: &mut (dyn KvSink + Send)) {
        let event = event_of(&arrival);
        match arrival {
            Arrival::Bytes { request, chunk, at, bytes } => {
                if !self.reads.contains_key(&request) {
                    return; // cancelled: a later read of this chunk starts at what the core counted
                }
                self.advance(at);
                self.buffers[chunk].extend_from_slice(&bytes);
            }
            Arrival::Ended { request, chunk, at, result } => {
                if self.reads.remove(&request).is_none() {
                    return;
                }
                self.advance(at);
                if let Err(error) = result {
                    self.read_failures[chunk] += 1;
                    self.fail(chunk, error.into());
                }
            }
            Arrival::Decoded { chunk, at, result, .. } => {
                self.advance(at);
                match result {
                    Ok(rows) => {
                        hand_over(&rows, &self.client.spec, self.plan.chunks[chunk].first_token, sink).await;
                        self.advance(Instant::now());
                    }
                    Err(error) => self.fail(chunk, error),
                }
            }
        }
        self.feed(event);
    }

    fn fail(&mut self, chunk: usize, error: LoadError) {
        tracing::debug!(chunk, %error, "a part of a load failed");
        self.failures.push(LoadFailure { chunk, at: self.now, error });
    }

    /// Gives the core an event and carries its actions out.
    fn feed(&mut self, event: Event) {
        let mut events = std::collections::VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.fetcher.on(event, self.now) {
                match action {
                    Action::Fetch { request, chunk, start, end } => self.read(request, chunk, start, end),
                    Action::Cancel { request } => {
                        if let Some(read) = self.reads.remove(&request) {
                            read.abort();
                        }
                    }
                    Action::Decode { chunk, level } => self.decode(chunk, level),
                    // The engine computes it after the load.
                    Action::Recompute { chunk } => events.push_back(Event::Recomputed { chunk, took: None }),
                    Action::WakeAt(at) => self.wake = Some(self.started + at),
                    Action::Done => self.done = true,
                }
            }
        }
    }

    fn read(&mut self, request: RequestId, chunk: usize, start: u64, end: u64) {
        debug_assert_eq!(self.buffers[chunk].len() as u64, start, "the core counts the bytes that arrived");
        let read = Read {
            client: self.client.client.clone(),
            model_id: self.client.model_id,
            chunk,
            object: self.plan.chunks[chunk].clone(),
            request,
            start,
            end,
            failures: self.read_failures[chunk],
        };
        let handle = self.tasks.spawn(read.run(self.sender.clone()));
        self.reads.insert(request, handle);
    }

    fn decode(&mut self, chunk: usize, level: kvasir_types::Level) {
        let decode = Decode {
            chunk,
            level,
            object: self.plan.chunks[chunk].clone(),
            prefix: std::mem::take(&mut self.buffers[chunk]).freeze(),
            tokens: Arc::clone(&self.plan.tokens),
            chain: Arc::clone(&self.plan.chain),
            spec: Arc::clone(&self.client.spec),
            decoder: Arc::clone(&self.client.decoder),
        };
        let (sender, slots) = (self.sender.clone(), Arc::clone(&self.decode_slots));
        self.tasks.spawn(async move {
            let slot = slots.acquire_owned().await;
            let decoded = tokio::task::spawn_blocking(move || decode.run()).await.unwrap_or_else(|error| {
                let (at, result) = (Instant::now(), Err(LoadError::Read(error.into())));
                Arrival::Decoded { chunk, at, took: Duration::ZERO, result }
            });
            drop(slot);
            let _ = sender.send(decoded).await;
        });
    }

    fn into_report(self, policy: &'static str) -> LoadReport {
        let timeline = self.fetcher.timeline();
        let chunks = timeline.iter().zip(&self.fetcher.plan().chunks).map(|(line, plan)| ChunkReport {
            tokens: plan.tokens,
            level: line.level,
            loss: line.level.map_or(0.0, |level| plan.loss_at(level)),
            bytes: line.bytes,
            started: line.started,
            fetched: line.fetched,
            resolved: line.resolved,
            requests: line.requests,
        });
        let (recompute_model, decode_model) = self.fetcher.models();
        LoadReport {
            policy,
            chunks: chunks.collect(),
            recompute: self.fetcher.text_ranges(),
            samples: self.fetcher.samples().to_vec(),
            elapsed: self.now,
            bytes: timeline.iter().map(|line| line.bytes).sum(),
            gave_up: self.fetcher.gave_up(),
            recompute_model: recompute_model.clone(),
            decode_model: decode_model.clone(),
            failures: self.failures,
        }
    }
}

/// Copies decoded rows to the engine, letting other tasks run between layers.
async fn hand_over(
    rows: &KvBuffer,
    spec: &kvasir_types::ModelSpec,
    first_token: u64,
    sink: &mut (dyn KvSink + Send),
) {
    for layer in 0..spec.layers.len() {
        for plane in Plane::ALL {
            for head in 0..rows.heads(layer, plane) {
                sink.write(layer, plane, head, first_token as usize, rows.rows(layer, plane, head));
            }
        }
        tokio::task::yield_now().await;
    }
}
