//! Opaque objects: a key has one value, whoever writes, reads, removes and collects, and whatever fails.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use futures::{TryStreamExt, future::join_all};
use kvasir_storage::{
    ByteRange, ChunkError, ObjectError, OpaqueObject, PutError, PutObject, Storage, WorkShare, gc::GcPolicy,
    hot::RequestHint,
};
use kvasir_store::layout::Key;
use kvasir_types::{ModelId, ObjectKey};
use object_store::ObjectStoreExt;

use crate::{
    Backend,
    replicas::{at_once, collect},
    storage_core::{body, name, tenant},
};

pub(crate) fn key(text: &str) -> ObjectKey {
    text.parse().expect("a key")
}

pub(crate) fn payload(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i.wrapping_mul(31) >> 3) as u8 ^ seed).collect()
}

/// Stores `bytes` under a key of the namespace `n`. Says whether they were new.
pub(crate) async fn put(storage: &Arc<Storage>, text: &str, bytes: &[u8]) -> Result<bool, ObjectError> {
    let (hint, length) = (RequestHint::default(), bytes.len() as u64);
    let put = PutObject {
        tenant: tenant(),
        namespace: name("n"),
        key: key(text),
        bytes: length,
        hint,
        listed: false,
        reservation: None,
    };
    Ok(storage.ingest().put_object(put, body(bytes)).await?.created)
}

async fn find(storage: &Arc<Storage>, text: &str) -> Result<OpaqueObject, ObjectError> {
    storage.reads().opaque(&tenant(), &name("n"), &key(text)).await
}

pub(crate) async fn get(
    storage: &Arc<Storage>,
    text: &str,
    range: ByteRange,
) -> Result<Vec<u8>, ObjectError> {
    let object = find(storage, text).await?;
    let read = storage.reads().read_opaque(&object, range, &RequestHint::default()).await?;
    let length = read.range.end - read.range.start;
    let parts: Vec<Bytes> = read.bytes.try_collect().await?;
    assert_eq!(parts.iter().map(|part| part.len() as u64).sum::<u64>(), length);
    Ok(parts.concat())
}

pub(crate) async fn is_missing(storage: &Arc<Storage>, text: &str) -> bool {
    matches!(find(storage, text).await, Err(ObjectError::Unknown { .. }))
}

pub(crate) fn exists<T>(result: &Result<T, ObjectError>) -> bool {
    matches!(result, Err(ObjectError::Exists { .. }))
}

pub(crate) async fn a_key_keeps_its_bytes(backend: &Backend) {
    let writer = backend.replica_with(|settings| settings.spool_memory_bytes = 1 << 20).await;
    for (text, bytes) in [("empty", 0), ("one", 1), ("a/b c%", 1 << 20), ("ä", (3 << 20) + 7)] {
        let stored = payload(1, bytes);
        assert!(put(&writer, text, &stored).await.expect("stores"));
        assert!(!put(&writer, text, &stored).await.expect("the same bytes again"));
        let other = put(&writer, text, &payload(2, bytes + 1)).await;
        assert!(exists(&other), "{other:?}");
        let cold = backend.replica().await;
        assert_eq!(find(&cold, text).await.expect("is there").bytes(), bytes as u64);
        assert!(get(&cold, text, ByteRange::Whole).await.expect("reads") == stored);
        // A replica that knows nothing of it finds out by what it has written, and leaves nothing behind.
        let cold = backend.replica().await;
        assert!(!put(&cold, text, &stored).await.expect("the same bytes again"));
        let cold = backend.replica().await;
        let other = put(&cold, text, &payload(2, bytes + 1)).await;
        assert!(exists(&other), "{other:?}");
        assert!(get(&backend.replica().await, text, ByteRange::Whole).await.expect("reads") == stored);
    }
    let (stored, reader) = (payload(1, (3 << 20) + 7), backend.replica().await);
    for (first, last) in [(0, 0), (5, (1 << 20) + 5), (1 << 20, (2 << 20) - 1), (3 << 20, 9 << 20)] {
        let part = get(&reader, "ä", ByteRange::Bounded(first, last)).await.expect("reads");
        assert!(part == stored[first as usize..stored.len().min(last as usize + 1)], "{first}-{last}");
    }
    assert!(get(&reader, "ä", ByteRange::Suffix(9)).await.expect("reads") == stored[stored.len() - 9..]);
    let outside = get(&reader, "one", ByteRange::From(1)).await;
    assert!(matches!(outside, Err(ObjectError::Chunk(ChunkError::Range { object_bytes: 1 }))), "{outside:?}");
    assert!(is_missing(&reader, "two").await);
    // Another namespace and another tenant have other keys.
    for (tenant, namespace) in [(tenant(), name("m")), (name("other"), name("n"))] {
        let found = reader.reads().opaque(&tenant, &namespace, &key("one")).await;
        assert!(matches!(found, Err(ObjectError::Unknown { .. })), "{found:?}");
    }
}

