//! Pins and the collector: an acknowledged pin holds the bytes, whatever collects meanwhile; what cannot be read holds its
//! own tenant's bytes and nobody else's.

use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, TryStreamExt};
use kvasir_api::{Context, ContextRequest};
use kvasir_storage::{ByteRange, ChunkError, ContextError, PutChunk, Storage, gc::GcPolicy};
use kvasir_store::layout::{JournalLog, Key};
use kvasir_tests::{
    chunks::{self, Chunk},
    hooked::{Hook, Hooked},
};
use kvasir_types::{Name, ProfileHash, SeqHash};
use object_store::{ObjectStore, ObjectStoreExt};

use crate::{
    Backend,
    replicas::{at_once, collect},
    storage_core::{body, key, matched, model_id, name, prepare, put, read, tenant},
};

/// All chunks are past their time.
fn all_expired() -> GcPolicy {
    GcPolicy { ttl: Some(Duration::ZERO), ..at_once() }
}

async fn pin(storage: &Storage, chunk: SeqHash) -> Result<Context, ContextError> {
    pin_context(storage, vec![chunk]).await
}

async fn pin_context(storage: &Storage, chunks: Vec<SeqHash>) -> Result<Context, ContextError> {
    let request = ContextRequest {
        model_id: model_id(),
        namespace: name("n"),
        chunks,
        labels: Default::default(),
        ttl_s: None,
        pinned: true,
    };
    storage.contexts().create(&tenant(), request).await
}

async fn pinned(storage: &Storage) -> Vec<SeqHash> {
    let list = storage.contexts().list(&tenant(), &Default::default(), 100, None).await.expect("lists");
    list.contexts.into_iter().filter(|context| context.pinned).flat_map(|context| context.chunks).collect()
}

/// While the collector writes its first tombstone, everything is pinned: what has none yet is held, what has one refused.
#[tokio::test]
async fn a_pin_acknowledged_during_a_pass_holds() {
    let backend = Backend::memory();
    let other = backend.replica().await;
    let root = prepare(&other).await;
    let contexts: Vec<(Vec<u32>, Chunk)> = (0..4)
        .map(|i| {
            let tokens = chunks::tokens(130 + i, 64);
            let chunk = chunks::chunk(root, &tokens, 0, 64, 50);
            (tokens, chunk)
        })
        .collect();
    for (_, chunk) in &contexts {
        put(&other, chunk).await;
    }
    let (ids, pinner) = (contexts.iter().map(|(_, c)| c.seq_hash).collect::<Vec<_>>(), Arc::clone(&other));
    let answers = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&answers);
    let hook: Hook = Arc::new(move |request, path| {
        let (ids, pinner, told) = (ids.clone(), Arc::clone(&pinner), Arc::clone(&told));
        async move {
            let is_first = told.lock().expect("not poisoned").is_empty();
            if request == Hooked::Written && path.as_ref().contains("/d/") && is_first {
                for id in ids {
                    let answer = pin(&pinner, id).await;
                    told.lock().expect("not poisoned").push((id, answer.map(|_| ())));
                }
            }
            Ok(())
        }
        .boxed()
    });
    let collector = backend.hooked_replica(hook).await;
    collect(&collector, &all_expired()).await;
    collect(&other, &all_expired()).await;
    let answers = std::mem::take(&mut *answers.lock().expect("not poisoned"));
    let acknowledged: Vec<SeqHash> =
        answers.iter().filter(|(_, answer)| answer.is_ok()).map(|(id, _)| *id).collect();
    assert_eq!((answers.len(), acknowledged.len()), (4, 3), "{answers:?}");
    for (_, answer) in answers {
        assert!(
            matches!(answer, Ok(()) | Err(ContextError::Chunk(ChunkError::Unknown { .. }))),
            "{answer:?}"
        );
    }
    // Who hears of a tombstone and of its end offers the chunk again, too.
    collector.changes().journal_append().await.expect("appends");
    assert!(other.changes().journal_tail().await.expect("tails") >= 7);
    let cold = backend.replica().await;
    for (tokens, chunk) in &contexts {
        let is_held = acknowledged.contains(&chunk.seq_hash);
        for replica in [&other, &collector, &cold] {
            assert_eq!(matched(replica, tokens).await, if is_held { 64 } else { 0 });
        }
        assert_eq!(
            read(&cold, chunk, ByteRange::Whole).await.is_ok(),
            is_held,
            "the bytes stay with the pin"
        );
    }
    assert_eq!(pinned(&cold).await, acknowledged, "what was refused pins nothing");
}

