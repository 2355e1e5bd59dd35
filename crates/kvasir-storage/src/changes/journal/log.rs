//! Entries waiting to be appended to one log, and how far the same log of other replicas was read.

use std::{
    collections::{HashMap, VecDeque},
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
    waiting: Mutex<Waiting>,
    /// Held while a batch is being appended: a holder that finds nothing waiting knows that everything before
    /// is durable.
    pub(super) appending: tokio::sync::Mutex<()>,
    pub(super) dropped: AtomicU64,
    /// The last batch read of each replica, and when it was read.
    seen: Mutex<HashMap<Name, (u64, Instant)>>,
    /// Number of listings still to be made folder by folder, because the log has more than a page of batches.
    pub(super) looks_by_folder: AtomicU32,
}

/// Entries waiting to be appended, in batches that readers take. In which one an entry will be is known when it is added:
/// a count says by their numbers which entries it includes.
#[derive(Debug, Default)]
struct Waiting {
    /// The number of the first batch.
    next: u64,
    /// Entries are added to the last one until it is full.
    batches: VecDeque<Vec<JournalEntry>>,
    /// Bytes of the last one.
    last_bytes: u64,
}

impl Waiting {
    fn len(&self) -> usize {
        self.batches.iter().map(Vec::len).sum()
    }

    /// The number of the last batch, or of the first one to come.
    fn last(&self) -> u64 {
        self.next + (self.batches.len() as u64).saturating_sub(1)
    }

    /// Adds an entry, unless too many are waiting. Returns whether it did.
    fn add(&mut self, entry: JournalEntry) -> bool {
        if self.len() >= limits::JOURNAL_WAITING_MAX {
            return false;
        }
        let bytes = encode_entries([&entry]).len() as u64;
        // Half of a batch leaves room for boxes.
        let fits = self.last_bytes + bytes <= limits::JOURNAL_BATCH_BYTES_MAX / 2;
        match self.batches.back_mut().filter(|_| fits) {
            Some(last) => {
                last.push(entry);
                self.last_bytes += bytes;
            }
            None => {
                self.batches.push_back(vec![entry]);
                self.last_bytes = bytes;
            }
        }
        true
    }

    /// Puts a batch that was not appended before the others, as it is. Returns how many of the last entries were dropped because
    /// too many are waiting.
    fn add_unsent(&mut self, entries: Vec<JournalEntry>) -> usize {
        if self.batches.is_empty() {
            self.close_last();
        }
        self.batches.push_front(entries);
        let dropped = self.len().saturating_sub(limits::JOURNAL_WAITING_MAX);
        let mut left = dropped;
        while let Some(last) = self.batches.back_mut().filter(|_| left > 0) {
            let kept = last.len().saturating_sub(left);
            left -= last.len() - kept;
            last.truncate(kept);
            if kept == 0 {
                self.batches.pop_back();
                self.close_last();
            }
        }
        dropped
    }

    /// No entry is added to the last batch any more: how many bytes it has is not known.
    fn close_last(&mut self) {
        self.last_bytes = limits::JOURNAL_BATCH_BYTES_MAX;
    }
}

impl Log {
    /// A log that resumes reading after batches that count as read now.
    pub(super) fn new(log: JournalLog, seen: impl Iterator<Item = (Name, u64)>) -> Self {
        let now = Instant::now();
        Self {
            log,
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

    /// Adds an entry to the waiting ones, or drops it if they are too many. Returns the number of its batch.
    pub(super) fn push(&self, entry: JournalEntry) -> u64 {
        let mut waiting = self.waiting.lock();
        if !waiting.add(entry) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        waiting.last()
    }

    /// The number of the last batch that entries are waiting for, or of the next one.
    pub(super) fn last_waiting(&self) -> u64 {
        self.waiting.lock().last()
    }

    /// Number of waiting entries.
    pub(super) fn waiting_count(&self) -> usize {
        self.waiting.lock().len()
    }

    /// Drops the waiting entries. Later ones get later numbers: a count may say that it includes those of the dropped ones.
    pub(super) fn forget_waiting(&self) {
        let mut waiting = self.waiting.lock();
        waiting.next += waiting.batches.len() as u64;
        waiting.batches.clear();
    }

    /// The next batch has at least this number.
    pub(super) fn skip_to(&self, n: u64) {
        let mut waiting = self.waiting.lock();
        waiting.next = waiting.next.max(n);
    }

    /// Takes the first batch of waiting entries, and its number. That of removals is at least `now_ms`, the store's time.
    pub(super) fn take(&self, now_ms: u64) -> Option<Unsent<'_>> {
        let mut waiting = self.waiting.lock();
        let entries = waiting.batches.pop_front()?;
        let n = match self.log {
            JournalLog::Removed => waiting.next.max(now_ms),
            JournalLog::Stored | JournalLog::Counted => waiting.next,
        };
        waiting.next = n + 1;
        Some(Unsent { log: self, n, entries })
    }
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
            // The store may have it after all: under the same number, readers do not read it twice, and it is written over with
            // the same entries. Removals are named by the time of their append, and reading them twice changes nothing.
            if self.log.log != JournalLog::Removed && waiting.next == self.n + 1 {
                waiting.next = self.n;
            }
            let dropped = waiting.add_unsent(std::mem::take(&mut self.entries));
            self.log.dropped.fetch_add(dropped as u64, Ordering::Relaxed);
        }
    }
}
