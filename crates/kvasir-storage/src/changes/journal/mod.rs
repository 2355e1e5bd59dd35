//! Replication journal: spreads index changes to the other replicas, with bounded delay.
//!
//! Each replica appends batches under its own name and tails those of the others. Batches of removals are named by
//! the store's time first, so that a reader lists the latest alone, whoever wrote them. Stored chunks do not depend
//! on it: a lost, late, duplicate or damaged batch costs hits inside chunks until the store is asked.
//! Removals do: a removal by request is in a batch before it is acknowledged, in a separate log, which is
//! read first and kept as long as tombstones. The index has rows of the removals and of the read position of
//! each log, so a replica that returns resumes where it stopped.

mod entry;
mod listing;
mod log;
mod sealed;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use futures::{StreamExt, TryStreamExt, stream};
use kvasir_store::{
    StoreError,
    layout::{JournalLog, Key},
};
use kvasir_types::{ModelId, Name};
use object_store::{GetOptions, path::Path};
use parking_lot::Mutex;
use tokio::time::Instant;
use uuid::Uuid;

pub(crate) use self::entry::JournalEntry;
#[cfg(any(test, fuzzing))]
pub(crate) use self::entry::fuzz;
pub use self::listing::JournalReading;
use self::{
    log::Log,
    sealed::{OpenedBatch, UnreadableRemovals},
};
use super::{
    Changes,
    ledger::{Reach, Stored},
};
use crate::{
    index::{LogPosition, Scope},
    limits,
    transitions::Transition,
};

const READING: &str = "reading the journal";

/// This replica's end of the journal.
#[derive(Debug)]
pub(crate) struct Journal {
    replica: Name,
    removed: Log,
    stored: Log,
    counted: Log,
    /// Number of listings of all logs still to be made log by log, because the journal has more than a page of batches.
    looks_by_log: AtomicU32,
    /// What the last read included that left nothing; `None` before the first.
    last_reading: Mutex<Option<JournalReading>>,
    /// `None` before the first read, and once the index was emptied: then all batches are listed.
    removals_read: Mutex<Option<RemovalsRead>>,
    /// Skipped parts of other replicas' batches.
    skipped: AtomicU64,
    unreadable: Mutex<UnreadableRemovals>,
}

impl Journal {
    /// A journal that resumes reading after `positions`.
    pub(crate) fn new(positions: &[LogPosition]) -> Self {
        // A name unique to this process, so that numbers never clash, whatever happens to the disk.
        let replica = Uuid::now_v7().to_string().parse().unwrap_or_else(|_| unreachable!("hex and dashes"));
        let [removed, stored, counted] = JournalLog::ALL.map(|log| {
            let seen = positions.iter().filter(|(of, ..)| *of == log).map(|(_, name, n)| (name.clone(), *n));
            Log::new(log, seen)
        });
        Self {
            replica,
            removed,
            stored,
            counted,
            looks_by_log: AtomicU32::new(0),
            last_reading: Mutex::default(),
            removals_read: Mutex::default(),
            skipped: AtomicU64::new(0),
            unreadable: Mutex::default(),
        }
    }

    /// The name that this process writes under.
    pub(super) fn replica(&self) -> &Name {
        &self.replica
    }

    fn log(&self, log: JournalLog) -> &Log {
        match log {
            JournalLog::Removed => &self.removed,
            JournalLog::Stored => &self.stored,
            JournalLog::Counted => &self.counted,
        }
    }

    /// Whether this replica has begun to read what others stored, and still does.
    fn reads_stored(&self) -> bool {
        self.last_reading.lock().is_some_and(|last| last.has(JournalLog::Stored))
    }

    /// Adds an entry to the waiting ones of its log; drops it if they are too many. Returns the number of its batch.
    pub(super) fn push(&self, entry: JournalEntry) -> u64 {
        self.log(entry.log()).push(entry)
    }

    /// The number of the last batch of stored chunks that entries are waiting for, or of the next one.
    pub(super) fn last_waiting(&self) -> u64 {
        self.stored.last_waiting()
    }

