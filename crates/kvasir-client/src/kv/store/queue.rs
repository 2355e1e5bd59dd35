//! Stores in the background: nothing in the engine waits for one.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use kvasir_codec::{KvBuffer, KvSource, Tokens};
use kvasir_types::Plane;
use tokio::{
    sync::{Notify, oneshot},
    task::JoinHandle,
};

use super::{AdmissionPolicy, StoreOptions, StoreRefusal, StoreReport, Urgency};
use crate::{
    ClientError,
    fetcher::ByteRate,
    kv::KvClient,
    limits::{
        STORE_ATTEMPTS_MAX, STORE_BACKOFF_BASE, STORE_BACKOFF_MAX, STORE_QUEUE_BYTES, STORE_QUEUE_JOBS,
    },
};

/// Which job goes when there is no room for a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DropPolicy {
    /// The one that has waited longest, and as many more as it takes: what was used last is asked for soonest.
    #[default]
    Oldest,
    /// The new one.
    Newest,
}

/// How a queue works.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueConfig {
    /// What is taken.
    pub admission: AdmissionPolicy,
    /// Most jobs that wait.
    pub jobs_max: usize,
    /// Most bytes of copied KV that wait.
    pub bytes_max: u64,
    /// What goes when it is full.
    pub drop_policy: DropPolicy,
    /// Most bytes a second that uploads take, even when nothing is loaded.
    pub rate: Option<ByteRate>,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            admission: AdmissionPolicy::default(),
            jobs_max: STORE_QUEUE_JOBS,
            bytes_max: STORE_QUEUE_BYTES,
            drop_policy: DropPolicy::default(),
            rate: None,
        }
    }
}

/// What became of a store.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoreOutcome {
    /// Everything that was missing is durable now.
    Stored(StoreReport),
    /// It was not taken, or dropped to make room.
    Refused(StoreRefusal),
    /// It failed for good; chunks acknowledged before stay stored.
    Failed(ClientError),
}

/// What a queue has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueStats {
    /// Jobs that wait.
    pub waiting: usize,
    /// Bytes of copied KV that wait or are being stored.
    pub bytes: u64,
    /// Jobs stored.
    pub stored: u64,
    /// Jobs not admitted.
    pub refused: u64,
    /// Jobs dropped because the queue was full.
    pub dropped: u64,
    /// Jobs that failed for good.
    pub failed: u64,
    /// Attempts after the first: interrupted uploads that were resumed.
    pub resumed: u64,
}

/// The promise of an outcome. Dropping it changes nothing.
#[derive(Debug)]
pub struct StoreTicket(oneshot::Receiver<StoreOutcome>);

impl StoreTicket {
    /// Waits for the outcome.
    pub async fn outcome(self) -> StoreOutcome {
        self.0.await.unwrap_or(StoreOutcome::Refused(StoreRefusal::Closed))
    }

    /// Blocks until the outcome is there; for engines without an async runtime.
    pub fn wait(self) -> StoreOutcome {
        self.0.blocking_recv().unwrap_or(StoreOutcome::Refused(StoreRefusal::Closed))
    }

    /// The outcome, if it is there already.
    pub fn try_outcome(&mut self) -> Option<StoreOutcome> {
        self.0.try_recv().ok()
    }
}

/// A context that waits to be stored.
struct StoreJob {
    tokens: Arc<[u32]>,
    kv: Arc<dyn KvSource + Send + Sync>,
    bytes: u64,
    options: StoreOptions,
    ticket: oneshot::Sender<StoreOutcome>,
}

/// Jobs and counters of a queue.
#[derive(Default)]
struct QueueState {
    jobs: VecDeque<StoreJob>,
    stats: QueueStats,
    working: bool,
    closed: bool,
}

/// What the queue and its worker share.
struct QueueShared {
    kv: KvClient,
    config: QueueConfig,
    state: Mutex<QueueState>,
    /// Something to do, or nothing any more.
    changed: Notify,
}

