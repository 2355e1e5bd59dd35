//! Deletion and the journal, between replicas.

use std::{
    sync::Arc,
    task::Poll,
    time::{Duration, SystemTime},
};

use futures::{FutureExt, TryStreamExt};
use kvasir_storage::{
    ByteRange, ChunkError, JournalReading, Lookup, PutChunk, Query, Settings, Storage, WorkShare,
    gc::{GcPolicy, GcReport},
    hot::RequestHint,
};
use kvasir_store::layout::{ChunkKey, JournalLog, Key};
use kvasir_tests::chunks::{self, Chunk};
use kvasir_types::RootHash;
use object_store::ObjectStoreExt;

use crate::{
    Backend,
    pins::once_written,
    storage_core::{body, key, matched, model_id, name, prepare, put, read, tenant},
};

/// Everything at once, so that tests need no clock.
pub(crate) fn at_once() -> GcPolicy {
    GcPolicy {
        grace: Duration::ZERO,
        tombstone_retention: Duration::from_secs(3600),
        journal_retention: Duration::from_secs(3600),
        actions_per_second: 0,
        ..GcPolicy::default()
    }
}

pub(crate) async fn collect(storage: &Storage, policy: &GcPolicy) -> GcReport {
    storage.lifecycle().collect_garbage(policy, &WorkShare::WHOLE, |_| {}).await.expect("collects")
}

/// Stores a chunk whatever name it gets.
pub(crate) async fn put_any(storage: &Arc<Storage>, chunk: &Chunk) -> ChunkKey {
    let stored = storage
        .ingest()
        .put_chunk(PutChunk::new(&tenant(), &model_id(), &chunk.seq_hash), body(&chunk.bytes))
        .await;
    ChunkKey { object_digest: stored.expect("stores").object_digest, ..key(chunk) }
}

pub(crate) async fn removed_chunks_hide_and_go_and_come_back_under_another_name(backend: &Backend) {
    let storage = backend.replica_with(|settings| settings.spool_memory_bytes = 1 << 20).await;
    let root = prepare(&storage).await;
    let tokens = chunks::tokens(90, 600);
    // One small enough for memory, one that lies in a file and goes in parts.
    for piece_bytes in [100, 1_500_000] {
        let tokens: Vec<u32> = tokens.iter().map(|t| t ^ piece_bytes as u32).collect();
        let chunk = chunks::chunk(root, &tokens, 0, 600, piece_bytes);
        put(&storage, &chunk).await;
        let under_way = storage.reads().read(&key(&chunk), ByteRange::Whole, &RequestHint::default()).await;
        storage.lifecycle().remove(&key(&chunk)).await.expect("removes");
        storage.lifecycle().remove(&key(&chunk)).await.expect("twice is once");
        let parts: Vec<bytes::Bytes> =
            under_way.expect("is there").bytes.try_collect().await.expect("a read under way goes on");
        assert!(parts.concat() == chunk.bytes);
        for replica in [&storage, &backend.replica().await] {
            assert_eq!(matched(replica, &tokens).await, 0, "hidden at once");
        }
        let again = put_any(&storage, &chunk).await;
        assert_ne!(again.object_digest, chunk.object_digest, "the name is doomed");
        assert_eq!(matched(&storage, &tokens).await, 600);
        let report = collect(&storage, &at_once()).await;
        assert!(report.led && report.deleted >= 1, "{report:?}");
        let gone = read(&backend.replica().await, &chunk, ByteRange::Whole).await;
        assert!(matches!(gone, Err(ChunkError::Unknown { .. })), "{gone:?}");
        let bytes =
            storage.reads().read(&again, ByteRange::Whole, &RequestHint::default()).await.expect("is there");
        let parts: Vec<bytes::Bytes> = bytes.bytes.try_collect().await.expect("reads");
        let bytes = parts.concat();
        let mut verifier = kvasir_container::ObjectVerifier::new();
        verifier.push(&bytes).expect("sound");
        assert_eq!(verifier.finish().expect("whole").header.seq_hash, chunk.seq_hash);
        assert_eq!(bytes[kvasir_container::HEADER_BYTES..], chunk.bytes[kvasir_container::HEADER_BYTES..]);
        assert_eq!(matched(&backend.replica().await, &tokens).await, 600);
    }
    let unknown = storage.lifecycle().remove_chunk(&tenant(), &model_id(), &[1; 32].into()).await;
    assert!(matches!(unknown, Err(ChunkError::Unknown { .. })));
    // With its time, the tombstone goes too, and the name is free.
    let end = GcPolicy { tombstone_retention: Duration::ZERO, ..at_once() };
    // A pass that is as old as tombstones live does nothing: zero makes every pass so.
    assert_eq!(collect(&storage, &end).await.tombstones_deleted, 0);
    let end = GcPolicy { tombstone_retention: Duration::from_millis(1_500), ..at_once() };
    tokio::time::sleep(Duration::from_millis(3_000)).await;
    assert!(collect(&storage, &end).await.tombstones_deleted >= 2);
}

