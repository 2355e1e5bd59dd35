//! The storage core over each store.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt, TryStreamExt, stream};
use kvasir_api::ErrorCode;
use kvasir_storage::{
    AnnouncedBody, ByteRange, CatalogError, ChunkError, Lookup, PutChunk, PutError, Query, Storage,
    WorkShare, gc::GcPolicy, hot::RequestHint,
};
use kvasir_store::layout::{ChunkKey, Key};
use kvasir_tests::{
    chunks::{self, Chunk},
    hooked::{Hook, Hooked},
};
use kvasir_types::{Level, ModelId, Name, ObjectDigest, ProfileHash, RootHash};
use object_store::ObjectStoreExt;

use crate::Backend;

pub(crate) fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

pub(crate) fn tenant() -> Name {
    name("default")
}

pub(crate) fn model_id() -> ModelId {
    chunks::spec().model_id()
}

/// In cuts that match nothing.
pub(crate) fn body(
    bytes: &[u8],
) -> impl futures::Stream<Item = Result<Bytes, std::io::Error>> + Send + use<> {
    let parts: Vec<_> = bytes.chunks(70_001).map(|part| Ok(Bytes::copy_from_slice(part))).collect();
    stream::iter(parts)
}

pub(crate) async fn prepare(storage: &Arc<Storage>) -> RootHash {
    storage.ingest().register_model(&tenant(), chunks::spec(), None).await.expect("registers");
    let hash = ProfileHash::of(chunks::PROFILE);
    storage
        .ingest()
        .put_profile(&tenant(), &model_id(), &hash, None, body(chunks::PROFILE))
        .await
        .expect("stores");
    storage.catalog().root(&tenant(), &name("n"), &model_id()).await.expect("a root")
}

pub(crate) async fn put(storage: &Arc<Storage>, chunk: &Chunk) -> bool {
    let stored = storage
        .ingest()
        .put_chunk(PutChunk::new(&tenant(), &model_id(), &chunk.seq_hash), body(&chunk.bytes))
        .await;
    let stored = stored.expect("stores");
    assert_eq!((stored.object_digest, stored.bytes), (chunk.object_digest, chunk.bytes.len() as u64));
    stored.created
}

pub(crate) async fn matched(storage: &Arc<Storage>, tokens: &[u32]) -> u64 {
    let query = Query::Tokens(tokens.to_vec());
    storage
        .lookup(&Lookup::new(&tenant(), &name("n"), &model_id(), query).fresh(true))
        .await
        .expect("answers")
        .matched_tokens
}

pub(crate) fn key(chunk: &Chunk) -> ChunkKey {
    let (tenant, model_id) = (tenant(), model_id());
    ChunkKey { tenant, model_id, seq_hash: chunk.seq_hash, object_digest: chunk.object_digest }
}

pub(crate) async fn read(
    storage: &Arc<Storage>,
    chunk: &Chunk,
    range: ByteRange,
) -> Result<Bytes, ChunkError> {
    let parts: Vec<Bytes> =
        storage.reads().read(&key(chunk), range, &RequestHint::default()).await?.bytes.try_collect().await?;
    Ok(parts.concat().into())
}

pub(crate) async fn a_chunk_is_found_by_another_replica(backend: &Backend) {
    let writer = backend.replica().await;
    let root = prepare(&writer).await;
    // Default chunks, other lengths, and tails, each of its own context.
    for (seed, chunk_tokens, count) in [(1, 1536, 4_000), (2, 256, 700), (3, 1536, 100), (4, 768, 1_600)] {
        let tokens = chunks::tokens(seed, count);
        let context = chunks::context(root, &tokens, chunk_tokens, 500);
        for chunk in &context {
            assert!(put(&writer, chunk).await);
        }
        assert_eq!(matched(&writer, &tokens).await, count as u64);
        let reader = backend.replica().await;
        assert_eq!(matched(&reader, &tokens).await, count as u64, "{chunk_tokens}");
        let last = context.last().expect("not empty");
        assert_eq!(read(&reader, last, ByteRange::Whole).await.expect("reads"), last.bytes);
        let level = reader.reads().level_bytes(&key(last), Level(0)).await.expect("a level");
        assert!(level < last.bytes.len() as u64);
        assert_eq!(
            reader.reads().level_bytes(&key(last), Level(1)).await.expect("a level"),
            last.bytes.len() as u64
        );
        let part = read(&reader, last, ByteRange::Bounded(10, level - 1)).await.expect("reads");
        assert_eq!(part, last.bytes[10..level as usize]);
        let suffix = read(&backend.replica().await, last, ByteRange::Suffix(9)).await.expect("reads");
        assert_eq!(suffix, last.bytes[last.bytes.len() - 9..]);
    }
}

