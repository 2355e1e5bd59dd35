//! Other tenants' data is indistinguishable from missing data: the same answer, and the same requests to
//! store and index.
//!
//! Asserted on operations, not on time: whatever differs in them would differ in time for somebody who measures well.

use std::sync::Arc;

use bytes::Bytes;
use futures::{FutureExt, future::LocalBoxFuture, stream};
use kvasir_api::{ContextChange, ContextRequest, ExplainRequest};
use kvasir_storage::{
    ByteRange, Lookup, PutChunk, Query, Selection, Settings, Storage,
    hot::{HotSettings, HotTier, MonotonicClock, NoHotObserver, RequestHint},
    index::Index,
};
use kvasir_store::{
    OpenStore, StoreAbilities, StoreConfig, StoreKind, layout::ChunkKey, observe::NoObserver,
};
use kvasir_tests::{
    chunks::{self, Chunk},
    recording::{Record, RecordingIndex, RecordingStore},
};
use kvasir_types::{Level, ModelId, Name, ProfileHash, SeqHash};
use object_store::{memory::InMemory, path::Path};
use uuid::Uuid;

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn model_id() -> ModelId {
    chunks::spec().model_id()
}

fn body(bytes: &[u8]) -> impl futures::Stream<Item = Result<Bytes, std::io::Error>> + Send + use<> {
    stream::iter([Ok(Bytes::copy_from_slice(bytes))])
}

/// Ids in requests.
#[derive(Debug, Clone, Copy)]
struct Ids {
    key: [SeqHash; 2],
    object: kvasir_types::ObjectDigest,
    profile: ProfileHash,
    model: ModelId,
    upload: Uuid,
    context: Uuid,
}

impl Ids {
    /// Ids of nothing.
    fn random(n: u8) -> Self {
        let hash = |with: u8| *blake3::hash(&[n, with]).as_bytes();
        Self {
            key: [hash(0).into(), hash(1).into()],
            object: hash(2).into(),
            profile: hash(3).into(),
            model: hash(4).into(),
            upload: Uuid::now_v7(),
            context: Uuid::now_v7(),
        }
    }

    fn chunk(&self, tenant: &str) -> ChunkKey {
        let (seq_hash, object_digest) = (self.key[0], self.object);
        ChunkKey { tenant: name(tenant), model_id: model_id(), seq_hash, object_digest }
    }

    /// A text without the ids: the rest must not reveal whose they are.
    fn hide(&self, text: String) -> String {
        let hashes = [self.key[0].to_string(), self.key[1].to_string(), self.object.to_string()];
        let rest = [
            self.profile.to_string(),
            self.model.to_string(),
            self.upload.to_string(),
            self.context.to_string(),
        ];
        hashes.iter().chain(&rest).fold(text, |text, id| text.replace(id, "ID"))
    }
}