pub(crate) async fn duplicates_and_expired_chunks_go(backend: &Backend) {
    let storage = backend.replica().await;
    let root = prepare(&storage).await;
    let tokens = chunks::tokens(91, 256);
    let objects: Vec<_> = (0..3).map(|v| chunks::variant(root, &tokens, 0, 256, 50, v * 8)).collect();
    for object in &objects {
        put(&storage, object).await;
    }
    let dry = GcPolicy { dry_run: true, ..at_once() };
    assert_eq!(collect(&storage, &dry).await.duplicates, 2);
    let first = collect(&storage, &at_once()).await;
    assert_eq!((first.duplicates, first.expired), (2, 0), "a dry run does nothing");
    assert_eq!(collect(&storage, &at_once()).await.deleted, 2);
    let left =
        storage.reads().preferred(&tenant(), &model_id(), &objects[0].seq_hash).await.expect("one stays");
    assert_eq!(Some(left.object_digest), objects.iter().map(|o| o.object_digest).min());
    assert_eq!(matched(&backend.replica().await, &tokens).await, 256);
    // Time to live.
    let young = GcPolicy { ttl: Some(Duration::from_secs(600)), ..at_once() };
    assert_eq!(collect(&storage, &young).await.expired, 0);
    let old = GcPolicy { ttl: Some(Duration::ZERO), ..at_once() };
    assert_eq!(collect(&storage, &old).await.expired, 1);
    assert_eq!(matched(&storage, &tokens).await, 0);
    assert_eq!(collect(&storage, &old).await.deleted, 1);
}

/// A collector beside which a request removes one object, after it has decided and before its first tombstone.
async fn collector_beside_removal(backend: &Backend, removed: ChunkKey) -> Arc<Storage> {
    let other = backend.replica().await;
    let act = move || {
        let (other, removed) = (Arc::clone(&other), removed.clone());
        async move { other.lifecycle().remove(&removed).await.expect("removes") }.boxed()
    };
    backend.hooked_replica(once_written("/gc/intent/", act)).await
}

/// Two objects of a chunk, the one that the collector keeps first.
fn two_objects(root: RootHash, tokens: &[u32]) -> [Chunk; 2] {
    let mut objects = [0, 8].map(|v| chunks::variant(root, tokens, 0, tokens.len(), 50, v));
    objects.sort_by_key(|object| object.object_digest);
    objects
}

#[tokio::test]
async fn a_duplicate_stays_if_the_object_that_was_to_stay_is_removed() {
    let backend = Backend::memory();
    let storage = backend.replica().await;
    let tokens = chunks::tokens(111, 64);
    let objects = two_objects(prepare(&storage).await, &tokens);
    for object in &objects {
        put(&storage, object).await;
    }
    let collector = collector_beside_removal(&backend, key(&objects[0])).await;
    let report = collect(&collector, &at_once()).await;
    assert_eq!((report.duplicates, report.spared), (1, 1), "{report:?}");
    assert_eq!(matched(&backend.replica().await, &tokens).await, 64, "one of two objects was removed");
}

#[tokio::test]
async fn a_tail_stays_if_the_chunk_that_contains_it_is_removed() {
    let backend = Backend::memory();
    let root = prepare(&backend.replica().await).await;
    let tokens = chunks::tokens(112, 64);
    let [tail, longer] = [48, 64].map(|end| chunks::chunk(root, &tokens, 0, end, 50));
    let collector = collector_beside_removal(&backend, key(&longer)).await;
    // Its index has both.
    for chunk in [&tail, &longer] {
        put(&collector, chunk).await;
    }
    let report = collect(&collector, &at_once()).await;
    assert_eq!((report.contained, report.spared), (1, 1), "{report:?}");
    assert_eq!(matched(&backend.replica().await, &tokens[..48]).await, 48, "the longer chunk was removed");
}