pub(crate) async fn blocks_match_after_a_rebuild(backend: &Backend) {
    let writer = backend.replica().await;
    let root = prepare(&writer).await;
    let tokens = chunks::tokens(20, 3_000);
    for chunk in chunks::context(root, &tokens, 1536, 100) {
        put(&writer, &chunk).await;
    }
    let mut other = tokens.clone();
    other[1_000] ^= 1;
    let reader = backend.replica().await;
    assert_eq!(matched(&reader, &other).await, 0, "the store alone finds whole chunks");
    let mut last = None;
    let done = reader.lifecycle().rebuild_index(|progress| last = Some(progress)).await.expect("rebuilds");
    assert_eq!(Some(done), last);
    assert!(done.indexed >= 2 && done.failed == 0, "{done:?}");
    assert_eq!(matched(&reader, &other).await, 992, "62 whole blocks lie before token 1000");
    assert_eq!(matched(&reader, &tokens[..2_000]).await, 2_000, "125 blocks");
    assert_eq!(matched(&reader, &tokens[..2_001]).await, 2_000, "one token more is no block");
}

pub(crate) async fn large_chunks_go_in_parts(backend: &Backend) {
    let storage = backend.replica_with(|settings| settings.spool_memory_bytes = 1 << 20).await;
    let root = prepare(&storage).await;
    let tokens = chunks::tokens(30, 1536);
    // 6 spans of 2 levels: 21 MB, more than two parts.
    let chunk = chunks::chunk(root, &tokens, 0, 1536, 1_750_000);
    assert!(put(&storage, &chunk).await);
    assert!(!put(&storage, &chunk).await);
    let reader = backend.replica().await;
    assert!(read(&reader, &chunk, ByteRange::Whole).await.expect("reads") == chunk.bytes);
    let middle = read(&reader, &chunk, ByteRange::Bounded(8 << 20, (8 << 20) + 99)).await.expect("reads");
    assert_eq!(middle, chunk.bytes[8 << 20..(8 << 20) + 100]);
    if let Some(server) = &backend.server {
        assert_eq!(server.open_uploads(), 0);
    }
}

/// A chunk whose digest is said before its first byte.
pub(crate) fn announced(chunk: &Chunk, object_digest: ObjectDigest, bytes: usize) -> PutChunk {
    let announced = Some(AnnouncedBody { object_digest, bytes: bytes as u64 });
    PutChunk { announced, ..PutChunk::new(&tenant(), &model_id(), &chunk.seq_hash) }
}

