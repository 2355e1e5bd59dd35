//! Pins and the collector: an acknowledged pin keeps the bytes, whatever collections run at the same time; an
//! unreadable pin keeps the bytes of its tenant and of no other tenant.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use futures::FutureExt;
use kvasir_api::{Context, ContextChange, ContextRequest};
use kvasir_storage::{ByteRange, ChunkError, ContextError, PutChunk, Storage, WorkShare, gc::GcPolicy};
use kvasir_store::layout::Key;
use kvasir_tests::{
    chunks::{self, Chunk},
    hooked::{Hook, Hooked},
};
use kvasir_types::{Name, ProfileHash, SeqHash};
use object_store::ObjectStoreExt;

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

/// Four expired chunks, each of a different context.
async fn expired_chunks(storage: &Arc<Storage>, seed: u64) -> Vec<(Vec<u32>, Chunk)> {
    let root = prepare(storage).await;
    let contexts: Vec<_> = (0..4)
        .map(|i| {
            let tokens = chunks::tokens(seed + i, 64);
            let chunk = chunks::chunk(root, &tokens, 0, 64, 50);
            (tokens, chunk)
        })
        .collect();
    for (_, chunk) in &contexts {
        put(storage, chunk).await;
    }
    contexts
}

/// Does something once, when a write to a path that has a part in it has taken effect.
pub(crate) fn once_written(
    part: &'static str,
    act: impl Fn() -> futures::future::BoxFuture<'static, ()> + Send + Sync + 'static,
) -> Hook {
    let is_first = AtomicBool::new(true);
    Arc::new(move |request, path| {
        let is_it = request == Hooked::Written && path.as_ref().contains(part);
        let acts = (is_it && is_first.swap(false, Ordering::Relaxed)).then(&act);
        async move {
            if let Some(acts) = acts {
                acts.await;
            }
            Ok(())
        }
        .boxed()
    })
}

/// Between the collector's decisions and its intent everything is pinned: nothing gets a tombstone, not for a moment.
#[tokio::test]
async fn a_pin_acknowledged_before_the_intent_holds() {
    let backend = Backend::memory();
    let other = backend.replica().await;
    let contexts = expired_chunks(&other, 130).await;
    let (ids, pinner) = (contexts.iter().map(|(_, c)| c.seq_hash).collect::<Vec<_>>(), Arc::clone(&other));
    let act = move || {
        let (ids, pinner) = (ids.clone(), Arc::clone(&pinner));
        async move {
            for id in ids {
                // The collector has written its epoch, and has the pins still to read; it must not see these yet.
                let pinner = Arc::clone(&pinner);
                pin(&pinner, id).await.expect("no intent is there");
            }
        }
        .boxed()
    };
    // The bytes of an object are read when the collector has read the pins and decides about it.
    let first = other.store().layout().path(&Key::Tombstone(key(&contexts[0].1)));
    let is_first = AtomicBool::new(true);
    let hook: Hook = Arc::new(move |request, path| {
        let acts = (request == Hooked::Reading && path == first && is_first.swap(false, Ordering::Relaxed))
            .then(&act);
        async move {
            if let Some(acts) = acts {
                acts.await;
            }
            Ok(())
        }
        .boxed()
    });
    let collector = backend.hooked_replica(hook).await;
    let report = collect(&collector, &all_expired()).await;
    assert!(report.spared >= 1, "{report:?}");
    let cold = backend.replica().await;
    for (tokens, chunk) in &contexts {
        assert_eq!(matched(&cold, tokens).await, 64);
        assert!(read(&cold, chunk, ByteRange::Whole).await.is_ok());
    }
}