/// Whether it stays is known once it is older than the grace.
#[tokio::test]
async fn a_young_object_takes_the_place_of_no_older_one() {
    let backend = Backend::file();
    let storage = backend.replica().await;
    let objects = two_objects(prepare(&storage).await, &chunks::tokens(113, 64));
    for object in &objects {
        put(&storage, object).await;
    }
    let policy = GcPolicy { grace: Duration::from_secs(3600), ..at_once() };
    let long_ago = SystemTime::now() - 2 * policy.grace;
    let [survivor, other] = objects;
    for (old, duplicates) in [(other, 0), (survivor, 1)] {
        let path = storage.store().layout().path(&Key::Chunk(key(&old)));
        let file = backend.directory.path().join("store").join(path.to_string());
        std::fs::File::open(file).expect("is there").set_modified(long_ago).expect("is ours");
        assert_eq!(collect(&storage, &policy).await.duplicates, duplicates);
    }
}

/// A tenant that has another one's chunk takes nothing from it, although nothing is listed between the two.
#[tokio::test]
async fn the_same_chunk_of_two_tenants_is_no_duplicate() {
    let backend = Backend::memory();
    let storage = backend.replica().await;
    let chunk = chunks::chunk(prepare(&storage).await, &chunks::tokens(108, 64), 0, 64, 50);
    put(&storage, &chunk).await;
    let copy = ChunkKey { tenant: name("other"), ..key(&chunk) };
    let path = storage.store().layout().path(&Key::Chunk(copy));
    storage.store().objects().put(&path, chunk.bytes.clone().into()).await.expect("writes");
    let report = collect(&storage, &at_once()).await;
    assert_eq!((report.objects, report.duplicates), (2, 0), "{report:?}");
}

/// Each chunk is the work of one member, and together they do what one pass over everything does.
pub(crate) async fn the_members_of_a_cluster_divide_a_pass(backend: &Backend) {
    let storage = backend.replica().await;
    let root = prepare(&storage).await;
    let members: Vec<_> = (0..3).map(|n| (format!("http://r{n}:7480"), 1.0)).collect();
    let shares = [0, 1, 2].map(|this| WorkShare::of(members.clone(), this, false));
    // In each unit one chunk that stays and one that is removed: hashes depend on the tenant's salt, which is random.
    let mut of_unit = [0; 16];
    let drawn = (0..).map(|n| chunks::chunk(root, &chunks::tokens(9_100 + n, 64), 0, 64, 50));
    for chunk in drawn {
        let count = &mut of_unit[usize::from(chunk.seq_hash.as_bytes()[0] >> 4)];
        *count += 1;
        if *count <= 2 {
            put(&storage, &chunk).await;
        }
        if *count == 2 {
            storage.lifecycle().remove(&key(&chunk)).await.expect("removes");
        }
        if of_unit.iter().all(|count| *count >= 2) {
            break;
        }
    }
    let pass = async |policy: &GcPolicy| {
        let mut reports = Vec::new();
        for share in &shares {
            let member = backend.replica().await;
            let collected = member.lifecycle().collect_garbage(policy, share, |_| {}).await;
            reports.push(collected.expect("collects"));
        }
        assert!(reports.iter().all(|report| report.led), "{reports:?}");
        let all: Vec<_> = reports.iter().filter(|report| report.listed_all).collect();
        assert!(all.len() == 1, "one lists everything: {reports:?}");
        reports
    };
    let divided = |reports: &[GcReport], count: fn(&GcReport) -> u64| {
        let counts: Vec<u64> = reports.iter().map(count).collect();
        assert!(counts.iter().all(|count| *count > 0), "{reports:?}");
        counts.into_iter().sum::<u64>()
    };
    let reports = pass(&at_once()).await;
    assert_eq!(divided(&reports, |report| report.deleted), 16, "{reports:?}");
    let mut scrubbed = Vec::new();
    for share in &shares {
        let report = storage.lifecycle().scrub(share, 0, false, |_| {}).await.expect("scrubs");
        scrubbed.push(report.objects);
    }
    assert!(scrubbed.iter().sum::<u64>() == 16 && scrubbed.iter().all(|count| *count < 16), "{scrubbed:?}");
    let old = GcPolicy { ttl: Some(Duration::ZERO), ..at_once() };
    let reports = pass(&old).await;
    assert_eq!(divided(&reports, |report| report.expired), 16, "{reports:?}");
    // A pass may meet the tombstones that it wrote itself.
    let left = collect(&storage, &old).await;
    assert_eq!(reports.iter().map(|report| report.deleted).sum::<u64>() + left.deleted, 16, "{reports:?}");
}

