//! The collector at work: paused between deciding and deleting, twice at once, and each thing it collects.

mod eviction;
mod journal;
mod tails;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, stream::BoxStream};
use kvasir_storage::{
    ByteRange, Lookup, PutChunk, Query, Settings, Storage, WorkShare,
    gc::{GcPolicy, GcReport},
    hot::RequestHint,
    index::Index,
    limits,
};
use kvasir_store::{
    OpenStore, StoreConfig, StoreKind,
    layout::{ChunkKey, Key},
    observe::NoObserver,
};
use kvasir_tests::{
    chunks::{self, Chunk},
    hooked::{Hook, Hooked, HookedStore},
};
use kvasir_types::{Name, ProfileHash, RootHash};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, memory::InMemory, path::Path,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// A store whose next deletion of a chunk object waits until it is told to go on.
#[derive(Debug, Clone)]
struct PausingStore {
    inner: Arc<InMemory>,
    is_armed: Arc<AtomicBool>,
    arrived: Arc<Notify>,
    go_on: Arc<Notify>,
}

impl PausingStore {
    fn new(inner: Arc<InMemory>) -> Self {
        Self { inner, is_armed: Arc::default(), arrived: Arc::default(), go_on: Arc::default() }
    }
}

impl fmt::Display for PausingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PausingStore")
    }
}

#[async_trait]
impl ObjectStore for PausingStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(location, payload, opts).await
    }
    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(location, options).await
    }
    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        let paused = locations.then(move |location| {
            let this = this.clone();
            async move {
                let is_chunk = location.as_ref().is_ok_and(|l: &Path| l.as_ref().ends_with(".kvc"));
                if is_chunk && this.is_armed.swap(false, Ordering::SeqCst) {
                    this.arrived.notify_one();
                    this.go_on.notified().await;
                }
                location
            }
        });
        self.inner.delete_stream(paused.boxed())
    }
    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }
    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }
    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

fn tenant() -> Name {
    "default".parse().expect("a name")
}

fn storage_over(store: impl ObjectStore, change: impl FnOnce(&mut Settings)) -> Arc<Storage> {
    let config = StoreConfig::new("memory://".parse().expect("a url"));
    let store = OpenStore::with(store, &Path::default(), StoreKind::Memory, &config, Arc::new(NoObserver));
    let mut settings = Settings::new(std::env::temp_dir().join("kvasir-collector-spool"));
    change(&mut settings);
    let abilities = kvasir_store::StoreAbilities { conditional_create: true };
    Storage::new(store, abilities, Index::memory(), settings, None)
}

async fn prepare(storage: &Arc<Storage>) -> RootHash {
    storage.ingest().register_model(&tenant(), chunks::spec(), None).await.expect("registers");
    let (model_id, hash) = (chunks::spec().model_id(), ProfileHash::of(chunks::PROFILE));
    storage
        .ingest()
        .put_profile(&tenant(), &model_id, &hash, None, body(chunks::PROFILE))
        .await
        .expect("stores");
    storage.catalog().root(&tenant(), &"n".parse().expect("a name"), &model_id).await.expect("a root")
}

fn body(bytes: &[u8]) -> impl futures::Stream<Item = Result<Bytes, std::io::Error>> + Send + use<> {
    futures::stream::iter([Ok(Bytes::copy_from_slice(bytes))])
}

async fn put(storage: &Arc<Storage>, chunk: &Chunk) -> ChunkKey {
    let model_id = chunks::spec().model_id();
    let stored = storage
        .ingest()
        .put_chunk(PutChunk::new(&tenant(), &model_id, &chunk.seq_hash), body(&chunk.bytes))
        .await;
    let object_digest = stored.expect("stores").object_digest;
    ChunkKey { tenant: tenant(), model_id, seq_hash: chunk.seq_hash, object_digest }
}

async fn matched(storage: &Arc<Storage>, tokens: &[u32]) -> u64 {
    let query = Query::Tokens(tokens.to_vec());
    let namespace = "n".parse().expect("a name");
    let found = storage
        .lookup(&Lookup::new(&tenant(), &namespace, &chunks::spec().model_id(), query).fresh(true))
        .await;
    found.expect("answers").matched_tokens
}

async fn whole(storage: &Arc<Storage>, key: &ChunkKey) -> Vec<u8> {
    let read = storage.reads().read(key, ByteRange::Whole, &RequestHint::default()).await.expect("is there");
    read.bytes.try_collect::<Vec<Bytes>>().await.expect("reads").concat()
}