/// The collector has announced a deletion: a pin of that data waits, and is rejected.
#[tokio::test]
async fn a_pin_beside_an_intent_waits_and_is_refused() {
    let backend = Backend::memory();
    let other = backend.replica().await;
    let contexts = expired_chunks(&other, 134).await;
    let (id, pinner) = (contexts[3].1.seq_hash, Arc::clone(&other));
    let answer = Arc::new(Mutex::new(None));
    let told = Arc::clone(&answer);
    let act = move || {
        let (pinner, told) = (Arc::clone(&pinner), Arc::clone(&told));
        let begun = tokio::spawn(async move { pin(&pinner, id).await });
        *told.lock().expect("not poisoned") = Some(begun);
        // Until the pin is in the bucket, whose pins the collector reads next.
        tokio::time::sleep(Duration::from_millis(50)).boxed()
    };
    let collector = backend.hooked_replica(once_written("/gc/intent/", act)).await;
    let report = collect(&collector, &all_expired()).await;
    let begun = answer.lock().expect("not poisoned").take().expect("it was begun");
    let answer = begun.await.expect("it ends");
    // What the collector saw it spared; what it did not see is refused. Never acknowledged and hidden.
    match answer {
        Ok(_) => assert_eq!((report.spared, matched(&other, &contexts[3].0).await), (1, 64)),
        Err(error) => {
            let is_unknown = matches!(error, ContextError::Chunk(ChunkError::Unknown { .. }));
            assert!(is_unknown && pinned(&other).await.is_empty(), "{error:?}");
        }
    }
}

/// A collector ended between its intent and its tombstones: its chunks are not pinned until the intent is old.
#[tokio::test(start_paused = true)]
async fn the_intent_of_a_collector_that_ended_refuses_pins() {
    let backend = Backend::memory();
    let storage = backend.replica().await;
    let contexts = expired_chunks(&storage, 138).await;
    let hook: Hook = Arc::new(|request, path| {
        let ends = request == Hooked::Written && path.as_ref().contains("/gc/intent/");
        let failed =
            object_store::Error::PermissionDenied { path: path.to_string(), source: "it ended".into() };
        futures::future::ready(if ends { Err(failed) } else { Ok(()) }).boxed()
    });
    let collector = backend.hooked_replica(hook).await;
    assert!(collector.lifecycle().collect_garbage(&all_expired(), &WorkShare::WHOLE, |_| {}).await.is_err());
    let refused = pin(&storage, contexts[0].1.seq_hash).await;
    assert!(matches!(&refused, Err(error) if error.code().is_retryable()), "{refused:?}");
    assert_eq!(pinned(&storage).await, []);
    let unnamed = expired_chunks(&storage, 150).await;
    pin(&storage, unnamed[0].1.seq_hash).await.expect("no intent names it");
    assert_eq!(matched(&backend.replica().await, &contexts[0].0).await, 64, "nothing is hidden");
}

/// A request removes a chunk while a collector spares it for a pin: removed it stays.
#[tokio::test]
async fn a_removal_beside_a_pin_stays() {
    for part in ["/gc/epoch/", "/gc/intent/", "/d/"] {
        let backend = Backend::memory();
        let other = backend.replica().await;
        let contexts = expired_chunks(&other, 142).await;
        let removed = contexts[0].1.seq_hash;
        pin(&other, contexts[1].1.seq_hash).await.expect("pins");
        let (remover, pinning) = (Arc::clone(&other), Arc::new(Mutex::new(None)));
        let told = Arc::clone(&pinning);
        let act = move || {
            let (remover, pinner) = (Arc::clone(&remover), Arc::clone(&remover));
            // It waits for the collector, which this hook holds.
            let begun = tokio::spawn(async move { pin(&pinner, removed).await });
            *told.lock().expect("not poisoned") = Some(begun);
            async move {
                // Until the pin is in the bucket.
                tokio::time::sleep(Duration::from_millis(50)).await;
                remover.lifecycle().remove_chunk(&tenant(), &model_id(), &removed).await.expect("removes");
            }
            .boxed()
        };
        let collector = backend.hooked_replica(once_written(part, act)).await;
        collect(&collector, &all_expired()).await;
        let begun = pinning.lock().expect("not poisoned").take().expect("the hook acted");
        // A pin is acknowledged before the removal, and refused after it.
        let _ = begun.await.expect("it ends");
        collect(&other, &all_expired()).await;
        for replica in [&other, &collector, &backend.replica().await] {
            assert_eq!(matched(replica, &contexts[0].0).await, 0, "{part}");
        }
        assert_eq!(matched(&backend.replica().await, &contexts[1].0).await, 64, "{part}");
    }
}