/// The moment between deciding and deleting is stretched to the other side of everything that could go wrong.
pub(crate) async fn a_collector_that_slept_deletes_nothing_that_was_stored_since(backend: &Backend) {
    let (sleeper, other) = (backend.replica().await, backend.replica().await);
    let root = prepare(&other).await;
    let tokens = chunks::tokens(92, 300);
    let chunk = chunks::chunk(root, &tokens, 0, 300, 50);
    put(&other, &chunk).await;
    other.lifecycle().remove(&key(&chunk)).await.expect("removes");
    let decided = sleeper.store().layout().path(&Key::Chunk(key(&chunk)));
    // The sleeper has decided to delete `decided` and sleeps. Meanwhile: deleted, stored again, found again.
    assert_eq!(collect(&other, &at_once()).await.deleted, 1);
    let again = put_any(&other, &chunk).await;
    collect(&other, &at_once()).await;
    // It wakes up.
    let _ = sleeper.store().objects().delete(&decided).await;
    assert_eq!(matched(&backend.replica().await, &tokens).await, 300);
    assert!(sleeper.reads().read(&again, ByteRange::Bounded(0, 9), &RequestHint::default()).await.is_ok());
    // Two at once.
    put(&other, &chunks::chunk(root, &chunks::tokens(93, 300), 0, 300, 50)).await;
    let policy = at_once();
    let (a, b) = tokio::join!(collect(&sleeper, &policy), collect(&other, &policy));
    assert!(a.led || b.led);
    assert_eq!(matched(&backend.replica().await, &chunks::tokens(93, 300)).await, 300);
}

pub(crate) async fn blocks_match_on_other_replicas_through_the_journal(backend: &Backend) {
    let (a, b) = (backend.replica().await, backend.replica().await);
    let root = prepare(&a).await;
    let tokens = chunks::tokens(94, 3_000);
    let context = chunks::context(root, &tokens, 1536, 50);
    for chunk in &context {
        put(&a, chunk).await;
    }
    let mut other = tokens.clone();
    other[2_000] ^= 1;
    assert_eq!(matched(&b, &other).await, 1536, "whole chunks come from the store alone");
    assert_eq!(a.changes().journal_append().await.expect("appends"), 2);
    assert_eq!(a.changes().journal_append().await.expect("appends"), 0);
    assert!(b.changes().journal_tail(JournalReading::Rows).await.expect("tails") >= 2);
    assert_eq!(matched(&b, &other).await, 2_000);
    assert_eq!(b.changes().journal_tail(JournalReading::Rows).await.expect("tails"), 0);
    assert_eq!(
        a.changes().journal_tail(JournalReading::Rows).await.expect("tails"),
        0,
        "its own batches are not news"
    );
    // Removals, too.
    assert_eq!(matched(&b, &tokens).await, 3_000);
    a.lifecycle().remove(&key(&context[1])).await.expect("removes");
    a.changes().journal_append().await.expect("appends");
    assert_eq!(b.changes().journal_tail(JournalReading::Rows).await.expect("tails"), 1);
    assert_eq!(matched(&b, &tokens).await, 1536);
    // A damaged batch is skipped, later ones are not.
    let folder = a.store().layout().log_prefix(JournalLog::Stored).join("someone");
    a.store()
        .objects()
        .put(&folder.clone().join(format!("{:020}", 0)), "KVSJ\u{1}nonsense".into())
        .await
        .expect("writes");
    assert_eq!(b.changes().journal_tail(JournalReading::Rows).await.expect("tails"), 0);
    // Compaction.
    let compact = GcPolicy { journal_retention: Duration::ZERO, ..at_once() };
    assert!(collect(&a, &compact).await.batches_deleted >= 2);
    let left = backend.replica().await.changes().journal_tail(JournalReading::Rows).await.expect("tails");
    assert_eq!(
        left, 2,
        "what was removed is kept for as long as its tombstone, and what the collector said of it"
    );
}

/// A removal is durable in the journal before it is acknowledged: a replica that is killed right after its answer has told
/// the others.
pub(crate) async fn an_acknowledged_removal_survives_its_replica(backend: &Backend) {
    let (a, b) = (backend.replica().await, backend.replica().await);
    let root = prepare(&a).await;
    let tokens: Vec<Vec<u32>> = [95, 96].map(|seed| chunks::tokens(seed, 300)).into();
    let stored: Vec<_> = tokens.iter().map(|tokens| chunks::chunk(root, tokens, 0, 300, 50)).collect();
    for chunk in &stored {
        put(&a, chunk).await;
    }
    a.changes().journal_append().await.expect("appends");
    b.changes().journal_tail(JournalReading::Rows).await.expect("tails");
    assert_eq!((matched(&b, &tokens[0]).await, matched(&b, &tokens[1]).await), (300, 300));
    a.lifecycle().remove(&key(&stored[0])).await.expect("removes");
    a.lifecycle().remove_chunk(&tenant(), &model_id(), &stored[1].seq_hash).await.expect("removes");
    drop(a); // killed: nothing that waited in its memory is ever written
    assert_eq!(b.changes().journal_tail(JournalReading::Rows).await.expect("tails"), 2);
    assert_eq!((matched(&b, &tokens[0]).await, matched(&b, &tokens[1]).await), (0, 0));
}

