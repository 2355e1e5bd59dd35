//! The journal: what one replica learns, the others learn soon.
//!
//! Each replica appends batches under a name of its own and tails those of the others. What was stored does not rest on it: a
//! lost, late, doubled or damaged batch costs hits inside chunks until the store is asked. What was removed does: a removal by
//! request is in a batch before it is acknowledged. Batches go after their retention.
//!
//! ```text
//! batch = "KVSJ" · version 2 · entry … · CRC32C of all before
//! entry = kind 1 (1 stored, 2 removed, 3 counted) · tenant length 1 · tenant · model_id 32 · key length 2 · key · value length 2 · value
//!         · extra length 2 · extra
//! ```
//! Key of a stored chunk is its `parent_hash`, value its index row, extra the first 8 bytes of each block's hash; of a
//! removed one they are `seq_hash · object_digest`, nothing, and the reason. A count has no model: key is `objects 8 ·
//! bytes 8`, value how far it reaches, `(length 1 · replica · batch 8)…`.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use kvasir_types::{ModelId, Name, ObjectDigest, SeqHash};
use object_store::{ObjectMeta, ObjectStoreExt, PutMode};
use parking_lot::Mutex;
use uuid::Uuid;

use crate::{
    Storage, StorageError,
    index::{IndexEntry, IndexRow, Scope},
    layout::Key,
    ledger::{Reach, Stored},
    limits,
    removal::Removal,
    transitions::Transition,
};

const MAGIC: &[u8; 5] = b"KVSJ\x02";

/// Something that other replicas should know.
#[derive(Debug, Clone, PartialEq)]
pub enum JournalEntry {
    /// A chunk object is there.
    Stored {
        /// Whose.
        tenant: Name,
        /// The model.
        model_id: ModelId,
        /// What the index keeps of it.
        entry: Arc<IndexEntry>,
        /// The first 8 bytes of each block's hash: what routers are told.
        block_hashes: Vec<[u8; 8]>,
    },
    /// A chunk object is gone or going.
    Removed {
        /// Whose.
        tenant: Name,
        /// The model.
        model_id: ModelId,
        /// The chunk.
        seq_hash: SeqHash,
        /// The object.
        object_digest: ObjectDigest,
        /// Why.
        reason: Removal,
    },
    /// The collector has counted what a tenant has in the store.
    Counted {
        /// Whose.
        tenant: Name,
        /// What it has.
        stored: Stored,
        /// By replica, the last batch that is in it.
        reach: Reach,
    },
}

/// This replica's end of the journal.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(crate) replica: Name,
    next: AtomicU64,
    waiting: Mutex<Vec<JournalEntry>>,
    /// Held while a batch is on its way: whoever has it and finds nothing waiting knows that all before is durable.
    appending: tokio::sync::Mutex<()>,
    dropped: AtomicU64,
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
        let appended =
            self.store.store.put_opts(&path, encode(&batch.entries).into(), PutMode::Overwrite.into()).await;
        appended.map_err(StorageError::store("appending to the journal"))?;
        self.reached(Transition::JournalAppended);
        Ok(std::mem::take(&mut batch.entries).len())
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
        let entries = decode(&bytes);
        if entries.is_none() {
            tracing::warn!(%path, "a damaged journal batch is skipped");
        }
        Ok((n, entries))
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

fn encode(entries: &[JournalEntry]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    for entry in entries {
        let (kind, tenant, model_id, fields) = match entry {
            JournalEntry::Stored { tenant, model_id, entry, block_hashes } => {
                let fields = [entry.parent_hash.to_vec(), entry.row.to_bytes(), block_hashes.concat()];
                (1, tenant, model_id, fields)
            }
            JournalEntry::Removed { tenant, model_id, seq_hash, object_digest, reason } => {
                let key = [&seq_hash.as_bytes()[..], object_digest.as_bytes()].concat();
                (2, tenant, model_id, [key, Vec::new(), reason.as_str().as_bytes().to_vec()])
            }
            JournalEntry::Counted { tenant, stored, reach } => {
                let key = [stored.objects.to_le_bytes(), stored.bytes.to_le_bytes()].concat();
                (3, tenant, &ModelId::from([0; 32]), [key, encode_reach(reach), Vec::new()])
            }
        };
        // A name has at most 128 bytes, a key at most 64, a value at most 300 or 400 · 137, an extra 8 · 1,024.
        out.extend([kind, tenant.as_str().len() as u8]);
        out.extend(tenant.as_str().as_bytes());
        out.extend(model_id.as_bytes());
        for field in fields {
            out.extend((field.len() as u16).to_le_bytes());
            out.extend(field);
        }
    }
    let crc = crc32c::crc32c(&out);
    out.extend(crc.to_le_bytes());
    out
}