fn at_once() -> GcPolicy {
    GcPolicy { grace: Duration::ZERO, actions_per_second: 0, ..GcPolicy::default() }
}

async fn collect(storage: &Storage, policy: &GcPolicy) -> GcReport {
    storage.lifecycle().collect_garbage(policy, &WorkShare::WHOLE, |_| {}).await.expect("collects")
}

#[tokio::test]
async fn a_collector_paused_before_its_deletion_wakes_up_and_harms_nothing() {
    let truth = Arc::new(InMemory::new());
    let pausing = PausingStore::new(Arc::clone(&truth));
    let sleeper = storage_over(pausing.clone(), |_| {});
    let other = storage_over(PausingStore::new(truth), |_| {});
    let root = prepare(&other).await;
    let tokens = chunks::tokens(1, 600);
    let chunk = chunks::chunk(root, &tokens, 0, 600, 500);
    let doomed = put(&other, &chunk).await;
    other.lifecycle().remove(&doomed).await.expect("removes");
    pausing.is_armed.store(true, Ordering::SeqCst);
    let asleep = {
        let sleeper = Arc::clone(&sleeper);
        tokio::spawn(async move { collect(&sleeper, &at_once()).await })
    };
    // It has decided, and stands before its deletion.
    pausing.arrived.notified().await;
    // Meanwhile another collector deletes, the chunk is stored again and read, and collected once more.
    assert_eq!(collect(&other, &at_once()).await.deleted, 1);
    let again = put(&other, &chunk).await;
    assert_ne!(again, doomed, "a name with a tombstone is not used again");
    collect(&other, &at_once()).await;
    // It wakes up.
    pausing.go_on.notify_one();
    assert_eq!(asleep.await.expect("no panic").deleted, 1);
    assert_eq!(matched(&other, &tokens).await, 600);
    assert_eq!(whole(&other, &again).await.len(), chunk.bytes.len());
    // One that slept for longer than tombstones live knows nothing any more, and deletes nothing.
    other.lifecycle().remove(&again).await.expect("removes");
    let forgotten = GcPolicy { tombstone_retention: Duration::ZERO, ..at_once() };
    assert_eq!(collect(&sleeper, &forgotten).await.deleted, 0);
}

#[tokio::test]
async fn many_collectors_at_once_are_as_one() {
    let truth = Arc::new(InMemory::new());
    let storages: Vec<_> =
        (0..4).map(|_| storage_over(PausingStore::new(Arc::clone(&truth)), |_| {})).collect();
    let root = prepare(&storages[0]).await;
    let tokens = chunks::tokens(2, 512);
    let objects: Vec<_> = (0..4).map(|v| chunks::variant(root, &tokens, 0, 512, 60, v * 8)).collect();
    for (storage, object) in storages.iter().zip(&objects) {
        put(storage, object).await;
    }
    let policy = at_once();
    for _ in 0..3 {
        futures::future::join_all(storages.iter().map(|storage| collect(storage, &policy))).await;
    }
    assert_eq!(matched(&storages[3], &tokens).await, 512);
    let fresh = storage_over(PausingStore::new(truth), |_| {});
    assert_eq!(matched(&fresh, &tokens).await, 512, "exactly one of the duplicates is left");
}

#[tokio::test]
async fn an_objects_status_counts_its_uses_where_they_matter() {
    for track_uses in [false, true] {
        let storage = storage_over(InMemory::new(), |settings| settings.track_uses = track_uses);
        let root = prepare(&storage).await;
        let tokens = chunks::tokens(1, 256);
        let chunk = chunks::chunk(root, &tokens, 0, 256, 2_000);
        let key = put(&storage, &chunk).await;
        let status = async || storage.reads().status(&key).await.expect("it is stored");
        let first = status().await;
        assert!(first.stored_at_ms > 1_700_000_000_000 && first.last_use.is_none(), "{first:?}");
        assert_eq!(matched(&storage, &tokens).await, 256);
        storage.reads().read(&key, ByteRange::Whole, &RequestHint::default()).await.expect("reads");
        status().await;
        let uses = status().await.last_use.map(|(_, uses)| uses);
        assert_eq!(uses, track_uses.then_some(2), "a lookup and a read; asking is none");
    }
}