/// One replica over a store, with both tenants at home: models registered, a chunk and a context each, caches warm.
struct World {
    storage: Arc<Storage>,
    record: Record,
    /// The data of tenant `a`.
    foreign: Ids,
    _directory: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        let (record, directory) = (Record::default(), tempfile::tempdir().expect("a directory"));
        let backend = RecordingStore::new(Arc::new(InMemory::new()), record.clone());
        let mut config = StoreConfig::new("memory://".parse().expect("a url"));
        config.jitter_seed = 0;
        let store =
            OpenStore::with(backend, &Path::default(), StoreKind::Memory, &config, Arc::new(NoObserver));
        let hot = HotSettings {
            ram_bytes: 64 << 20,
            disk_bytes: 0,
            directory: directory.path().join("hot"),
            policy: kvasir_eviction::PolicyKind::Lru,
            tenant_share_max: 1.0,
            read_ahead_chunks: 0,
            keys: None,
        };
        let hot = HotTier::open(hot, Arc::new(MonotonicClock), Arc::new(NoHotObserver)).expect("opens");
        let index = Index::over(Arc::new(RecordingIndex::new(record.clone())));
        let settings = Settings::new(directory.path().join("spool"));
        let abilities = StoreAbilities { conditional_create: true };
        let storage = Storage::new(store, abilities, index, settings, Some(hot));
        let mut foreign = Ids::random(1);
        for (tenant, seed) in [("a", 1), ("b", 2)] {
            let (chunk, context) = Self::furnish(&storage, tenant, seed).await;
            if tenant == "a" {
                foreign = Ids {
                    key: [chunk[0].seq_hash, chunk[1].seq_hash],
                    object: chunk[0].object_digest,
                    profile: ProfileHash::of(b"a profile of one's own"),
                    model: own_model(tenant).model_id(),
                    context,
                    ..foreign
                };
            }
        }
        Self { storage, record, foreign, _directory: directory }
    }

    /// Stores a context of two chunks for a tenant, and reads and lists all of it.
    async fn furnish(storage: &Arc<Storage>, tenant: &str, seed: u64) -> (Vec<Chunk>, Uuid) {
        let (tenant, namespace, own) = (name(tenant), name("n"), own_model(tenant));
        storage.ingest().register_model(&tenant, chunks::spec(), None).await.expect("registers");
        storage.ingest().register_model(&tenant, own, None).await.expect("registers");
        for profile in [chunks::PROFILE.to_vec(), own_profile(&tenant)] {
            let hash = ProfileHash::of(&profile);
            storage
                .ingest()
                .put_profile(&tenant, &model_id(), &hash, None, body(&profile))
                .await
                .expect("stores");
        }
        let root = storage.ingest().open_namespace(&tenant, &namespace, &model_id(), None).await;
        let root = root.expect("a root");
        let context = chunks::context(root, &chunks::tokens(seed, 600), 256, 100);
        for chunk in &context {
            let stored = storage
                .ingest()
                .put_chunk(PutChunk::new(&tenant, &model_id(), &chunk.seq_hash), body(&chunk.bytes))
                .await;
            stored.expect("stores");
        }
        let chunks: Vec<SeqHash> = context.iter().map(|chunk| chunk.seq_hash).collect();
        let request = ContextRequest {
            model_id: model_id(),
            namespace: namespace.clone(),
            chunks: chunks.clone(),
            labels: Default::default(),
            ttl_s: None,
            pinned: false,
        };
        let named = storage.contexts().create(&tenant, request).await.expect("a context");
        let found = storage
            .lookup(&Lookup::new(&tenant, &namespace, &model_id(), Query::Chunks(chunks)).fresh(true))
            .await;
        assert_eq!(found.expect("found").matched_tokens, 600);
        (context, named.context_id)
    }
}

fn own_model(tenant: &str) -> kvasir_types::ModelSpec {
    kvasir_types::ModelSpec { revision: format!("of {tenant}"), ..chunks::spec() }
}

fn own_profile(tenant: &Name) -> Vec<u8> {
    if tenant.as_str() == "a" { b"a profile of one's own".to_vec() } else { b"another".to_vec() }
}

