//! Removal: chunks removed by a request are hidden, whatever copies of them remain and whatever concurrent
//! writers do.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, TryStreamExt};
use kvasir_api::ErrorCode;
use kvasir_storage::{
    ByteRange, CatalogError, ChunkError, JournalReading, Lookup, PutChunk, Query, Selection, Storage,
    WorkShare, gc::GcPolicy, hot::RequestHint,
};
use kvasir_store::layout::{JournalLog, Key};
use kvasir_tests::{
    chunks,
    hooked::{Hook, Hooked},
};
use kvasir_types::{Level, RootHash, SeqHash};
use object_store::ObjectStoreExt;

use crate::{
    Backend,
    replicas::{at_once, collect, put_any},
    storage_core::{announced, body, key, matched, model_id, name, prepare, put, read, tenant},
};

/// More objects of one chunk than a reader considers.
const OBJECTS: u8 = 12;

/// Stores [`OBJECTS`] objects of the chunk of `tokens`.
async fn put_objects(storage: &Arc<Storage>, root: RootHash, tokens: &[u32]) -> SeqHash {
    let variant = |n: u8| chunks::variant(root, tokens, 0, tokens.len(), 50, n * 8);
    for n in 0..OBJECTS {
        put(storage, &variant(n)).await;
    }
    variant(0).seq_hash
}

pub(crate) async fn removing_a_chunk_hides_however_many_objects_it_has(backend: &Backend) {
    let storage = backend.replica().await;
    let root = prepare(&storage).await;
    let tokens = chunks::tokens(120, 64);
    let seq_hash = put_objects(&storage, root, &tokens).await;
    let removed = storage.lifecycle().remove_chunk(&tenant(), &model_id(), &seq_hash).await.expect("removes");
    assert_eq!(removed.len(), usize::from(OBJECTS));
    for replica in [&storage, &backend.replica().await] {
        assert_eq!(matched(replica, &tokens).await, 0, "all objects are hidden");
        let found = replica.reads().preferred(&tenant(), &model_id(), &seq_hash).await;
        assert!(matches!(found, Err(ChunkError::Unknown { .. })), "{found:?}");
    }
    let again = storage.lifecycle().remove_chunk(&tenant(), &model_id(), &seq_hash).await;
    assert_eq!(again.expect("twice is once").len(), usize::from(OBJECTS));
}

/// A sample has the chunks with the smallest hashes, and none that a request removed.
pub(crate) async fn a_sample_has_what_is_stored_and_not_what_is_removed(backend: &Backend) {
    let storage = backend.replica().await;
    let root = prepare(&storage).await;
    let mut stored = Vec::new();
    for seed in 0..5 {
        let chunk = chunks::chunk(root, &chunks::tokens(700 + seed, 64), 0, 64, 50);
        put(&storage, &chunk).await;
        stored.push(chunk.seq_hash);
    }
    stored.sort_unstable();
    let whole = async |count| storage.reads().sample(&tenant(), &model_id(), count).await.expect("samples");
    let sample = async |count| whole(count).await.chunks;
    assert_eq!((sample(3).await, sample(9).await), (stored[..3].to_vec(), stored.clone()));
    storage.lifecycle().remove_chunk(&tenant(), &model_id(), &stored[1]).await.expect("removes");
    assert_eq!(sample(3).await, [stored[0], stored[2]]);
    stored.remove(1);
    assert_eq!(sample(9).await, stored);
    let stored_at_ms = whole(9).await.stored_at_ms;
    assert!(stored_at_ms.len() == stored.len() && stored_at_ms.iter().all(|at| *at > 0), "{stored_at_ms:?}");
    let other = storage.reads().sample(&tenant(), &[7; 32].into(), 9).await;
    assert!(matches!(other, Err(CatalogError::UnknownModel { .. })), "{other:?}");
}