/// A store whose requests take a moment, and the number of those under way: now, and at most. It refuses to delete one
/// object.
fn slow(truth: &Arc<InMemory>, refused: Option<Path>) -> (HookedStore, Arc<[AtomicUsize; 2]>) {
    let under_way = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let counted = Arc::clone(&under_way);
    let hook: Hook = Arc::new(move |request: Hooked, path: Path| {
        let (counted, refused) = (Arc::clone(&counted), refused.clone());
        async move {
            // The end of a request: of a write, whose beginning was counted, or of a listing.
            if matches!(request, Hooked::Written | Hooked::Listed) {
                return Ok(());
            }
            let [now, most] = &*counted;
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(10)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            if request == Hooked::Deleting && refused.is_some_and(|refused| refused == path) {
                let source = "not this one".into();
                return Err(object_store::Error::PermissionDenied { path: path.to_string(), source });
            }
            Ok(())
        }
        .boxed()
    });
    (HookedStore::new(Arc::clone(truth) as _, hook), under_way)
}

/// Objects of chunks that nobody reads, with or without a tombstone.
async fn put_bare(storage: &Storage, count: u8, with_tombstones: bool) -> Vec<ChunkKey> {
    let model_id = chunks::spec().model_id();
    let key = |n: u8| ChunkKey {
        tenant: tenant(),
        model_id,
        seq_hash: [n; 32].into(),
        object_digest: [n; 32].into(),
    };
    let keys: Vec<ChunkKey> = (0..count).map(key).collect();
    for key in &keys {
        let mut files = vec![(Key::Chunk(key.clone()), "bytes")];
        if with_tombstones {
            files.push((Key::Tombstone(key.clone()), "removed"));
        }
        for (file, content) in files {
            let path = storage.store().layout().path(&file);
            storage.store().objects().put(&path, content.into()).await.expect("writes");
        }
    }
    keys
}

/// How many of these objects are left, of their tombstones, and of the notes that they are gone.
async fn left(storage: &Storage, keys: &[ChunkKey]) -> [usize; 3] {
    let mut left = [0; 3];
    for key in keys {
        let files = [Key::Chunk(key.clone()), Key::Tombstone(key.clone()), Key::Gone(key.clone())];
        for (count, file) in left.iter_mut().zip(files) {
            let path = storage.store().layout().path(&file);
            *count += usize::from(storage.store().objects().head(&path).await.is_ok());
        }
    }
    left
}

#[tokio::test(start_paused = true)]
async fn a_pass_collects_many_objects_at_once_and_no_more_than_its_limit() {
    let (store, under_way) = slow(&Arc::new(InMemory::new()), None);
    let storage = storage_over(store, |_| {});
    let keys = put_bare(&storage, 200, false).await;
    let is_parallel = || (2..=limits::GC_PARALLEL).contains(&under_way[1].swap(0, Ordering::SeqCst));
    let expired = GcPolicy { ttl: Some(Duration::ZERO), ..at_once() };
    under_way[1].store(0, Ordering::SeqCst);
    let first = collect(&storage, &expired).await;
    assert!(is_parallel(), "tombstones are looked for and written");
    let second = collect(&storage, &at_once()).await;
    assert!(is_parallel(), "objects are deleted");
    assert_eq!((first.expired, first.deleted + second.deleted), (200, 200));
    assert_eq!(left(&storage, &keys).await, [0, 200, 200]);
}

/// A store that counts the reads of chunk objects.
fn counted(truth: &Arc<InMemory>) -> (HookedStore, Arc<AtomicUsize>) {
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reads);
    let hook: Hook = Arc::new(move |request: Hooked, path: Path| {
        let is_read = request == Hooked::Reading && path.as_ref().ends_with(".kvc");
        counted.fetch_add(usize::from(is_read), Ordering::SeqCst);
        futures::future::ready(Ok(())).boxed()
    });
    (HookedStore::new(Arc::clone(truth) as _, hook), reads)
}