pub(crate) async fn a_body_is_as_long_as_was_said(backend: &Backend) {
    let storage = backend.replica().await;
    for length in [2, 4] {
        let put = PutObject {
            tenant: tenant(),
            namespace: name("n"),
            key: key("three"),
            bytes: length,
            hint: RequestHint::default(),
            listed: false,
            reservation: None,
        };
        let stored = storage.ingest().put_object(put, body(b"abc")).await;
        let refused =
            matches!(stored, Err(ObjectError::Put(PutError::TooLarge { .. } | PutError::InvalidChunk(_))));
        assert!(refused, "{stored:?}");
    }
    assert!(is_missing(&storage, "three").await);
}

pub(crate) async fn the_leading_keys_that_are_there(backend: &Backend) {
    let writer = backend.replica().await;
    for text in ["a", "b", "d"] {
        put(&writer, text, text.as_bytes()).await.expect("stores");
    }
    let keys: Vec<ObjectKey> = ["a", "b", "c", "d"].map(key).to_vec();
    for replica in [&writer, &backend.replica().await] {
        let run = async |keys: &[ObjectKey]| {
            let run = replica
                .reads()
                .opaque_run(&tenant(), &name("n"), keys, 3, &RequestHint::default())
                .await
                .expect("answers");
            run.iter().map(OpaqueObject::bytes).collect::<Vec<_>>()
        };
        assert_eq!(run(&keys).await, [1, 1]);
        assert_eq!(run(&keys[3..]).await, [1]);
        assert_eq!(run(&keys[2..]).await, [0; 0]);
        assert_eq!(run(&[]).await, [0; 0]);
    }
}

pub(crate) async fn a_removed_key_takes_other_bytes(backend: &Backend) {
    let storage = backend.replica().await;
    for round in 0..3 {
        put(&storage, "k", &payload(round, 100)).await.expect("stores");
        storage.lifecycle().remove_object(&tenant(), &name("n"), &key("k")).await.expect("removes");
        for replica in [&storage, &backend.replica().await] {
            assert!(is_missing(replica, "k").await);
        }
        let again = storage.lifecycle().remove_object(&tenant(), &name("n"), &key("k")).await;
        assert!(again.is_ok() || matches!(again, Err(ObjectError::Unknown { .. })), "{again:?}");
    }
    // The very bytes of a removed object, by a replica that did not hear of it.
    let cold = backend.replica().await;
    assert!(put(&cold, "k", &payload(1, 100)).await.expect("stores"));
    assert!(!put(&storage, "k", &payload(1, 100)).await.expect("the same bytes under its second name"));
    assert!(get(&backend.replica().await, "k", ByteRange::Whole).await.expect("reads") == payload(1, 100));
    collect(&storage, &at_once()).await;
    assert!(get(&backend.replica().await, "k", ByteRange::Whole).await.expect("reads") == payload(1, 100));
    let never = storage.lifecycle().remove_object(&tenant(), &name("n"), &key("never")).await;
    assert!(matches!(never, Err(ObjectError::Unknown { .. })), "{never:?}");
}