pub(crate) async fn announced_chunks_go_in_as_they_come(backend: &Backend) {
    let storage = backend.replica().await;
    let root = prepare(&storage).await;
    // One of a single request to any store, and one of two parts of a bucket.
    for (seed, piece_bytes) in [(36, 500), (37, 900_000)] {
        let tokens = chunks::tokens(seed, 1536);
        let chunk = chunks::chunk(root, &tokens, 0, 1536, piece_bytes);
        let (digest, length) = (chunk.object_digest, chunk.bytes.len());
        let mut flipped = chunk.bytes.clone();
        flipped[length - 1] ^= 1;
        let cut = stream::iter([Ok(Bytes::copy_from_slice(&chunk.bytes[..length - 1])), Err("reset")]);
        let refused = [
            storage.ingest().put_chunk(announced(&chunk, [7; 32].into(), length), body(&chunk.bytes)).await,
            storage.ingest().put_chunk(announced(&chunk, digest, length + 1), body(&chunk.bytes)).await,
            storage.ingest().put_chunk(announced(&chunk, digest, length), body(&flipped)).await,
            storage.ingest().put_chunk(announced(&chunk, digest, length), cut).await,
            storage.ingest().put_chunk(announced(&chunk, digest, 2 << 30), body(&chunk.bytes)).await,
        ];
        let codes: Vec<_> = refused.iter().map(|put| put.as_ref().map_err(PutError::code).err()).collect();
        let expected = [
            ErrorCode::ChunkMismatch,
            ErrorCode::ChunkMismatch,
            ErrorCode::InvalidChunk,
            ErrorCode::BadRequest,
            ErrorCode::BodyTooLarge,
        ];
        assert_eq!(codes, expected.map(Some));
        let prefix = storage.store().layout().chunk_prefix(&tenant(), &model_id(), &chunk.seq_hash);
        let left: Vec<_> = storage.store().objects().list(Some(&prefix)).try_collect().await.expect("lists");
        assert_eq!((left, matched(&storage, &tokens).await), (vec![], 0));
        if let Some(server) = &backend.server {
            assert_eq!(server.open_uploads(), 0, "they were aborted");
        }
        for is_new in [true, false] {
            let put = announced(&chunk, digest, length);
            let stored = storage.ingest().put_chunk(put, body(&chunk.bytes)).await.expect("stores");
            assert_eq!((stored.created, stored.object_digest, stored.bytes), (is_new, digest, length as u64));
        }
        for replica in [&storage, &backend.replica().await] {
            assert_eq!(matched(replica, &tokens).await, 1536);
            assert!(read(replica, &chunk, ByteRange::Whole).await.expect("reads") == chunk.bytes);
        }
    }
}

pub(crate) async fn uploads_that_nobody_finished_go(backend: &Backend) {
    let storage = backend.replica().await;
    let root = prepare(&storage).await;
    let chunk = chunks::chunk(root, &chunks::tokens(35, 256), 0, 256, 99);
    let path = storage.store().layout().path(&Key::Chunk(key(&chunk)));
    if storage.store().unfinished().is_none() {
        return;
    }
    // Writers that end in the middle, two of them with the same object.
    let elsewhere = storage.store().layout().base().clone().join("not-ours");
    for path in [&path, &path, &elsewhere] {
        let mut upload = storage.store().objects().put_multipart(path).await.expect("begins");
        upload.put_part(vec![7; 5 << 20].into()).await.expect("takes a part");
    }
    let policy = GcPolicy { actions_per_second: 0, ..GcPolicy::default() };
    let collect = async |policy: GcPolicy| {
        let report =
            storage.lifecycle().collect_garbage(&policy, &WorkShare::WHOLE, |_| {}).await.expect("collects");
        report.leftovers_deleted
    };
    assert_eq!(collect(policy.clone()).await, 0, "they are young");
    let old = GcPolicy { leftovers_age: Duration::ZERO, ..policy };
    let dry = collect(GcPolicy { dry_run: true, ..old.clone() }).await;
    if dry == 0 && backend.server.is_none() {
        // MinIO lists the uploads of one key alone, and aborts all by itself after a day.
        println!("{} lacks: listings of unfinished uploads", backend.name);
        return;
    }
    assert_eq!((dry, collect(old.clone()).await, collect(old).await), (2, 2, 0));
    if let Some(server) = &backend.server {
        assert_eq!(server.open_uploads(), 1, "what is not ours stays");
    }
}

pub(crate) async fn storing_twice_is_storing_once(backend: &Backend) {
    let (a, b) = (backend.replica().await, backend.replica().await);
    let root = prepare(&a).await;
    let chunk = chunks::chunk(root, &chunks::tokens(40, 300), 0, 300, 2_000);
    let writers = (0..8).map(|i| {
        let storage = if i % 2 == 0 { Arc::clone(&a) } else { Arc::clone(&b) };
        let chunk = chunk.clone();
        tokio::spawn(async move { put(&storage, &chunk).await })
    });
    let mut created = 0;
    for writer in writers {
        created += usize::from(writer.await.expect("no panic"));
    }
    assert!(created == 1 || !a.abilities().conditional_create, "{created} of 8");
    let prefix = a.store().layout().chunk_prefix(&tenant(), &model_id(), &chunk.seq_hash);
    let objects: Vec<_> = a.store().objects().list(Some(&prefix)).try_collect().await.expect("lists");
    assert_eq!(objects.len(), 1);
    assert_eq!(read(&b, &chunk, ByteRange::Whole).await.expect("reads"), chunk.bytes);
}