    /// How far a count reaches that begins now, at `begun_ms` of the store's time: what is older than the journal's
    /// lag is in the listing, or gone. Of what is younger, the batches read until now; for this replica's own, its
    /// last batch and the waiting entries.
    pub(super) fn reach(&self, begun_ms: Option<i64>) -> Reach {
        let mut batches = self.stored.seen_lately();
        batches.truncate(limits::LEDGER_REPLICAS_MAX - 1);
        batches.push((self.replica.clone(), self.last_waiting()));
        Reach { batches: batches.into(), until_ms: begun_ms.map(included_until), listed_ms: None }
    }
}

/// The last complete read of removals.
#[derive(Debug, Clone, Copy)]
struct RemovalsRead {
    /// The store's time in ms when it began.
    begun_ms: i64,
    /// When all batches were listed last, and not the latest alone.
    all_listed: Instant,
}

/// The store's time in ms before which a count that begins at `begun_ms` includes everything.
pub(super) fn included_until(begun_ms: i64) -> i64 {
    begun_ms.saturating_sub(i64::try_from(limits::LEDGER_RECENT.as_millis()).unwrap_or(i64::MAX))
}

/// The result of reading a batch.
enum ReadBatch {
    Opened(OpenedBatch),
    /// Compacted since it was listed.
    Gone,
    Damaged,
}

impl Changes {
    /// Appends the waiting entries, as one batch per log, or several if they are large. Returns the number of entries.
    /// When it returns, all entries that were waiting at the call are durable; if it is dropped, they keep waiting.
    ///
    /// # Errors
    /// [`StoreError::Request`]; the entries keep waiting.
    pub async fn journal_append(&self) -> Result<usize, StoreError> {
        let mut appended = 0;
        for log in JournalLog::ALL {
            appended += self.append(self.journal.log(log)).await?;
        }
        Ok(appended)
    }

    /// Like [`journal_append`](Self::journal_append), but what was stored waits for a later call, unless there is much of it.
    ///
    /// # Errors
    /// As [`journal_append`](Self::journal_append).
    pub async fn journal_append_removals(&self) -> Result<usize, StoreError> {
        if self.journal.stored.waiting_count() > limits::JOURNAL_STORED_WAITING_MAX {
            return self.journal_append().await;
        }
        Ok(self.append(&self.journal.removed).await? + self.journal_append_counts().await?)
    }

    /// Appends the waiting counts. If there are any, what was stored comes before them: a count says that it includes the batches
    /// that wait, to which nothing must be added behind it.
    ///
    /// # Errors
    /// As [`journal_append`](Self::journal_append).
    pub async fn journal_append_counts(&self) -> Result<usize, StoreError> {
        let Journal { stored, counted, .. } = &self.journal;
        if counted.waiting_count() == 0 {
            return Ok(0);
        }
        Ok(self.append(stored).await? + self.append(counted).await?)
    }

    async fn append(&self, log: &Log) -> Result<usize, StoreError> {
        let _one_at_a_time = log.appending.lock().await;
        let (waiting, mut appended) = (log.waiting_count(), 0);
        while appended < waiting
            && let Some(mut batch) =
                log.take(self.bucket.now_ms().map_or(0, |now| now.max(0).cast_unsigned()))
        {
            let (replica, n) = (self.journal.replica.clone(), batch.n);
            let path = self.bucket.path(&Key::Journal { log: log.log, replica, n });
            let bytes = self.encode_batch(log, &path, &batch.entries).await?;
            self.bucket.put(&path, bytes.into(), "appending to the journal").await?;
            self.bucket.reached(Transition::JournalAppended);
            if log.log == JournalLog::Removed && !self.is_in_time(&path, n).await? {
                continue;
            }
            appended += std::mem::take(&mut batch.entries).len();
        }
        Ok(appended)
    }

    /// Whether readers list a batch of removals: they begin shortly before their last read, by the store's clock. If
    /// not, the next batch is named by that clock: this process's may have stood still.
    async fn is_in_time(&self, path: &Path, n: u64) -> Result<bool, StoreError> {
        const ASKING: &str = "asking when a journal batch was appended";
        let Some(meta) = self.bucket.head(path, ASKING).await? else {
            return Err(StoreError::own(ASKING, "the store does not have it"));
        };
        let appended_ms = meta.last_modified.timestamp_millis().max(0).cast_unsigned();
        let late_max = limits::JOURNAL_REMOVALS_LATE_MAX.as_millis() as u64;
        let is_in_time = appended_ms.saturating_sub(n) <= late_max;
        if !is_in_time {
            tracing::warn!(%path, appended_ms, "a batch of removals reached the store too late for its name, and is appended again; this machine may have been suspended");
            self.journal.removed.skip_to(appended_ms);
        }
        Ok(is_in_time)
    }

