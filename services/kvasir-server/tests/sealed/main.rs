//! Sealed tenants over a store that loses, damages and forges objects: replicas share the store, nothing else.

mod announced;
mod move_over;
mod opaque;

use std::{collections::HashSet, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::TryStreamExt;
use kvasir_api::ContextRequest;
use kvasir_storage::{
    ByteRange, CatalogError, ChunkError, JournalReading, Lookup, PutChunk, PutError, Query, Settings,
    Storage, WorkShare, gc::GcPolicy, hot::RequestHint, index::Index,
};
use kvasir_store::{
    OpenStore, StoreAbilities, StoreConfig, StoreError, StoreKind,
    layout::{ChunkKey, Key},
    observe::NoObserver,
    seal::FileKeys,
};
use kvasir_tests::chunks::{self, Chunk};
use kvasir_types::{ChainLink, Name, ObjectDigest, ProfileHash, RootHash, TokenChain};
use object_store::{ObjectStore, ObjectStoreExt, memory::InMemory, path::Path};

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn keys(id: &str) -> FileKeys {
    let key = "5".repeat(64);
    FileKeys::parse(&format!("[[key]]\ntenant = \"default\"\nid = \"{id}\"\nkey = \"{key}\"\n"))
        .expect("keys")
}

fn replica_with(truth: &Arc<InMemory>, keys: FileKeys) -> Arc<Storage> {
    storage(truth, |store| store.sealed(Arc::new(keys)))
}

fn storage(truth: &Arc<InMemory>, with: impl FnOnce(OpenStore) -> OpenStore) -> Arc<Storage> {
    let config = StoreConfig::new("memory://".parse().expect("a url"));
    let truth: Arc<dyn ObjectStore> = Arc::clone(truth) as _;
    let store = OpenStore::with(truth, &Path::default(), StoreKind::Memory, &config, Arc::new(NoObserver));
    let settings = Settings::new(std::env::temp_dir().join("kvasir-sealed-spool"));
    let abilities = StoreAbilities { conditional_create: true };
    Storage::new(with(store), abilities, Index::memory(), settings, None)
}

/// A replica without any keys.
fn keyless(truth: &Arc<InMemory>) -> Arc<Storage> {
    storage(truth, |store| store)
}

/// A replica that has read nothing yet.
fn replica(truth: &Arc<InMemory>) -> Arc<Storage> {
    replica_with(truth, keys("one"))
}

fn body(bytes: &[u8]) -> impl futures::Stream<Item = Result<Bytes, std::io::Error>> + Send + use<> {
    futures::stream::iter([Ok(Bytes::copy_from_slice(bytes))])
}

async fn prepare(storage: &Arc<Storage>) -> RootHash {
    storage.ingest().register_model(&name("default"), chunks::spec(), None).await.expect("registers");
    let (model_id, hash) = (chunks::spec().model_id(), ProfileHash::of(chunks::PROFILE));
    storage
        .ingest()
        .put_profile(&name("default"), &model_id, &hash, None, body(chunks::PROFILE))
        .await
        .expect("stores");
    storage.catalog().root(&name("default"), &name("n"), &model_id).await.expect("a root")
}

async fn put(storage: &Arc<Storage>, chunk: &Chunk) -> ChunkKey {
    let (tenant, model_id) = (name("default"), chunks::spec().model_id());
    let stored = storage
        .ingest()
        .put_chunk(PutChunk::new(&tenant, &model_id, &chunk.seq_hash), body(&chunk.bytes))
        .await;
    let object_digest = stored.expect("stores").object_digest;
    ChunkKey { tenant, model_id, seq_hash: chunk.seq_hash, object_digest }
}

async fn lookup(storage: &Arc<Storage>, seed: u64, count: usize) -> Result<u64, CatalogError> {
    let query = Query::Tokens(chunks::tokens(seed, count));
    let found = storage
        .lookup(&Lookup::new(&name("default"), &name("n"), &chunks::spec().model_id(), query).fresh(true))
        .await;
    found.map(|found| found.matched_tokens)
}

async fn whole(storage: &Arc<Storage>, key: &ChunkKey) -> Result<Vec<u8>, ChunkError> {
    let parts: Vec<Bytes> = storage
        .reads()
        .read(key, ByteRange::Whole, &RequestHint::default())
        .await?
        .bytes
        .try_collect()
        .await?;
    Ok(parts.concat())
}

/// Where the two forms of an object lie in the store.
fn places(storage: &Storage, key: &ChunkKey) -> (Path, Path) {
    let plain = storage.store().layout().path(&Key::Chunk(key.clone()));
    let sealed = Path::from(plain.as_ref().replace(".kvc", ".kvs"));
    (plain, sealed)
}

async fn raw(truth: &InMemory, place: &Path) -> Vec<u8> {
    truth.get(place).await.expect("is there").bytes().await.expect("reads").to_vec()
}

#[tokio::test]
async fn plain_objects_of_a_sealed_tenant_are_collected_and_take_nothing_with_them() {
    let truth = Arc::new(InMemory::new());
    let storage = replica(&truth);
    let root = prepare(&storage).await;
    let sealed = chunks::chunk(root, &chunks::tokens(1, 256), 0, 256, 500);
    let both = put(&storage, &sealed).await;
    let left = ChunkKey { seq_hash: [7; 32].into(), object_digest: [7; 32].into(), ..both.clone() };
    for key in [&both, &left] {
        truth.put(&places(&storage, key).0, sealed.bytes.clone().into()).await.expect("puts");
    }
    // The two forms are one object, not two of one chunk.
    let at_once = GcPolicy { grace: Duration::ZERO, actions_per_second: 0, ..GcPolicy::default() };
    for _ in 0..2 {
        let report =
            storage.lifecycle().collect_garbage(&at_once, &WorkShare::WHOLE, |_| {}).await.expect("collects");
        assert_eq!((report.duplicates, report.deleted), (0, 0), "{report:?}");
    }
    assert_eq!(whole(&replica(&truth), &both).await.expect("reads"), sealed.bytes);
    let scrubbed = storage.lifecycle().scrub(&WorkShare::WHOLE, 0, false, |_| {}).await.expect("scrubs");
    assert_eq!((scrubbed.unread, scrubbed.quarantined), (0, 0), "{scrubbed:?}");
    // A plain object goes with its age, although no reader finds it.
    let expired =
        GcPolicy { ttl: Some(Duration::ZERO), tombstone_retention: Duration::from_millis(200), ..at_once };
    for _ in 0..4 {
        storage.lifecycle().collect_garbage(&expired, &WorkShare::WHOLE, |_| {}).await.expect("collects");
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    for key in [&both, &left] {
        let (plain, sealed) = places(&storage, key);
        assert!(truth.head(&plain).await.is_err(), "{plain} is still there");
        assert!(truth.head(&sealed).await.is_err(), "{sealed} is still there");
    }
}

#[tokio::test]
async fn a_sealed_object_that_does_not_open_is_damaged_and_the_next_put_heals_it() {
    let truth = Arc::new(InMemory::new());
    let storage = replica(&truth);
    let root = prepare(&storage).await;
    // Several segments. The head lies in the first: a lookup reads no further.
    let chunk = chunks::chunk(root, &chunks::tokens(1, 256), 0, 256, 60_000);
    let key = put(&storage, &chunk).await;
    let other = put(&storage, &chunks::chunk(root, &chunks::tokens(2, 256), 0, 256, 60_000)).await;
    let (_, place) = places(&storage, &key);
    let good = raw(&truth, &place).await;
    assert!(good.len() > 3 * 16_400, "{}", good.len());
    let flipped = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    let swapped = raw(&truth, &places(&storage, &other).1).await;
    let cases = [
        ("magic", flipped(0), 0),
        ("wrapped key", flipped(40), 0),
        ("first segment", flipped(200), 0),
        ("cut", good[..good.len() / 2].to_vec(), 256),
        ("empty", Vec::new(), 0),
        ("swapped", swapped, 0),
        ("last tag", flipped(good.len() - 1), 256),
    ];
    for (what, bad, offered) in cases {
        truth.put(&place, bad.clone().into()).await.expect("puts");
        let cold = replica(&truth);
        assert_eq!(lookup(&cold, 1, 256).await.expect(what), offered, "{what}");
        let error = whole(&cold, &key).await.expect_err(what);
        assert!(matches!(error, ChunkError::Corrupt { .. }), "{what}: {error}");
        let found =
            replica(&truth).lifecycle().scrub(&WorkShare::WHOLE, 0, true, |_| {}).await.expect("scrubs");
        assert_eq!((found.objects, found.quarantined, found.unread), (2, 1, 0), "{what}");
        // By a replica that has not met it.
        assert_eq!(put(&replica(&truth), &chunk).await, key, "{what}");
        assert_eq!(whole(&replica(&truth), &key).await.expect(what), chunk.bytes, "{what}");
    }
    // What opens is not written again.
    let before = raw(&truth, &place).await;
    put(&replica(&truth), &chunk).await;
    assert_eq!(raw(&truth, &place).await, before);
}

#[tokio::test]
async fn a_lost_key_is_an_error_that_names_it() {
    let truth = Arc::new(InMemory::new());
    let storage = replica(&truth);
    let root = prepare(&storage).await;
    let chunk = chunks::chunk(root, &chunks::tokens(1, 256), 0, 256, 500);
    let key = put(&storage, &chunk).await;
    let other = replica_with(&truth, keys("two"));
    let named = |error: StoreError| {
        let text = error.to_string();
        assert!(matches!(error, StoreError::KeyLost { .. }), "{text}");
        assert!(text.contains("key one of tenant default"), "{text}");
        assert!(!error.code().is_retryable());
    };
    match whole(&other, &key).await.expect_err("no key") {
        ChunkError::Store(error) => named(error),
        error => panic!("{error}"),
    }
    match lookup(&other, 1, 256).await.expect_err("no key") {
        CatalogError::Store(error) => named(error),
        error => panic!("{error}"),
    }
    // It is no damage, and stops neither a scrub nor the collector.
    let (lifecycle, all) = (other.lifecycle(), &WorkShare::WHOLE);
    let scrubbed = lifecycle.scrub(all, 0, false, |_| {}).await.expect("scrubs");
    assert_eq!((scrubbed.unread, scrubbed.quarantined), (1, 0));
    put(&storage, &chunks::variant(root, &chunks::tokens(1, 256), 0, 256, 500, 8)).await;
    lifecycle.collect_garbage(&GcPolicy::default(), all, |_| {}).await.expect("collects");
    assert_eq!(whole(&replica(&truth), &key).await.expect("the key is there again"), chunk.bytes);
}

#[tokio::test]
async fn an_object_that_another_replica_wrote_anew_is_read() {
    let truth = Arc::new(InMemory::new());
    let (writer, reader) = (replica(&truth), replica(&truth));
    let root = prepare(&writer).await;
    let chunk = chunks::chunk(root, &chunks::tokens(1, 256), 0, 256, 60_000);
    let key = put(&writer, &chunk).await;
    for range in [ByteRange::Whole, ByteRange::Bounded(100, 40_000)] {
        assert_eq!(whole(&reader, &key).await.expect("reads"), chunk.bytes);
        // Of the same size, under another data key.
        writer
            .store()
            .objects()
            .put(&places(&writer, &key).0, chunk.bytes.clone().into())
            .await
            .expect("puts");
        let read = reader.reads().read(&key, range, &RequestHint::default()).await.expect("reads");
        let expected = chunk.bytes[read.range.start as usize..read.range.end as usize].to_vec();
        assert_eq!(read.bytes.try_collect::<Vec<Bytes>>().await.expect("reads").concat(), expected);
    }
}

/// Everything that a reader of the bucket sees: bytes, and the hashes that names are written with.
async fn seen(truth: &InMemory) -> Vec<u8> {
    let mut seen = Vec::new();
    for meta in truth.list(None).try_collect::<Vec<_>>().await.expect("lists") {
        seen.extend(raw(truth, &meta.location).await);
        for part in meta.location.parts() {
            let stem = part.as_ref().split('.').next().unwrap_or_default();
            seen.extend(stem.parse::<ObjectDigest>().iter().flat_map(|hash| *hash.as_bytes()));
        }
    }
    seen
}

/// The text, tenant, namespace and model are known; the root of the namespace is not.
#[tokio::test]
async fn who_reads_the_bucket_of_a_sealed_tenant_cannot_check_text() {
    let truth = Arc::new(InMemory::new());
    let storage = replica(&truth);
    let root = prepare(&storage).await;
    let tokens = chunks::tokens(1, 512);
    for chunk in chunks::context(root, &tokens, 256, 500) {
        put(&storage, &chunk).await;
    }
    storage
        .catalog()
        .rotate_namespace(&name("default"), &name("n"), &chunks::spec().model_id(), Duration::from_secs(60))
        .await
        .expect("rotates");
    assert!(storage.changes().journal_append().await.expect("appends") > 0);
    let seen = seen(&truth).await;
    let hashes: HashSet<&[u8]> = seen.windows(8).collect();
    let chain = TokenChain::new(root, &tokens);
    assert!(
        chain.blocks().iter().any(|block| hashes.contains(&block.as_bytes()[..8])),
        "nothing to check against"
    );
    for window in seen.windows(32) {
        let guess = RootHash::from(<[u8; 32]>::try_from(window).expect("32 bytes"));
        // As the salt behind it, that of the tenant or of a rotation.
        let derived = RootHash::derive("default", "n", guess.as_bytes(), &chunks::spec().model_id());
        let block = TokenChain::new(derived, &tokens[..16]).blocks()[0];
        assert!(!hashes.contains(&block.as_bytes()[..8]), "the salt is in the clear");
        for start in [0, 256] {
            let block = TokenChain::new(guess, &tokens[start..start + 16]).blocks()[0];
            assert!(
                !hashes.contains(&block.as_bytes()[..8]),
                "token {start} follows {guess}, which the bucket tells"
            );
        }
        // As a chain's key, after each hash that the bucket tells.
        for (parent, start) in [(root.first_parent(), 0), (*chain.blocks()[15].as_bytes(), 256)] {
            let block =
                ChainLink { key: (*guess.as_bytes()).into(), parent }.next(&tokens[start..start + 16], &[]);
            assert!(!hashes.contains(&block.as_bytes()[..8]), "{guess} keys the chain");
        }
    }
}

/// What lies in the bucket under a part of a path.
async fn found(truth: &InMemory, part: &str) -> Vec<Path> {
    let listed = truth.list(None).map_ok(|meta| meta.location).try_collect::<Vec<_>>().await.expect("lists");
    listed.into_iter().filter(|path| path.as_ref().contains(part)).collect()
}

fn named(chunk: &Chunk) -> ContextRequest {
    ContextRequest {
        model_id: chunks::spec().model_id(),
        namespace: name("n"),
        chunks: vec![chunk.seq_hash],
        labels: [(name("who"), "a-label-in-the-clear".to_owned())].into(),
        ttl_s: None,
        pinned: true,
    }
}

#[tokio::test]
async fn two_replicas_write_the_same_sealed_bytes_under_one_tenant_key() {
    let truth = Arc::new(InMemory::new());
    let root = prepare(&replica(&truth)).await;
    for (seed, bytes) in [(1, 500), (2, 60_000)] {
        let chunk = chunks::chunk(root, &chunks::tokens(seed, 256), 0, 256, bytes);
        let mut written = HashSet::new();
        for storage in [replica(&truth), replica(&truth), replica(&truth)] {
            let storage = &storage;
            let key = put(storage, &chunk).await;
            let place = places(storage, &key).1;
            written.insert(raw(&truth, &place).await);
            truth.delete(&place).await.expect("deletes");
        }
        assert_eq!(written.len(), 1, "{bytes}");
    }
    // First writers of another tenant, all at once.
    let seed = Arc::new(InMemory::new());
    let firsts: Vec<_> = (0..6).map(|_| replica(&seed)).collect();
    futures::future::join_all(firsts.iter().map(prepare)).await;
    let puts = firsts.iter().enumerate().map(async |(n, storage)| {
        let root = storage
            .catalog()
            .root(&name("default"), &name("n"), &chunks::spec().model_id())
            .await
            .expect("a root");
        put(storage, &chunks::chunk(root, &chunks::tokens(n as u64, 256), 0, 256, 500)).await
    });
    futures::future::join_all(puts).await;
    let mut ids = HashSet::new();
    for path in found(&seed, ".kvs").await {
        ids.insert(raw(&seed, &path).await[8..24].to_vec());
    }
    assert_eq!(ids.len(), 1, "of the tenant keys that were made, one is used");
}

#[tokio::test]
async fn records_of_a_sealed_tenant_are_sealed_and_others_are_not_used() {
    let truth = Arc::new(InMemory::new());
    let storage = replica(&truth);
    let root = prepare(&storage).await;
    let chunk = chunks::chunk(root, &chunks::tokens(1, 256), 0, 256, 500);
    put(&storage, &chunk).await;
    let (tenant, model_id) = (name("default"), chunks::spec().model_id());
    let context = storage.contexts().create(&tenant, named(&chunk)).await.expect("creates");
    let other = storage.contexts().create(&tenant, named(&chunk)).await.expect("creates");
    storage
        .catalog()
        .rotate_namespace(&tenant, &name("n"), &model_id, Duration::from_secs(60))
        .await
        .expect("rotates");
    storage
        .catalog()
        .rotate_namespace(&tenant, &name("m"), &model_id, Duration::from_secs(60))
        .await
        .expect("rotates");
    let clear = seen(&truth).await;
    assert!(!clear.windows(20).any(|window| window == b"a-label-in-the-clear"));

    let (salt, rotations) = (found(&truth, "default/salt").await, found(&truth, "/g/n/").await);
    let contexts = found(&truth, &format!("/x/{}", context.context_id)).await;
    let [salt, rotation, version] = [&salt[..], &rotations, &contexts].map(|paths| paths[0].clone());
    let elsewhere = async |part: String| found(&truth, &part).await.swap_remove(0);
    let others = [
        (&salt, rotation.clone()),
        (&rotation, elsewhere("/g/m/".to_owned()).await),
        (&version, elsewhere(format!("/x/{}", other.context_id)).await),
    ];
    let tenant_salt =
        async |storage: Arc<Storage>| storage.catalog().root(&name("default"), &name("z"), &model_id).await;
    let rotated =
        async |storage: Arc<Storage>| storage.catalog().root(&name("default"), &name("n"), &model_id).await;
    let before =
        (tenant_salt(replica(&truth)).await.expect("opens"), rotated(replica(&truth)).await.expect("opens"));
    for (place, other) in others {
        let good = raw(&truth, place).await;
        let mut flipped = good.clone();
        *flipped.last_mut().expect("not empty") ^= 1;
        let plain = match place == &version {
            true => serde_json::to_vec(&context).expect("json"),
            false => kvasir_storage::salt_record(&tenant, &[3; 32]),
        };
        let bad = [flipped, raw(&truth, &other).await, plain, good[..20].to_vec(), Vec::new()];
        for (n, bytes) in bad.into_iter().enumerate() {
            truth.put(place, bytes.clone().into()).await.expect("puts");
            let cold = replica(&truth);
            let error = match place {
                place if place == &salt => tenant_salt(cold).await.err().map(|e| e.to_string()),
                place if place == &rotation => rotated(cold).await.err().map(|e| e.to_string()),
                _ => {
                    cold.contexts().get(&tenant, context.context_id, None).await.err().map(|e| e.to_string())
                }
            };
            let error = error.unwrap_or_else(|| panic!("{place}, {n}"));
            assert_eq!(
                error.contains("kvasir admin seal --tenant default"),
                n == 2 || n == 4,
                "{place}, {n}: {error}"
            );
            assert_eq!(raw(&truth, place).await, bytes, "nothing takes its place");
        }
        truth.put(place, good.into()).await.expect("puts");
    }
    let after =
        (tenant_salt(replica(&truth)).await.expect("opens"), rotated(replica(&truth)).await.expect("opens"));
    assert_eq!(after, before);
    assert_eq!(
        replica(&truth).contexts().get(&tenant, context.context_id, None).await.expect("opens"),
        context
    );
}

#[tokio::test]
async fn the_journal_of_a_sealed_tenant_is_read_by_who_has_its_key() {
    let truth = Arc::new(InMemory::new());
    let (storage, heard) = (replica(&truth), replica(&truth));
    let root = prepare(&storage).await;
    let chunk = chunks::chunk(root, &chunks::tokens(1, 256), 0, 256, 500);
    put(&storage, &chunk).await;
    assert_eq!(storage.changes().journal_append().await.expect("appends"), 1);
    let batch = found(&truth, "/j/").await.swap_remove(0);
    let good = raw(&truth, &batch).await;
    assert!(!good.windows(8).any(|window| window == &chunk.seq_hash.as_bytes()[..8]), "in the clear");
    assert_eq!(heard.changes().journal_tail(JournalReading::Rows).await.expect("reads"), 1);
    assert_eq!(heard.index().len(), 1);
    let without = [keyless(&truth), replica_with(&truth, keys("two"))];
    for other in without {
        assert_eq!(
            (other.changes().journal_tail(JournalReading::Rows).await.expect("reads"), other.index().len()),
            (0, 0)
        );
        assert_eq!(other.changes().journal_skipped(), 1);
    }
    // Under another name it is not that batch; what is in the clear of a tenant with a key is nobody's.
    let moved = Path::from(batch.as_ref().replace("00000000000000000000", "00000000000000000007"));
    truth.put(&moved, good.into()).await.expect("puts");
    truth.delete(&batch).await.expect("deletes");
    let plain_truth = Arc::new(InMemory::new());
    let plain = keyless(&plain_truth);
    let root = prepare(&plain).await;
    put(&plain, &chunks::chunk(root, &chunks::tokens(3, 256), 0, 256, 500)).await;
    plain.changes().journal_append().await.expect("appends");
    let forged = found(&plain_truth, "/j/").await.swap_remove(0);
    truth.put(&forged, raw(&plain_truth, &forged).await.into()).await.expect("puts");
    let cold = replica(&truth);
    assert_eq!(
        (cold.changes().journal_tail(JournalReading::Rows).await.expect("reads"), cold.index().len()),
        (0, 0)
    );
    assert_eq!(cold.changes().journal_skipped(), 2);
}

#[tokio::test]
async fn who_lacks_the_key_of_a_sealed_tenant_refuses_its_writes() {
    let truth = Arc::new(InMemory::new());
    let sealed = replica(&truth);
    let root = prepare(&sealed).await;
    let chunk = chunks::chunk(root, &chunks::tokens(1, 256), 0, 256, 500);
    put(&sealed, &chunk).await;
    let (tenant, model_id) = (name("default"), chunks::spec().model_id());
    let elsewhere = "5".repeat(64);
    let elsewhere = format!("[[key]]\ntenant = \"other\"\nid = \"one\"\nkey = \"{elsewhere}\"\n");
    for storage in [keyless(&truth), replica_with(&truth, FileKeys::parse(&elsewhere).expect("keys"))] {
        let chunk = chunks::chunk(root, &chunks::tokens(2, 256), 0, 256, 500);
        let stored = storage
            .ingest()
            .put_chunk(PutChunk::new(&tenant, &model_id, &chunk.seq_hash), body(&chunk.bytes))
            .await;
        let error = stored.expect_err("refused");
        assert!(matches!(error, PutError::Store(StoreError::KeyLost { .. })), "{error}");
        assert!(error.to_string().contains("tenant default"), "{error}");
        let rotated =
            storage.catalog().rotate_namespace(&tenant, &name("n"), &model_id, Duration::from_secs(60)).await;
        assert!(matches!(rotated, Err(CatalogError::Store(StoreError::KeyLost { .. }))), "{rotated:?}");
    }
    assert_eq!(found(&truth, ".kvc").await, []);
}