/// The task that appends to the journal is aborted when a replica stops: its pending entries are not lost.
pub(crate) async fn an_append_that_is_dropped_is_made_again(backend: &Backend) {
    let (a, b) = (backend.replica().await, backend.replica().await);
    let root = prepare(&a).await;
    let tokens = chunks::tokens(97, 300);
    put(&a, &chunks::chunk(root, &tokens, 0, 300, 50)).await;
    {
        let mut append = std::pin::pin!(a.changes().journal_append());
        if let Poll::Ready(appended) = futures::poll!(append.as_mut()) {
            // A store in memory answers at once: nothing to drop.
            assert_eq!(appended.expect("appends"), 1);
            return;
        }
    }
    assert_eq!(a.changes().journal_append().await.expect("appends"), 1, "the entry waits again");
    assert!(b.changes().journal_tail(JournalReading::Rows).await.expect("tails") >= 1);
}

/// A replica that was offline while a removal entered and left the journal does not offer the removed chunk
/// from its old index.
pub(crate) async fn an_index_older_than_the_journal_is_emptied(backend: &Backend) {
    // Dates of some stores have whole seconds: more than one less, and more than one more, than what is compared.
    let kept = Duration::from_secs(3);
    let briefly = |settings: &mut Settings| settings.removals_kept = kept;
    let a = backend.replica().await;
    let root = prepare(&a).await;
    let tokens = chunks::tokens(98, 300);
    let chunk = chunks::chunk(root, &tokens, 0, 300, 50);
    put(&a, &chunk).await;
    a.changes().journal_append().await.expect("appends");
    let early = backend.replica_on_disk(|_| {}).await;
    early.changes().journal_tail(JournalReading::Rows).await.expect("tails");
    early.index().flush();
    drop(early);
    let again = backend.replica_on_disk(briefly).await;
    assert!(!again.changes().empty_outdated_index(), "it was away for a moment");
    assert_eq!(again.index().len(), 1);
    drop(again);
    a.lifecycle().remove(&key(&chunk)).await.expect("removes");
    tokio::time::sleep(kept + Duration::from_secs(1)).await;
    let forgotten = GcPolicy { tombstone_retention: Duration::ZERO, ..at_once() };
    assert!(collect(&a, &forgotten).await.batches_deleted > 0);
    let late = backend.replica_on_disk(briefly).await;
    assert!(late.changes().empty_outdated_index());
    late.changes().journal_tail(JournalReading::Rows).await.expect("tails");
    assert_eq!(matched(&late, &tokens).await, 0);
}

/// A replica that started with rows in its index hears of a removal, and restarts after the removal's batch
/// is gone: then only its index can know of it. Entries for chunks stored before the removal do not restore
/// the object either.
pub(crate) async fn a_removal_outlives_its_batch_in_the_index(backend: &Backend) {
    let a = backend.replica().await;
    let root = prepare(&a).await;
    let tokens = chunks::tokens(99, 300);
    let chunk = chunks::chunk(root, &tokens, 0, 300, 50);
    put(&a, &chunk).await;
    a.changes().journal_append().await.expect("appends");
    let first = backend.replica_on_disk(|_| {}).await;
    first.changes().journal_tail(JournalReading::Rows).await.expect("tails");
    first.index().flush();
    drop(first);
    let second = backend.replica_on_disk(|_| {}).await;
    assert!(!second.changes().empty_outdated_index());
    a.lifecycle().remove(&key(&chunk)).await.expect("removes");
    assert_eq!(
        second.changes().journal_tail(JournalReading::Rows).await.expect("tails"),
        1,
        "the position was kept: the removal alone is news"
    );
    second.index().flush();
    drop(second);
    let journal = a.store().layout().journal_prefix();
    let batches: Vec<_> = a.store().objects().list(Some(&journal)).try_collect().await.expect("lists");
    for batch in batches {
        a.store().objects().delete(&batch.location).await.expect("deletes");
    }
    let third = backend.replica_on_disk(|_| {}).await;
    assert!(!third.changes().empty_outdated_index());
    third.changes().journal_tail(JournalReading::Rows).await.expect("tails");
    let namespace = "n".parse().expect("a name");
    let lookup = Lookup::new(&tenant(), &namespace, &model_id(), Query::Tokens(tokens));
    assert_eq!(third.lookup(&lookup).await.expect("answers").matched_tokens, 0);
}
