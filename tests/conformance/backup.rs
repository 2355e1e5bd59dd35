//! A copy of the bucket, made in any order during writes: the promises of the replicas of a restored copy,
//! and the effects of losing a salt or a key. Checks the statements of `deploy/docs/backup.md`.

use std::{sync::Arc, time::Duration};

use futures::TryStreamExt;
use kvasir_api::ContextRequest;
use kvasir_storage::{ByteRange, ChunkError, Storage, gc::GcPolicy};
use kvasir_store::{
    OpenStore, StoreError, StoreKind,
    layout::{ChunkKey, Key},
    observe::NoObserver,
    seal::FileKeys,
};
use kvasir_tests::{
    chunks::{self, Chunk},
    faulty::Dice,
};
use object_store::{ObjectStore, ObjectStoreExt, memory::InMemory, path::Path};

use crate::{
    Backend,
    pins::stored_for,
    replicas::{at_once, collect, put_any},
    storage_core::{key, matched, model_id, name, prepare, put, read, tenant},
};

pub(crate) const KEYS: &str = "[[key]]\ntenant = \"default\"\nid = \"k1\"\nkey = \"0101010101010101010101010101010101010101010101010101010101010101\"\n";
/// A key file that does not have the tenant's key.
pub(crate) const OTHER_KEYS: &str = "[[key]]\ntenant = \"other\"\nid = \"k1\"\nkey = \"0202020202020202020202020202020202020202020202020202020202020202\"\n";
/// A key file whose key of the tenant opens nothing that was sealed before.
const LATER_KEYS: &str = "[[key]]\ntenant = \"default\"\nid = \"k2\"\nkey = \"0202020202020202020202020202020202020202020202020202020202020202\"\n";
const CHUNKS: u64 = 12;

/// The layer below sealing, as a backup sees it.
#[derive(Debug, Clone, Default)]
struct Bucket(Arc<InMemory>);

impl Bucket {
    async fn replica(&self, backend: &Backend, keys: Option<&str>) -> Arc<Storage> {
        let inner = Arc::clone(&self.0) as Arc<dyn ObjectStore>;
        let open = OpenStore::with(
            inner,
            &Path::default(),
            StoreKind::Memory,
            &crate::config("memory://"),
            Arc::new(NoObserver),
        );
        let open = match keys {
            Some(keys) => open.sealed(Arc::new(FileKeys::parse(keys).expect("keys"))),
            None => open,
        };
        backend.replica_over(open, |_| {}).await
    }

    async fn paths(&self) -> Vec<Path> {
        let listed: Vec<_> = self.0.list(None).try_collect().await.expect("lists");
        listed.into_iter().map(|meta| meta.location).collect()
    }