/// The actions with ids that tenant `b` may try.
type Try = (&'static str, for<'a> fn(&'a Arc<Storage>, Ids) -> LocalBoxFuture<'a, String>);

macro_rules! tries {
    ($($what:literal => |$storage:ident, $ids:ident| $try:expr;)*) => {
        &[$(($what, |$storage, $ids| async move { format!("{:?}", $try) }.boxed_local())),*]
    };
}

async fn read(storage: &Storage, ids: Ids, range: ByteRange) -> Result<(), String> {
    storage
        .reads()
        .read(&ids.chunk("b"), range, &RequestHint::default())
        .await
        .map(drop)
        .map_err(|e| e.to_string())
}

fn explained(ids: Ids) -> ExplainRequest {
    ExplainRequest { model_id: ids.model, spec: None, namespace: name("n"), tokens: chunks::tokens(7, 64) }
}

const TRIES: &[Try] = tries! {
    "look up by blocks" => |storage, ids| storage.lookup(&Lookup::new(&name("b"), &name("n"), &model_id(), Query::Blocks(ids.key.to_vec())).fresh(true)).await;
    "look up by blocks again" => |storage, ids| {
        let look = async || {
            storage.lookup(&Lookup::new(&name("b"), &name("n"), &model_id(), Query::Blocks(ids.key.to_vec()))).await
        };
        (look().await, look().await)
    };
    "look up by chunks" => |storage, ids| storage.lookup(&Lookup::new(&name("b"), &name("n"), &model_id(), Query::Chunks(ids.key.to_vec())).fresh(true)).await;
    "look up under a model" => |storage, ids| storage.lookup(&Lookup::new(&name("b"), &name("n"), &ids.model, Query::Tokens(chunks::tokens(1, 600))).fresh(true)).await;
    "find a chunk" => |storage, ids| storage.reads().preferred(&name("b"), &model_id(), &ids.key[0]).await;
    "read an object" => |storage, ids| read(storage, ids, ByteRange::Whole).await;
    "read a range" => |storage, ids| read(storage, ids, ByteRange::Bounded(5, 50)).await;
    "read a suffix" => |storage, ids| read(storage, ids, ByteRange::Suffix(5)).await;
    "read some tokens" => |storage, ids| {
        let selection = Selection { level: Some(Level(0)), tokens: Some(20), sections: None };
        let hint = RequestHint::default();
        storage.reads().read_selection(&ids.chunk("b"), &selection, ByteRange::Whole, &hint).await.map(drop)
    };
    "ask for a size" => |storage, ids| storage.reads().object_bytes(&ids.chunk("b")).await;
    "ask for a level" => |storage, ids| storage.reads().level_bytes(&ids.chunk("b"), Level(0)).await;
    "ask for a URL" => |storage, ids| storage.direct_reads().object_url(&ids.chunk("b")).await;
    "ask for a status" => |storage, ids| storage.reads().status(&ids.chunk("b")).await;
    "remove an object" => |storage, ids| storage.lifecycle().remove(&ids.chunk("b")).await;
    "remove a chunk" => |storage, ids| storage.lifecycle().remove_chunk(&name("b"), &model_id(), &ids.key[0]).await;
    "commit an upload" => |storage, ids| storage.direct_uploads().commit_upload(&name("b"), ids.upload).await;
    "read a model" => |storage, ids| storage.catalog().model(&name("b"), &ids.model).await;
    "sample chunks" => |storage, ids| storage.reads().sample(&name("b"), &ids.model, 8).await;
    "list profiles" => |storage, ids| storage.catalog().list_profiles(&name("b"), &ids.model).await;
    "read a profile" => |storage, ids| storage.catalog().read_profile(&name("b"), &model_id(), &ids.profile).await.map(drop);
    "open a namespace" => |storage, ids| {
        storage.ingest().open_namespace(&name("b"), &name("n"), &ids.model, None).await
    };
    "explain" => |storage, ids| storage.explain(&name("b"), &explained(ids)).await;
    "explain a key" => |storage, ids| {
        let key = ids.key[0].to_string().parse().expect("a key");
        storage.explain_objects(&name("b"), &name("n"), &[key]).await.map_err(|error| error.to_string())
    };
    "read a context" => |storage, ids| storage.contexts().get(&name("b"), ids.context, None).await;
    "read a version" => |storage, ids| storage.contexts().get(&name("b"), ids.context, Some(1)).await;
    "list versions" => |storage, ids| storage.contexts().versions(&name("b"), ids.context).await;
    "change a context" => |storage, ids| storage.contexts().update(&name("b"), ids.context, ContextChange::default()).await;
    "delete a context" => |storage, ids| storage.contexts().delete(&name("b"), ids.context).await;
    "make a context" => |storage, ids| {
        let request = ContextRequest {
            model_id: model_id(),
            namespace: name("n"),
            chunks: ids.key.to_vec(),
            labels: Default::default(),
            ttl_s: None,
            pinned: true,
        };
        storage.contexts().create(&name("b"), request).await
    };
};

#[tokio::test]
async fn foreign_and_random_ids_leave_the_same_traces() {
    let mut operations = 0;
    for (what, attempt) in TRIES {
        let mut seen = Vec::new();
        for is_foreign in [true, false, false] {
            let world = World::new().await;
            let ids = if is_foreign { world.foreign } else { Ids::random(seen.len() as u8 + 9) };
            world.record.take();
            let answer = ids.hide(attempt(&world.storage, ids).await);
            // What goes on beside the request belongs to it.
            tokio::task::yield_now().await;
            seen.push((answer, world.record.take()));
        }
        assert_eq!(seen[0], seen[1], "{what}: a foreign id and a random one");
        assert_eq!(seen[1], seen[2], "{what}: the record is no accident");
        operations += seen[0].1.len();
    }
    println!(
        "{} ways to ask, {operations} operations of store and index: the same for foreign ids",
        TRIES.len()
    );
    assert!(operations >= TRIES.len(), "the record sees what happens");
}