fn decode(bytes: &Bytes) -> Option<Vec<JournalEntry>> {
    let (body, crc) = bytes.split_last_chunk::<4>()?;
    if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
        return None;
    }
    let mut rest = body.strip_prefix(MAGIC)?;
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let ([kind, length], after) = rest.split_first_chunk()?;
        let (tenant, after) = after.split_at_checked(usize::from(*length))?;
        let (model_id, after) = after.split_first_chunk::<32>()?;
        let (key, after) = field(after)?;
        let (value, after) = field(after)?;
        let (extra, after) = field(after)?;
        rest = after;
        let tenant: Name = str::from_utf8(tenant).ok()?.parse().ok()?;
        let model_id = ModelId::from(*model_id);
        entries.push(match kind {
            1 => {
                let (block_hashes, []) = extra.as_chunks::<8>() else { return None };
                let entry = IndexEntry {
                    parent_hash: key.try_into().ok()?,
                    blocks: IndexEntry::short_blocks(block_hashes.iter().map(|hash| &hash[..])),
                    row: Arc::new(IndexRow::from_bytes(value)?),
                };
                let (entry, block_hashes) = (Arc::new(entry), block_hashes.to_vec());
                JournalEntry::Stored { tenant, model_id, entry, block_hashes }
            }
            2 => {
                let (seq, object) = key.split_first_chunk::<32>()?;
                let object: [u8; 32] = object.try_into().ok()?;
                let reason = Removal::parse(str::from_utf8(extra).ok()?)?;
                let (seq_hash, object_digest) = ((*seq).into(), object.into());
                JournalEntry::Removed { tenant, model_id, seq_hash, object_digest, reason }
            }
            3 => {
                let (objects, bytes) = key.split_first_chunk::<8>()?;
                let (objects, bytes) =
                    (u64::from_le_bytes(*objects), u64::from_le_bytes(bytes.try_into().ok()?));
                JournalEntry::Counted {
                    tenant,
                    stored: Stored { objects, bytes },
                    reach: decode_reach(value)?,
                }
            }
            _ => return None,
        });
    }
    Some(entries)
}

fn encode_reach(reach: &[(Name, u64)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (replica, n) in reach {
        out.push(replica.as_str().len() as u8);
        out.extend(replica.as_str().as_bytes());
        out.extend(n.to_le_bytes());
    }
    out
}

fn decode_reach(mut rest: &[u8]) -> Option<Reach> {
    let mut reach = Vec::new();
    while let Some((length, after)) = rest.split_first() {
        let (replica, after) = after.split_at_checked(usize::from(*length))?;
        let (n, after) = after.split_first_chunk::<8>()?;
        reach.push((str::from_utf8(replica).ok()?.parse().ok()?, u64::from_le_bytes(*n)));
        rest = after;
    }
    Some(reach.into())
}

fn field(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::index::tests_support::any_entry as any_indexed;

    fn any_entry() -> impl Strategy<Value = JournalEntry> {
        let place = ("[a-z]{1,9}", any::<[u8; 32]>(), 0..3, any::<[u8; 32]>());
        let reach = prop::collection::vec(("[a-z0-9-]{1,36}", any::<u64>()), 0..4);
        (place, any_indexed(), reach).prop_map(|((tenant, model, kind, object), entry, reach)| {
            let (tenant, model_id) = (tenant.parse().expect("a name"), model.into());
            if kind == 0 {
                let stored = Stored { objects: entry.row.object_bytes, bytes: entry.row.first_position };
                let reach = reach.iter().map(|(name, n)| (name.parse().expect("a name"), *n)).collect();
                JournalEntry::Counted { tenant, stored, reach }
            } else if kind == 1 {
                let whole = |short: &[u8]| {
                    let mut hash = [1, 2, 3, 4, 5, 6, 7, 8];
                    hash[..short.len()].copy_from_slice(short);
                    hash
                };
                let block_hashes: Vec<[u8; 8]> = entry.blocks.iter().map(|b| whole(b)).collect();
                JournalEntry::Stored { tenant, model_id, entry: Arc::new(entry), block_hashes }
            } else {
                let reason = Removal::ALL[usize::from(object[0]) % Removal::ALL.len()];
                let (seq_hash, object_digest) = (entry.row.seq_hash, object.into());
                JournalEntry::Removed { tenant, model_id, seq_hash, object_digest, reason }
            }
        })
    }

    proptest! {
        #[test]
        fn batches_round_trip_and_damage_is_noticed(
            entries in prop::collection::vec(any_entry(), 0..8), at in any::<prop::sample::Index>(), bit in 0u8..8,
        ) {
            let bytes = encode(&entries);
            prop_assert_eq!(decode(&bytes.clone().into()), Some(entries));
            let mut flipped = bytes.clone();
            flipped[at.index(bytes.len())] ^= 1u8 << bit;
            prop_assert_eq!(decode(&flipped.into()), None);
            prop_assert_eq!(decode(&bytes[..at.index(bytes.len())].to_vec().into()), None);
        }
    }
}
