//! Entries waiting to be appended to one log, and how far the same log of other replicas was read.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use kvasir_store::layout::JournalLog;
use kvasir_types::Name;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{JournalEntry, entry::encode_entries};
use crate::limits;

/// One of the logs of a replica's journal.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) log: JournalLog,
    next: AtomicU64,
    pub(super) waiting: Mutex<Vec<JournalEntry>>,
    /// Held while a batch is being appended: a holder that finds nothing waiting knows that everything before
    /// is durable.
    pub(super) appending: tokio::sync::Mutex<()>,
    pub(super) dropped: AtomicU64,
    /// The last batch read of each replica, and when it was read.
    seen: Mutex<HashMap<Name, (u64, Instant)>>,
    /// Number of listings still to be made folder by folder, because the log has more than a page of batches.
    pub(super) looks_by_folder: AtomicU32,
}

impl Log {
    /// A log that resumes reading after batches that count as read now.
    pub(super) fn new(log: JournalLog, seen: impl Iterator<Item = (Name, u64)>) -> Self {
        let now = Instant::now();
        Self {
            log,
            next: AtomicU64::new(0),
            waiting: Mutex::default(),
            appending: tokio::sync::Mutex::default(),
            dropped: AtomicU64::new(0),
            seen: Mutex::new(seen.map(|(replica, n)| (replica, (n, now))).collect()),
            looks_by_folder: AtomicU32::new(0),
        }
    }

    /// The last batch read of a replica.
    pub(super) fn seen(&self, replica: &Name) -> Option<u64> {
        self.seen.lock().get(replica).map(|(n, _)| *n)
    }

    /// The replicas' last batches that were read lately, the newest first.
    pub(super) fn seen_lately(&self) -> Vec<(Name, u64)> {
        let seen = self.seen.lock();
        let mut lately: Vec<_> =
            seen.iter().filter(|(_, (_, at))| at.elapsed() < limits::LEDGER_RECENT).collect();
        lately.sort_by_key(|(_, (_, at))| std::cmp::Reverse(*at));
        lately.into_iter().map(|(replica, (n, _))| (replica.clone(), *n)).collect()
    }

    /// Number of replicas of which batches were read and are still there.
    pub(super) fn seen_count(&self) -> usize {
        self.seen.lock().len()
    }

    pub(super) fn note_seen(&self, replica: &Name, n: u64) {
        self.seen.lock().insert(replica.clone(), (n, Instant::now()));
    }

    pub(super) fn forget_seen(&self) {
        self.seen.lock().clear();
    }

    /// Drops what is known of replicas that do not stay.
    pub(super) fn retain_seen(&self, mut stays: impl FnMut(&Name) -> bool) {
        self.seen.lock().retain(|replica, _| stays(replica));
    }

    pub(super) fn push(&self, entry: JournalEntry) -> u64 {
        let mut waiting = self.waiting.lock();
        if waiting.len() < limits::JOURNAL_WAITING_MAX {
            waiting.push(entry);
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        self.next.load(Ordering::Relaxed)
    }

    pub(super) fn next(&self) -> u64 {
        let _waiting = self.waiting.lock();
        self.next.load(Ordering::Relaxed)
    }

    /// The next batch has at least this number.
    pub(super) fn skip_to(&self, n: u64) {
        let _waiting = self.waiting.lock();
        self.next.fetch_max(n, Ordering::Relaxed);
    }

    /// Takes the waiting entries, and the number of their batch; of counts, as many as fit into one. The number of
    /// removals is at least `now_ms`, the store's time.
    pub(super) fn take(&self, now_ms: u64) -> Option<Unsent<'_>> {
        let mut waiting = self.waiting.lock();
        if waiting.is_empty() {
            return None;
        }
        if self.log == JournalLog::Removed {
            self.next.fetch_max(now_ms, Ordering::Relaxed);
        }
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        // Only counts may wait for the next batch: how far a count reaches says that the waiting entries of stored chunks
        // are in one.
        let fit = match self.log {
            JournalLog::Counted => counts_that_fit(&waiting),
            JournalLog::Stored | JournalLog::Removed => waiting.len(),
        };
        let rest = waiting.split_off(fit);
        Some(Unsent { log: self, n, entries: std::mem::replace(&mut *waiting, rest) })
    }
}

/// Number of the first counts that fit into half of a batch, which leaves room for their boxes; at least one.
fn counts_that_fit(waiting: &[JournalEntry]) -> usize {
    let mut bytes = 0;
    let fit = waiting.iter().take_while(|entry| {
        bytes += encode_entries([*entry]).len() as u64;
        bytes <= limits::JOURNAL_BATCH_BYTES_MAX / 2
    });
    fit.count().max(1)
}

/// Entries being appended. If it is dropped, unsent entries wait again.
pub(super) struct Unsent<'a> {
    log: &'a Log,
    pub(super) n: u64,
    pub(super) entries: Vec<JournalEntry>,
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        if !self.entries.is_empty() {
            let mut waiting = self.log.waiting.lock();
            self.entries.append(&mut waiting);
            let excess = self.entries.len().saturating_sub(limits::JOURNAL_WAITING_MAX);
            self.log.dropped.fetch_add(excess as u64, Ordering::Relaxed);
            self.entries.truncate(limits::JOURNAL_WAITING_MAX);
            *waiting = std::mem::take(&mut self.entries);
        }
    }
}
