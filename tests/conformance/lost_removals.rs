//! Removals that a replica could not read, announce or remember, and tombstones that a slow collector meets late.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::{FutureExt, TryStreamExt};
use kvasir_storage::{
    ByteRange, ChunkError, JournalReading, Settings, Storage, WorkShare, gc::GcPolicy, index::Index,
};
use kvasir_store::{
    OpenStore, StoreKind,
    layout::{ChunkKey, JournalLog, Key},
    observe::NoObserver,
    seal::{FileKeys, KeyBytes, KeyService, KeyServiceError},
};
use kvasir_tests::{
    chunks,
    faulty::FaultyStore,
    hooked::{Hook, Hooked},
};
use kvasir_types::Name;
use object_store::{ObjectStoreExt, path::Path};

use crate::{
    Backend,
    backup::{KEYS, OTHER_KEYS},
    removal::offered,
    replicas::{at_once, collect, put_any},
    storage_core::{key, matched, prepare, put, read},
};

/// A key service that may not answer.
#[derive(Debug)]
struct Interrupted {
    keys: FileKeys,
    answers: AtomicBool,
}

impl Interrupted {
    fn new(keys: &str, answers: bool) -> Arc<Self> {
        Arc::new(Self { keys: FileKeys::parse(keys).expect("keys"), answers: answers.into() })
    }

    fn answer(&self, tenant: &Name, id: &Name) -> Result<(), KeyServiceError> {
        let unknown = || KeyServiceError::Unknown { tenant: tenant.clone(), id: id.clone() };
        self.answers.load(Ordering::Relaxed).then_some(()).ok_or_else(unknown)
    }
}

#[async_trait]
impl KeyService for Interrupted {
    fn current(&self, tenant: &Name) -> Option<Name> {
        self.keys.current(tenant)
    }

    async fn wrap(
        &self,
        tenant: &Name,
        id: &Name,
        key: &[u8; 32],
        context: &[u8],
    ) -> Result<Vec<u8>, KeyServiceError> {
        self.answer(tenant, id)?;
        self.keys.wrap(tenant, id, key, context).await
    }

    async fn unwrap(
        &self,
        tenant: &Name,
        id: &Name,
        wrapped: &[u8],
        context: &[u8],
    ) -> Result<KeyBytes, KeyServiceError> {
        self.answer(tenant, id)?;
        self.keys.unwrap(tenant, id, wrapped, context).await
    }
}

/// A process of a replica with an index on disk.
async fn sealed_replica(backend: &Backend, service: &Arc<Interrupted>) -> Arc<Storage> {
    let store = backend.open().sealed(Arc::clone(service) as Arc<dyn KeyService>);
    let abilities = store.probe().await.expect("answers");
    let index = Index::sled(backend.directory.path().join("index"), [7; 32], 1 << 20).expect("opens");
    Storage::new(store, abilities, index, Settings::new(backend.directory.path().join("spool")), None)
}

async fn tail(storage: &Storage) {
    storage.changes().journal_tail(JournalReading::Rows).await.expect("reads");
}

/// The key service does not answer while a removal arrives: when it answers again, the chunk is not offered from rows that this
/// replica had before.
#[tokio::test]
async fn a_removal_that_does_not_open_brings_nothing_back() {
    let backend = Backend::memory();
    let service = Interrupted::new(KEYS, true);
    let writer = backend.replica_over(backend.open().sealed(Arc::clone(&service) as _), |_| {}).await;
    let root = prepare(&writer).await;
    let tokens = [124, 125].map(|seed| chunks::tokens(seed, 64));
    let [removed, kept] = [0, 1].map(|i| chunks::chunk(root, &tokens[i], 0, 64, 50));
    put(&writer, &removed).await;
    put(&writer, &kept).await;
    writer.changes().journal_append().await.expect("appends");
    let before = sealed_replica(&backend, &service).await;
    tail(&before).await;
    assert_eq!(offered(&before, &tokens[0]).await, 64);
    before.index().flush();
    drop(before);
    let interrupted = Interrupted::new(KEYS, false);
    let reader = sealed_replica(&backend, &interrupted).await;
    assert_eq!(reader.index().len(), 2);
    writer.lifecycle().remove(&key(&removed)).await.expect("removes");
    tail(&reader).await;
    assert_eq!((reader.index().len(), reader.changes().journal_skipped()), (0, 1));
    interrupted.answers.store(true, Ordering::Relaxed);
    tail(&reader).await;
    assert_eq!((offered(&reader, &tokens[0]).await, offered(&reader, &tokens[1]).await), (0, 64));
    let served = read(&reader, &removed, ByteRange::Whole).await;
    assert!(matches!(served, Err(ChunkError::Unknown { .. })), "{served:?}");
}

