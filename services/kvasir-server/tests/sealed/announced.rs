//! Bodies of sealed tenants whose digest is sent first.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use kvasir_storage::{
    AnnouncedBody, PutChunk, Settings, Storage,
    index::Index,
    transitions::{CrashPointObserver, Transition},
};
use kvasir_store::{OpenStore, StoreAbilities, StoreConfig, StoreKind, observe::NoObserver};
use kvasir_tests::chunks;
use object_store::{ObjectStore, memory::InMemory, path::Path};

use crate::{body, keys, name, prepare};

/// Counts beginnings and parts of uploads in parts.
#[derive(Debug, Default)]
struct Parts(AtomicUsize);

impl CrashPointObserver for Parts {
    fn reached(&self, transition: Transition) {
        let is_part = matches!(transition, Transition::PartsBegun | Transition::PartWritten);
        self.0.fetch_add(usize::from(is_part), Ordering::Relaxed);
    }
}

/// A key seals one content: nothing is sealed of a body whose digest is not yet known to be the announced one.
#[tokio::test]
async fn an_announced_body_is_compared_before_it_is_sealed() {
    let (truth, parts) = (Arc::new(InMemory::new()), Arc::new(Parts::default()));
    let observer = Arc::clone(&parts);
    let config = StoreConfig::new("memory://".parse().expect("a url"));
    let inner = Arc::clone(&truth) as Arc<dyn ObjectStore>;
    let store = OpenStore::with(inner, &Path::default(), StoreKind::Memory, &config, Arc::new(NoObserver));
    let spool = std::env::temp_dir().join("kvasir-sealed-spool");
    let settings = Settings { crash_points: observer, ..Settings::new(spool) };
    let abilities = StoreAbilities { conditional_create: true };
    let store = store.sealed(Arc::new(keys("one")));
    let storage = Storage::new(store, abilities, Index::memory(), settings, None);
    let root = prepare(&storage).await;
    let chunk = chunks::chunk(root, &chunks::tokens(1, 256), 0, 256, 500);
    let (tenant, model_id, bytes) = (name("default"), chunks::spec().model_id(), chunk.bytes.len() as u64);
    for (object_digest, is_right) in [([7; 32].into(), false), (chunk.object_digest, true)] {
        let announced = Some(AnnouncedBody { object_digest, bytes });
        let put = PutChunk { announced, ..PutChunk::new(&tenant, &model_id, &chunk.seq_hash) };
        let stored = storage.ingest().put_chunk(put, body(&chunk.bytes)).await;
        assert_eq!(stored.is_ok(), is_right, "{stored:?}");
    }
    assert_eq!(parts.0.load(Ordering::Relaxed), 0);
}
