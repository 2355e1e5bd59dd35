//! One request from its arrival to its last token: memory, Kvasir, queue, prefill, decode, store.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kvasir_client::{Kvasir, Session, tuning::QueueStats};
use kvasir_types::TokenRange;
use serde::Serialize;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    task::JoinHandle,
};

use super::{
    FinishReason, LoadedPrefix, Request, RequestId, Scheduler, SchedulerLimits, SubmitError,
    driver::{self, Command, SchedulerReply},
    load::{self, LoadOutcome, QueueTime, RemoteUse},
};
use crate::{
    error::EngineError,
    limits::{COMMANDS_QUEUE, LOAD_GAIN_TOKENS_MIN, LOADS_AT_ONCE, PAGE_TOKENS_DEFAULT},
    model::Model,
    paged::{PagePool, PagedKv},
};

/// Memory and concurrency of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineConfig {
    /// Pages of KV in memory, running sequences and kept prefixes together.
    pub pages: usize,
    /// Tokens of a page.
    pub page_tokens: usize,
    /// How many requests run and wait at the same time.
    pub limits: SchedulerLimits,
}

impl EngineConfig {
    /// Pages for `contexts` full contexts of `model`.
    pub fn for_contexts(model: &Model, contexts: usize) -> Self {
        let pages = contexts * model.config().context.div_ceil(PAGE_TOKENS_DEFAULT);
        Self { pages, page_tokens: PAGE_TOKENS_DEFAULT, limits: SchedulerLimits::default() }
    }
}

/// A serving engine: a scheduler on a dedicated thread, and optionally a connection to Kvasir. Cheap to
/// clone; the thread ends with the last clone.
#[derive(Debug, Clone)]
pub struct Engine {
    shared: Arc<EngineShared>,
}

#[derive(Debug)]
struct EngineShared {
    model: Arc<Model>,
    pool: Arc<PagePool>,
    commands: mpsc::Sender<Command>,
    /// Requests that may be open, loading ones included.
    places: Arc<Semaphore>,
    places_max: usize,
    loads: Semaphore,
    remote: Option<RemoteCache>,
}

#[derive(Debug)]
struct RemoteCache {
    kvasir: Kvasir,
    how: RemoteUse,
    queue: QueueTime,
}

/// Breakdown of the time to the first token. The parts add up to `total`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct TtftBreakdown {
    /// Lookup in Kvasir, in milliseconds.
    pub lookup_ms: f64,
    /// Waiting, for whatever reason: for pages, for other requests' steps.
    pub queue_ms: f64,
    /// Until the last byte of the KV arrived.
    pub fetch_ms: f64,
    /// From then until all of it was in its pages.
    pub decode_ms: f64,
    /// Computing what was not loaded, except the last token.
    pub recompute_ms: f64,
    /// The step that gave the first token.
    pub first_step_ms: f64,
    /// From arrival to the first token.
    pub total_ms: f64,
}

/// Sources of the prompt's KV.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct PrefixUse {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Found in this engine's memory.
    pub memory_tokens: usize,
    /// Loaded from Kvasir.
    pub loaded_tokens: usize,
    /// Computed.
    pub computed_tokens: usize,
    /// Loaded bytes.
    pub loaded_bytes: u64,
    /// Level of each chunk in the loaded range; `None` where the chunk was computed instead.
    pub levels: Vec<Option<u8>>,
    /// Predicted KL of the loaded KV, in nats per token.
    pub kl_beneath: f64,
    /// Whether the suffix was started on the first layers while later ones were being decoded.
    pub layer_wise: bool,
    /// Whether the load was given up because computing was sooner.
    pub gave_up: bool,
}

impl PrefixUse {
    /// For a prompt of `prompt_tokens` tokens, of which the scheduler was given or found `reused`.
    fn new(prompt_tokens: usize, reused: usize, outcome: &mut LoadOutcome) -> Self {
        let loaded = outcome.loaded_tokens.min(reused);
        let held = reused - loaded;
        let computed_ahead = if outcome.layer_wise { held } else { 0 };
        Self {
            prompt_tokens,
            memory_tokens: held - computed_ahead,
            loaded_tokens: loaded,
            computed_tokens: prompt_tokens - reused + computed_ahead,
            loaded_bytes: outcome.bytes,
            levels: std::mem::take(&mut outcome.levels),
            kl_beneath: outcome.kl,
            layer_wise: outcome.layer_wise,
            gave_up: outcome.gave_up,
        }
    }
}