/// A replica whose index has all objects of a chunk, and that has not heard of their removal, asks the store
/// for a fresh lookup; with many objects it must check all tombstones, not one at a time.
pub(crate) async fn a_fresh_lookup_offers_none_of_many_removed_objects(backend: &Backend) {
    let (storage, other) = (backend.replica().await, backend.replica().await);
    let root = prepare(&storage).await;
    let tokens = chunks::tokens(121, 64);
    let seq_hash = put_objects(&storage, root, &tokens).await;
    storage.changes().journal_append().await.expect("appends");
    other.changes().journal_tail(JournalReading::Rows).await.expect("tails");
    assert_eq!(matched(&other, &tokens).await, 64);
    storage.lifecycle().remove_chunk(&tenant(), &model_id(), &seq_hash).await.expect("removes");
    assert_eq!(matched(&other, &tokens).await, 0, "it has not heard of the removal, and the store has");
    // What is stored afterwards is found at once.
    let later = chunks::variant(root, &tokens, 0, 64, 50, 200);
    put(&storage, &later).await;
    assert_eq!(matched(&other, &tokens).await, 64);
}

/// Chunks taken by the collector are no longer offered, but can be read until their bytes are deleted: a
/// client that was offered one is not cut off by another client's fresh lookup.
pub(crate) async fn a_fresh_lookup_cuts_nobody_off_from_what_the_collector_took(backend: &Backend) {
    let (storage, other) = (backend.replica().await, backend.replica().await);
    let root = prepare(&storage).await;
    let tokens = chunks::tokens(122, 64);
    let chunk = chunks::chunk(root, &tokens, 0, 64, 50);
    put(&storage, &chunk).await;
    assert_eq!(matched(&other, &tokens).await, 64);
    let old = GcPolicy { ttl: Some(Duration::ZERO), ..at_once() };
    assert_eq!(collect(&storage, &old).await.expired, 1);
    assert_eq!(matched(&other, &tokens).await, 0);
    assert_eq!(read(&other, &chunk, ByteRange::Whole).await.expect("is read to its end"), chunk.bytes);
}

pub(crate) async fn a_removed_object_is_served_by_no_name(backend: &Backend) {
    let (storage, other) = (backend.replica().await, backend.replica().await);
    let root = prepare(&storage).await;
    let tokens = chunks::tokens(140, 64);
    let chunk = chunks::chunk(root, &tokens, 0, 64, 50);
    put(&storage, &chunk).await;
    assert_eq!(read(&other, &chunk, ByteRange::Whole).await.expect("is there"), chunk.bytes);
    storage.lifecycle().remove(&key(&chunk)).await.expect("removes");
    other.changes().journal_tail(JournalReading::Rows).await.expect("reads");
    for replica in [&storage, &other] {
        let (reads, key) = (replica.reads(), key(&chunk));
        let selection = Selection { level: Some(Level(0)), ..Selection::default() };
        let selected =
            reads.read_selection(&key, &selection, ByteRange::Whole, &RequestHint::default()).await;
        let refusals = [
            read(replica, &chunk, ByteRange::Whole).await.err(),
            selected.err(),
            reads.object_bytes(&key).await.err(),
            reads.level_bytes(&key, Level(0)).await.err(),
        ];
        for refusal in refusals {
            assert!(matches!(refusal, Some(ChunkError::Unknown { .. })), "{refusal:?}");
        }
    }
    // What the collector took is read to its end by who was offered it.
    let short = chunks::chunk(root, &tokens, 0, 48, 50);
    put(&storage, &short).await;
    let policy =
        GcPolicy { ttl: Some(Duration::ZERO), grace: Duration::from_secs(3600), ..GcPolicy::default() };
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let report = collect(&storage, &policy).await;
    assert_eq!(report.expired, 1, "{report:?}");
    assert_eq!(read(&storage, &short, ByteRange::Whole).await.expect("stays for the grace"), short.bytes);
}

