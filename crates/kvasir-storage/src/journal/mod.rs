//! The journal: what one replica learns, the others learn soon.
//!
//! Each replica appends batches under a name of its own and tails those of the others. What was stored does not rest on it: a
//! lost, late, doubled or damaged batch costs hits inside chunks until the store is asked. What was removed does: a removal by
//! request is in a batch before it is acknowledged. Batches go after their retention.

mod entry;
mod sealed;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, TryStreamExt, stream};
use kvasir_types::Name;
use object_store::{ObjectMeta, ObjectStoreExt, PutMode};
use parking_lot::Mutex;
use uuid::Uuid;

pub use self::entry::JournalEntry;
use crate::{
    Storage, StorageError,
    index::Scope,
    layout::Key,
    ledger::{Reach, Stored},
    limits,
    transitions::Transition,
};

/// This replica's end of the journal.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(crate) replica: Name,
    next: AtomicU64,
    waiting: Mutex<Vec<JournalEntry>>,
    /// Held while a batch is on its way: whoever has it and finds nothing waiting knows that all before is durable.
    appending: tokio::sync::Mutex<()>,
    dropped: AtomicU64,
    /// Parts of other replicas' batches that were left out.
    skipped: AtomicU64,
    /// The last batch seen of each replica.
    seen: Mutex<HashMap<Name, u64>>,
    /// Looks that are yet to be taken folder by folder, because the journal has more than a page of batches.
    looks_by_folder: AtomicU32,
}

/// Where batches lie, by replica, in their order.
type Batches = BTreeMap<Name, Vec<u64>>;

impl Journal {
    pub(crate) fn new() -> Self {
        // A name of this process alone: numbers never clash, whatever happened to the disk.
        let replica = Uuid::now_v7().to_string().parse().unwrap_or_else(|_| unreachable!("hex and dashes"));
        Self {
            replica,
            next: AtomicU64::new(0),
            waiting: Mutex::default(),
            appending: tokio::sync::Mutex::default(),
            dropped: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            seen: Mutex::default(),
            looks_by_folder: AtomicU32::new(0),
        }
    }

    /// Takes an entry for the next batch; drops it when too many wait.
    /// Gives the number of that batch.
    pub(crate) fn push(&self, entry: JournalEntry) -> u64 {
        let mut waiting = self.waiting.lock();
        if waiting.len() < limits::JOURNAL_WAITING_MAX {
            waiting.push(entry);
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        self.next.load(Ordering::Relaxed)
    }

    /// Entries that were dropped because too many waited.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// The number of the next batch.
    pub(crate) fn next(&self) -> u64 {
        let _waiting = self.waiting.lock();
        self.next.load(Ordering::Relaxed)
    }

    /// What waits, and the number of its batch.
    fn take(&self) -> Option<Unsent<'_>> {
        let mut waiting = self.waiting.lock();
        if waiting.is_empty() {
            return None;
        }
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        Some(Unsent { journal: self, n, entries: std::mem::take(&mut *waiting) })
    }

    /// How far all journals were heard, this replica's own to its last batch and what waits for the next one.
    pub(crate) fn reach(&self) -> Reach {
        let mut seen: Vec<_> = self.seen.lock().iter().map(|(name, n)| (name.clone(), *n)).collect();
        // Replicas' names begin with their start: the youngest, which are those that live.
        seen.sort_by(|a, b| b.0.as_str().cmp(a.0.as_str()));
        seen.truncate(limits::LEDGER_REPLICAS_MAX - 1);
        seen.push((self.replica.clone(), self.next()));
        seen.into()
    }
}

/// Entries on their way to the store. Those that are still here when it is dropped wait again.
struct Unsent<'a> {
    journal: &'a Journal,
    n: u64,
    entries: Vec<JournalEntry>,
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        if !self.entries.is_empty() {
            let mut waiting = self.journal.waiting.lock();
            self.entries.append(&mut waiting);
            let excess = self.entries.len().saturating_sub(limits::JOURNAL_WAITING_MAX);
            self.journal.dropped.fetch_add(excess as u64, Ordering::Relaxed);
            self.entries.truncate(limits::JOURNAL_WAITING_MAX);
            *waiting = std::mem::take(&mut self.entries);
        }
    }
}

impl Storage {
    /// Appends what waits as one batch. Gives the number of entries. When it returns, all that waited when it was called is
    /// durable; where it is dropped, the entries wait on.
    ///
    /// # Errors
    /// [`StorageError::Store`]; the entries wait on.
    pub async fn journal_append(&self) -> Result<usize, StorageError> {
        let _one_at_a_time = self.journal.appending.lock().await;
        let Some(mut batch) = self.journal.take() else { return Ok(0) };
        let path =
            self.store.layout.path(&Key::Journal { replica: self.journal.replica.clone(), n: batch.n });
        let bytes = self.encode_batch(&path, &batch.entries).await?;
        let appended = self.store.store.put_opts(&path, bytes.into(), PutMode::Overwrite.into()).await;
        appended.map_err(StorageError::store("appending to the journal"))?;
        self.reached(Transition::JournalAppended);
        Ok(std::mem::take(&mut batch.entries).len())
    }

