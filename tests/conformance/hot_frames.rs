//! Frames of the hot tier: what a replica has of an object when the store has it no more, and under another name.

use std::{path::Path, sync::Arc, time::Duration};

use kvasir_eviction::PolicyKind;
use kvasir_storage::{
    ByteRange, ChunkError, Settings, Storage,
    hot::{HotSettings, HotTier, MonotonicClock, NoHotObserver},
    index::Index,
};
use kvasir_store::layout::{ChunkKey, Key};
use kvasir_tests::chunks::{self, Chunk};
use object_store::ObjectStoreExt;
use tempfile::TempDir;

use crate::{
    Backend,
    removal::offered,
    storage_core::{key, prepare, put, read},
};

fn tier(directory: &Path) -> Arc<HotTier> {
    let settings = HotSettings {
        ram_bytes: 8 << 20,
        disk_bytes: 64 << 20,
        directory: directory.to_owned(),
        policy: PolicyKind::Lru,
        tenant_share_max: 1.0,
        read_ahead_chunks: 0,
        keys: None,
    };
    HotTier::open(settings, Arc::new(MonotonicClock), Arc::new(NoHotObserver)).expect("opens")
}

async fn replica(backend: &Backend, tier: &Arc<HotTier>) -> Arc<Storage> {
    let store = backend.open();
    let abilities = store.probe().await.expect("answers");
    let settings = Settings::new(backend.directory.path().join("spool"));
    Storage::new(store, abilities, Index::memory(), settings, Some(Arc::clone(tier)))
}

/// A chunk that a replica has read whole, and its tokens.
async fn read_whole(storage: &Arc<Storage>) -> (Vec<u32>, Chunk) {
    let root = prepare(storage).await;
    let tokens = chunks::tokens(140, 64);
    let chunk = chunks::chunk(root, &tokens, 0, 64, 50);
    put(storage, &chunk).await;
    assert!(read(storage, &chunk, ByteRange::Whole).await.expect("reads") == chunk.bytes);
    (tokens, chunk)
}

async fn delete_from_store(storage: &Storage, chunk: &Chunk) {
    let path = storage.store().layout().path(&Key::Chunk(key(chunk)));
    storage.store().objects().delete(&path).await.expect("deletes");
}

/// Its removal is forgotten everywhere, but a replica that was away has its frames on disk.
#[tokio::test]
async fn frames_on_disk_are_not_served_of_an_object_that_nobody_knows() {
    let (backend, folder) = (Backend::memory(), TempDir::new().expect("a directory"));
    let before = tier(folder.path());
    let storage = replica(&backend, &before).await;
    let (tokens, chunk) = read_whole(&storage).await;
    assert!(before.write_back(Duration::from_secs(10)) > 0);
    drop((storage, before));
    let storage = replica(&backend, &tier(folder.path())).await;
    delete_from_store(&storage, &chunk).await;
    for range in [ByteRange::Whole, ByteRange::Bounded(0, 9)] {
        let found = read(&storage, &chunk, range).await;
        assert!(matches!(found, Err(ChunkError::Unknown { .. })), "{found:?}");
    }
    assert_eq!(offered(&storage, &tokens).await, 0);
}

/// A request that names an object as part of another chunk gets nothing, and does not drop the object.
#[tokio::test]
async fn frames_are_served_by_their_objects_name_alone() {
    let (backend, folder) = (Backend::memory(), TempDir::new().expect("a directory"));
    let storage = replica(&backend, &tier(folder.path())).await;
    let (tokens, chunk) = read_whole(&storage).await;
    let wrong = ChunkKey { seq_hash: [7; 32].into(), ..key(&chunk) };
    let found = storage.reads().read(&wrong, ByteRange::Whole, &Default::default()).await;
    assert!(matches!(found, Err(ChunkError::Unknown { .. })));
    assert_eq!(offered(&storage, &tokens).await, 64);
    delete_from_store(&storage, &chunk).await;
    assert!(read(&storage, &chunk, ByteRange::Whole).await.expect("is in memory") == chunk.bytes);
}