pub(crate) async fn a_chunk_stored_after_many_removals_is_found_and_removed_again(backend: &Backend) {
    let storage = backend.replica().await;
    let root = prepare(&storage).await;
    let tokens = chunks::tokens(121, 64);
    let chunk = chunks::chunk(root, &tokens, 0, 64, 50);
    for cycle in 0..20 {
        let stored = put_any(&storage, &chunk).await;
        let cold = backend.replica().await;
        assert_eq!(matched(&cold, &tokens).await, 64, "cycle {cycle}: a cold replica finds it");
        let found = cold.reads().preferred(&tenant(), &model_id(), &chunk.seq_hash).await.expect("is there");
        assert_eq!(found.object_digest, stored.object_digest, "cycle {cycle}: not one that was removed");
        storage.lifecycle().remove_chunk(&tenant(), &model_id(), &chunk.seq_hash).await.expect("removes");
        for replica in [&storage, &backend.replica().await] {
            assert_eq!(matched(replica, &tokens).await, 0, "cycle {cycle}: hidden");
        }
    }
    let unknown = storage.lifecycle().remove(&key(&chunks::chunk(root, &tokens, 0, 48, 50))).await;
    assert!(matches!(unknown, Err(ChunkError::Unknown { .. })), "{unknown:?}");
}

/// Somebody removes the chunk each time its bytes have come into the store, before they are acknowledged.
#[tokio::test]
async fn a_chunk_removed_while_it_is_stored_is_never_acknowledged_under_a_removed_name() {
    for removals in [1, 3, usize::MAX] {
        let backend = Backend::memory();
        let other = backend.replica().await;
        let root = prepare(&other).await;
        let tokens = chunks::tokens(122, 64);
        let chunk = chunks::chunk(root, &tokens, 0, 64, 50);
        let (left, seq_hash) = (Arc::new(AtomicUsize::new(removals)), chunk.seq_hash);
        let remover = Arc::clone(&other);
        let hook: Hook = Arc::new(move |request, path| {
            let (left, other) = (Arc::clone(&left), Arc::clone(&remover));
            async move {
                let is_chunk = request == Hooked::Written && path.as_ref().ends_with(".kvc");
                let one_less = |left: usize| left.checked_sub(1);
                if is_chunk && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
                    other.lifecycle().remove_chunk(&tenant(), &model_id(), &seq_hash).await.expect("removes");
                }
                Ok(())
            }
            .boxed()
        });
        let storage = backend.hooked_replica(hook).await;
        let stored = storage
            .ingest()
            .put_chunk(PutChunk::new(&tenant(), &model_id(), &seq_hash), body(&chunk.bytes))
            .await;
        let expected = if removals == usize::MAX { 0 } else { 64 };
        for replica in [&storage, &backend.replica().await] {
            assert_eq!(matched(replica, &tokens).await, expected, "{removals} removals: {stored:?}");
        }
        match stored {
            Ok(stored) => {
                let found =
                    other.reads().preferred(&tenant(), &model_id(), &seq_hash).await.expect("is there");
                assert_eq!(found.object_digest, stored.object_digest);
            }
            Err(error) => assert!(removals == usize::MAX && error.code().is_retryable(), "{error}"),
        }
    }
}