/// Each pass of an owner would ask for each tombstone of the last day. What a slow writer stores under one goes all the same.
#[tokio::test]
async fn a_kept_tombstone_costs_a_request_only_where_its_object_is_listed() {
    let members: Vec<_> = (0..2).map(|n| (format!("http://r{n}:7480"), 1.0)).collect();
    let divided = [0, 1].map(|this| WorkShare::of(members.clone(), this, false));
    for shares in [vec![WorkShare::WHOLE], divided.to_vec()] {
        let (store, reads) = counted(&Arc::new(InMemory::new()));
        let storage = storage_over(store, |_| {});
        let keys = put_bare(&storage, 100, true).await;
        // Passes of all members: what they deleted, and how often they read chunk objects.
        let passes = async || {
            reads.store(0, Ordering::SeqCst);
            let mut deleted = 0;
            for share in &shares {
                let passed = storage.lifecycle().collect_garbage(&at_once(), share, |_| {}).await;
                deleted += passed.expect("collects").deleted;
            }
            (deleted, reads.load(Ordering::SeqCst))
        };
        assert_eq!(passes().await, (100, 100));
        assert_eq!(passes().await, (0, 0), "all have notes");
        let [noted, unnoted] = [&keys[7], &keys[8]];
        let note = storage.store().layout().path(&Key::Gone(unnoted.clone()));
        storage.store().objects().delete(&note).await.expect("deletes");
        assert_eq!(passes().await, (0, 0), "one has no note");
        for key in [noted, unnoted] {
            let path = storage.store().layout().path(&Key::Chunk(key.clone()));
            storage.store().objects().put(&path, "late".into()).await.expect("writes");
        }
        assert_eq!(passes().await, (2, 2));
        assert_eq!(left(&storage, &keys).await, [0, 100, 100]);
        assert_eq!(passes().await, (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_deleted_ends_the_pass_and_costs_others_nothing() {
    let truth = Arc::new(InMemory::new());
    let healthy = storage_over(slow(&truth, None).0, |_| {});
    let keys = put_bare(&healthy, 20, true).await;
    let refused = healthy.store().layout().path(&Key::Chunk(keys[4].clone()));
    let storage = storage_over(slow(&truth, Some(refused)).0, |_| {});
    let stopped = storage.lifecycle().collect_garbage(&at_once(), &WorkShare::WHOLE, |_| {}).await;
    assert!(stopped.is_err(), "{stopped:?}");
    assert_eq!(left(&healthy, &keys).await, [1, 20, 19], "deleted ones have their notes");
    assert_eq!(collect(&healthy, &at_once()).await.deleted, 1);
    assert_eq!(left(&healthy, &keys).await, [0, 20, 20]);
}

/// Without its note a tombstone would stay for another retention. The store refuses one write: of an intent, or of a note.
#[tokio::test]
async fn what_a_pass_has_deleted_is_noted_whatever_ends_the_pass() {
    for (name, expected) in [("/gc/intent/", [1, 20, 20]), (".gone", [1, 21, 20])] {
        let is_refused = AtomicBool::new(false);
        let hook: Hook = Arc::new(move |request: Hooked, path: Path| {
            let is_one = request == Hooked::Writing && path.as_ref().contains(name);
            let source = "not this one".into();
            let error = object_store::Error::PermissionDenied { path: path.to_string(), source };
            let refuses = is_one && !is_refused.swap(true, Ordering::SeqCst);
            futures::future::ready(if refuses { Err(error) } else { Ok(()) }).boxed()
        });
        let storage = storage_over(HookedStore::new(Arc::new(InMemory::new()), hook), |_| {});
        let keys = put_bare(&storage, 21, true).await;
        // One expires instead.
        let unmarked = storage.store().layout().path(&Key::Tombstone(keys[20].clone()));
        storage.store().objects().delete(&unmarked).await.expect("deletes");
        let policy = GcPolicy { ttl: Some(Duration::ZERO), ..at_once() };
        let stopped = storage.lifecycle().collect_garbage(&policy, &WorkShare::WHOLE, |_| {}).await;
        assert!(stopped.is_err(), "{stopped:?}");
        assert_eq!(left(&storage, &keys).await, expected, "{name}");
    }
}

/// The rate is one for all objects under way together.
#[tokio::test(start_paused = true)]
async fn a_pass_with_many_objects_under_way_keeps_to_its_rate() {
    let storage = storage_over(slow(&Arc::new(InMemory::new()), None).0, |_| {});
    let keys = put_bare(&storage, 50, true).await;
    let begun = tokio::time::Instant::now();
    let policy = GcPolicy { actions_per_second: 5, ..at_once() };
    assert_eq!(collect(&storage, &policy).await.deleted, 50);
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(10), "50 deletions at 5 a second in {took:?} of the simulated clock");
    assert_eq!(left(&storage, &keys).await, [0, 50, 50]);
}
