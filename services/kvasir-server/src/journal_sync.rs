//! Decides when this replica reads the other replicas' journals.
//!
//! While it serves requests, it reads every `journal.interval`. Without requests it reads less and less
//! often, so that an idle replica sends almost no requests to the store. A lookup that finds the last read
//! too old reads first, so that removed chunks are not offered: the bound on removals holds however idle a
//! replica was.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use kvasir_storage::Storage;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{limits, metrics::Metrics};

/// Paces the reads of the journal.
#[derive(Debug)]
pub(crate) struct JournalSync {
    /// Zero: there is no journal.
    interval: Duration,
    /// Whether a request came since the last read.
    is_in_use: AtomicBool,
    last_read: Mutex<Option<Instant>>,
    reading: tokio::sync::Mutex<()>,
}

impl JournalSync {
    pub(crate) fn new(interval: Duration) -> Self {
        Self {
            interval,
            is_in_use: AtomicBool::new(false),
            last_read: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
        }
    }

    pub(crate) fn interval(&self) -> Duration {
        self.interval
    }

    /// Records a request.
    pub(crate) fn note_request(&self) {
        self.is_in_use.store(true, Ordering::Relaxed);
    }

    /// Whether the next read is due; called at most an interval apart.
    pub(crate) fn is_due(&self, storage: &Storage) -> bool {
        let is_in_use =
            self.is_in_use.swap(false, Ordering::Relaxed) || storage.changes().events().has_readers();
        is_in_use || self.age().is_none_or(|age| age >= limits::JOURNAL_IDLE_INTERVAL)
    }

    fn age(&self) -> Option<Duration> {
        self.last_read.lock().map(|read| read.elapsed())
    }

    /// Reads other replicas' new entries.
    pub(crate) async fn read(&self, metrics: &Metrics, storage: &Storage) {
        let _one_at_a_time = self.reading.lock().await;
        self.read_now(metrics, storage).await;
    }

    /// Reads other replicas' new entries if the last read is too old for lookups. If the store does not
    /// respond in time, the lookup uses the present state.
    pub(crate) async fn catch_up(&self, metrics: &Metrics, storage: &Storage) {
        let is_recent =
            || self.interval.is_zero() || self.age().is_some_and(|age| age < limits::JOURNAL_AGE_MAX);
        if is_recent() {
            return;
        }
        let catch_up = async {
            let _one_at_a_time = self.reading.lock().await;
            if !is_recent() {
                self.read_now(metrics, storage).await;
            }
        };
        if tokio::time::timeout(limits::JOURNAL_CATCH_UP_TIME_MAX, catch_up).await.is_err() {
            tracing::warn!("the store is slow: lookups proceed without other replicas' latest removals");
        }
    }

    async fn read_now(&self, metrics: &Metrics, storage: &Storage) {
        let begun = Instant::now();
        match storage.changes().journal_tail().await {
            Ok(entries) => {
                metrics.journal("applied", entries);
                metrics.journal_skipped(storage.changes().journal_skipped());
                *self.last_read.lock() = Some(begun);
            }
            Err(error) => {
                tracing::warn!(%error, "reading other replicas' journals failed; it will be retried")
            }
        }
    }
}
