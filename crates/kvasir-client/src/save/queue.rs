//! Background saves: the engine waits for none of them.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use kvasir_codec::{KvBuffer, KvSource, Tokens};
use kvasir_types::Plane;
use tokio::{
    runtime::Handle,
    sync::{Notify, oneshot},
    task::JoinHandle,
};

use super::{
    Context, SaveProgress, SaveRefusal, SaveReport, Saver, Urgency, admission,
    rows::{QueuedRows, SaveRows, check_tables},
};
use crate::{
    Error,
    limits::{
        STORE_ATTEMPTS_MAX, STORE_BACKOFF_BASE, STORE_BACKOFF_MAX, STORE_QUEUE_BYTES, STORE_QUEUE_JOBS,
    },
    pages::BlockTable,
};

/// Configuration of a save queue.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueConfig {
    /// Largest predicted KL beneath stored KV, in nats per token: errors compound over turns. Default: twice
    /// that of the profile's finest level. If that is unknown, KV is stored if it was computed over loads of
    /// quality [`Transparent`](kvasir_types::Quality::Transparent), at most two in a chain.
    pub kl_beneath_max: Option<f64>,
    /// Maximum number of queued jobs.
    pub jobs_max: usize,
    /// Maximum bytes of copied KV in the queue.
    pub bytes_max: u64,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self { kl_beneath_max: None, jobs_max: STORE_QUEUE_JOBS, bytes_max: STORE_QUEUE_BYTES }
    }
}

/// The outcome of a save.
#[derive(Debug)]
#[non_exhaustive]
pub enum SaveOutcome {
    /// All missing chunks are now durable.
    Saved(SaveReport),
    /// It was not admitted, or was dropped to make room.
    Refused(SaveRefusal),
    /// It failed permanently; chunks acknowledged before remain stored.
    Failed(Error),
}

/// Statistics of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueStats {
    /// Queued saves.
    pub waiting: usize,
    /// Bytes of copied KV that are queued or being saved.
    pub bytes: u64,
    /// Completed saves.
    pub saved: u64,
    /// Saves not admitted.
    pub refused: u64,
    /// Saves dropped because the queue was full.
    pub dropped: u64,
    /// Saves that failed permanently.
    pub failed: u64,
    /// Saves cancelled by dropping their tickets.
    pub cancelled: u64,
    /// Attempts after the first: interrupted uploads that were resumed.
    pub resumed: u64,
}

/// A background save. Dropping it cancels the save: acknowledged chunks remain stored, and nothing more is
/// sent.
#[derive(Debug)]
#[must_use = "dropping the ticket cancels the save: call `in_background`, or wait for `outcome`"]
pub struct SaveTicket {
    outcome: oneshot::Receiver<SaveOutcome>,
    job: Option<TicketJob>,
}

/// The job of a ticket, for as long as the ticket may cancel it.
#[derive(Debug)]
struct TicketJob {
    id: u64,
    queue: Weak<QueueShared>,
}

impl Drop for TicketJob {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.upgrade() {
            queue.cancel(self.id);
        }
    }
}

impl SaveTicket {
    /// A save that was refused.
    pub(crate) fn refused() -> Self {
        let (sender, outcome) = oneshot::channel();
        // The receiver exists, so sending cannot fail.
        let _ = sender.send(SaveOutcome::Refused(SaveRefusal::NotConnected));
        Self { outcome, job: None }
    }

    /// Lets the save continue without the ticket.
    pub fn in_background(mut self) {
        if let Some(mut job) = self.job.take() {
            job.queue = Weak::new();
        }
    }

    /// Waits for the outcome.
    pub async fn outcome(mut self) -> SaveOutcome {
        (&mut self.outcome).await.unwrap_or(SaveOutcome::Refused(SaveRefusal::Closed))
    }

    /// Blocks until the outcome is known; for engines without an async runtime.
    pub fn wait(self) -> SaveOutcome {
        let Self { outcome, job } = self;
        let outcome = outcome.blocking_recv().unwrap_or(SaveOutcome::Refused(SaveRefusal::Closed));
        drop(job);
        outcome
    }
}

/// A queued context.
struct SaveJob {
    id: u64,
    context: Context,
    kv: QueuedRows,
    bytes: u64,
    ticket: oneshot::Sender<SaveOutcome>,
}

/// Jobs and counters of a queue.
#[derive(Default)]
struct QueueState {
    jobs: VecDeque<SaveJob>,
    /// The job that is being saved.
    working: Option<u64>,
    next_id: u64,
    stats: QueueStats,
    closed: bool,
}

/// State shared by the queue and its worker.
struct QueueShared {
    config: QueueConfig,
    chunk_tokens: usize,
    state: Mutex<QueueState>,
    /// A job was added, or the queue was closed.
    changed: Notify,
    /// The job that is being saved was cancelled.
    cancelled: Notify,
}