/// The tombstone is looked for before the first byte, before the last step, and after it.
#[tokio::test]
async fn an_announced_chunk_is_not_acknowledged_under_a_removed_name_either() {
    for look in 1..=3 {
        let backend = Backend::memory();
        let other = backend.replica().await;
        let root = prepare(&other).await;
        let tokens = chunks::tokens(123, 64);
        let chunk = chunks::chunk(root, &tokens, 0, 64, 50);
        let tombstone = other.store().layout().path(&Key::Tombstone(key(&chunk)));
        let (looks, remover, removed) =
            (Arc::new(AtomicUsize::new(0)), Arc::clone(&other), tombstone.clone());
        let hook: Hook = Arc::new(move |request, path| {
            let (looks, other, tombstone) = (Arc::clone(&looks), Arc::clone(&remover), removed.clone());
            async move {
                let is_look = request == Hooked::Reading && path == tombstone;
                if is_look && looks.fetch_add(1, Ordering::Relaxed) + 1 == look {
                    other.store().objects().put(&tombstone, "removed".into()).await.expect("writes");
                }
                Ok(())
            }
            .boxed()
        });
        let storage = backend.hooked_replica(hook).await;
        let put = || {
            let announced = announced(&chunk, chunk.object_digest, chunk.bytes.len());
            storage.ingest().put_chunk(announced, body(&chunk.bytes))
        };
        let mut stored = put().await;
        if look > 1 {
            let error = stored.expect_err("it was removed");
            assert!(error.code() == ErrorCode::ChunkRemoved && error.code().is_retryable(), "{error}");
            assert_eq!(matched(&storage, &tokens).await, 0);
            stored = put().await;
        }
        assert_ne!(stored.expect("stores").object_digest, chunk.object_digest);
        for replica in [&storage, &backend.replica().await] {
            assert_eq!(matched(replica, &tokens).await, 64);
        }
    }
}

/// Another replica removes an object while it is stored again here, which is heard of before the bytes are complete; then nobody can say
/// any more whether there is a tombstone. The row of the removal stays: a process that ends there has nothing else that tells of it.
#[tokio::test]
async fn a_removal_that_was_heard_of_outlives_an_upload_of_the_same_bytes() {
    let backend = Backend::memory();
    let other = backend.replica().await;
    let root = prepare(&other).await;
    let tokens = chunks::tokens(127, 64);
    let chunk = chunks::chunk(root, &tokens, 0, 64, 50);
    put(&other, &chunk).await;
    let tombstone = other.store().layout().path(&Key::Tombstone(key(&chunk)));
    let (removed_key, here) = (key(&chunk), Arc::new(OnceLock::<Arc<Storage>>::new()));
    let (looks, remover, hearer, removed) =
        (Arc::new(AtomicUsize::new(0)), Arc::clone(&other), Arc::clone(&here), tombstone.clone());
    let hook: Hook = Arc::new(move |request, path| {
        let (looks, other, here, tombstone) =
            (Arc::clone(&looks), Arc::clone(&remover), Arc::clone(&hearer), removed.clone());
        let removed_key = removed_key.clone();
        async move {
            if request != Hooked::Reading || path != tombstone {
                return Ok(());
            }
            let objects = other.store().objects();
            match looks.fetch_add(1, Ordering::Relaxed) + 1 {
                2 => {
                    other.lifecycle().remove(&removed_key).await.expect("removes");
                    here.get()
                        .expect("it runs")
                        .changes()
                        .journal_tail(JournalReading::Rows)
                        .await
                        .expect("hears of it");
                    // What the look is told was true a moment before.
                    objects.delete(&tombstone).await.expect("deletes");
                    Ok(())
                }
                3 => {
                    objects.put(&tombstone, "removed".into()).await.expect("writes");
                    let source = "the store is away".into();
                    Err(object_store::Error::PermissionDenied { path: path.to_string(), source })
                }
                _ => Ok(()),
            }
        }
        .boxed()
    });
    let storage = backend.hooked_replica(hook).await;
    here.set(Arc::clone(&storage)).expect("once");
    let announced = announced(&chunk, chunk.object_digest, chunk.bytes.len());
    storage
        .ingest()
        .put_chunk(announced, body(&chunk.bytes))
        .await
        .expect_err("nobody can say whether it is removed");
    // Not a fresh one, which would ask the store.
    let lookup = Lookup::new(&tenant(), &name("n"), &model_id(), Query::Tokens(tokens));
    assert_eq!(storage.lookup(&lookup).await.expect("an answer").matched_tokens, 0);
}

