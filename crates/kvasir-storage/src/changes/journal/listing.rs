//! What of the journal a replica reads, and which batches of it are new.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicU32, Ordering},
};

use futures::{
    StreamExt, TryStreamExt,
    future::{ready, try_join_all},
    stream,
};
use kvasir_store::{
    StoreError,
    layout::{JournalLog, Key},
};
use kvasir_types::Name;
use object_store::{ObjectMeta, path::Path};

use super::{
    super::{Changes, ledger::Reach},
    READING, RemovalsRead,
};
use crate::limits;

/// What a replica reads of the others' journals. Removals are always read; what was stored, the store is asked for where an
/// index does not have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournalReading {
    /// Removals alone.
    Removals,
    /// Tenants' usage too, for quotas.
    Counts,
    /// What was stored too, for events and for those who count.
    Stored,
    /// All, with the rows of what was stored for the index.
    Rows,
}

impl JournalReading {
    /// Whether a log is read.
    pub(super) fn has(self, log: JournalLog) -> bool {
        match log {
            JournalLog::Removed => true,
            JournalLog::Counted => self != Self::Removals,
            JournalLog::Stored => matches!(self, Self::Stored | Self::Rows),
        }
    }

    /// Whether a replica that read `before` begins with what others stored, and not to fill its index after a start.
    fn begins_to_read_stored(self, before: Option<Self>) -> bool {
        match before {
            Some(before) => self.has(JournalLog::Stored) && !before.has(JournalLog::Stored),
            None => self == Self::Stored,
        }
    }

    /// Pages of one listing of a log, or of all.
    fn pages_max(self) -> usize {
        if self == Self::Rows { limits::JOURNAL_ROWS_PAGES_MAX } else { limits::JOURNAL_PAGES_MAX }
    }
}

/// Who wrote the listed batches, by log.
fn writers(listed: &[(Key, ObjectMeta)]) -> BTreeSet<(JournalLog, &Name)> {
    let writers = listed.iter().filter_map(|(key, _)| match key {
        Key::Journal { log, replica, .. } => Some((*log, replica)),
        _ => None,
    });
    writers.collect()
}

/// Numbers of batches, by log and replica, in order.
pub(super) type Batches = BTreeMap<(JournalLog, Name), Vec<u64>>;

impl Changes {
    /// Other replicas' batches after those seen. Reads everything in one listing while that has no more pages than there are
    /// folders to list one by one, otherwise each log in one: of removals the latest, of other logs all; beyond that, for a
    /// while, a log's folders and then each of them. `leaves_stored`: without those of what was stored, although `reading` has
    /// them, and without beginning to read them. Also returns whether all removals were listed.
    pub(super) async fn fresh_batches(
        &self,
        reading: JournalReading,
        leaves_stored: bool,
    ) -> Result<(Batches, bool), StoreError> {
        let journal = &self.journal;
        // To begin, all that was stored is listed, and lookups wait for a read that leaves it.
        if !leaves_stored {
            let before = *journal.last_reading.lock();
            if reading.begins_to_read_stored(before) {
                self.skip_history().await?;
            }
            // Not earlier: where the store does not answer, the next read begins again.
            *journal.last_reading.lock() = Some(reading);
        }
        self.events.set_complete(journal.reads_stored());
        let (all, pages_max) = (self.bucket.layout().journal_prefix(), reading.pages_max());
        if reading == JournalReading::Rows
            && let Some(fresh) =
                self.fresh_in(&all, &JournalLog::ALL, pages_max, &journal.looks_by_log).await?
        {
            return Ok((fresh, true));
        }
        let (mut batches, lists_all_removals) = self.fresh_removals().await?;
        let is_read = |log: &JournalLog| reading.has(*log) && !(leaves_stored && *log == JournalLog::Stored);
        for log in [JournalLog::Stored, JournalLog::Counted].into_iter().filter(is_read) {
            let prefix = self.bucket.layout().log_prefix(log);
            batches.append(&mut match self
                .fresh_in(&prefix, &[log], pages_max, &journal.log(log).looks_by_folder)
                .await?
            {
                Some(fresh) => fresh,
                None => self.batches_by_folder(log, &prefix).await?,
            });
        }
        Ok((batches, lists_all_removals))
    }

