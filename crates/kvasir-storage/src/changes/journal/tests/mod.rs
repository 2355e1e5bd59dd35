mod turns;

use std::{sync::Arc, time::Duration};

use kvasir_store::{
    OpenStore, StoreConfig, StoreKind,
    layout::ChunkKey,
    observe::{NoObserver, RequestOutcome, StoreObserver, StoreOp},
};
use kvasir_types::{BLOCK_TOKENS, CHUNK_TOKENS_MAX, ModelId};
use object_store::{ObjectStore, ObjectStoreExt, PutPayload, memory::InMemory, path::Path};

use super::*;
use crate::{
    Settings, Storage,
    changes::{count::Count, ledger::StoredQuota},
    index::{Index, IndexEntry, IndexRow},
};

async fn storage() -> Arc<Storage> {
    replica_over(InMemory::new()).await
}

async fn replica_over(backend: impl ObjectStore) -> Arc<Storage> {
    observed_replica(backend, Arc::new(NoObserver)).await
}

async fn observed_replica(backend: impl ObjectStore, observer: Arc<dyn StoreObserver>) -> Arc<Storage> {
    let config = StoreConfig::new("memory://".parse().expect("a url"));
    let store = OpenStore::with(backend, &Path::default(), StoreKind::Memory, &config, observer);
    let abilities = store.probe().await.expect("answers");
    Storage::new(store, abilities, Index::memory(), Settings::new(std::env::temp_dir()), None)
}

fn tenant() -> Name {
    "default".parse().expect("a name")
}

/// An entry about an object of 1,000 bytes.
fn stored(object: u64, since_ms: Option<i64>) -> JournalEntry {
    let digest = *blake3::hash(&object.to_le_bytes()).as_bytes();
    let row = IndexRow::example([2; 32].into(), digest.into());
    let blocks = IndexEntry::short_blocks([&[7; 8][..]]);
    let entry = Arc::new(IndexEntry { parent_hash: [3; 32], blocks, row: Arc::new(row) });
    let (tenant, model_id, block_hashes) = (tenant(), [1; 32].into(), vec![[7; 8]]);
    JournalEntry::Stored { tenant, model_id, entry, block_hashes, namespace: None, since_ms }
}

/// Like [`stored`], about a chunk of the greatest length, alone after its parent.
fn stored_long(object: u64, since_ms: Option<i64>) -> JournalEntry {
    let digest = *blake3::hash(&object.to_le_bytes()).as_bytes();
    let row = IndexRow::example(digest.into(), digest.into());
    let row = IndexRow { token_count: CHUNK_TOKENS_MAX as u32, ..row };
    let block_hashes = vec![[7; 8]; CHUNK_TOKENS_MAX / BLOCK_TOKENS];
    let blocks = IndexEntry::short_blocks(block_hashes.iter().map(|hash| &hash[..]));
    let parent_hash = *blake3::hash(&digest).as_bytes();
    let entry = Arc::new(IndexEntry { parent_hash, blocks, row: Arc::new(row) });
    let (tenant, model_id) = (tenant(), [1; 32].into());
    JournalEntry::Stored { tenant, model_id, entry, block_hashes, namespace: None, since_ms }
}

#[tokio::test]
async fn what_was_stored_longer_ago_than_removals_are_remembered_is_not_offered() {
    let storage = storage().await;
    let changes = storage.changes();
    let model_id: ModelId = [1; 32].into();
    changes.journal_tail(JournalReading::Rows).await.expect("reads");
    let (now, kept) = (storage.store().now_ms().expect("was probed"), changes.removals_kept_ms());
    let entries = vec![stored(1, Some(now - kept)), stored(2, Some(now - kept / 4)), stored(3, None)];
    let from = (JournalLog::Stored, &"other".parse().expect("a name"), 1);
    let read = changes.apply(from, &entries, 1, JournalReading::Rows);
    let index = storage.reads().index();
    let is_offered = |object: u64| {
        let digest = *blake3::hash(&object.to_le_bytes()).as_bytes();
        index.entry(Scope::new(&tenant(), &model_id), digest.into()).is_some()
    };
    assert_eq!((read, [1, 2, 3].map(is_offered)), (3, [false, true, true]));
}