/// One collector takes the object that was to stay, while another has decided on the superfluous one.
#[tokio::test]
async fn the_last_object_of_a_pinned_chunk_is_no_duplicate() {
    let backend = Backend::memory();
    let storage = backend.replica().await;
    let root = prepare(&storage).await;
    let tokens = chunks::tokens(148, 64);
    let objects = [0, 8].map(|v| chunks::variant(root, &tokens, 0, 64, 50, v));
    for object in &objects {
        put(&storage, object).await;
    }
    pin(&storage, objects[0].seq_hash).await.expect("pins");
    let other = Arc::clone(&storage);
    let paths = objects.each_ref().map(|object| storage.store().layout().path(&Key::Tombstone(key(object))));
    let survivor = usize::from(objects[1].object_digest < objects[0].object_digest);
    let act = move || {
        let (other, path) = (Arc::clone(&other), paths[survivor].clone());
        async move {
            other.store().objects().put(&path, "expired".into()).await.expect("writes");
        }
        .boxed()
    };
    let collector = backend.hooked_replica(once_written("/gc/intent/", act)).await;
    let report = collect(&collector, &at_once()).await;
    assert_eq!((report.duplicates, report.spared), (1, 1), "{report:?}");
    assert_eq!(matched(&backend.replica().await, &tokens).await, 64);
}

/// A collector that knows nothing of intents, or was away for longer than they last.
#[tokio::test]
async fn the_bytes_of_a_pinned_chunk_stay_under_a_collectors_tombstone() {
    let backend = Backend::memory();
    let storage = backend.replica().await;
    let root = prepare(&storage).await;
    let tokens = chunks::tokens(146, 64);
    let chunk = chunks::chunk(root, &tokens, 0, 64, 50);
    put(&storage, &chunk).await;
    pin(&storage, chunk.seq_hash).await.expect("pins");
    let tombstone = storage.store().layout().path(&Key::Tombstone(key(&chunk)));
    for reason in ["expired", "evicted", "contained", "duplicate"] {
        storage.store().objects().put(&tombstone, reason.into()).await.expect("writes");
        let report = collect(&storage, &at_once()).await;
        assert_eq!(report.deleted, 0, "{reason}: {report:?}");
        assert!(storage.reads().read_store(&key(&chunk), ByteRange::Whole).await.is_ok(), "{reason}");
    }
    // A request removes what is pinned, also where the collector was first.
    storage.lifecycle().remove_chunk(&tenant(), &model_id(), &chunk.seq_hash).await.expect("removes");
    assert_eq!(collect(&storage, &at_once()).await.deleted, 1);
    assert_eq!(matched(&backend.replica().await, &tokens).await, 0);
}