/// A machine that was suspended has the store's time of long ago, where replicas that have read all removals do not look again.
#[tokio::test(start_paused = true)]
async fn removals_of_a_replica_whose_clock_stood_still_are_heard() {
    const BEHIND_MS: i64 = 2 * 60 * 60 * 1000;
    let (backend, truth) = (Backend::memory(), FaultyStore::new(1, 0, false));
    let replica = async |behind_ms: i64| {
        let (store, life) = truth.for_replica();
        life.set_clock_error_ms(-behind_ms);
        let (root, kind) = (Path::default(), StoreKind::Memory);
        let open = OpenStore::with(store, &root, kind, &backend.config, Arc::new(NoObserver));
        backend.replica_over(open, |_| {}).await
    };
    let (writer, reader) = (replica(BEHIND_MS).await, replica(0).await);
    let root = prepare(&writer).await;
    let tokens = chunks::tokens(126, 64);
    let chunk = chunks::chunk(root, &tokens, 0, 64, 50);
    put(&writer, &chunk).await;
    let hear = async || reader.changes().journal_tail(JournalReading::Removals).await.expect("reads");
    hear().await;
    assert_eq!(offered(&reader, &tokens).await, 64);
    writer.lifecycle().remove(&key(&chunk)).await.expect("removes");
    hear().await;
    assert_eq!(offered(&reader, &tokens).await, 0);
}

/// A tail that fails behind a batch that was read ahead, and does not open, has not applied it: the next one empties the index.
#[tokio::test]
async fn what_was_only_read_ahead_counts_again() {
    let backend = Backend::memory();
    let service = Interrupted::new(KEYS, true);
    let writer = backend.replica_over(backend.open().sealed(Arc::clone(&service) as _), |_| {}).await;
    let root = prepare(&writer).await;
    let chunks = [126, 127].map(|seed| chunks::chunk(root, &chunks::tokens(seed, 64), 0, 64, 50));
    for chunk in &chunks {
        put(&writer, chunk).await;
    }
    let removals = writer.store().layout().log_prefix(JournalLog::Removed);
    let reads = Arc::new(AtomicUsize::new(0));
    let hook: Hook = Arc::new(move |request, path| {
        let is_batch = request == Hooked::Reading && path.prefix_matches(&removals);
        let is_first = is_batch && reads.fetch_add(1, Ordering::Relaxed) == 0;
        let reads = Arc::clone(&reads);
        async move {
            if !is_first {
                return Ok(());
            }
            while reads.load(Ordering::Relaxed) < 2 {
                tokio::task::yield_now().await;
            }
            // The second batch is opened meanwhile.
            tokio::time::sleep(Duration::from_millis(300)).await;
            let source = "no answer".into();
            Err(object_store::Error::PermissionDenied { path: path.to_string(), source })
        }
        .boxed()
    });
    let open = backend.open_hooked(hook).sealed(Interrupted::new(KEYS, false));
    let reader = backend.replica_over(open, |_| {}).await;
    tail(&reader).await;
    for chunk in &chunks {
        writer.lifecycle().remove(&key(chunk)).await.expect("removes");
    }
    let before = reader.index().emptied();
    assert!(reader.changes().journal_tail(JournalReading::Rows).await.is_err());
    assert_eq!(reader.index().emptied(), before);
    tail(&reader).await;
    assert_eq!(reader.index().emptied(), before + 1);
}