pub(crate) async fn replicas_agree_on_roots_and_objects(backend: &Backend) {
    let (a, b) = (backend.replica().await, backend.replica().await);
    a.ingest().register_model(&tenant(), chunks::spec(), None).await.expect("registers");
    let (x, y) = (name("x"), name("y"));
    let tenants = (tenant(), tenant());
    let model_id = model_id();
    let (from_a, from_b) = tokio::join!(
        a.catalog().root(&tenants.0, &x, &model_id),
        b.catalog().root(&tenants.1, &x, &model_id)
    );
    let root = from_a.expect("a root");
    assert_eq!(root, from_b.expect("a root"));
    assert_eq!(root, backend.replica().await.catalog().root(&tenant(), &x, &model_id).await.expect("a root"));
    assert_ne!(root, a.catalog().root(&tenant(), &y, &model_id).await.expect("a root"));
    assert_ne!(
        root,
        a.catalog().root(&name("someone-else"), &x, &model_id).await.err().map_or(root, |_| [0; 32].into())
    );
    // Two valid objects of one chunk: every reader takes the same.
    let root = prepare(&a).await;
    let tokens = chunks::tokens(50, 256);
    let (one, two) =
        (chunks::chunk(root, &tokens, 0, 256, 99), chunks::variant(root, &tokens, 0, 256, 99, 7));
    assert_eq!(one.seq_hash, two.seq_hash);
    put(&a, &one).await;
    put(&b, &two).await;
    let preferred = one.object_digest.min(two.object_digest);
    for replica in [backend.replica().await, backend.replica().await] {
        let found = replica.reads().preferred(&tenant(), &model_id, &one.seq_hash).await.expect("is there");
        assert_eq!(found.object_digest, preferred);
        let found = replica
            .lookup(&Lookup::new(&tenant(), &name("n"), &model_id, Query::Tokens(tokens.clone())))
            .await;
        assert_eq!(found.expect("answers").chunks[0].object_digest, preferred);
    }
}

pub(crate) async fn a_vanished_object_becomes_a_miss(backend: &Backend) {
    let storage = backend.replica().await;
    let root = prepare(&storage).await;
    let tokens = chunks::tokens(60, 2_000);
    let context = chunks::context(root, &tokens, 1536, 100);
    for chunk in &context {
        put(&storage, chunk).await;
    }
    let path = storage.store().layout().path(&Key::Chunk(key(&context[1])));
    storage.store().objects().delete(&path).await.expect("deletes");
    assert_eq!(matched(&storage, &tokens).await, 2_000, "nobody has noticed yet");
    let gone = read(&storage, &context[1], ByteRange::Bounded(0, 9)).await;
    assert!(matches!(gone, Err(ChunkError::Unknown { .. })), "{gone:?}");
    assert_eq!(matched(&storage, &tokens).await, 1536);
    put(&storage, &context[1]).await;
    assert_eq!(matched(&storage, &tokens).await, 2_000);
}