    /// Appends what waits, where none of it was dropped since `dropped` was asked for: what was pushed since is durable then.
    ///
    /// # Errors
    /// [`StorageError::Store`]: some of it may not be durable, and has to be pushed again.
    pub(crate) async fn append_all_since(&self, dropped: u64) -> Result<(), StorageError> {
        self.journal_append().await?;
        if self.journal.dropped() == dropped {
            return Ok(());
        }
        let source =
            object_store::Error::Generic { store: "kvasir", source: "too many entries waited".into() };
        Err(StorageError::store("appending to the journal")(source))
    }

    /// Parts of other replicas' batches that were left out: of tenants whose key is not here, in the clear of tenants with a
    /// key, or of kinds that this version does not know.
    pub fn journal_skipped(&self) -> u64 {
        self.journal.skipped.load(Ordering::Relaxed)
    }

    /// Reads what other replicas have appended since the last call. Gives the number of entries.
    ///
    /// # Errors
    /// [`StorageError::Store`]; what was not read is read by the next call. Damaged batches are skipped.
    pub async fn journal_tail(&self) -> Result<usize, StorageError> {
        self.tail(true).await
    }

    /// As [`journal_tail`](Self::journal_tail), for the index alone: nobody is told, which would cost requests to the store.
    /// Fills an empty index.
    ///
    /// # Errors
    /// As [`journal_tail`](Self::journal_tail).
    pub async fn journal_replay(&self) -> Result<usize, StorageError> {
        self.tail(false).await
    }

    /// Empties the index where removals may have left the journal, which keeps them for `retention`, since this replica last
    /// heard all of it: it would offer what is gone. Says whether that was so. To be called before the first lookup, on a store
    /// that was probed.
    pub fn empty_outdated_index(&self, retention: Duration) -> bool {
        let Some(now) = self.store.now_ms() else { return false };
        let heard_until = self.index.heard_until();
        // A tenth is left for the first look at the journal.
        let limit = i64::try_from(retention.as_millis() * 9 / 10).unwrap_or(i64::MAX);
        if heard_until.is_some_and(|heard| now.saturating_sub(heard) < limit) {
            return false;
        }
        // A new one is emptied, too: then it lacks no removal up to now.
        self.index.clear();
        self.index.set_heard_until(now);
        heard_until.is_some()
    }

    async fn tail(&self, tells: bool) -> Result<usize, StorageError> {
        let begun = self.store.now_ms();
        let mut applied = 0;
        for (replica, numbers) in self.fresh_batches().await? {
            let batches = stream::iter(numbers).map(|n| self.read_batch(&replica, n));
            let mut batches = batches.buffered(limits::JOURNAL_BATCHES_AHEAD);
            while let Some((n, entries)) = batches.try_next().await? {
                if let Some(entries) = entries {
                    applied += self.apply(&replica, n, entries, tells).await;
                    self.reached(Transition::JournalApplied);
                }
                self.journal.seen.lock().insert(replica.clone(), n);
            }
        }
        if let Some(begun) = begun {
            self.index.set_heard_until(begun);
        }
        Ok(applied)
    }