/// Another replica takes other bytes as soon as a key is removed, and serves nothing else from then on.
pub(crate) async fn a_writer_need_not_hear_of_a_removal(backend: &Backend) {
    let (storage, writer) = (backend.replica().await, backend.replica().await);
    for text in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        put(&writer, text, &payload(1, 100)).await.expect("stores");
        storage.lifecycle().remove_object(&tenant(), &name("n"), &key(text)).await.expect("removes");
        assert!(put(&writer, text, &payload(2, 100)).await.expect("stores"));
        for replica in [&writer, &storage, &backend.replica().await] {
            assert!(get(replica, text, ByteRange::Whole).await.expect("reads") == payload(2, 100));
        }
    }
}

/// Concurrent writers of different bytes: at most one is acknowledged, and all readers get the bytes of that
/// one.
pub(crate) async fn of_writers_that_meet_one_wins(backend: &Backend) {
    let replicas = join_all((0..4).map(|_| backend.replica())).await;
    let mut acknowledged = 0;
    for round in 0..6 {
        let text = format!("round-{round}");
        let writers = replicas.iter().enumerate().map(|(i, replica)| {
            let (text, bytes) = (&text, payload(i as u8, 2_000));
            async move { put(replica, text, &bytes).await }
        });
        let done = join_all(writers).await;
        let won: Vec<usize> = (0..done.len()).filter(|&i| done[i].is_ok()).collect();
        assert!(won.len() <= 1, "{done:?}");
        assert!(done.iter().all(|done| done.is_ok() || exists(done)), "{done:?}");
        acknowledged += won.len();
        let cold = backend.replica().await;
        match won.first() {
            Some(&i) => {
                for replica in [&replicas[i], &cold] {
                    let found = get(replica, &text, ByteRange::Whole).await.expect("reads");
                    assert!(found == payload(i as u8, 2_000));
                }
            }
            None => assert!(is_missing(&cold, &text).await),
        }
    }
    assert!(acknowledged > 0, "not all of them gave way each time");
}

/// The same bytes, stored by several writers, have one ETag.
pub(crate) async fn equal_objects_have_one_etag(backend: &Backend) {
    let (first, second) = (backend.replica().await, backend.replica().await);
    let cold = backend.replica().await;
    for text in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        for writer in [&first, &second] {
            put(writer, text, b"the same").await.expect("stores");
        }
        let etags = [&second, &cold].map(|replica| find(replica, text));
        let [second, cold] = join_all(etags).await.try_into().expect("two");
        assert_eq!(second.expect("is there").etag(), cold.expect("is there").etag());
    }
}

/// The collector leaves objects of the same bytes alone while the one that it would keep is young.
#[tokio::test]
async fn a_young_object_replaces_no_other() {
    let backend = Backend::file();
    let (first, second) = (backend.replica().await, backend.replica().await);
    let texts = ["a", "b", "c", "d", "e", "f", "g", "h"];
    for text in texts {
        put(&first, text, b"the same").await.expect("stores");
    }
    let old = backend.paths(".kvc").await;
    for text in texts {
        put(&second, text, b"the same").await.expect("stores");
    }
    assert_eq!(backend.paths(".kvc").await.len(), 2 * old.len());
    let policy = GcPolicy { grace: Duration::from_secs(3_600), ..at_once() };
    let long_ago = SystemTime::now() - 2 * policy.grace;
    for path in old {
        let file = std::fs::File::open(backend.directory.path().join("store").join(path)).expect("is there");
        file.set_modified(long_ago).expect("is ours");
    }
    assert_eq!(collect(&second, &policy).await.duplicates, 0);
}