/// A replica reads that the collector buried a pinned chunk and dug it out again, in the middle of a lookup that has just found
/// the chunk in the store.
#[tokio::test]
async fn a_lookup_beside_the_news_of_a_lifted_tombstone_finds_the_chunk() {
    let backend = Backend::memory();
    let other = backend.replica().await;
    let root = prepare(&other).await;
    let tokens = chunks::tokens(135, 300);
    let context = chunks::context(root, &tokens, 256, 50);
    let first_buried = (200..)
        .map(|seed| chunks::chunk(root, &chunks::tokens(seed, 64), 0, 64, 50))
        .find(|chunk| context.iter().all(|of| chunk.seq_hash < of.seq_hash))
        .expect("hashes are spread");
    for chunk in context.iter().chain([&first_buried]) {
        put(&other, chunk).await;
    }
    let beginning = other.store().layout().path(&Key::Chunk(key(&context[0])));
    let (reader, is_told) = (Arc::new(OnceLock::<Arc<Storage>>::new()), Arc::new(AtomicBool::new(false)));
    let (asking, telling) = (Arc::clone(&reader), Arc::clone(&is_told));
    let hook: Hook = Arc::new(move |request, path| {
        let (asking, telling) = (Arc::clone(&asking), Arc::clone(&telling));
        let is_beginning = request == Hooked::Reading && path == beginning;
        async move {
            // The end of a context is asked for first, so it is found already.
            if is_beginning && !telling.swap(true, Ordering::Relaxed) {
                let news = asking.get().expect("is there").changes().journal_tail().await;
                assert_eq!(news.expect("tails"), 5, "three were buried, two dug out");
            }
            Ok(())
        }
        .boxed()
    });
    let storage = backend.hooked_replica(hook).await;
    reader.set(Arc::clone(&storage)).expect("is set once");
    storage.changes().journal_tail().await.expect("tails");
    let (ids, pinner) = (context.iter().map(|c| c.seq_hash).collect::<Vec<_>>(), Arc::clone(&other));
    let is_first = Arc::new(AtomicBool::new(true));
    let hook: Hook = Arc::new(move |request, path| {
        let (ids, pinner, is_first) = (ids.clone(), Arc::clone(&pinner), Arc::clone(&is_first));
        async move {
            let is_tombstone = request == Hooked::Written && path.as_ref().contains("/d/");
            if is_tombstone && is_first.swap(false, Ordering::Relaxed) {
                pin_context(&pinner, ids).await.expect("none has a tombstone yet");
            }
            Ok(())
        }
        .boxed()
    });
    let collector = backend.hooked_replica(hook).await;
    assert_eq!(collect(&collector, &all_expired()).await.lifted, 2);
    collector.changes().journal_append().await.expect("appends");
    // Removals are remembered for longer than what was stored.
    let (objects, log) =
        (collector.store().objects(), collector.store().layout().log_prefix(JournalLog::Stored));
    let batches: Vec<_> = objects.list(Some(&log)).try_collect().await.expect("lists");
    for batch in batches {
        objects.delete(&batch.location).await.expect("deletes");
    }
    assert_eq!(matched(&storage, &tokens).await, 300);
    assert!(is_told.load(Ordering::Relaxed));
}