/// Result of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Why it ended.
    pub reason: FinishReason,
    /// Time to first token.
    pub ttft: TtftBreakdown,
    /// Sources of its KV.
    pub prefix: PrefixUse,
    /// BLAKE3 of the prompt's KV (whole pages, as f32), if the request asked for it and the KV is still held.
    pub kv_digest: Option<blake3::Hash>,
}

/// How a cache was delivered that the caller supplied.
#[derive(Debug, Clone, Copy)]
pub struct Delivery {
    /// When the caller began.
    pub arrived: Instant,
    /// Until the last byte arrived.
    pub fetch: Duration,
    /// From then until all of it was in its pages.
    pub decode: Duration,
}

/// An item of a request's output.
#[derive(Debug)]
pub enum Output {
    /// A token.
    Token(u32),
    /// The end.
    Done(Box<Summary>),
}

/// A running request. Dropping it cancels it.
#[derive(Debug)]
pub struct Completion {
    outputs: mpsc::Receiver<Output>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Completion {
    /// The next output; none after [`Output::Done`], and without it when the engine failed.
    pub async fn next(&mut self) -> Option<Output> {
        self.outputs.recv().await
    }

    /// Ends a running request because its answer is complete. The computed KV is kept and stored like that of
    /// any other request. Tokens that arrive in the meantime are dropped. Returns `None` if the engine failed
    /// or the summary was already taken.
    pub async fn stop(&mut self) -> Option<Summary> {
        // If the receiver is gone, the request has ended and its summary is on its way.
        let _ = self.stop.take().map(|stop| stop.send(()));
        loop {
            if let Output::Done(summary) = self.next().await? {
                return Some(*summary);
            }
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Engine {
    /// Starts the scheduler's thread.
    ///
    /// # Errors
    /// [`EngineError::Paged`] for pages that cannot be; [`EngineError::Read`] when the thread cannot be started.
    pub fn start(
        model: Arc<Model>,
        config: EngineConfig,
        remote: Option<(Kvasir, RemoteUse)>,
    ) -> Result<Self, EngineError> {
        let pool = PagePool::new(model.spec(), config.page_tokens, config.pages)?;
        Self::start_over(model, pool, config.limits, remote)
    }

    /// As [`start`](Self::start), over the pages of a pool of `model` that is new: [on a device](PagePool::on_device).
    ///
    /// # Errors
    /// [`EngineError::Config`] for a pool of another model; [`EngineError::Read`] when the thread cannot be started.
    pub fn start_over(
        model: Arc<Model>,
        pool: Arc<PagePool>,
        limits: SchedulerLimits,
        remote: Option<(Kvasir, RemoteUse)>,
    ) -> Result<Self, EngineError> {
        pool.check_is_of(model.spec())?;
        let places_max = limits.sequences + limits.waiting;
        // Loads keep requests out of the scheduler's queue, so the scheduler must accept every request that
        // has a place.
        let limits = SchedulerLimits { waiting: places_max, ..limits };
        let scheduler = Scheduler::new(Arc::clone(&model), Arc::clone(&pool), limits);
        let (commands, received) = mpsc::channel(COMMANDS_QUEUE);
        std::thread::Builder::new()
            .name("kvasir-engine".to_owned())
            .spawn(move || driver::run(scheduler, received))
            .map_err(|source| EngineError::Read { path: "the scheduler's thread".to_owned(), source })?;
        let remote = remote.map(|(kvasir, how)| RemoteCache { kvasir, how, queue: QueueTime::default() });
        let (places, loads) = (Arc::new(Semaphore::new(places_max)), Semaphore::new(LOADS_AT_ONCE));
        Ok(Self {
            shared: Arc::new(EngineShared { model, pool, commands, places, places_max, loads, remote }),
        })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.shared.model
    }

    /// Requests that are open.
    pub fn open(&self) -> usize {
        self.shared.places_max - self.shared.places.available_permits()
    }

    /// Saves so far; none without Kvasir.
    pub fn saves(&self) -> Option<QueueStats> {
        Some(self.shared.remote.as_ref()?.kvasir.saves())
    }

    /// Waits until every save that was begun is done: for a shutdown.
    pub async fn drain(&self) {
        if let Some(remote) = &self.shared.remote {
            remote.kvasir.drain().await;
        }
    }

    /// An empty cache with pages for `tokens` tokens, for a cache that does not come from Kvasir
    /// ([`complete_with`](Self::complete_with)). `None` while running requests hold too many pages.
    pub async fn allocate(&self, tokens: usize) -> Option<PagedKv> {
        self.shared.ask(|reply| Command::Allocate { tokens, reply }).await.flatten()
    }

    /// Submits a request.
    ///
    /// # Errors
    /// [`SubmitError`]: it can never run, or too many are open.
    pub fn complete(&self, request: Request, digest: bool) -> Result<Completion, SubmitError> {
        self.begin(request, None, Instant::now(), digest)
    }

    /// Submits a request with a cache of its prompt that the caller filled, in pages from
    /// [`allocate`](Self::allocate).
    ///
    /// # Errors
    /// As [`complete`](Self::complete).
    pub fn complete_with(
        &self,
        request: Request,
        loaded: LoadedPrefix,
        delivery: Delivery,
    ) -> Result<Completion, SubmitError> {
        let outcome = LoadOutcome {
            loaded_tokens: loaded.reused_tokens(),
            prefix: Some(loaded),
            fetch: delivery.fetch,
            decode: delivery.decode,
            ..LoadOutcome::default()
        };
        self.begin(request, Some(outcome), delivery.arrived, false)
    }

    fn begin(
        &self,
        request: Request,
        outcome: Option<LoadOutcome>,
        arrived: Instant,
        digest: bool,
    ) -> Result<Completion, SubmitError> {
        let shared = Arc::clone(&self.shared);
        Scheduler::check(&shared.model, &shared.pool, &request)?;
        let place = Arc::clone(&shared.places)
            .try_acquire_owned()
            .map_err(|_| SubmitError::Busy { waiting: shared.places_max })?;
        let (sender, outputs) = mpsc::channel(request.count + 1);
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let guard = RequestGuard { shared, request, arrived, digest, outputs: sender, _place: place };
            guard.run(outcome, stopped).await;
        });
        Ok(Completion { outputs, stop: Some(stop), task })
    }
}

impl EngineShared {
    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.ok()?;
        answer.await.ok()
    }
}

/// Cancels a request whose owner has been dropped.
struct CancelOnDrop {
    commands: mpsc::Sender<Command>,
    id: Option<RequestId>,
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            // If the queue is full, the scheduler notices with the next token.
            let _ = self.commands.try_send(Command::Cancel(id));
        }
    }
}