impl std::fmt::Debug for QueueShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueueShared").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Encodes and uploads in the background, one context at a time, in order of arrival.
///
/// Memory is bounded, uploads are paced and yield to the client's loads, and a lookup finds chunks that are
/// already stored, so that they are not sent. An interrupted upload resumes after a wait: the next lookup
/// finds the acknowledged chunks. Dropping the queue drops queued jobs.
#[derive(Debug)]
pub(crate) struct SaveQueue {
    shared: Arc<QueueShared>,
    worker: JoinHandle<()>,
}

impl SaveQueue {
    pub(crate) fn new(config: QueueConfig, chunk_tokens: usize, runtime: &Handle) -> Self {
        let state = Mutex::default();
        let shared =
            QueueShared { config, chunk_tokens, state, changed: Notify::new(), cancelled: Notify::new() };
        let shared = Arc::new(shared);
        let worker = runtime.spawn(run_worker(Arc::clone(&shared)));
        Self { shared, worker }
    }

    /// Offers a context. Copies the needed part of `kv` before it returns.
    pub(crate) fn save(&self, context: Context, kv: &dyn KvSource) -> SaveTicket {
        let chunk = self.shared.chunk_tokens;
        let spec = Arc::clone(&context.binding.codec.spec);
        let first = context.stored_tokens() / chunk * chunk;
        let count = context.chain.token_count() - first;
        let bytes = (count * spec.elements_per_token() * size_of::<f32>()) as u64;
        self.offer(context, bytes, || {
            let rows = KvBuffer::from_source(&spec, count, &Tokens::from(kv, first));
            QueuedRows::Source(Arc::new(SuffixSource { rows, first }))
        })
    }

    /// Offers a context whose KV is read when its turn comes.
    pub(crate) fn save_shared(&self, context: Context, kv: Arc<dyn KvSource + Send + Sync>) -> SaveTicket {
        self.offer(context, 0, || QueuedRows::Source(kv))
    }

    /// Offers a context whose pages are read when its turn comes.
    ///
    /// # Errors
    /// [`Error::Config`] if the tables do not hold all of it.
    pub(crate) fn save_pages(&self, context: Context, tables: Vec<BlockTable>) -> Result<SaveTicket, Error> {
        check_tables(&tables, &context.binding.codec.spec, context.chain.token_count())?;
        Ok(self.offer(context, 0, || QueuedRows::Pages(tables)))
    }

    /// Saves at once, bypassing the queue.
    pub(crate) async fn save_now(
        &self,
        context: &mut Context,
        kv: &dyn KvSource,
        progress: impl FnMut(SaveProgress) + Send,
    ) -> Result<SaveReport, Error> {
        self.shared.saver(Urgency::Now).save(context, SaveRows::Source(kv), progress).await
    }

    fn offer(&self, context: Context, bytes: u64, kv: impl FnOnce() -> QueuedRows) -> SaveTicket {
        let (ticket, outcome) = oneshot::channel();
        match self.admit(&context, bytes) {
            Ok(id) => {
                let kv = catch_unwind(AssertUnwindSafe(kv)).unwrap_or_else(|panic| {
                    self.shared.with(|state| state.stats.bytes -= bytes);
                    resume_unwind(panic)
                });
                let job = SaveJob { id, context, kv, bytes, ticket };
                self.shared.with(|state| state.jobs.push_back(job));
                self.shared.changed.notify_waiters();
                let queue = Arc::downgrade(&self.shared);
                SaveTicket { outcome, job: Some(TicketJob { id, queue }) }
            }
            Err(refusal) => {
                // The receiver exists, so sending cannot fail.
                let _ = ticket.send(SaveOutcome::Refused(refusal));
                SaveTicket { outcome, job: None }
            }
        }
    }

    /// Makes room, or returns the refusal. Space is reserved before the copy is made.
    fn admit(&self, context: &Context, bytes: u64) -> Result<u64, SaveRefusal> {
        let config = &self.shared.config;
        let kl_max = config.kl_beneath_max.or_else(|| context.binding.codec.kl_beneath_max());
        let admitted = admission::check(context.chain.token_count(), context.beneath, kl_max);
        self.shared.with(|state| {
            if let Err(refusal) = admitted {
                state.stats.refused += 1;
                return Err(refusal);
            }
            if state.closed {
                return Err(SaveRefusal::Closed);
            }
            let full = |state: &QueueState| {
                state.jobs.len() >= config.jobs_max || state.stats.bytes + bytes > config.bytes_max
            };
            // The job that is being saved keeps its bytes: without room beside it, none has to make room.
            let waiting: u64 = state.jobs.iter().map(|job| job.bytes).sum();
            let fits_alone = (state.stats.bytes - waiting).saturating_add(bytes) <= config.bytes_max;
            while full(state) {
                // Recently used contexts are requested again soonest.
                let oldest = if fits_alone { state.jobs.pop_front() } else { None };
                state.stats.dropped += 1;
                let Some(oldest) = oldest else { return Err(SaveRefusal::QueueFull) };
                state.stats.bytes -= oldest.bytes;
                let _ = oldest.ticket.send(SaveOutcome::Refused(SaveRefusal::QueueFull));
            }
            state.stats.bytes += bytes;
            state.next_id += 1;
            Ok(state.next_id)
        })
    }