    /// The new batches of removals, and whether all of that log were listed: otherwise those named by a time shortly before
    /// the last read or later.
    async fn fresh_removals(&self) -> Result<(Batches, bool), StoreError> {
        let prefix = self.bucket.layout().log_prefix(JournalLog::Removed);
        let last_read = *self.journal.removals_read.lock();
        let is_recent =
            |read: &RemovalsRead| read.all_listed.elapsed() < limits::JOURNAL_REMOVALS_LISTED_EVERY;
        if let Some(read) = last_read.filter(is_recent) {
            let window_ms = i64::try_from(limits::JOURNAL_REMOVALS_WINDOW.as_millis()).unwrap_or(i64::MAX);
            let since_ms = read.begun_ms.saturating_sub(window_ms).max(0).cast_unsigned();
            let offset = self.bucket.layout().removals_since(since_ms);
            let listed: Vec<_> = self.bucket.list_behind(&prefix, &offset, READING).try_collect().await?;
            return Ok((self.fresh(&listed), false));
        }
        let listed = self.all_removals(&prefix).await?;
        let replicas = writers(&listed);
        self.keep_positions(JournalLog::Removed, |replica| {
            replicas.contains(&(JournalLog::Removed, replica))
        });
        Ok((self.fresh(&listed), true))
    }

    /// All batches of removals. At equal distances of time many listings begin, because lookups wait for them.
    async fn all_removals(&self, prefix: &Path) -> Result<Vec<(Key, ObjectMeta)>, StoreError> {
        let Some(now_ms) = self.bucket.now_ms().filter(|_| self.bucket.open().directory().is_none()) else {
            return self.bucket.list(prefix, READING).try_collect().await;
        };
        let layout = self.bucket.layout();
        let begun_ms = now_ms.saturating_sub(self.removals_kept_ms()).max(0).cast_unsigned();
        let kept_ms = now_ms.max(0).cast_unsigned().saturating_sub(begun_ms);
        let slices = limits::JOURNAL_FOLDERS_AT_ONCE as u64;
        let listings = (0..slices).map(|slice| {
            // The first one begins with all that is older, the last one ends with all that is younger.
            let start = |slice: u64| layout.removals_since(begun_ms + kept_ms / slices * slice);
            let listing = match slice {
                0 => self.bucket.list(prefix, READING),
                _ => self.bucket.list_behind(prefix, &start(slice), READING),
            };
            let end = (slice + 1 < slices).then(|| start(slice + 1));
            let is_before = move |meta: &ObjectMeta| end.as_ref().is_none_or(|end| meta.location <= *end);
            listing.try_take_while(move |(_, meta)| ready(Ok(is_before(meta)))).try_collect::<Vec<_>>()
        });
        Ok(try_join_all(listings).await?.into_iter().flatten().collect())
    }