pub(crate) async fn invalid_bodies_leave_nothing(backend: &Backend) {
    let storage = backend.replica_with(|settings| settings.chunk_bytes_max = 100_000).await;
    let root = prepare(&storage).await;
    let tokens = chunks::tokens(70, 512);
    let good = chunks::chunk(root, &tokens, 0, 512, 3_000);
    let large = chunks::chunk(root, &tokens, 0, 512, 30_000);
    let other = chunks::chunk(root, &chunks::tokens(71, 512), 0, 512, 3_000);
    let mut flipped = good.bytes.clone();
    *flipped.last_mut().expect("not empty") ^= 1;
    let longer = [&good.bytes[..], b"x"].concat();
    let short = &good.bytes[..good.bytes.len() - 1];
    type Check = fn(&PutError) -> bool;
    let invalid: Check = |e| matches!(e, PutError::InvalidChunk(_));
    let cases: [(&[u8], Check); 6] = [
        (short, invalid),
        (&flipped, invalid),
        (&longer, invalid),
        (b"", invalid),
        (&other.bytes, |e| matches!(e, PutError::ChunkMismatch(differs) if differs.field == "seq_hash")),
        (&large.bytes, |e| matches!(e, PutError::TooLarge { limit: 100_000 })),
    ];
    let spool = backend.directory.path().join("spool");
    for (i, (bytes, expected)) in cases.into_iter().enumerate() {
        let error = storage
            .ingest()
            .put_chunk(PutChunk::new(&tenant(), &model_id(), &good.seq_hash), body(bytes))
            .await;
        let error = error.expect_err("refused");
        assert!(expected(&error), "{i}: {error}");
        let broken = stream::iter([Ok(Bytes::copy_from_slice(short)), Err("reset")]);
        let error =
            storage.ingest().put_chunk(PutChunk::new(&tenant(), &model_id(), &good.seq_hash), broken).await;
        assert!(matches!(error, Err(PutError::Body { .. })), "{error:?}");
    }
    let unknown = ModelId::from([9; 32]);
    let error = storage
        .ingest()
        .put_chunk(PutChunk::new(&tenant(), &unknown, &good.seq_hash), body(&good.bytes))
        .await;
    assert!(matches!(error, Err(PutError::Catalog(CatalogError::UnknownModel { .. }))));
    let prefix = storage.store().layout().chunk_prefix(&tenant(), &model_id(), &good.seq_hash);
    let left: Vec<_> = storage.store().objects().list(Some(&prefix)).try_collect().await.expect("lists");
    assert_eq!(left, vec![]);
    assert_eq!(matched(&storage, &tokens).await, 0);
    assert!(std::fs::read_dir(spool).map_or(0, Iterator::count) == 0, "spool files have no names");
}

/// An object that ends before the requested range: stores reject such ranges, each with a different message.
/// The object is damaged; the store has not failed.
pub(crate) async fn an_object_that_was_cut_is_damaged(backend: &Backend) {
    let storage = backend.replica().await;
    let root = prepare(&storage).await;
    let tokens = chunks::tokens(82, 256);
    let chunk = chunks::chunk(root, &tokens, 0, 256, 999);
    let path = storage.store().layout().path(&Key::Chunk(key(&chunk)));
    for left in [0, 1_000] {
        put(&storage, &chunk).await;
        let reader = backend.replica().await;
        assert_eq!(matched(&reader, &tokens).await, 256);
        storage.store().objects().put(&path, chunk.bytes[..left].to_vec().into()).await.expect("writes");
        assert_eq!(matched(&backend.replica().await, &tokens).await, 0, "a miss of who does not know it");
        let range = ByteRange::From(chunk.bytes.len() as u64 - 10);
        let error = read(&reader, &chunk, range).await.expect_err("noticed");
        assert!(matches!(error, ChunkError::Corrupt { .. }), "{left} bytes: {error}");
        assert!(reader.reads().take_corrupt_reads() > 0, "{left} bytes: counted");
        assert_eq!(matched(&reader, &tokens).await, 0, "a miss of who did");
    }
    put(&storage, &chunk).await;
    assert_eq!(matched(&backend.replica().await, &tokens).await, 256);
}