/// A wrong bit of a pin's record must not let go of the chunk: it is a record that cannot be read.
#[tokio::test]
async fn a_record_with_a_wrong_bit_pins_all_of_its_tenant() {
    let backend = Backend::memory();
    let storage = backend.replica().await;
    let contexts = expired_chunks(&storage, 154).await;
    let context = pin(&storage, contexts[0].1.seq_hash).await.expect("pins");
    let record = Key::Context { tenant: tenant(), context_id: context.context_id, version: 1 };
    let (objects, path) = (storage.store().objects(), storage.store().layout().path(&record));
    let mut bytes = objects.get(&path).await.expect("is there").bytes().await.expect("reads").to_vec();
    let hash = contexts[0].1.seq_hash.to_string();
    let at = bytes.windows(hash.len()).position(|part| part == hash.as_bytes()).expect("it names the chunk");
    bytes[at] ^= 1;
    objects.put(&path, bytes.into()).await.expect("writes");
    let report = collect(&storage, &all_expired()).await;
    assert_eq!((report.contexts_unreadable, report.expired), (1, 0), "{report:?}");
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

pub(crate) async fn stored_for(storage: &Arc<Storage>, tenant: &Name, tokens: &[u32]) -> Chunk {
    storage.ingest().register_model(tenant, chunks::spec(), None).await.expect("registers");
    let hash = ProfileHash::of(chunks::PROFILE);
    storage
        .ingest()
        .put_profile(tenant, &model_id(), &hash, None, body(chunks::PROFILE))
        .await
        .expect("stores");
    let root = storage.catalog().root(tenant, &name("n"), &model_id()).await.expect("a root");
    let chunk = chunks::chunk(root, tokens, 0, 64, 50);
    let stored = storage
        .ingest()
        .put_chunk(PutChunk::new(tenant, &model_id(), &chunk.seq_hash), body(&chunk.bytes))
        .await;
    stored.expect("stores");
    chunk
}

/// A collector passes between the change of an old pin and its refusal: the version before, which is in force again, is there.
#[tokio::test]
async fn a_pin_outlives_a_change_that_is_refused_after_a_pass() {
    let backend = Backend::file();
    let storage = backend.replica().await;
    let contexts = expired_chunks(&storage, 180).await;
    let context_id = pin(&storage, contexts[0].1.seq_hash).await.expect("pins").context_id;
    let version =
        |version| storage.store().layout().path(&Key::Context { tenant: tenant(), context_id, version });
    let file = backend.directory.path().join("store").join(version(1).to_string());
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    std::fs::File::open(file).expect("is there").set_modified(long_ago).expect("is ours");
    let change = ContextChange { pinned: Some(true), ..ContextChange::default() };
    storage.contexts().update(&tenant(), context_id, change).await.expect("changes");
    collect(&storage, &GcPolicy { grace: Duration::from_secs(900), ..at_once() }).await;
    // As a writer does whose change is refused.
    storage.store().objects().delete(&version(2)).await.expect("withdraws");
    assert_eq!(pinned(&storage).await, [contexts[0].1.seq_hash]);
    assert_eq!(collect(&storage, &all_expired()).await.expired, 3, "of four chunks");
}

/// A collector passes while a change to other chunks waits to be refused: what the version before pins stays.
#[tokio::test]
async fn a_change_that_is_refused_lets_go_of_nothing() {
    let backend = Backend::memory();
    let storage = backend.replica().await;
    let contexts = expired_chunks(&storage, 190).await;
    let (first, second) = (contexts[0].1.seq_hash, contexts[1].1.seq_hash);
    let context_id = pin(&storage, first).await.expect("pins").context_id;
    let change = ContextChange { chunks: Some(vec![second]), ..ContextChange::default() };
    storage.contexts().update(&tenant(), context_id, change).await.expect("changes");
    let policy = GcPolicy { grace: Duration::from_secs(900), ..all_expired() };
    assert_eq!(collect(&storage, &policy).await.expired, 2, "of four chunks");
    // As a writer does whose change is refused.
    let record = Key::Context { tenant: tenant(), context_id, version: 2 };
    storage.store().objects().delete(&storage.store().layout().path(&record)).await.expect("withdraws");
    assert_eq!(pinned(&storage).await, [first]);
    assert_eq!(matched(&backend.replica().await, &contexts[0].0).await, 64);
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
        storage
            .lifecycle()
            .collect_garbage(&policy, &WorkShare::WHOLE, |_| {})
            .await
            .expect("one record stops no pass");
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
    let report = collector
        .lifecycle()
        .collect_garbage(&at_once(), &WorkShare::WHOLE, |_| {})
        .await
        .expect("one object stops no pass");
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

/// A full tenant may unpin: it must not fill the store with versions by that.
#[tokio::test]
async fn unpinning_again_writes_no_version() {
    let backend = Backend::memory();
    let storage = backend.replica().await;
    let contexts = expired_chunks(&storage, 470).await;
    let Context { context_id, .. } = pin(&storage, contexts[0].1.seq_hash).await.expect("pins");
    let unpin = ContextChange { pinned: Some(false), ..ContextChange::default() };
    for _ in 0..3 {
        let context = storage.contexts().update(&tenant(), context_id, unpin.clone()).await.expect("unpins");
        assert_eq!((context.version, context.pinned), (2, false));
    }
}