/// A replica ended between the tombstone and its announcement.
pub(crate) async fn a_removal_that_was_never_announced_is_heard_of_when_the_bytes_go(backend: &Backend) {
    let (storage, other) = (backend.replica().await, backend.replica().await);
    let root = prepare(&storage).await;
    let tokens = chunks::tokens(122, 64);
    let chunk = chunks::chunk(root, &tokens, 0, 64, 50);
    put(&storage, &chunk).await;
    storage.changes().journal_append().await.expect("appends");
    other.changes().journal_tail(JournalReading::Rows).await.expect("reads");
    assert_eq!(matched(&other, &tokens).await, 64);
    let tombstone = storage.store().layout().path(&Key::Tombstone(key(&chunk)));
    storage.store().objects().put(&tombstone, "removed".into()).await.expect("writes");
    assert_eq!(collect(&storage, &at_once()).await.deleted, 1);
    storage.changes().journal_append().await.expect("appends");
    other.changes().journal_tail(JournalReading::Rows).await.expect("reads");
    // Not fresh: that would ask for the tombstone.
    let (tenant, namespace, model_id) = (tenant(), "n".parse().expect("a name"), model_id());
    let lookup = Lookup::new(&tenant, &namespace, &model_id, Query::Tokens(tokens));
    for replica in [&storage, &other] {
        let found = replica.lookup(&lookup).await.expect("answers");
        assert_eq!(found.matched_tokens, 0, "what is gone is not offered");
    }
}

/// The collector's tombstone exists, its announcement was not heard, and the bytes are gone when the request
/// arrives.
pub(crate) async fn removing_a_chunk_hides_objects_that_only_have_a_tombstone(backend: &Backend) {
    let storage = backend.replica().await;
    let root = prepare(&storage).await;
    let tokens = chunks::tokens(123, 64);
    let (gone, other) =
        (chunks::variant(root, &tokens, 0, 64, 50, 0), chunks::variant(root, &tokens, 0, 64, 50, 8));
    put(&storage, &gone).await;
    let (layout, objects) = (storage.store().layout(), storage.store().objects());
    let tombstone = layout.path(&Key::Tombstone(key(&gone)));
    objects.put(&tombstone, "expired".into()).await.expect("writes");
    objects.delete(&layout.path(&Key::Chunk(key(&gone)))).await.expect("deletes");
    put(&backend.replica().await, &other).await;
    let removed = storage.lifecycle().remove_chunk(&tenant(), &model_id(), &gone.seq_hash).await;
    assert_eq!(removed.expect("removes").len(), 1, "the one that has bytes");
    let (tenant, namespace, model_id) = (tenant(), "n".parse().expect("a name"), model_id());
    let lookup = Lookup::new(&tenant, &namespace, &model_id, Query::Tokens(tokens));
    assert_eq!(storage.lookup(&lookup).await.expect("answers").matched_tokens, 0);
}

/// A lookup as engines send it: it does not check tombstones of chunks in the index.
pub(crate) async fn offered(storage: &Storage, tokens: &[u32]) -> u64 {
    let (tenant, namespace, model_id) = (tenant(), "n".parse().expect("a name"), model_id());
    let lookup = Lookup::new(&tenant, &namespace, &model_id, Query::Tokens(tokens.to_vec()));
    storage.lookup(&lookup).await.expect("answers").matched_tokens
}