pub(crate) async fn other_bytes_under_a_name_are_noticed(backend: &Backend) {
    let storage = backend.replica().await;
    let root = prepare(&storage).await;
    let (one, two) = (chunks::tokens(80, 256), chunks::tokens(81, 256));
    let (one, two) = (chunks::chunk(root, &one, 0, 256, 99), chunks::chunk(root, &two, 0, 256, 999));
    // A store that misdirects: a valid object lies under another chunk's name.
    let path = storage.store().layout().path(&Key::Chunk(key(&one)));
    storage.store().objects().put(&path, two.bytes.clone().into()).await.expect("writes");
    let error = storage.reads().row(&key(&one)).await.expect_err("noticed");
    assert!(matches!(error, ChunkError::Corrupt { .. }), "{error}");
    assert_eq!(storage.reads().take_corrupt_reads(), 1);
    assert_eq!(matched(&storage, &chunks::tokens(80, 256)).await, 0, "a miss, never an answer");
    // Storing it mends it, also where only a byte behind the head is wrong and nobody has noticed.
    put(&storage, &one).await;
    assert_eq!(read(&backend.replica().await, &one, ByteRange::Whole).await.expect("reads"), one.bytes);
    let mut flipped = one.bytes.clone();
    *flipped.last_mut().expect("not empty") ^= 1;
    storage.store().objects().put(&path, flipped.into()).await.expect("writes");
    put(&storage, &one).await;
    assert_eq!(read(&backend.replica().await, &one, ByteRange::Whole).await.expect("reads"), one.bytes);
}

/// A writer replaces a damaged object between the answer to a scrub's second read and the end of that read.
#[tokio::test]
async fn an_object_stored_again_during_a_scrub_stays() {
    let backend = Backend::memory();
    let writer = backend.replica().await;
    let root = prepare(&writer).await;
    let tokens = chunks::tokens(83, 256);
    let chunk = chunks::chunk(root, &tokens, 0, 256, 999);
    put(&writer, &chunk).await;
    let path = writer.store().layout().path(&Key::Chunk(key(&chunk)));
    let mut flipped = chunk.bytes.clone();
    *flipped.last_mut().expect("not empty") ^= 1;
    writer.store().objects().put(&path, flipped.into()).await.expect("writes");
    // Dates count from a second on: some stores' have whole ones.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let (objects, bytes) = (Arc::clone(writer.store().objects()), Bytes::from(chunk.bytes.clone()));
    let answered = AtomicU32::new(0);
    let hook: Hook = Arc::new(move |request, at| {
        let heals = request == Hooked::Read && at == path && answered.fetch_add(1, Ordering::Relaxed) == 1;
        let (objects, bytes) = (Arc::clone(&objects), bytes.clone());
        async move { if heals { objects.put(&at, bytes.into()).await.map(drop) } else { Ok(()) } }.boxed()
    });
    let scrubber = backend.hooked_replica(hook).await;
    let report = scrubber.lifecycle().scrub(&WorkShare::WHOLE, 0, false, |_| {}).await.expect("scrubs");
    assert_eq!((report.misread, report.quarantined), (1, 0));
    let reader = backend.replica().await;
    assert_eq!(matched(&reader, &tokens).await, 256);
    assert!(read(&reader, &chunk, ByteRange::Whole).await.expect("reads") == chunk.bytes);
}

/// Of four bodies, slow readers of a tenant hold those of a profile and of a chunk: its next reader waits for one of
/// them, and a scrub does not.
#[tokio::test]
async fn slow_readers_leave_bodies_of_the_store_to_others() {
    let mut backend = Backend::memory();
    backend.config.requests_max = 1;
    backend.shared = None;
    let storage = backend.replica().await;
    let root = prepare(&storage).await;
    let chunk = chunks::chunk(root, &chunks::tokens(84, 256), 0, 256, 999);
    put(&storage, &chunk).await;
    let hash = ProfileHash::of(chunks::PROFILE);
    let slow = (
        storage.catalog().read_profile(&tenant(), &model_id(), &hash).await.expect("opens"),
        storage.reads().read(&key(&chunk), ByteRange::Whole, &RequestHint::default()).await.expect("opens"),
    );
    let is_scrubbed = AtomicBool::new(false);
    let next = async {
        let bytes = read(&storage, &chunk, ByteRange::Whole).await.expect("reads");
        assert!(is_scrubbed.load(Ordering::Relaxed), "it did not wait");
        assert!(bytes == chunk.bytes);
    };
    let others = async {
        let report = storage.lifecycle().scrub(&WorkShare::WHOLE, 0, false, |_| {}).await.expect("scrubs");
        assert_eq!((report.objects, report.unread), (1, 0));
        is_scrubbed.store(true, Ordering::Relaxed);
        drop(slow);
    };
    tokio::join!(next, others);
}