/// Damaged batches of two replicas empty the index once each, and not with every tail until they are deleted.
#[tokio::test]
async fn damaged_batches_empty_the_index_once_each() {
    let backend = Backend::memory();
    let reader = backend.replica().await;
    let root = prepare(&reader).await;
    for seed in 0..2 {
        let writer = backend.replica().await;
        let chunk = chunks::chunk(root, &chunks::tokens(seed, 64), 0, 64, 50);
        put(&writer, &chunk).await;
        writer.lifecycle().remove(&key(&chunk)).await.expect("removes");
    }
    let (objects, layout) = (reader.store().objects(), reader.store().layout());
    let batches: Vec<_> =
        objects.list(Some(&layout.log_prefix(JournalLog::Removed))).try_collect().await.expect("lists");
    assert_eq!(batches.len(), 2);
    for batch in batches {
        objects.put(&batch.location, "nothing of the kind".into()).await.expect("writes");
    }
    let mut emptied = Vec::new();
    for _ in 0..5 {
        tail(&reader).await;
        emptied.push(reader.index().emptied());
    }
    assert_eq!(emptied[1..], [emptied[1]; 4], "{emptied:?}");
}

/// The index is emptied for the first batch of a tenant that does not open, not for each.
#[tokio::test]
async fn an_index_is_emptied_once_for_a_key_that_is_not_available() {
    let backend = Backend::memory();
    let service = Interrupted::new(KEYS, true);
    let writer = backend.replica_over(backend.open().sealed(Arc::clone(&service) as _), |_| {}).await;
    let root = prepare(&writer).await;
    let reader = sealed_replica(&backend, &Interrupted::new(&format!("{KEYS}{OTHER_KEYS}"), false)).await;
    let without =
        backend.replica_over(backend.open().sealed(Interrupted::new(OTHER_KEYS, true)), |_| {}).await;
    // A new index is emptied once.
    tail(&reader).await;
    tail(&without).await;
    for seed in 0..3 {
        let chunk = chunks::chunk(root, &chunks::tokens(seed, 64), 0, 64, 50);
        put(&writer, &chunk).await;
        writer.lifecycle().remove(&key(&chunk)).await.expect("removes");
        let before = [&reader, &without].map(|replica| replica.index().emptied());
        tail(&reader).await;
        tail(&without).await;
        let emptied = [&reader, &without].map(|replica| replica.index().emptied());
        assert_eq!(emptied, [before[0] + u64::from(seed == 0), before[1]], "batch {seed}");
    }
}

/// A collector without a tenant's key deletes bytes. It neither announces that, as nobody would read it, nor notes that it did:
/// one with the key does both.
#[tokio::test]
async fn what_is_gone_is_announced_by_who_has_the_key() {
    let backend = Backend::memory();
    let service = Interrupted::new(KEYS, true);
    let sealed = || backend.open().sealed(Arc::clone(&service) as _);
    let (storage, reader) =
        (backend.replica_over(sealed(), |_| {}).await, backend.replica_over(sealed(), |_| {}).await);
    let root = prepare(&storage).await;
    let tokens = chunks::tokens(128, 64);
    let chunk = chunks::chunk(root, &tokens, 0, 64, 50);
    put(&storage, &chunk).await;
    storage.changes().journal_append().await.expect("appends");
    tail(&reader).await;
    let old = GcPolicy { ttl: Some(Duration::ZERO), ..at_once() };
    assert_eq!(collect(&*backend.replica_over(sealed(), |_| {}).await, &old).await.expired, 1);
    let other = backend.open().sealed(Interrupted::new(OTHER_KEYS, true));
    let other = backend.replica_over(other, |_| {}).await;
    assert_eq!(collect(&other, &at_once()).await.deleted, 1);
    let note = storage.store().layout().path(&Key::Gone(key(&chunk)));
    assert!(storage.store().objects().head(&note).await.is_err(), "nobody has heard");
    let retention = Duration::from_secs(1);
    tokio::time::sleep(retention + Duration::from_millis(100)).await;
    collect(&storage, &GcPolicy { tombstone_retention: retention, ..at_once() }).await;
    storage.store().objects().head(&note).await.expect("is noted");
    tail(&reader).await;
    assert_eq!(offered(&reader, &tokens).await, 0, "its bytes are gone");
}

