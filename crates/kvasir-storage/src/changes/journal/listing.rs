//! What of the journal a replica reads, and which batches of it are new.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicU32, Ordering},
};

use futures::{StreamExt, TryStreamExt, stream};
use kvasir_store::{
    StoreError,
    layout::{JournalLog, Key},
};
use kvasir_types::Name;
use object_store::{ObjectMeta, path::Path};

use super::{
    super::{Changes, ledger::Reach},
    READING,
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
}

/// Numbers of batches, by log and replica, in order.
pub(super) type Batches = BTreeMap<(JournalLog, Name), Vec<u64>>;

impl Changes {
    /// Other replicas' batches after those seen. Reads everything in one listing while that has no more pages than there are
    /// folders to list one by one, otherwise each log in one; beyond that, for a while, a log's folders and then each of them.
    pub(super) async fn fresh_batches(&self, reading: JournalReading) -> Result<Batches, StoreError> {
        let journal = &self.journal;
        let before = *journal.last_reading.lock();
        if reading.begins_to_read_stored(before) {
            self.skip_history().await?;
        }
        // Not earlier: where the store does not answer, the next read begins again.
        *journal.last_reading.lock() = Some(reading);
        self.events.set_complete(reading.has(JournalLog::Stored));
        let all = self.bucket.layout().journal_prefix();
        if reading == JournalReading::Rows
            && let Some(fresh) = self.fresh_in(&all, &JournalLog::ALL, &journal.looks_by_log).await?
        {
            return Ok(fresh);
        }
        let mut batches = Batches::new();
        for log in JournalLog::ALL.into_iter().filter(|log| reading.has(*log)) {
            let prefix = self.bucket.layout().log_prefix(log);
            batches.append(&mut match self
                .fresh_in(&prefix, &[log], &journal.log(log).looks_by_folder)
                .await?
            {
                Some(fresh) => fresh,
                None => self.batches_by_folder(log, &prefix).await?,
            });
        }
        Ok(batches)
    }

    /// The new batches of some logs by one listing, if there are few enough; if not, that is not tried again for a while.
    async fn fresh_in(
        &self,
        prefix: &Path,
        logs: &[JournalLog],
        looks_left: &AtomicU32,
    ) -> Result<Option<Batches>, StoreError> {
        let one_less = |looks: u32| looks.checked_sub(1);
        if looks_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
            return Ok(None);
        }
        let folders = 1 + logs.iter().map(|log| self.journal.log(*log).seen_count()).sum::<usize>();
        let most = limits::JOURNAL_PAGE * folders.min(limits::JOURNAL_PAGES_MAX);
        let listed: Vec<_> = self.bucket.list(prefix, READING).take(most + 1).try_collect().await?;
        if listed.len() > most {
            looks_left.store(limits::JOURNAL_LOOKS_BY_FOLDER, Ordering::Relaxed);
            return Ok(None);
        }
        let replicas = listed.iter().filter_map(|(key, _)| match key {
            Key::Journal { log, replica, .. } => Some((*log, replica)),
            _ => None,
        });
        let replicas: BTreeSet<_> = replicas.collect();
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
        let batches = match self.fresh_in(&prefix, &[JournalLog::Stored], &log.looks_by_folder).await? {
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