/// Encodes and uploads in the background, one context at a time, in the order of their arrival.
///
/// Memory is bounded, uploads are paced and step aside while the client loads something, and what is stored already
/// is found by a lookup and not sent. An upload that breaks off is resumed after a wait: what was acknowledged is
/// found by the next lookup. Dropping the queue drops what waits; [`drain`](Self::drain) first to keep it.
pub struct StoreQueue {
    shared: Arc<QueueShared>,
    worker: JoinHandle<()>,
}

impl std::fmt::Debug for StoreQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreQueue").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl StoreQueue {
    /// A queue in front of a client.
    pub fn new(kv: KvClient, config: QueueConfig) -> Self {
        let runtime = kv.runtime.clone();
        let (state, changed) = (Mutex::default(), Notify::new());
        let shared = Arc::new(QueueShared { kv, config, state, changed });
        let worker = runtime.spawn(run_worker(Arc::clone(&shared)));
        Self { shared, worker }
    }

    /// Offers the KV of `tokens`, a whole context from its first token on, and returns at once. What has to be kept of
    /// it is copied: the engine's pages are free again when this returns. Only chunks from
    /// [`StoreOptions::stored_tokens`] on are copied; give it what the load before has found.
    pub fn store(&self, tokens: &[u32], kv: &dyn KvSource, options: StoreOptions) -> StoreTicket {
        let spec = &self.shared.kv.spec;
        let chunk = self.shared.kv.chunk_tokens;
        let first = options.stored_tokens.min(tokens.len()) / chunk * chunk;
        let count = tokens.len() - first;
        let bytes = (count * spec.elements_per_token() * size_of::<f32>()) as u64;
        self.offer(tokens.into(), bytes, options, || {
            let rows = KvBuffer::from_source(spec, count, &Tokens::from(kv, first));
            Arc::new(SuffixSource { rows, first })
        })
    }

    /// As [`store`](Self::store), without a copy, for engines whose pages can be held (reference counted, a forked
    /// block table): they are read chunk by chunk when their turn comes, and let go with the job.
    pub fn store_shared(
        &self,
        tokens: &[u32],
        kv: Arc<dyn KvSource + Send + Sync>,
        options: StoreOptions,
    ) -> StoreTicket {
        self.offer(tokens.into(), 0, options, || kv)
    }

    fn offer(
        &self,
        tokens: Arc<[u32]>,
        bytes: u64,
        options: StoreOptions,
        kv: impl FnOnce() -> Arc<dyn KvSource + Send + Sync>,
    ) -> StoreTicket {
        let (ticket, receiver) = oneshot::channel();
        let verdict = self.admit(&tokens, bytes, &options);
        match verdict {
            Ok(()) => {
                let job = StoreJob { tokens, kv: kv(), bytes, options, ticket };
                self.shared.with(|state| state.jobs.push_back(job));
                self.shared.changed.notify_waiters();
            }
            Err(refusal) => {
                // The ticket may be gone already.
                let _ = ticket.send(StoreOutcome::Refused(refusal));
            }
        }
        StoreTicket(receiver)
    }

    /// Makes room, or says why not. The room is taken before the copy is made.
    fn admit(&self, tokens: &[u32], bytes: u64, options: &StoreOptions) -> Result<(), StoreRefusal> {
        let QueueShared { config, kv, .. } = &*self.shared;
        let most = kv.kl_beneath_stored_max();
        let admitted = config.admission.check(tokens.len(), &options.class, options.kl_beneath, most);
        self.shared.with(|state| {
            if let Err(refusal) = admitted {
                state.stats.refused += 1;
                return Err(refusal);
            }
            if state.closed {
                return Err(StoreRefusal::Closed);
            }
            let full = |state: &QueueState| {
                state.jobs.len() >= config.jobs_max || state.stats.bytes + bytes > config.bytes_max
            };
            while full(state) {
                let oldest = match config.drop_policy {
                    DropPolicy::Oldest if bytes <= config.bytes_max => state.jobs.pop_front(),
                    DropPolicy::Oldest | DropPolicy::Newest => None,
                };
                state.stats.dropped += 1;
                let Some(oldest) = oldest else { return Err(StoreRefusal::QueueFull) };
                state.stats.bytes -= oldest.bytes;
                let _ = oldest.ticket.send(StoreOutcome::Refused(StoreRefusal::QueueFull));
            }
            state.stats.bytes += bytes;
            Ok(())
        })
    }

    /// What it has done so far.
    pub fn stats(&self) -> QueueStats {
        self.shared.with(|state| QueueStats { waiting: state.jobs.len(), ..state.stats })
    }

    /// Waits until nothing waits or is being stored: for a shutdown.
    pub async fn drain(&self) {
        loop {
            let changed = self.shared.changed.notified();
            if self.shared.with(|state| state.jobs.is_empty() && !state.working) {
                return;
            }
            changed.await;
        }
    }
}