    /// Skipped parts of other replicas' batches so far: of kinds that this version does not know, of tenants
    /// whose key is missing here, unsealed ones of tenants with a key, or damaged.
    pub fn journal_skipped(&self) -> u64 {
        self.journal.skipped.load(Ordering::Relaxed)
    }

    /// Removals dropped so far because too many were waiting.
    pub(crate) fn dropped_removals(&self) -> u64 {
        self.journal.removed.dropped.load(Ordering::Relaxed)
    }

    /// Appends the waiting removals. Succeeds if none was dropped since `dropped` was read: then all removals
    /// published since are durable. Concurrent callers share a batch.
    ///
    /// # Errors
    /// [`StoreError::Request`]: some removals may not be durable, and must be published again.
    pub(crate) async fn append_removals(&self, dropped: u64) -> Result<(), StoreError> {
        self.append(&self.journal.removed).await?;
        if self.dropped_removals() == dropped {
            return Ok(());
        }
        Err(StoreError::own("appending to the journal", "too many entries were waiting"))
    }

    /// Reads other replicas' new entries since the last call, those that `reading` names. Returns their number.
    ///
    /// # Errors
    /// [`StoreError::Request`]; the next call reads the remaining entries. Damaged batches are skipped.
    pub async fn journal_tail(&self, reading: JournalReading) -> Result<usize, StoreError> {
        self.tail(reading, false, true).await
    }

    /// Like [`journal_tail`](Self::journal_tail), but leaves what was stored to a later call where it is not read for the rows of
    /// the index. The replica still counts as one that reads it, so the later call begins where the last one ended, whoever wrote
    /// meanwhile. One that has not read it yet begins with the later call.
    ///
    /// # Errors
    /// As [`journal_tail`](Self::journal_tail).
    pub async fn journal_tail_leaving_stored(&self, reading: JournalReading) -> Result<usize, StoreError> {
        self.tail(reading, reading == JournalReading::Stored, true).await
    }

    /// Like [`journal_tail`](Self::journal_tail), for the index alone: readers of events are not told, which
    /// would cost requests to the store. Fills an empty index.
    ///
    /// # Errors
    /// As [`journal_tail`](Self::journal_tail).
    pub async fn journal_replay(&self) -> Result<usize, StoreError> {
        self.tail(JournalReading::Rows, false, false).await
    }

    /// Empties the index if removals may have left the journal since this replica last read all of it. Returns whether
    /// it did. Call it before the first lookup, on a probed store; each read of the journal checks again.
    pub fn empty_outdated_index(&self) -> bool {
        let Some(now) = self.bucket.now_ms() else { return false };
        let index = self.reads.index().index();
        let heard_until = index.heard_until();
        // A tenth is left for the first read of the journal.
        let limit = self.removals_kept_ms() / 10 * 9;
        if heard_until.is_some_and(|heard| now.saturating_sub(heard) < limit) {
            return false;
        }
        // A new index is emptied as well: then it lacks no removal up to now.
        self.empty_index(now);
        // Chunks stored that long ago may be gone as well, and the replicas that knew may have ended.
        self.journal.stored.forget_waiting();
        heard_until.is_some()
    }

    fn removals_kept_ms(&self) -> i64 {
        i64::try_from(self.removals_kept.as_millis()).unwrap_or(i64::MAX)
    }

    /// Deletes the rows of removals whose names may be used again. Returns their number.
    pub fn expire_removals(&self) -> u64 {
        self.bucket.now_ms().map_or(0, |now| self.reads.index().index().expire_removed(now))
    }

    /// Empties the index. It then lacks no removal up to `now_ms`: later additions were checked in the store.
    fn empty_index(&self, now_ms: i64) {
        let index = self.reads.index().index();
        index.clear();
        index.set_heard_until(now_ms);
        *self.journal.removals_read.lock() = None;
        for log in JournalLog::ALL {
            self.journal.log(log).forget_seen();
        }
    }