#[tokio::test]
async fn a_removal_that_the_full_journal_drops_is_not_acknowledged() {
    let storage = storage().await;
    let tenant: Name = "default".parse().expect("a name");
    let key = ChunkKey {
        tenant: tenant.clone(),
        model_id: [1; 32].into(),
        seq_hash: [2; 32].into(),
        object_digest: [3; 32].into(),
    };
    let path = storage.store().layout().path(&Key::Chunk(key.clone()));
    storage.store().objects().put(&path, PutPayload::from_static(b"bytes")).await.expect("writes");
    for n in 0..limits::JOURNAL_WAITING_MAX {
        let ChunkKey { tenant, model_id, seq_hash, .. } = key.clone();
        let object_digest = blake3::hash(&n.to_le_bytes()).as_bytes().to_owned().into();
        let reason = crate::Removal::Expired;
        let entry = JournalEntry::Removed { tenant, model_id, seq_hash, object_digest, reason };
        storage.changes().publish(entry);
    }
    let refused = storage.lifecycle().remove(&key).await.expect_err("its entry was dropped");
    assert!(refused.code().is_retryable(), "{refused}");
    storage.lifecycle().remove(&key).await.expect("there is room again");
    assert_eq!(storage.changes().journal_append().await.expect("appends"), 0, "its entry is durable");
}

fn removed(object: u8) -> JournalEntry {
    JournalEntry::Removed {
        tenant: tenant(),
        model_id: [1; 32].into(),
        seq_hash: [2; 32].into(),
        object_digest: [object; 32].into(),
        reason: crate::Removal::Removed,
    }
}

/// A day's removals are many, and a hundred replicas read them all the time.
#[tokio::test(start_paused = true)]
async fn a_replica_that_has_read_all_removals_lists_the_latest_alone() {
    let backend = Arc::new(InMemory::new());
    let (writer, reader) =
        (replica_over(Arc::clone(&backend)).await, replica_over(Arc::clone(&backend)).await);
    let read = async |replica: &Arc<Storage>| {
        replica.changes().journal_tail(JournalReading::Removals).await.expect("reads")
    };
    writer.changes().publish(removed(1));
    writer.changes().journal_append().await.expect("appends");
    let layout = writer.store().layout();
    let written: Vec<_> =
        backend.list(Some(&layout.log_prefix(JournalLog::Removed))).try_collect().await.expect("lists");
    let batch = backend.get(&written[0].location).await.expect("is there").bytes().await.expect("reads");
    let now = writer.store().now_ms().expect("was probed").cast_unsigned();
    let window = limits::JOURNAL_REMOVALS_WINDOW.as_millis() as u64;
    let put = async |replica: &str, before: u64| {
        let replica = replica.parse().expect("a name");
        let path = layout.path(&Key::Journal { log: JournalLog::Removed, replica, n: now - before });
        backend.put(&path, batch.clone().into()).await.expect("writes");
    };
    put("of-yesterday", 24 * 60 * 60_000).await;
    assert_eq!(read(&reader).await, 2);
    put("delayed", window / 2).await;
    put("delayed-for-hours", 4 * window).await;
    assert_eq!((read(&reader).await, read(&reader).await), (1, 0));
    assert_eq!(read(&replica_over(Arc::clone(&backend)).await).await, 4, "one that starts lists all");
    tokio::time::advance(limits::JOURNAL_REMOVALS_LISTED_EVERY).await;
    assert_eq!(read(&reader).await, 1, "and each does once in a while");
}

/// Each log numbers its own batches: removals of a replica hide nothing that it stored.
#[tokio::test]
async fn batches_of_removals_hide_no_batch_of_what_was_stored() {
    let backend = Arc::new(InMemory::new());
    let (writer, reader) = (replica_over(Arc::clone(&backend)).await, replica_over(backend).await);
    let reserve = async || reader.changes().reserve(&tenant(), AN_OBJECT, Stored::one(1000)).await;
    drop(reserve().await.expect("nothing is stored"));
    for object in 0..3 {
        writer.changes().publish(removed(object));
        writer.changes().journal_append().await.expect("appends");
    }
    reader.changes().journal_tail(JournalReading::Rows).await.expect("reads");
    writer.changes().publish(stored(9, writer.store().now_ms()));
    writer.changes().journal_append().await.expect("appends");
    reader.changes().journal_tail(JournalReading::Rows).await.expect("reads");
    assert!(reserve().await.is_err(), "what the other replica stored counts");
}

/// A job of the collector beside its background pass neither ends the pass's count nor publishes one.
#[tokio::test]
async fn a_job_beside_the_background_pass_counts_nothing() {
    let storage = storage().await;
    let (changes, now) = (storage.changes(), storage.store().now_ms().expect("was probed"));
    let pass = changes.begin_count(now);
    changes.publish(stored(1, Some(now)));
    drop(changes.begin_count(now));
    changes.begin_count(now).publish(Count::default());
    assert!(changes.is_counting(), "the pass still lists");
    pass.publish(Count::default());
    assert!(!changes.is_counting());
    let reserved = changes.reserve(&tenant(), AN_OBJECT, Stored::one(1000)).await;
    assert!(reserved.is_err(), "what was stored during the pass counts");
}