/// A key keeps its bytes when the salt of its namespace is rotated, and is removed under all of them.
pub(crate) async fn a_rotated_salt_frees_no_key(backend: &Backend) {
    let (storage, stale) = (backend.replica().await, backend.replica().await);
    put(&storage, "k", &payload(1, 100)).await.expect("stores");
    assert!(get(&stale, "k", ByteRange::Whole).await.expect("reads") == payload(1, 100));
    let keep = Duration::from_secs(3_600);
    let rotated = storage.catalog().rotate_namespace(&tenant(), &name("n"), &ModelId::OPAQUE, keep).await;
    rotated.expect("rotates");
    let other = put(&storage, "k", &payload(2, 100)).await;
    assert!(exists(&other), "{other:?}");
    assert!(!put(&storage, "k", &payload(1, 100)).await.expect("the same bytes"));
    put(&storage, "new", b"new").await.expect("stores");
    for text in ["k", "new"] {
        stale.lifecycle().remove_object(&tenant(), &name("n"), &key(text)).await.expect("removes");
        for replica in [&stale, &backend.replica().await] {
            assert!(is_missing(replica, text).await);
        }
    }
    assert!(put(&storage, "k", &payload(2, 100)).await.expect("stores"));
}

/// Bytes that went wrong in the store are an error and never an answer, and do not keep the key from its next writer.
pub(crate) async fn damage_is_never_served(backend: &Backend) {
    let storage = backend.replica().await;
    for (text, next) in [("same", 1), ("other", 2)] {
        put(&storage, text, &payload(1, (1 << 20) + 50)).await.expect("stores");
        damage(&storage, text).await;
        for replica in [&storage, &backend.replica().await] {
            let start = get(replica, text, ByteRange::Bounded(0, 9)).await.expect("the first piece is sound");
            assert!(start == payload(1, 10));
            let read = get(replica, text, ByteRange::Whole).await;
            assert!(matches!(read, Err(ObjectError::Chunk(ChunkError::Corrupt { .. }))), "{read:?}");
        }
        put(&storage, text, &payload(next, (1 << 20) + 50)).await.expect("stores");
        for replica in [&storage, &backend.replica().await] {
            let read = get(replica, text, ByteRange::Whole).await.expect("reads");
            assert!(read == payload(next, (1 << 20) + 50));
        }
    }
}

/// Changes the last byte of the object stored under a key.
async fn damage(storage: &Arc<Storage>, text: &str) {
    let root = storage.catalog().root(&tenant(), &name("n"), &ModelId::OPAQUE).await.expect("a root");
    let layout = storage.store().layout().clone();
    let prefix = layout.chunk_prefix(&tenant(), &ModelId::OPAQUE, &root.chain_key().object(&key(text)));
    let objects = storage.store().objects();
    let listed: Vec<_> = objects.list(Some(&prefix)).try_collect().await.expect("lists");
    let [found] = listed.as_slice() else { panic!("one object, not {listed:?}") };
    assert!(matches!(layout.parse(&found.location), Some(Key::Chunk(_))));
    let mut bytes = objects.get(&found.location).await.expect("reads").bytes().await.expect("reads").to_vec();
    *bytes.last_mut().expect("not empty") ^= 1;
    objects.put(&found.location, bytes.into()).await.expect("writes");
}

pub(crate) async fn objects_are_rebuilt_scrubbed_and_expire(backend: &Backend) {
    let storage = backend.replica().await;
    put(&storage, "k", &payload(1, 100)).await.expect("stores");
    let cold = backend.replica().await;
    let rebuilt = cold.lifecycle().rebuild_index(|_| {}).await.expect("rebuilds");
    assert_eq!((rebuilt.indexed, rebuilt.failed), (1, 0));
    assert!(get(&cold, "k", ByteRange::Whole).await.expect("reads") == payload(1, 100));
    let scrubbed = cold.lifecycle().scrub(&WorkShare::WHOLE, 0, false, |_| {}).await.expect("scrubs");
    assert_eq!((scrubbed.objects, scrubbed.quarantined, scrubbed.unread), (1, 0, 0));
    assert_eq!(collect(&cold, &at_once()).await.duplicates, 0);
    let old = GcPolicy { ttl: Some(Duration::ZERO), ..at_once() };
    assert_eq!(collect(&cold, &old).await.expired, 1);
    for replica in [&cold, &backend.replica().await] {
        assert!(is_missing(replica, "k").await);
    }
}