    async fn tail(
        &self,
        reading: JournalReading,
        leaves_stored: bool,
        tells: bool,
    ) -> Result<usize, StoreError> {
        let index = self.reads.index().index();
        // This replica may have been suspended, cut off from the journal, or have replaced a damaged index.
        if self.empty_outdated_index() {
            tracing::warn!(
                "the hot index was emptied: this replica was cut off for longer than the journal keeps removals; it fills again from the store"
            );
        }
        let (begun, now) = (self.bucket.now_ms(), Instant::now());
        let (mut applied, mut was_emptied) = (0, false);
        let (fresh, lists_all_removals) = self.fresh_batches(reading, leaves_stored).await?;
        // Whoever leaves what was stored before it has begun to read that goes on after what a count includes.
        let begins_later = leaves_stored && !self.journal.reads_stored();
        let reading = if begins_later { JournalReading::Counts } else { reading };
        // All of these batches are durable by now, and so are the tombstones of their removals.
        let heard = self.reads.index().next_removal();
        // One log after the other, and first the one that the collector shortens last: no entry of a stored chunk
        // is read after its removal was deleted unread.
        for log in JournalLog::ALL {
            let of_log = fresh.iter().filter(|((of, _), _)| *of == log);
            let batches: Vec<(Name, u64)> = of_log
                .flat_map(|((_, replica), numbers)| numbers.iter().map(move |n| (replica.clone(), *n)))
                .collect();
            let batches = stream::iter(batches).map(|(replica, n)| self.read_batch(log, replica, n));
            let mut batches = batches.buffered(limits::JOURNAL_BATCHES_AHEAD);
            while let Some((replica, n, batch)) = batches.try_next().await? {
                match batch {
                    ReadBatch::Opened(batch) => {
                        if log == JournalLog::Removed && self.journal.unreadable.lock().note_opened(&batch) {
                            tracing::error!(tenants = ?batch.unopened, "removals of sealed tenants cannot be read, because their keys are not available; restore the keys, or check the key service");
                            self.empty_index(begun.unwrap_or(0));
                            was_emptied = true;
                            self.note_missed_removals(begun);
                        }
                        let from = (log, &replica, n);
                        applied += self.apply(from, &batch.entries, heard, reading);
                        if tells {
                            self.tell(&replica, &batch.entries).await;
                        }
                        self.bucket.reached(Transition::JournalApplied);
                    }
                    ReadBatch::Gone => {}
                    ReadBatch::Damaged if log != JournalLog::Removed => {}
                    // The batch may have removed anything: rows of the index, and chunks that other batches
                    // say were stored.
                    ReadBatch::Damaged => {
                        // To empty the index forgets what was read: this batch may come again.
                        if self.journal.unreadable.lock().note_damaged(&replica, n) {
                            tracing::warn!(%replica, n, "the hot index was emptied: a batch of removals is damaged; it fills again from the store");
                            self.empty_index(begun.unwrap_or(0));
                            was_emptied = true;
                        }
                        self.note_missed_removals(begun);
                    }
                }
                self.journal.log(log).note_seen(&replica, n);
                // A replica that starts reads the counts again: otherwise it would have to count for itself.
                if log != JournalLog::Counted {
                    index.set_log_position(&(log, replica, n));
                }
            }
        }
        if let Some(begun) = begun {
            index.set_heard_until(begun);
            let mut read = self.journal.removals_read.lock();
            let all_listed = if lists_all_removals { Some(now) } else { read.map(|read| read.all_listed) };
            let all_listed = all_listed.filter(|_| !was_emptied);
            *read = all_listed.map(|all_listed| RemovalsRead { begun_ms: begun, all_listed });
        }
        Ok(applied)
    }

    /// From now on, the rows may lack removals.
    fn note_missed_removals(&self, begun: Option<i64>) {
        let until = begun.map_or(i64::MAX, |now| now.saturating_add(self.removals_kept_ms()));
        self.reads.index().index().set_missed_until(until);
    }