impl Drop for StoreQueue {
    fn drop(&mut self) {
        self.shared.with(|state| {
            state.closed = true;
            state.jobs.clear();
        });
        self.worker.abort();
    }
}

impl QueueShared {
    fn with<T>(&self, f: impl FnOnce(&mut QueueState) -> T) -> T {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Stores queued jobs one at a time.
async fn run_worker(shared: Arc<QueueShared>) {
    loop {
        let changed = shared.changed.notified();
        let job = shared.with(|state| {
            let job = state.jobs.pop_front();
            state.working = job.is_some();
            job
        });
        let Some(job) = job else {
            changed.await;
            continue;
        };
        let outcome = store_with_retries(&shared, &job).await;
        shared.with(|state| {
            state.working = false;
            state.stats.bytes -= job.bytes;
            match &outcome {
                StoreOutcome::Stored(_) => state.stats.stored += 1,
                StoreOutcome::Refused(_) => state.stats.refused += 1,
                StoreOutcome::Failed(_) => state.stats.failed += 1,
            }
        });
        let _ = job.ticket.send(outcome);
        shared.changed.notify_waiters();
    }
}

/// Stores a job and resumes it after an interruption: the next attempt's lookup finds what was acknowledged.
async fn store_with_retries(shared: &QueueShared, job: &StoreJob) -> StoreOutcome {
    let options = StoreOptions {
        urgency: Urgency::Background { rate: shared.config.rate },
        kl_beneath_max: shared.config.admission.kl_beneath_max,
        ..job.options.clone()
    };
    for attempt in 1.. {
        match shared.kv.store_kv_with(&job.tokens, &*job.kv, &options, |_| ()).await {
            Ok(report) => return StoreOutcome::Stored(report),
            Err(error) if error.is_retryable() && attempt < STORE_ATTEMPTS_MAX => {
                tracing::debug!(%error, attempt, "a store broke off and will be resumed");
                shared.with(|state| state.stats.resumed += 1);
                tokio::time::sleep(retry_delay(attempt)).await;
            }
            Err(error) => return StoreOutcome::Failed(error),
        }
    }
    StoreOutcome::Refused(StoreRefusal::Closed)
}

fn retry_delay(attempt: u32) -> Duration {
    (STORE_BACKOFF_BASE * 2u32.saturating_pow(attempt.min(16) - 1)).min(STORE_BACKOFF_MAX)
}

/// A source of a whole context that holds a copy of the tokens from `first` on.
struct SuffixSource {
    rows: KvBuffer,
    first: usize,
}

impl KvSource for SuffixSource {
    fn read(&self, layer: usize, plane: Plane, head: usize, tokens: std::ops::Range<usize>, out: &mut [f32]) {
        let tokens = tokens.start - self.first..tokens.end - self.first;
        self.rows.read(layer, plane, head, tokens, out);
    }

    fn held(
        &self,
        layer: usize,
        plane: Plane,
        head: usize,
        tokens: std::ops::Range<usize>,
    ) -> Option<&[f32]> {
        self.rows.held(layer, plane, head, tokens.start - self.first..tokens.end - self.first)
    }
}