/// A collector is late: the journal and the index have forgotten a removal, and the bytes are there.
#[tokio::test]
async fn a_removal_longer_ago_than_it_is_remembered_is_kept() {
    let backend = Backend::memory();
    let kept = Duration::from_secs(1);
    let briefly = |settings: &mut Settings| settings.removals_kept = kept;
    let storage = backend.replica_with(briefly).await;
    let root = prepare(&storage).await;
    let tokens = chunks::tokens(129, 64);
    let chunk = chunks::chunk(root, &tokens, 0, 64, 50);
    put(&storage, &chunk).await;
    storage.lifecycle().remove(&key(&chunk)).await.expect("removes");
    tokio::time::sleep(kept + Duration::from_millis(1_100)).await;
    let objects = storage.store().objects();
    let removals = storage.store().layout().log_prefix(JournalLog::Removed);
    for batch in objects.list(Some(&removals)).try_collect::<Vec<_>>().await.expect("lists") {
        objects.delete(&batch.location).await.expect("deletes");
    }
    assert!(storage.changes().expire_removals() > 0);
    for replica in [&storage, &backend.replica_with(briefly).await, &backend.replica_with(briefly).await] {
        for range in [ByteRange::From(8), ByteRange::Whole] {
            let served = read(replica, &chunk, range).await;
            assert!(matches!(served, Err(ChunkError::Unknown { .. })), "{range:?}: {served:?}");
        }
        let row = replica.reads().row(&key(&chunk)).await;
        assert!(matches!(row, Err(ChunkError::Unknown { .. })), "{row:?}");
        assert_eq!(matched(replica, &tokens).await, 0);
    }
}

/// A pass is slow: before it looks for the bytes of a tombstone that it listed, for the note of their end, or for the tombstone
/// itself, another one has ended the retention, and the name is in use again, or removed again.
#[tokio::test]
async fn a_slow_pass_spares_a_name_that_is_in_use_again() {
    spares_a_name_in_use(Key::Chunk, false).await;
    spares_a_name_in_use(Key::Gone, false).await;
    spares_a_name_in_use(Key::Tombstone, true).await;
}

async fn spares_a_name_in_use(read_late: fn(ChunkKey) -> Key, removed_again: bool) {
    let backend = Backend::memory();
    let storage = backend.replica().await;
    let root = prepare(&storage).await;
    let chunk = chunks::chunk(root, &chunks::tokens(127, 64), 0, 64, 50);
    put(&storage, &chunk).await;
    storage.lifecycle().remove(&key(&chunk)).await.expect("removes");
    assert_eq!(collect(&storage, &at_once()).await.deleted, 1);
    let retention = Duration::from_secs(2);
    let end = GcPolicy { tombstone_retention: retention, ..at_once() };
    tokio::time::sleep(retention + Duration::from_millis(1_500)).await;
    let path = storage.store().layout().path(&read_late(key(&chunk)));
    let (is_first, other, again, policy) =
        (Arc::new(AtomicBool::new(true)), Arc::clone(&storage), chunk.clone(), end.clone());
    let hook: Hook = Arc::new(move |request, read| {
        let meanwhile = request == Hooked::Reading && read == path && is_first.swap(false, Ordering::Relaxed);
        let (other, again, policy) = (Arc::clone(&other), again.clone(), policy.clone());
        async move {
            if meanwhile {
                let report = other
                    .lifecycle()
                    .collect_garbage(&policy, &WorkShare::WHOLE, |_| {})
                    .await
                    .expect("collects");
                assert_eq!(report.tombstones_deleted, 1, "{report:?}");
                assert_eq!(
                    put_any(&other, &again).await.object_digest,
                    again.object_digest,
                    "the name is free"
                );
                if removed_again {
                    other.lifecycle().remove(&key(&again)).await.expect("removes");
                }
            }
            Ok(())
        }
        .boxed()
    });
    let slow = backend.hooked_replica(hook).await;
    let report = slow.lifecycle().collect_garbage(&end, &WorkShare::WHOLE, |_| {}).await.expect("collects");
    assert_eq!((report.deleted, report.tombstones_deleted), (0, 0), "{report:?}");
    if removed_again {
        let tombstone = storage.store().layout().path(&Key::Tombstone(key(&chunk)));
        storage.store().objects().head(&tombstone).await.expect("stays");
        return;
    }
    assert_eq!(read(&storage, &chunk, ByteRange::Whole).await.expect("stays"), chunk.bytes);
}