    /// Copies `paths` in a random order, each at a different moment. Objects deleted in the meantime are not
    /// copied.
    async fn copied(&self, mut paths: Vec<Path>, dice: &mut Dice) -> Self {
        let copy = Self::default();
        while !paths.is_empty() {
            let path = paths.swap_remove(dice.below(paths.len()));
            let Ok(found) = self.0.get(&path).await else { continue };
            copy.0.put(&path, found.bytes().await.expect("reads").into()).await.expect("writes");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        copy
    }
}

fn a_chunk(root: kvasir_types::RootHash, n: u64) -> (Vec<u32>, Chunk) {
    let tokens = chunks::tokens(700 + n, 64);
    let chunk = chunks::chunk(root, &tokens, 0, 64, 50);
    (tokens, chunk)
}

/// Whether a chunk is served, for reads and then for lookups. The journal may have offered objects that the
/// copy lacks: the read ends that.
async fn is_served(storage: &Arc<Storage>, (tokens, chunk): &(Vec<u32>, Chunk)) -> bool {
    let offered = matched(storage, tokens).await;
    let served = match read(storage, chunk, ByteRange::Whole).await {
        Ok(bytes) => {
            assert!(bytes == chunk.bytes);
            true
        }
        Err(ChunkError::Unknown { .. }) => false,
        Err(error) => panic!("{error}"),
    };
    assert!(offered == 64 || !served, "{offered} tokens were offered of what is there");
    assert_eq!(matched(storage, tokens).await, if served { 64 } else { 0 });
    served
}

async fn judged(keys: Option<&str>, seed: u64) {
    let (backend, bucket, mut dice) = (Backend::memory(), Bucket::default(), Dice::new(seed));
    let storage = bucket.replica(&backend, keys).await;
    let root = prepare(&storage).await;
    let all: Vec<_> = (0..CHUNKS).map(|n| a_chunk(root, n)).collect();
    let (before, during) = all.split_at(CHUNKS as usize / 2);
    for (_, chunk) in before {
        put(&storage, chunk).await;
    }
    let [removed, pinned, removed_late, kept @ ..] = before else { unreachable!("there are six") };
    storage.lifecycle().remove(&key(&removed.1)).await.expect("removes");
    let request = ContextRequest {
        model_id: model_id(),
        namespace: name("n"),
        chunks: vec![pinned.1.seq_hash],
        labels: Default::default(),
        ttl_s: None,
        pinned: true,
    };
    storage.contexts().create(&tenant(), request).await.expect("pins");
    storage.changes().journal_append().await.expect("appends");
    let mut paths = bucket.paths().await;
    // The copy has begun: of what is written from now on some is in it.
    for (_, chunk) in during {
        put(&storage, chunk).await;
    }
    storage.lifecycle().remove(&key(&removed_late.1)).await.expect("removes");
    storage.changes().journal_append().await.expect("appends");
    for path in bucket.paths().await {
        if !paths.contains(&path) && dice.chance(500) {
            paths.push(path);
        }
    }
    let copy = bucket.copied(paths, &mut dice).await;

    let restored = copy.replica(&backend, keys).await;
    restored.changes().journal_replay().await.expect("reads");
    assert_eq!(prepare(&restored).await, root, "the salt is the bucket's");
    for chunk in kept.iter().chain([pinned]) {
        assert!(is_served(&restored, chunk).await, "acknowledged before the copy began");
    }
    assert!(!is_served(&restored, removed).await, "removed before the copy began");
    // What was stored or removed since: as if it had been, or as if it had not; never anything else.
    is_served(&restored, removed_late).await;
    for chunk in during {
        if !is_served(&restored, chunk).await {
            put_any(&restored, &chunk.1).await;
        }
        assert_eq!(matched(&restored, &chunk.0).await, 64);
    }
    // A collector takes nothing that the copy holds for somebody.
    let policy = GcPolicy { ttl: Some(Duration::ZERO), ..at_once() };
    tokio::time::sleep(Duration::from_millis(20)).await;
    for _ in 0..2 {
        collect(&restored, &policy).await;
    }
    assert_eq!(read(&restored, &pinned.1, ByteRange::Whole).await.expect("pinned"), pinned.1.bytes);
    assert!(read(&restored, &kept[0].1, ByteRange::Whole).await.is_err(), "nobody pinned it");
}

#[tokio::test]
async fn a_copy_in_any_order_without_the_newest_hour_owes_what_is_older() {
    for seed in 0..20 {
        judged(None, seed).await;
        judged(Some(KEYS), seed).await;
    }
}

#[tokio::test]
async fn the_newest_salt_of_a_namespace_is_that_of_its_copy() {
    let (backend, bucket) = (Backend::memory(), Bucket::default());
    let storage = bucket.replica(&backend, None).await;
    let mut newest = prepare(&storage).await;
    let (namespace, keep) = (name("n"), Duration::from_secs(3600));
    for _ in 0..3 {
        let before = newest;
        newest = storage
            .catalog()
            .rotate_namespace(&tenant(), &namespace, &model_id(), keep)
            .await
            .expect("a salt");
        assert_ne!(newest, before);
    }
    for seed in 0..20 {
        let copy = bucket.copied(bucket.paths().await, &mut Dice::new(seed)).await;
        let copied = copy.replica(&backend, None).await;
        let root = copied.catalog().root(&tenant(), &namespace, &model_id()).await.expect("a root");
        assert_eq!(root, newest, "copy {seed}");
    }
}

#[tokio::test]
async fn without_its_salt_a_tenant_begins_anew() {
    let (backend, bucket, mut dice) = (Backend::memory(), Bucket::default(), Dice::new(1));
    let storage = bucket.replica(&backend, None).await;
    let root = prepare(&storage).await;
    let old = a_chunk(root, 0);
    put(&storage, &old.1).await;
    let salt = storage.store().layout().path(&Key::Salt { tenant: tenant() });
    let mut paths = bucket.paths().await;
    paths.retain(|path| *path != salt);
    let restored = bucket.copied(paths, &mut dice).await.replica(&backend, None).await;
    let other = prepare(&restored).await;
    assert_ne!(other, root);
    assert_eq!(matched(&restored, &old.0).await, 0, "a miss");
    let new = a_chunk(other, 0);
    put(&restored, &new.1).await;
    assert!(is_served(&restored, &new).await);
    // What nobody can find any more goes with its age.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let policy = GcPolicy { ttl: Some(Duration::ZERO), ..at_once() };
    assert_eq!(collect(&restored, &policy).await.expired, 2);
}

#[tokio::test]
async fn without_its_key_a_sealed_tenant_is_an_error_that_names_the_key() {
    let (backend, bucket, mut dice) = (Backend::memory(), Bucket::default(), Dice::new(1));
    let storage = bucket.replica(&backend, Some(KEYS)).await;
    let root = prepare(&storage).await;
    let chunk = a_chunk(root, 0);
    put(&storage, &chunk.1).await;
    let copy = bucket.copied(bucket.paths().await, &mut dice).await;
    let restored = copy.replica(&backend, Some(OTHER_KEYS)).await;
    let object = ChunkKey { tenant: tenant(), ..key(&chunk.1) };
    let refused = restored.reads().preferred(&tenant(), &model_id(), &object.seq_hash).await;
    assert!(
        matches!(&refused, Err(ChunkError::Store(StoreError::KeyLost { reason })) if reason.contains("k1")),
        "{refused:?}"
    );
    // With the key everything is there again.
    let restored = copy.replica(&backend, Some(KEYS)).await;
    assert!(is_served(&restored, &chunk).await);
}

/// Removals of a tenant whose key is lost cannot be announced. A pass that deletes its bytes announces those of the others.
#[tokio::test]
async fn a_lost_key_ends_no_pass() {
    let (backend, bucket) = (Backend::memory(), Bucket::default());
    let storage = bucket.replica(&backend, Some(KEYS)).await;
    let (_, sealed) = a_chunk(prepare(&storage).await, 0);
    put(&storage, &sealed).await;
    let plain = stored_for(&storage, &name("other"), &chunks::tokens(720, 64)).await;
    let removed = [key(&sealed), ChunkKey { tenant: name("other"), ..key(&plain) }];
    for key in &removed {
        storage.lifecycle().remove(key).await.expect("removes");
    }
    let without = bucket.replica(&backend, Some(LATER_KEYS)).await;
    assert_eq!(collect(&without, &at_once()).await.deleted, 2);
    let notes = removed.map(|key| storage.store().layout().path(&Key::Gone(key)));
    let left = bucket.paths().await;
    assert_eq!(notes.map(|note| left.contains(&note)), [false, true], "those announced are noted");
}