/// Chunks that an unreadable batch may have removed are not restored by the batch that reports them as
/// stored.
#[tokio::test]
async fn a_damaged_batch_of_removals_brings_nothing_back() {
    let backend = Backend::memory();
    let (storage, other) = (backend.replica().await, backend.replica().await);
    let root = prepare(&storage).await;
    let tokens = [124, 125].map(|seed| chunks::tokens(seed, 64));
    let [removed, late] = [0, 1].map(|i| chunks::chunk(root, &tokens[i], 0, 64, 50));
    put(&storage, &removed).await;
    storage.changes().journal_append().await.expect("appends");
    storage.lifecycle().remove(&key(&removed)).await.expect("removes");
    let objects = storage.store().objects();
    let folder = storage.store().layout().log_prefix(JournalLog::Removed);
    let batches: Vec<_> = objects.list(Some(&folder)).try_collect().await.expect("lists");
    assert_eq!(batches.len(), 1);
    objects.put(&batches[0].location, "nothing of the kind".into()).await.expect("writes");
    other.changes().journal_tail(JournalReading::Rows).await.expect("reads");
    assert_eq!(offered(&other, &tokens[0]).await, 0);
    let served = read(&other, &removed, ByteRange::Whole).await;
    assert!(matches!(served, Err(ChunkError::Unknown { .. })), "{served:?}");
    // Nor by a later one; what the store lists is found.
    put(&storage, &late).await;
    storage.changes().journal_append().await.expect("appends");
    other.changes().journal_tail(JournalReading::Rows).await.expect("reads");
    assert_eq!(other.index().len(), 0);
    assert_eq!(offered(&other, &tokens[1]).await, 64);
}

/// A collector ended while it shortened the journal: a replica that reads the rest does not offer removed
/// chunks.
#[tokio::test]
async fn what_says_that_a_chunk_was_stored_goes_before_what_says_that_it_was_removed() {
    let backend = Backend::memory();
    let storage = backend.replica().await;
    let root = prepare(&storage).await;
    let tokens = chunks::tokens(126, 64);
    let chunk = chunks::chunk(root, &tokens, 0, 64, 50);
    put(&storage, &chunk).await;
    storage.changes().journal_append().await.expect("appends");
    storage.lifecycle().remove(&key(&chunk)).await.expect("removes");
    let stored = storage.store().layout().log_prefix(JournalLog::Stored);
    let hook: Hook = Arc::new(move |request, path| {
        let fails = request == Hooked::Deleting && path.prefix_matches(&stored);
        let source = "the collector ended".into();
        let failed = object_store::Error::PermissionDenied { path: path.to_string(), source };
        futures::future::ready(if fails { Err(failed) } else { Ok(()) }).boxed()
    });
    let collector = backend.hooked_replica(hook).await;
    let forgetful =
        GcPolicy { tombstone_retention: Duration::ZERO, journal_retention: Duration::ZERO, ..at_once() };
    for _ in 0..3 {
        assert!(collector.lifecycle().collect_garbage(&forgetful, &WorkShare::WHOLE, |_| {}).await.is_err());
    }
    let other = backend.replica().await;
    other.changes().journal_tail(JournalReading::Rows).await.expect("reads");
    assert_eq!(offered(&other, &tokens).await, 0);
}

/// Two collectors that end before their next append, one after its tombstone and one after the bytes: the note that the
/// tombstone's retention waits for comes after the removal is in the journal.
#[tokio::test]
async fn what_is_noted_as_gone_is_announced() {
    let backend = Backend::memory();
    let (storage, reader) = (backend.replica().await, backend.replica().await);
    let root = prepare(&storage).await;
    let tokens = chunks::tokens(128, 64);
    let chunk = chunks::chunk(root, &tokens, 0, 64, 50);
    put(&storage, &chunk).await;
    storage.changes().journal_append().await.expect("appends");
    reader.changes().journal_tail(JournalReading::Rows).await.expect("reads");
    assert_eq!(matched(&reader, &tokens).await, 64);
    let old = GcPolicy { ttl: Some(Duration::ZERO), ..at_once() };
    assert_eq!(collect(&*backend.replica().await, &old).await.expired, 1);
    assert_eq!(collect(&*backend.replica().await, &at_once()).await.deleted, 1);
    let note = storage.store().layout().path(&Key::Gone(key(&chunk)));
    storage.store().objects().head(&note).await.expect("is noted");
    reader.changes().journal_tail(JournalReading::Rows).await.expect("reads");
    let lookup = Lookup::new(&tenant(), &name("n"), &model_id(), Query::Tokens(tokens));
    assert_eq!(reader.lookup(&lookup).await.expect("answers").matched_tokens, 0, "its bytes are gone");
}