/// More than a count can name.
const ENDED: u64 = limits::LEDGER_REPLICAS_MAX as u64 + 50;
const AN_OBJECT: StoredQuota = StoredQuota { objects: Some(1), bytes: Some(1000) };

/// Replicas that each announce an object and end. Their objects were collected since.
async fn replicas_ended(backend: &Arc<InMemory>, since_ms: i64) {
    for object in 0..ENDED {
        let replica = replica_over(Arc::clone(backend)).await;
        replica.changes().publish(stored(object, Some(since_ms)));
        assert_eq!(replica.changes().journal_append().await.expect("appends"), 1);
    }
}

#[tokio::test]
async fn what_replicas_that_ended_stored_and_was_collected_is_not_counted() {
    let backend = Arc::new(InMemory::new());
    let fresh = replica_over(Arc::clone(&backend)).await;
    let now = fresh.store().now_ms().expect("was probed");
    replicas_ended(&backend, now - 600_000).await;
    let changes = fresh.changes();
    assert_eq!(changes.journal_replay().await.expect("reads"), ENDED as usize);
    drop(changes.reserve(&tenant(), AN_OBJECT, Stored::one(1000)).await.expect("nothing is stored"));
    // Nor in a count whose listing takes place while another replica reads the same journal.
    let other = replica_over(backend).await;
    let counting = other.changes().begin_count(now);
    assert_eq!(other.changes().journal_replay().await.expect("reads"), ENDED as usize);
    counting.publish(Count::default());
    other.changes().journal_append().await.expect("appends");
    assert_eq!(changes.journal_replay().await.expect("reads"), 1, "the count");
    for replica in [changes, other.changes()] {
        drop(replica.reserve(&tenant(), AN_OBJECT, Stored::one(1000)).await.expect("nothing is stored"));
    }
}

#[tokio::test]
async fn a_count_names_an_old_replica_that_writes_whatever_younger_ones_have_ended() {
    let backend = Arc::new(InMemory::new());
    let (old, counter) = (replica_over(Arc::clone(&backend)).await, replica_over(Arc::clone(&backend)).await);
    let now = old.store().now_ms().expect("was probed");
    replicas_ended(&backend, now - 600_000).await;
    counter.changes().journal_replay().await.expect("reads");
    old.changes().publish(stored(ENDED, Some(now)));
    old.changes().journal_append().await.expect("appends");
    counter.changes().journal_replay().await.expect("reads");
    // The object is collected before the count.
    let counting = counter.changes().begin_count(now);
    counting.publish(Count::default());
    counter.changes().journal_append().await.expect("appends");
    old.changes().journal_replay().await.expect("reads");
    drop(old.changes().reserve(&tenant(), AN_OBJECT, Stored::one(1000)).await.expect("it was collected"));
}

/// Counts listings.
#[derive(Debug)]
struct Lists(Arc<AtomicU32>);

impl StoreObserver for Lists {
    fn request(&self, op: StoreOp, _: RequestOutcome, _: u64, _: Duration) {
        self.0.fetch_add(u32::from(op == StoreOp::List), Ordering::Relaxed);
    }
}

#[tokio::test]
async fn many_replicas_that_ended_do_not_make_many_requests() {
    let backend = Arc::new(InMemory::new());
    let now = storage().await.store().now_ms().expect("was probed");
    replicas_ended(&backend, now).await;
    // Together more than a page.
    let looped = replica_over(Arc::clone(&backend)).await;
    for object in 0..limits::JOURNAL_PAGE as u64 {
        looped.changes().publish(stored(object, Some(now)));
        looped.changes().journal_append().await.expect("appends");
    }
    let lists = Arc::new(AtomicU32::new(0));
    let reader = observed_replica(backend, Arc::new(Lists(Arc::clone(&lists)))).await;
    // Until the listings by folder of a reader that knew no replica are over.
    for _ in 0..=limits::JOURNAL_LOOKS_BY_FOLDER {
        reader.changes().journal_replay().await.expect("reads");
    }
    let before = lists.load(Ordering::Relaxed);
    reader.changes().journal_replay().await.expect("reads");
    assert_eq!(lists.load(Ordering::Relaxed) - before, 1, "not one for each of {ENDED}");
}