    /// Its statistics so far.
    pub(crate) fn stats(&self) -> QueueStats {
        self.shared.with(|state| QueueStats { waiting: state.jobs.len(), ..state.stats })
    }

    /// Waits until no job is queued or being saved.
    pub(crate) async fn drain(&self) {
        loop {
            let changed = self.shared.changed.notified();
            if self.shared.with(|state| state.jobs.is_empty() && state.working.is_none()) {
                return;
            }
            changed.await;
        }
    }
}

impl Drop for SaveQueue {
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

    fn saver(&self, urgency: Urgency) -> Saver {
        Saver { chunk_tokens: self.chunk_tokens, urgency, kl_beneath_max: self.config.kl_beneath_max }
    }

    /// Ends a queued or running job; a finished one is ignored.
    fn cancel(&self, id: u64) {
        let dropped = self.with(|state| {
            if state.working == Some(id) {
                state.working = None;
                self.cancelled.notify_waiters();
                return None;
            }
            let at = state.jobs.iter().position(|job| job.id == id)?;
            let job = state.jobs.remove(at)?;
            state.stats.bytes -= job.bytes;
            state.stats.cancelled += 1;
            Some(job)
        });
        if dropped.is_some() {
            self.changed.notify_waiters();
        }
    }
}

/// Saves queued jobs one at a time.
async fn run_worker(shared: Arc<QueueShared>) {
    loop {
        let changed = shared.changed.notified();
        let job = shared.with(|state| {
            let job = state.jobs.pop_front();
            state.working = job.as_ref().map(|job| job.id);
            job
        });
        let Some(job) = job else {
            changed.await;
            continue;
        };
        let outcome = tokio::select! {
            outcome = save_with_retries(&shared, &job) => Some(outcome),
            () = cancellation(&shared, job.id) => None,
        };
        shared.with(|state| {
            state.working = None;
            state.stats.bytes -= job.bytes;
            match &outcome {
                Some(SaveOutcome::Saved(_)) => state.stats.saved += 1,
                Some(SaveOutcome::Refused(_)) => state.stats.refused += 1,
                Some(SaveOutcome::Failed(_)) => state.stats.failed += 1,
                None => state.stats.cancelled += 1,
            }
        });
        if let Some(outcome) = outcome {
            // The ticket may be gone.
            let _ = job.ticket.send(outcome);
        }
        shared.changed.notify_waiters();
    }
}

/// Ends when the job that is being saved is cancelled.
async fn cancellation(shared: &QueueShared, id: u64) {
    loop {
        let cancelled = shared.cancelled.notified();
        if shared.with(|state| state.working != Some(id)) {
            return;
        }
        cancelled.await;
    }
}

/// Saves a job and resumes it after an interruption: the next attempt's lookup finds the acknowledged chunks.
async fn save_with_retries(shared: &QueueShared, job: &SaveJob) -> SaveOutcome {
    let saver = shared.saver(Urgency::Background);
    let mut context = Box::new(job.context.clone());
    for attempt in 1.. {
        match saver.save(&mut context, job.kv.rows(), |_| ()).await {
            Ok(report) => return SaveOutcome::Saved(report),
            Err(error) if error.is_retryable() && attempt < STORE_ATTEMPTS_MAX => {
                tracing::debug!(%error, attempt, "a save was interrupted and will resume");
                shared.with(|state| state.stats.resumed += 1);
                tokio::time::sleep(retry_delay(attempt, &error)).await;
            }
            Err(error) => return SaveOutcome::Failed(error),
        }
    }
    SaveOutcome::Refused(SaveRefusal::Closed)
}

/// The wait before the next attempt, and not less than the service asks for, within [`STORE_BACKOFF_MAX`].
fn retry_delay(attempt: u32, error: &Error) -> Duration {
    let asked = match error {
        Error::Api(error) => error.retry_after.unwrap_or_default(),
        _ => Duration::ZERO,
    };
    (STORE_BACKOFF_BASE * 2u32.saturating_pow(attempt.min(16) - 1)).max(asked).min(STORE_BACKOFF_MAX)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ApiError;

    #[test]
    fn a_save_waits_as_long_as_the_service_asks() {
        let delay = |attempt, seconds| {
            let error = Error::Api(ApiError {
                status: 429,
                code: "throttled".to_owned(),
                known: None,
                detail: String::new(),
                retryable: true,
                retry_after: Some(Duration::from_secs(seconds)),
            });
            retry_delay(attempt, &error).as_secs()
        };
        assert_eq!([delay(1, 0), delay(1, 7), delay(4, 7), delay(1, 600)], [1, 7, 8, 15]);
    }
}