    /// Batches of other replicas behind those seen. One listing of everything while that is a page; where there is more, one of
    /// the replicas and one of each of them, for a while.
    async fn fresh_batches(&self) -> Result<Batches, StorageError> {
        let journal = &self.journal;
        let one_less = |looks: u32| looks.checked_sub(1);
        if journal.looks_by_folder.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
            return self.batches_by_folder().await;
        }
        let failed = StorageError::store("reading the journal");
        let listing = self.store.store.list(Some(&self.store.layout.journal_prefix()));
        let listed: Vec<_> =
            listing.take(limits::JOURNAL_LISTED_MAX + 1).try_collect().await.map_err(failed)?;
        if listed.len() > limits::JOURNAL_LISTED_MAX {
            journal.looks_by_folder.store(limits::JOURNAL_LOOKS_BY_FOLDER, Ordering::Relaxed);
            return self.batches_by_folder().await;
        }
        Ok(self.fresh(&listed))
    }

    async fn batches_by_folder(&self) -> Result<Batches, StorageError> {
        let failed = StorageError::store("reading the journal");
        let listed = self.store.store.list_with_delimiter(Some(&self.store.layout.journal_prefix())).await;
        let mut batches = Batches::new();
        for folder in listed.map_err(&failed)?.common_prefixes {
            let replica = folder.parts().next_back().and_then(|part| part.as_ref().parse::<Name>().ok());
            let Some(replica) = replica.filter(|replica| *replica != self.journal.replica) else { continue };
            let seen = self.journal.seen.lock().get(&replica).copied();
            let after = seen.map(|n| self.store.layout.path(&Key::Journal { replica, n }));
            let listing = match &after {
                Some(after) => self.store.store.list_with_offset(Some(&folder), after),
                None => self.store.store.list(Some(&folder)),
            };
            let listed: Vec<_> = listing.try_collect().await.map_err(&failed)?;
            batches.append(&mut self.fresh(&listed));
        }
        Ok(batches)
    }

    /// Of what was listed, the batches of others that this replica has not seen.
    fn fresh(&self, listed: &[ObjectMeta]) -> Batches {
        let seen = self.journal.seen.lock();
        let mut batches = Batches::new();
        for meta in listed.iter().filter(|meta| meta.size <= limits::JOURNAL_BATCH_BYTES_MAX) {
            let Some(Key::Journal { replica, n }) = self.store.layout.parse(&meta.location) else { continue };
            if replica != self.journal.replica && seen.get(&replica).is_none_or(|seen| n > *seen) {
                batches.entry(replica).or_default().push(n);
            }
        }
        batches.values_mut().for_each(|numbers| numbers.sort_unstable());
        batches
    }

    /// A batch, if it is there and sound, with its number.
    async fn read_batch(
        &self,
        replica: &Name,
        n: u64,
    ) -> Result<(u64, Option<Vec<JournalEntry>>), StorageError> {
        let failed = StorageError::store("reading the journal");
        let path = self.store.layout.path(&Key::Journal { replica: replica.clone(), n });
        let bytes = match self.store.store.get(&path).await {
            Ok(found) => found.bytes().await.map_err(failed)?,
            // Compacted meanwhile.
            Err(object_store::Error::NotFound { .. }) => return Ok((n, None)),
            Err(error) => return Err(failed(error)),
        };
        let Some((entries, skipped)) = self.decode_batch(&path, &bytes).await? else {
            tracing::warn!(%path, "a damaged journal batch is skipped");
            return Ok((n, None));
        };
        self.journal.skipped.fetch_add(skipped, Ordering::Relaxed);
        Ok((n, Some(entries)))
    }

    async fn apply(&self, replica: &Name, n: u64, entries: Vec<JournalEntry>, tells: bool) -> usize {
        let count = entries.len();
        for entry in entries {
            if tells {
                self.announce(&entry, replica).await;
            }
            match entry {
                JournalEntry::Stored { tenant, model_id, entry, .. } => {
                    let row = &entry.row;
                    let scope = Scope::new(&tenant, &model_id);
                    let (digest, one) = (*row.object_digest.as_bytes(), Stored::one(row.object_bytes));
                    self.ledger.note(&tenant, digest, one, replica, n);
                    // A removal that was heard of already wins: names are never used again.
                    if !self.dead.contains(&(scope, row.object_digest)) {
                        self.missing.remove(&(scope, row.seq_hash));
                        self.index.insert(scope, &entry);
                        self.entries.insert((scope, row.object_digest), Arc::clone(&entry));
                    }
                }
                JournalEntry::Removed { tenant, model_id, object_digest, .. } => {
                    self.forget(Scope::new(&tenant, &model_id), object_digest);
                }
                JournalEntry::Counted { tenant, stored, reach } => {
                    self.ledger.take_count(&tenant, stored, &reach)
                }
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use object_store::PutPayload;

    use super::*;
    use crate::{
        Settings,
        index::Index,
        layout::ChunkKey,
        observe::NoObserver,
        store::{OpenStore, StoreConfig},
    };

    #[tokio::test]
    async fn a_removal_that_the_full_journal_drops_is_not_acknowledged() {
        let config = StoreConfig::new("memory://".parse().expect("a url"));
        let store = OpenStore::open(&config, Arc::new(NoObserver)).expect("opens");
        let abilities = store.probe().await.expect("answers");
        let storage = Storage::new(store, abilities, Index::memory(), Settings::new(std::env::temp_dir()));
        let tenant: Name = "default".parse().expect("a name");
        let key = ChunkKey {
            tenant: tenant.clone(),
            model_id: [1; 32].into(),
            seq_hash: [2; 32].into(),
            object_digest: [3; 32].into(),
        };
        let path = storage.store.layout.path(&Key::Chunk(key.clone()));
        storage.store.store.put(&path, PutPayload::from_static(b"bytes")).await.expect("writes");
        for _ in 0..limits::JOURNAL_WAITING_MAX {
            let (stored, reach) = (Stored::one(1), Vec::new().into());
            storage.journal.push(JournalEntry::Counted { tenant: tenant.clone(), stored, reach });
        }
        let refused = storage.remove(&key).await.expect_err("its entry was dropped");
        assert!(refused.code().is_retryable(), "{refused}");
        storage.remove(&key).await.expect("there is room again");
        assert_eq!(storage.journal_append().await.expect("appends"), 0, "its entry is durable");
    }
}