/// Many tenants' counts, each with the positions of many replicas, are more than a reader takes at a time.
#[tokio::test]
async fn counts_of_many_tenants_are_read() {
    const TENANTS: usize = 2_000;
    let backend = Arc::new(InMemory::new());
    let (counter, reader) =
        (replica_over(Arc::clone(&backend)).await, replica_over(Arc::clone(&backend)).await);
    let writers = (0..limits::LEDGER_REPLICAS_MAX as u64)
        .map(|n| (format!("replica-of-a-writer-{n}").parse().expect("a name"), n));
    let reach = Reach { batches: writers.collect(), until_ms: Some(1), listed_ms: None };
    for n in 0..TENANTS {
        let tenant = format!("tenant-{n}").parse().expect("a name");
        let (stored, reach) = (Stored::one(n as u64), reach.clone());
        counter.changes().publish(JournalEntry::Counted { tenant, stored, reach });
    }
    assert_eq!(counter.changes().journal_append().await.expect("appends"), TENANTS);
    let folder = counter.store().layout().log_prefix(JournalLog::Counted);
    let batches: Vec<_> = backend.list(Some(&folder)).try_collect().await.expect("lists");
    assert!(batches.len() > 1 && batches.iter().all(|meta| meta.size <= limits::JOURNAL_BATCH_BYTES_MAX));
    assert_eq!(reader.changes().journal_replay().await.expect("reads"), TENANTS);
}

/// So are thousands of long chunks, with the hashes of their blocks. Until they are written, a count includes all of them,
/// in however many batches they will be.
#[tokio::test]
async fn a_batch_of_long_chunks_is_read() {
    const CHUNKS: usize = 2_100;
    let backend = Arc::new(InMemory::new());
    let (writer, reader) =
        (replica_over(Arc::clone(&backend)).await, replica_over(Arc::clone(&backend)).await);
    let now = writer.store().now_ms().expect("was probed");
    let counting = writer.changes().begin_count(now);
    for object in 0..CHUNKS as u64 {
        writer.changes().publish(stored_long(object, Some(now)));
    }
    counting.publish(Count::default());
    assert_eq!(writer.changes().journal_append().await.expect("appends"), CHUNKS + 1, "and the count");
    let folder = writer.store().layout().log_prefix(JournalLog::Stored);
    let batches: Vec<_> = backend.list(Some(&folder)).try_collect().await.expect("lists");
    assert!(batches.len() > 1 && batches.iter().all(|meta| meta.size <= limits::JOURNAL_BATCH_BYTES_MAX));
    assert_eq!(reader.changes().journal_replay().await.expect("reads"), CHUNKS + 1);
    assert_eq!(reader.index().len(), CHUNKS as u64);
    let quota = StoredQuota { objects: Some(CHUNKS as u64 + 1), bytes: None };
    let reserved = reader.changes().reserve(&tenant(), quota, Stored::one(1000)).await;
    drop(reserved.expect("none of them counts twice"));
}

/// What a failed append leaves waiting is a batch as before, in front of what came since.
#[test]
fn entries_of_a_failed_append_wait_in_batches_that_are_read() {
    const CHUNKS: usize = 1_200;
    let log = Log::new(JournalLog::Stored, std::iter::empty());
    let push = |object| log.push(stored_long(object, None));
    let first: Vec<u64> = (0..CHUNKS as u64).map(push).collect();
    assert_eq!((first.first(), first.last()), (Some(&0), Some(&1)));
    let failed = log.take(0).expect("a batch");
    assert_eq!((failed.n, log.last_waiting()), (0, 1));
    assert_eq!(push(CHUNKS as u64), 1, "the number that the waiting ones have");
    drop(failed);
    assert_eq!((log.waiting_count(), log.last_waiting()), (CHUNKS + 1, 1));
    for n in [0, 1] {
        let mut batch = log.take(0).expect("a batch");
        assert_eq!(batch.n, n);
        let bytes = entry::encode_entries(&batch.entries).len() as u64;
        assert!(bytes <= limits::JOURNAL_BATCH_BYTES_MAX / 2);
        batch.entries.clear();
    }
    assert!(log.take(0).is_none() && log.waiting_count() == 0);
    // Readers list the latest removals alone.
    let removals = Log::new(JournalLog::Removed, std::iter::empty());
    removals.push(removed(1));
    assert_eq!([1_000, 1_000].map(|now_ms| removals.take(now_ms).expect("a batch").n), [1_000, 1_001]);
}