/// A collector ended between its tombstone and its second look at the pins.
#[tokio::test]
async fn a_tombstone_on_a_pinned_chunk_is_lifted_before_the_bytes_go() {
    let backend = Backend::memory();
    let storage = backend.replica().await;
    let root = prepare(&storage).await;
    let tokens = chunks::tokens(140, 64);
    let chunk = chunks::chunk(root, &tokens, 0, 64, 50);
    put(&storage, &chunk).await;
    pin(&storage, chunk.seq_hash).await.expect("pins");
    let tombstone = storage.store().layout().path(&Key::Tombstone(key(&chunk)));
    for reason in ["expired", "evicted", "contained", "duplicate"] {
        storage.store().objects().put(&tombstone, reason.into()).await.expect("writes");
        assert_eq!(matched(&backend.replica().await, &tokens).await, 0);
        let report = collect(&storage, &at_once()).await;
        assert_eq!(report.deleted, 0, "{reason}: {report:?}");
        for replica in [&storage, &backend.replica().await] {
            assert_eq!(matched(replica, &tokens).await, 64, "{reason}");
        }
    }
    // A request removes what is pinned, also where the collector was first.
    storage.store().objects().put(&tombstone, "expired".into()).await.expect("writes");
    storage.lifecycle().remove_chunk(&tenant(), &model_id(), &chunk.seq_hash).await.expect("removes");
    assert_eq!(collect(&storage, &at_once()).await.deleted, 1);
    assert_eq!(matched(&backend.replica().await, &tokens).await, 0);
}

/// The chunk is removed after it was looked for and before the pin is in the store.
#[tokio::test]
async fn a_pin_beside_a_removal_is_withdrawn() {
    let backend = Backend::memory();
    let other = backend.replica().await;
    let root = prepare(&other).await;
    let chunk = chunks::chunk(root, &chunks::tokens(141, 64), 0, 64, 50);
    put(&other, &chunk).await;
    let (remover, seq_hash) = (Arc::clone(&other), chunk.seq_hash);
    let hook: Hook = Arc::new(move |request, path| {
        let remover = Arc::clone(&remover);
        async move {
            if request == Hooked::Written && path.as_ref().contains("/x/") {
                remover.lifecycle().remove_chunk(&tenant(), &model_id(), &seq_hash).await.expect("removes");
            }
            Ok(())
        }
        .boxed()
    });
    let refused = pin(&*backend.hooked_replica(hook).await, seq_hash).await;
    assert!(matches!(refused, Err(ContextError::Chunk(ChunkError::Unknown { .. }))), "{refused:?}");
    assert_eq!(pinned(&other).await, []);
}

async fn stored_for(storage: &Arc<Storage>, tenant: &Name, tokens: &[u32]) -> Chunk {
    storage.catalog().register_model(tenant, chunks::spec()).await.expect("registers");
    let hash = ProfileHash::of(chunks::PROFILE);
    storage.ingest().put_profile(tenant, &model_id(), &hash, body(chunks::PROFILE)).await.expect("stores");
    let root = storage.catalog().root(tenant, &name("n"), &model_id()).await.expect("a root");
    let chunk = chunks::chunk(root, tokens, 0, 64, 50);
    let stored = storage
        .ingest()
        .put_chunk(PutChunk::new(tenant, &model_id(), &chunk.seq_hash), body(&chunk.bytes))
        .await;
    stored.expect("stores");
    chunk
}

