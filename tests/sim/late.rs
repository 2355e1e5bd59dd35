//! Late collectors: the period in which a name is not reused begins when its bytes are gone.

use std::time::Duration;

use futures::TryStreamExt;
use kvasir_storage::{
    Storage, WorkShare,
    gc::{GcPolicy, GcReport},
};
use kvasir_store::layout::{ChunkKey, Key};
use kvasir_tests::{
    chunks::{self, Chunk},
    faulty::{Dice, FaultyStore},
};
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::time::sleep;

use crate::{
    client::{self, tenant},
    node::Node,
    on_simulated_time,
};

const DAY: Duration = Duration::from_secs(24 * 3600);
const MINUTE: Duration = Duration::from_secs(60);

fn policy() -> GcPolicy {
    GcPolicy { grace: MINUTE, tombstone_retention: DAY, actions_per_second: 0, ..GcPolicy::default() }
}

async fn collect(storage: &Storage) -> GcReport {
    storage
        .lifecycle()
        .collect_garbage(&policy(), &WorkShare::WHOLE, |_| {})
        .await
        .expect("nothing goes wrong")
}

fn key(chunk: &Chunk) -> ChunkKey {
    let (seq_hash, object_digest) = (chunk.seq_hash, chunk.object_digest);
    ChunkKey { tenant: tenant(), model_id: client::model_id(), seq_hash, object_digest }
}

/// A chunk that was stored and removed, with its store and its replica.
async fn removed(seed: u64) -> (FaultyStore, Node, Chunk) {
    let store = FaultyStore::new(seed, 0, false);
    let node = Node::cold(1, &store, &mut Dice::new(seed)).await;
    let root = client::join(&node.storage, &tenant()).await.expect("joins");
    let chunk = chunks::chunk(root, &chunks::tokens(1, 256), 0, 256, 50);
    client::store(&node.storage, &chunk).await.expect("stores");
    node.storage.lifecycle().remove(&key(&chunk)).await.expect("removes");
    (store, node, chunk)
}

/// The files left in addition to the chunks: tombstones and notes.
async fn tombstones(store: &FaultyStore, storage: &Storage) -> usize {
    let folder = storage.store().layout().model_tombstones_prefix(&tenant(), &client::model_id());
    store.inner().list(Some(&folder)).try_collect::<Vec<_>>().await.expect("memory").len()
}

#[test]
fn the_retention_of_a_tombstone_begins_when_its_bytes_are_gone() {
    on_simulated_time(async {
        let (store, node, chunk) = removed(5).await;
        let storage = &node.storage;
        // Nobody collects for days. Then two passes follow each other, and a collector of the first may still be on its
        // way to the object that it decided about.
        sleep(DAY * 3).await;
        assert_eq!(collect(storage).await.deleted, 1);
        sleep(MINUTE * 2).await;
        assert_eq!(collect(storage).await.tombstones_deleted, 0, "the bytes went two minutes ago");
        let again = client::store(storage, &chunk).await.expect("stores");
        assert_ne!(again, chunk.object_digest, "the name is not used again yet");
        let decided = storage.store().layout().path(&Key::Chunk(key(&chunk)));
        let _ = store.inner().delete(&decided).await;
        let stays = ChunkKey { object_digest: again, ..key(&chunk) };
        assert!(storage.reads().object_bytes(&stays).await.is_ok());
        sleep(DAY).await;
        assert_eq!(collect(storage).await.tombstones_deleted, 1);
        assert_eq!(tombstones(&store, storage).await, 0);

        // A note of an earlier life of the name says nothing of this one.
        let note = storage.store().layout().path(&Key::Gone(stays.clone()));
        storage.store().objects().put(&note, "".into()).await.expect("writes");
        sleep(DAY + MINUTE * 2).await;
        storage.lifecycle().remove(&stays).await.expect("removes");
        sleep(DAY * 3).await;
        assert_eq!(collect(storage).await.deleted, 1);
        assert_eq!(collect(storage).await.tombstones_deleted, 0);
        // One whose collector ended before it could write the note is counted from the pass that finds it out.
        storage.store().objects().delete(&note).await.expect("deletes");
        sleep(DAY).await;
        assert_eq!(collect(storage).await.tombstones_deleted, 0);
        sleep(DAY).await;
        assert_eq!(collect(storage).await.tombstones_deleted, 1);
        assert_eq!(tombstones(&store, storage).await, 0);

        // And a note without a tombstone goes by itself.
        storage.store().objects().put(&note, "".into()).await.expect("writes");
        sleep(DAY * 3).await;
        collect(storage).await;
        assert_eq!(tombstones(&store, storage).await, 0);
    });
}

/// Its bytes would be served once no replica remembers the removal, which is soon after the retention. So the note that they are
/// gone does not count for them, and another one counts from their end.
#[test]
fn what_a_writer_stores_later_than_the_grace_goes_with_the_next_pass() {
    on_simulated_time(async {
        let (store, node, chunk) = removed(6).await;
        let storage = &node.storage;
        sleep(MINUTE * 2).await;
        assert_eq!(collect(storage).await.deleted, 1);
        sleep(DAY / 2).await;
        assert_eq!(collect(storage).await.deleted, 0, "nothing is left of it");
        let path = storage.store().layout().path(&Key::Chunk(key(&chunk)));
        storage.store().objects().put(&path, chunk.bytes.clone().into()).await.expect("writes");
        assert!(storage.reads().object_bytes(&key(&chunk)).await.is_err(), "it stays removed");
        assert_eq!(collect(storage).await.deleted, 1);
        sleep(DAY / 2 + MINUTE * 2).await;
        assert_eq!(collect(storage).await.tombstones_deleted, 0, "the late bytes went half a day ago");
        sleep(DAY / 2).await;
        assert_eq!(collect(storage).await.tombstones_deleted, 1);
        assert_eq!(tombstones(&store, storage).await, 0);
    });
}