    /// The new batches of some logs by one listing, if there are few enough; if not, that is not tried again for a while.
    async fn fresh_in(
        &self,
        prefix: &Path,
        logs: &[JournalLog],
        pages_max: usize,
        looks_left: &AtomicU32,
    ) -> Result<Option<Batches>, StoreError> {
        let one_less = |looks: u32| looks.checked_sub(1);
        if looks_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
            return Ok(None);
        }
        // Removals have no folders: they are listed by their time.
        let in_folders = logs.iter().filter(|log| **log != JournalLog::Removed);
        let folders = 1 + in_folders.map(|log| self.journal.log(*log).seen_count()).sum::<usize>();
        let most = limits::JOURNAL_PAGE * folders.min(pages_max);
        let listed: Vec<_> = self.bucket.list(prefix, READING).take(most + 1).try_collect().await?;
        if listed.len() > most {
            looks_left.store(limits::JOURNAL_LOOKS_BY_FOLDER, Ordering::Relaxed);
            return Ok(None);
        }
        let replicas = writers(&listed);
        for log in logs {
            self.keep_positions(*log, |replica| replicas.contains(&(*log, replica)));
        }
        Ok(Some(self.fresh(&listed)))
    }

    async fn batches_by_folder(&self, log: JournalLog, prefix: &Path) -> Result<Batches, StoreError> {
        let mut batches = Batches::new();
        let replicas = self.bucket.folders::<Name>(prefix, READING).await?;
        self.keep_positions(log, |replica| replicas.contains(replica));
        let others = replicas.into_iter().filter(|replica| *replica != self.journal.replica);
        let listings = stream::iter(others).map(|replica| self.fresh_batches_of(log, replica));
        let mut listings = listings.buffered(limits::JOURNAL_FOLDERS_AT_ONCE);
        while let Some(mut of_one) = listings.try_next().await? {
            batches.append(&mut of_one);
        }
        Ok(batches)
    }

    async fn fresh_batches_of(&self, log: JournalLog, replica: Name) -> Result<Batches, StoreError> {
        let folder = self.bucket.layout().log_prefix(log).join(replica.as_str());
        let listing = match self.journal.log(log).seen(&replica) {
            Some(n) => {
                let after = self.bucket.path(&Key::Journal { log, replica, n });
                self.bucket.list_behind(&folder, &after, READING)
            }
            None => self.bucket.list(&folder, READING),
        };
        Ok(self.fresh(&listing.try_collect::<Vec<_>>().await?))
    }

    /// Drops the positions in logs without any batch: their replicas are gone, or will continue with a later batch.
    fn keep_positions(&self, log: JournalLog, is_listed: impl Fn(&Name) -> bool) {
        let index = self.reads.index().index();
        self.journal.log(log).retain_seen(|replica| {
            let stays = is_listed(replica);
            if !stays {
                index.remove_log_position(log, replica);
            }
            stays
        });
    }

    /// The listed batches of other replicas that this one has not seen.
    fn fresh(&self, listed: &[(Key, ObjectMeta)]) -> Batches {
        let mut batches = Batches::new();
        for (key, _) in listed {
            let Key::Journal { log, replica, n } = key else { continue };
            let is_new = self.journal.log(*log).seen(replica).is_none_or(|seen| *n > seen);
            if is_new && *replica != self.journal.replica {
                batches.entry((*log, replica.clone())).or_default().push(*n);
            }
        }
        batches.values_mut().for_each(|numbers| numbers.sort_unstable());
        batches
    }

    /// A replica that begins to read what others stored leaves out the past, but for what a count of late does not include: its
    /// counts have that, its readers of events begin now, and rows that it lacks it asks the store for.
    async fn skip_history(&self) -> Result<(), StoreError> {
        let log = &self.journal.stored;
        let known: BTreeSet<Name> = log.seen_lately().into_iter().map(|(replica, _)| replica).collect();
        let prefix = self.bucket.layout().log_prefix(JournalLog::Stored);
        let (logs, pages_max) = ([JournalLog::Stored], limits::JOURNAL_PAGES_MAX);
        let batches = match self.fresh_in(&prefix, &logs, pages_max, &log.looks_by_folder).await? {
            Some(batches) => batches,
            None => self.batches_by_folder(JournalLog::Stored, &prefix).await?,
        };
        for ((_, replica), numbers) in batches {
            if let Some(last) = numbers.last().filter(|_| !known.contains(&replica)) {
                log.note_seen(&replica, *last);
            }
        }
        Ok(())
    }

    /// What a count includes need not be read, should this replica begin to read what others stored.
    pub(super) fn skip_to(&self, reach: &Reach) {
        let others = reach.batches.iter().filter(|(replica, _)| *replica != self.journal.replica);
        for (replica, n) in others {
            if self.journal.stored.seen(replica).is_none_or(|seen| *n > seen) {
                self.journal.stored.note_seen(replica, *n);
            }
        }
    }
}