#[tokio::test]
async fn a_damaged_context_holds_its_tenants_chunks_and_stops_nobody() {
    let backend = Backend::memory();
    let storage = backend.replica().await;
    let (a, b) = (name("a"), name("b"));
    let held = stored_for(&storage, &a, &chunks::tokens(150, 64)).await;
    let removed = stored_for(&storage, &a, &chunks::tokens(151, 64)).await;
    let gone = stored_for(&storage, &b, &chunks::tokens(150, 64)).await;
    let damaged = Key::Context { tenant: a.clone(), context_id: uuid::Uuid::now_v7(), version: 1 };
    let damaged = storage.store().layout().path(&damaged);
    storage.store().objects().put(&damaged, "{".into()).await.expect("writes");
    // A collector had decided on it before.
    let key = |tenant: &Name, chunk: &Chunk| kvasir_store::layout::ChunkKey {
        tenant: tenant.clone(),
        ..key(chunk)
    };
    let tombstone = storage.store().layout().path(&Key::Tombstone(key(&a, &held)));
    storage.store().objects().put(&tombstone, "expired".into()).await.expect("writes");
    storage.lifecycle().remove(&key(&a, &removed)).await.expect("removes");
    for policy in [all_expired(), GcPolicy { capacity_bytes: Some(0), ..at_once() }, at_once()] {
        storage.lifecycle().collect_garbage(&policy, |_| {}).await.expect("one record stops no pass");
    }
    let is_there = async |key| storage.reads().read_store(&key, ByteRange::Whole).await.is_ok();
    assert!(is_there(key(&a, &held)).await, "its pins are not known");
    assert!(!is_there(key(&a, &removed)).await, "a request removed it");
    assert!(!is_there(key(&b, &gone)).await, "others go on");
    storage.store().objects().delete(&damaged).await.expect("deletes");
    collect(&storage, &at_once()).await;
    assert!(!is_there(key(&a, &held)).await);
}

/// Of two objects of a chunk one cannot be read now.
#[tokio::test]
async fn an_unreadable_object_stops_no_pass() {
    let backend = Backend::memory();
    let writer = backend.replica().await;
    let root = prepare(&writer).await;
    let tokens = chunks::tokens(160, 64);
    let objects: Vec<_> = (0..2).map(|v| chunks::variant(root, &tokens, 0, 64, 50, v * 8)).collect();
    for object in &objects {
        put(&writer, object).await;
    }
    let removed = chunks::chunk(root, &chunks::tokens(161, 64), 0, 64, 50);
    put(&writer, &removed).await;
    writer.lifecycle().remove(&key(&removed)).await.expect("removes");
    let unreadable = writer.store().layout().path(&Key::Chunk(key(&objects[0])));
    let hook: Hook = Arc::new(move |request, path| {
        let fails = request == Hooked::Reading && path == unreadable;
        let source = "not this one".into();
        let failed = object_store::Error::PermissionDenied { path: path.to_string(), source };
        futures::future::ready(if fails { Err(failed) } else { Ok(()) }).boxed()
    });
    let collector = backend.hooked_replica(hook).await;
    let report =
        collector.lifecycle().collect_garbage(&at_once(), |_| {}).await.expect("one object stops no pass");
    assert_eq!((report.duplicates, report.deleted), (0, 1), "{report:?}");
}

/// Two engines cut one context differently: two chunks end at one block, and one of them begins later.
#[tokio::test]
async fn chunks_that_end_alike_and_begin_elsewhere_are_no_duplicates() {
    let backend = Backend::memory();
    let storage = backend.replica().await;
    let root = prepare(&storage).await;
    for seed in 170..174 {
        let tokens = chunks::tokens(seed, 512);
        let cuts = [(0, 512), (0, 256), (256, 512)];
        let chunks = cuts.map(|(first, end)| chunks::chunk(root, &tokens, first, end, 50));
        assert_eq!(chunks[0].seq_hash, chunks[2].seq_hash);
        for chunk in &chunks {
            put(&storage, chunk).await;
        }
        // A collector that took them for duplicates.
        let tombstone = storage.store().layout().path(&Key::Tombstone(key(&chunks[2])));
        pin(&storage, chunks[1].seq_hash).await.expect("pins");
        if pin(&storage, chunks[0].seq_hash).await.is_ok() {
            storage.store().objects().put(&tombstone, "duplicate".into()).await.expect("writes");
        }
        for _ in 0..2 {
            let report = collect(&storage, &at_once()).await;
            assert_eq!((report.duplicates, report.deleted), (0, 0), "{report:?}");
        }
        let is_there = storage.reads().read_store(&key(&chunks[2]), ByteRange::Whole).await.is_ok();
        assert!(is_there, "nothing else holds the second half behind the first");
    }
}