    /// Reads a batch, with its writer and number.
    async fn read_batch(
        &self,
        log: JournalLog,
        replica: Name,
        n: u64,
    ) -> Result<(Name, u64, ReadBatch), StoreError> {
        let path = self.bucket.path(&Key::Journal { log, replica: replica.clone(), n });
        let Some(found) = self.bucket.open_object(&path, GetOptions::default(), READING).await? else {
            return Ok((replica, n, ReadBatch::Gone));
        };
        let bytes = found.meta.size;
        let batch = if bytes <= limits::JOURNAL_BATCH_BYTES_MAX {
            let contents = found.bytes().await.map_err(StoreError::request(READING))?;
            self.decode_batch(&path, &contents).await?
        } else {
            None
        };
        let Some(batch) = batch else {
            tracing::warn!(%path, bytes, "a journal batch that is damaged or too large is skipped");
            self.journal.skipped.fetch_add(1, Ordering::Relaxed);
            return Ok((replica, n, ReadBatch::Damaged));
        };
        self.journal.skipped.fetch_add(batch.skipped, Ordering::Relaxed);
        Ok((replica, n, ReadBatch::Opened(batch)))
    }

    /// Applies a batch to index and ledger. Does not wait: a reader that is dropped midway reads the batch
    /// again, and must not count it twice.
    fn apply(
        &self,
        (log, replica, n): (JournalLog, &Name, u64),
        entries: &[JournalEntry],
        heard: u64,
        reading: JournalReading,
    ) -> usize {
        for entry in entries.iter().filter(|entry| !self.may_be_forgotten(entry)) {
            self.note_labels(entry);
            match entry {
                JournalEntry::Stored { tenant, model_id, entry, since_ms, .. } => {
                    let row = &entry.row;
                    let (digest, one) = (*row.object_digest.as_bytes(), Stored::one(row.object_bytes));
                    let stored_ms = since_ms.or_else(|| self.bucket.now_ms());
                    self.ledger.note(tenant, digest, one, (replica, n), stored_ms);
                    // What the index would not take is not remembered either: lookups read the object's head.
                    let is_for_rows = reading == JournalReading::Rows && entry.has_all_blocks();
                    if is_for_rows && !self.reads.may_miss_removals() {
                        let scope = Scope::new(tenant, model_id);
                        self.reads.index().insert_unless_gone(scope, entry);
                        if *model_id == ModelId::OPAQUE {
                            self.reads.index().note_acknowledged(scope, entry.row.object_digest);
                        }
                    }
                }
                JournalEntry::Removed { tenant, model_id, object_digest, reason, .. } => {
                    let scope = Scope::new(tenant, model_id);
                    self.reads.forget_heard(scope, *object_digest, *reason, heard);
                }
                JournalEntry::Counted { tenant, stored, reach } => {
                    self.ledger.take_count(tenant, *stored, replica, reach);
                    if !reading.has(JournalLog::Stored) {
                        self.skip_to(reach);
                    }
                }
            }
        }
        // Each log numbers its own batches.
        if log == JournalLog::Stored {
            self.ledger.heard(replica, n);
        }
        entries.len()
    }

    /// Whether an entry reports a chunk as stored so long ago that its removal may no longer be remembered:
    /// its writer stalled, or its batch was delayed. Lookups find the chunk in the store.
    fn may_be_forgotten(&self, entry: &JournalEntry) -> bool {
        let JournalEntry::Stored { since_ms: Some(since), .. } = entry else { return false };
        // Half of the period: the replica that hears of a removal dates it.
        self.bucket.now_ms().is_none_or(|now| now.saturating_sub(*since) > self.removals_kept_ms() / 2)
    }

    /// Adds another replica's changes to the event log. Models new to this replica are read once, for their names.
    async fn tell(&self, replica: &Name, entries: &[JournalEntry]) {
        for entry in entries.iter().filter(|entry| !self.may_be_forgotten(entry)) {
            if let JournalEntry::Stored { tenant, model_id, .. }
            | JournalEntry::Removed { tenant, model_id, .. } = entry
            {
                // Without a response of the store, the event lacks the name.
                let _ = self.catalog.model(tenant, model_id).await;
            }
            if let Some(event) = self.event_of(entry, replica) {
                self.events.push(event);
            }
        }
    }
}

#[cfg(test)]
mod tests;