/// By the number of their batch.
#[tokio::test]
async fn a_count_includes_entries_whose_append_fails_behind_it() {
    let backend = Arc::new(InMemory::new());
    let (writer, reader) = (replica_over(Arc::clone(&backend)).await, replica_over(backend).await);
    let now = writer.store().now_ms().expect("was probed");
    let counting = writer.changes().begin_count(now);
    writer.changes().publish(stored(1, Some(now)));
    counting.publish(Count::default());
    drop(writer.changes().journal.stored.take(0).expect("a batch"));
    assert_eq!(writer.changes().journal_append().await.expect("appends"), 2, "the object and the count");
    assert_eq!(reader.changes().journal_replay().await.expect("reads"), 2);
    let quota = StoredQuota { objects: Some(2), bytes: None };
    let reserved = reader.changes().reserve(&tenant(), quota, Stored::one(1000)).await;
    drop(reserved.expect("it does not count twice"));
}

/// It is not divided anew: whoever stores would wait for that.
#[test]
fn a_failed_append_that_leaves_too_many_entries_drops_the_last_ones() {
    const MAX: usize = limits::JOURNAL_WAITING_MAX;
    let cases: [(usize, usize, &[usize]); 2] = [(3, MAX, &[3, MAX - 3]), (MAX, 3, &[MAX])];
    for (failed, since, batches) in cases {
        let log = Log::new(JournalLog::Stored, std::iter::empty());
        let push = |count: usize| {
            for object in 0..count as u64 {
                log.push(stored(object, None));
            }
        };
        push(failed);
        let unsent = log.take(0).expect("a batch");
        assert_eq!(unsent.entries.len(), failed);
        push(since);
        drop(unsent);
        assert_eq!((log.waiting_count(), log.dropped.load(Ordering::Relaxed)), (MAX, 3));
        let take = || log.take(0).map(|mut batch| std::mem::take(&mut batch.entries).len());
        assert_eq!(std::iter::from_fn(take).collect::<Vec<_>>(), batches);
    }
}

/// A count may say that it includes the batches of what is forgotten.
#[test]
fn what_is_stored_after_waiting_entries_were_forgotten_has_a_later_number() {
    let log = Log::new(JournalLog::Stored, std::iter::empty());
    let push = |object| log.push(stored(object, None));
    push(0);
    drop(log.take(0).expect("a batch"));
    assert_eq!(push(1), 1, "not in the batch that was not appended");
    log.forget_waiting();
    assert_eq!((log.waiting_count(), push(2)), (0, 2));
}

/// If it were remembered, a lookup that finds the chunk in the store would not read its head, and add no row either.
#[tokio::test]
async fn a_chunk_without_the_hashes_of_its_blocks_is_left_to_lookups() {
    let storage = storage().await;
    let changes = storage.changes();
    changes.journal_tail(JournalReading::Rows).await.expect("reads");
    let digest = *blake3::hash(&1u64.to_le_bytes()).as_bytes();
    let is_remembered = |mut sent: JournalEntry, keeps_blocks: bool| {
        if let JournalEntry::Stored { entry, block_hashes, .. } = &mut sent
            && !keeps_blocks
        {
            block_hashes.clear();
            *entry = Arc::new(IndexEntry { blocks: Vec::new(), ..IndexEntry::clone(entry) });
        }
        let from = (JournalLog::Stored, &"other".parse().expect("a name"), 1);
        assert_eq!(changes.apply(from, &[sent], 1, JournalReading::Rows), 1);
        let scope = Scope::new(&tenant(), &[1; 32].into());
        storage.reads().index().entry(scope, digest.into()).is_some()
    };
    let now = storage.store().now_ms();
    assert!(!is_remembered(stored(1, now), false));
    assert!(is_remembered(stored(1, now), true));
}

/// A batch of removals that is too large to be read may have removed anything.
#[tokio::test]
async fn removals_that_are_too_large_to_be_read_empty_the_index() {
    let backend = Arc::new(InMemory::new());
    let (writer, reader) =
        (replica_over(Arc::clone(&backend)).await, replica_over(Arc::clone(&backend)).await);
    reader.changes().journal_tail(JournalReading::Rows).await.expect("reads");
    writer.changes().publish(stored(1, writer.store().now_ms()));
    writer.changes().journal_append().await.expect("appends");
    reader.changes().journal_tail(JournalReading::Rows).await.expect("reads");
    assert_eq!(reader.index().len(), 1);
    let (replica, n) = ("loud".parse().expect("a name"), 0);
    let path = writer.store().layout().path(&Key::Journal { log: JournalLog::Removed, replica, n });
    let large = PutPayload::from(vec![0; limits::JOURNAL_BATCH_BYTES_MAX as usize + 1]);
    backend.put(&path, large).await.expect("writes");
    reader.changes().journal_tail(JournalReading::Rows).await.expect("reads");
    assert_eq!(reader.index().len(), 0);
}