/// Runs one request from its arrival to its last token, and holds its place until then.
struct RequestGuard {
    shared: Arc<EngineShared>,
    request: Request,
    arrived: Instant,
    digest: bool,
    outputs: mpsc::Sender<Output>,
    _place: OwnedSemaphorePermit,
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl RequestGuard {
    async fn run(self, outcome: Option<LoadOutcome>, mut stopped: oneshot::Receiver<()>) {
        let prompt: Arc<[u32]> = self.request.prompt.as_slice().into();
        let mut ttft = TtftBreakdown::default();
        let (mut outcome, session) = match outcome {
            Some(outcome) => (outcome, None),
            None => self.load_prefix(&prompt, &mut ttft).await,
        };
        (ttft.fetch_ms, ttft.decode_ms) = (ms(outcome.fetch), ms(outcome.decode));
        ttft.recompute_ms = ms(outcome.recompute);
        let (replies, mut received) = mpsc::unbounded_channel();
        let (request, loaded) = (self.request.clone(), outcome.prefix.take());
        let submitted = self.shared.ask(|reply| Command::Submit { request, loaded, replies, reply }).await;
        let Some(Ok(id)) = submitted else { return };
        let mut cancellation = CancelOnDrop { commands: self.shared.commands.clone(), id: Some(id) };
        let (mut started, mut reused) = (Instant::now(), 0);
        let mut tokens = prompt.to_vec();
        let mut may_stop = true;
        let reason = loop {
            let reply = tokio::select! {
                reply = received.recv() => reply,
                asked = &mut stopped, if may_stop => {
                    may_stop = false;
                    if asked.is_ok() && self.shared.commands.send(Command::Finish(id)).await.is_err() {
                        return;
                    }
                    continue;
                }
            };
            match reply {
                Some(SchedulerReply::Started { at, reused_tokens }) => {
                    if let Some(remote) = &self.shared.remote {
                        remote.queue.observe(at.saturating_duration_since(started));
                    }
                    (started, reused) = (at, reused_tokens)
                }
                Some(SchedulerReply::Token { token, step }) => {
                    if tokens.len() == prompt.len() {
                        self.first_token(&mut ttft, started, step, reused);
                    }
                    tokens.push(token);
                    if self.outputs.send(Output::Token(token)).await.is_err() {
                        return;
                    }
                }
                Some(SchedulerReply::Finished(reason)) => break reason,
                None => return,
            }
        };
        cancellation.id = None;
        let prefix = PrefixUse::new(prompt.len(), reused, &mut outcome);
        let kv_digest = if self.digest { self.kv_digest(&prompt).await } else { None };
        if reason != FinishReason::Cancelled {
            self.save(session, tokens, prompt.len()).await;
        }
        // If the caller has been dropped, the summary is not needed.
        let _ = self.outputs.send(Output::Done(Box::new(Summary { reason, ttft, prefix, kv_digest }))).await;
    }

    /// Looks up the prompt in memory, then in Kvasir, and loads what Kvasir holds beyond memory. Returns the
    /// prompt's session, or `None` if memory held enough.
    async fn load_prefix(
        &self,
        prompt: &Arc<[u32]>,
        ttft: &mut TtftBreakdown,
    ) -> (LoadOutcome, Option<Session>) {
        let nothing = LoadOutcome::default;
        let Some(remote) = &self.shared.remote else { return (nothing(), None) };
        let held = self.shared.ask(|reply| Command::Held { tokens: Arc::clone(prompt), reply });
        let held = held.await.unwrap_or(0);
        let wanted = prompt.len() - 1;
        if held + LOAD_GAIN_TOKENS_MIN > wanted {
            return (nothing(), None);
        }
        let Ok(_turn) = self.shared.loads.acquire().await else { return (nothing(), None) };
        let asked = Instant::now();
        let session = remote.kvasir.session(prompt).await;
        ttft.lookup_ms = ms(asked.elapsed());
        if (session.matched_tokens() as usize).min(wanted) < held + LOAD_GAIN_TOKENS_MIN {
            return (nothing(), Some(session));
        }
        let pages = self.shared.ask(|reply| Command::Allocate { tokens: prompt.len(), reply });
        let Some(kv) = pages.await.flatten() else { return (nothing(), Some(session)) };
        let tail = TokenRange { start: session.matched_tokens().min(wanted as u64), end: wanted as u64 };
        let after = remote.kvasir.costs().recompute.predict(tail) + remote.queue.expected();
        let outcome = load::load((&self.shared.model, &session), kv, prompt, (&remote.how, after)).await;
        (outcome, Some(session))
    }

    fn first_token(&self, ttft: &mut TtftBreakdown, started: Instant, step: Instant, reused: usize) {
        let now = Instant::now();
        let prefill = step.saturating_duration_since(started);
        ttft.first_step_ms = ms(now.saturating_duration_since(step));
        ttft.recompute_ms += ms(prefill);
        ttft.total_ms = ms(now.saturating_duration_since(self.arrived));
        let known = ttft.lookup_ms + ttft.fetch_ms + ttft.decode_ms + ttft.recompute_ms + ttft.first_step_ms;
        ttft.queue_ms = (ttft.total_ms - known).max(0.0);
        let computed = (self.request.prompt.len() - 1).saturating_sub(reused);
        if let Some(remote) = &self.shared.remote
            && computed >= LOAD_GAIN_TOKENS_MIN
        {
            let range = TokenRange { start: reused as u64, end: (reused + computed) as u64 };
            remote.kvasir.observe_prefill(range, prefill);
        }
    }

    /// The part of `tokens` that the scheduler kept from finished sequences.
    async fn kept(&self, tokens: &[u32]) -> Option<PagedKv> {
        let tokens = tokens.into();
        self.shared.ask(|reply| Command::Share { tokens, reply }).await.flatten()
    }

    async fn kv_digest(&self, prompt: &[u32]) -> Option<blake3::Hash> {
        let kv = self.kept(prompt).await?;
        kv.digest().ok()
    }

    /// Saves the sequence's whole pages in the background; copies only those that are not stored yet.
    async fn save(&self, session: Option<Session>, tokens: Vec<u32>, prompt_tokens: usize) {
        let Some(remote) = self.shared.remote.as_ref().filter(|remote| remote.how.store) else { return };
        let Some(kv) = self.kept(&tokens).await else { return };
        let session = match session {
            Some(mut session) => {
                session.extend(&tokens[prompt_tokens..]);
                session
            }
            // There was no lookup; the save determines what is already stored.
            None => remote.kvasir.session(&tokens).without_lookup().await,
        };
        // Pages from this engine's memory may have been loaded for an earlier request.
        session.reused(kv.loss());
        let Some(table) = kv.device_table() else {
            return session.save(&kv, kv.len()).in_background();
        };
        match session.save_pages([table], kv.len()) {
            Ok(ticket) => ticket.in_background(),
            Err(error) => tracing::warn!(%error, "the pages on the device are not saved"),
        }
    }
}
