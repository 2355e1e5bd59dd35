//! Replicas, clients that check what they get, and the book of what was acknowledged.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures::{TryStreamExt, future::join_all, stream};
use kvasir_container::{HEADER_BYTES, Head};
use kvasir_storage::{
    ByteRange, Query, Settings, Storage, StorageError,
    gc::GcPolicy,
    index::Index,
    layout::{ChunkKey, Key},
    observe::NoObserver,
    store::{OpenStore, StoreAbilities, StoreConfig, StoreKind},
};
use kvasir_tests::{
    chunks::{self, Chunk},
    faulty::{Dice, Fault, FaultyStore},
};
use kvasir_types::{ModelId, Name, ObjectDigest, ProfileHash, RootHash, SeqHash};
use object_store::{ObjectStoreExt, path::Path};

const REPLICAS: usize = 3;
const CONTEXTS: usize = 14;
/// Requests that go wrong, of a thousand.
const FAULTS: usize = 120;

/// How a simulation ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub lost: Vec<String>,
    pub wrong: Vec<String>,
    pub kept: usize,
    pub delivered: usize,
    pub corruptions: u64,
    pub injected: [u64; Fault::ALL.len()],
    pub trace: (u64, String),
}

pub(crate) struct World {
    store: FaultyStore,
    dice: Dice,
    replicas: Vec<Arc<Storage>>,
    root: RootHash,
    contexts: Vec<(Vec<u32>, Vec<Chunk>)>,
    /// Acknowledged and not removed since: what must be there at the end.
    acknowledged: BTreeMap<SeqHash, BTreeSet<ObjectDigest>>,
    wrong: Vec<String>,
    delivered: usize,
}

fn tenant() -> Name {
    "default".parse().expect("a name")
}

fn namespace() -> Name {
    "n".parse().expect("a name")
}

fn model_id() -> ModelId {
    chunks::spec().model_id()
}

fn body(bytes: &[u8]) -> impl futures::Stream<Item = Result<Bytes, std::io::Error>> + Send + use<> {
    stream::iter([Ok(Bytes::copy_from_slice(bytes))])
}

fn replica(store: &FaultyStore) -> Arc<Storage> {
    let config = StoreConfig::new("memory://".parse().expect("a url"));
    let open =
        OpenStore::with(store.clone(), &Path::default(), StoreKind::Memory, &config, Arc::new(NoObserver));
    let settings = Settings::new(std::env::temp_dir());
    Storage::new(open, StoreAbilities { conditional_create: true }, Index::memory(), settings)
}

impl World {
    pub(crate) async fn new(seed: u64) -> Self {
        let store = FaultyStore::new(seed, FAULTS);
        let mut dice = Dice::new(!seed);
        let first = replica(&store);
        // What is written once, in peace; with a salt that the seed decides.
        let salt = first.store().layout.path(&Key::Salt { tenant: tenant() });
        store.inner().put(&salt, vec![seed as u8; 32].into()).await.expect("memory");
        let quiet = replica(&FaultyStore::clone(&store));
        let root = loop {
            // Until it goes through: registering is idempotent.
            let hash = ProfileHash::of(chunks::PROFILE);
            let registered = quiet.register_model(&tenant(), chunks::spec()).await.is_ok()
                && quiet.put_profile(&tenant(), &model_id(), &hash, body(chunks::PROFILE)).await.is_ok();
            if let (true, Ok(root)) = (registered, quiet.root(&tenant(), &namespace(), &model_id()).await) {
                break root;
            }
        };
        let contexts = (0..CONTEXTS).map(|i| {
            let chunk_tokens = [256, 512, 1536][dice.below(3)];
            let mut tokens = chunks::tokens(seed * 100 + i as u64 / 2, 300 + dice.below(1_800));
            // Pairs share a beginning.
            let split = dice.below(tokens.len());
            tokens[split] ^= 1;
            let chunks = chunks::context(root, &tokens, chunk_tokens, 20 + dice.below(200));
            (tokens, chunks)
        });
        let contexts = contexts.collect();
        let replicas = (0..REPLICAS).map(|_| replica(&store)).collect();
        Self {
            store,
            dice,
            replicas,
            root,
            contexts,
            acknowledged: BTreeMap::new(),
            wrong: Vec::new(),
            delivered: 0,
        }
    }

    fn any_replica(&mut self) -> Arc<Storage> {
        let at = self.dice.below(REPLICAS);
        Arc::clone(&self.replicas[at])
    }

    /// Several requests at once, and now and then a mishap.
    pub(crate) async fn round(&mut self) {
        match self.dice.below(20) {
            0 => self.replicas.rotate_left(1),
            1 => {
                // Killed, its disk wiped, another one in its place.
                let at = self.dice.below(REPLICAS);
                self.replicas[at] = replica(&self.store);
            }
            2 => self.remove().await,
            _ => {}
        }
        let puts: Vec<_> = (0..3).map(|_| (self.any_replica(), self.dice.below(CONTEXTS))).collect();
        let puts = puts.into_iter().map(|(replica, at)| (replica, self.contexts[at].1.clone()));
        let puts = join_all(puts.map(|(replica, chunks)| store_context(replica, chunks)));
        let loads: Vec<_> =
            (0..3).map(|_| (self.any_replica(), self.dice.below(CONTEXTS), self.dice.chance(500))).collect();
        let loads =
            loads.into_iter().map(|(replica, at, fresh)| (replica, self.contexts[at].0.clone(), fresh));
        let root = self.root;
        let loads = join_all(loads.map(|(replica, tokens, fresh)| load(replica, root, tokens, fresh)));
        let collector = self.any_replica();
        let collects = self.dice.chance(250);
        let keeping = self.any_replica();
        let keeping = async {
            let _ = keeping.journal_append().await;
            let _ = keeping.journal_tail().await;
            if collects {
                let _ = collector.collect_garbage(&policy(), |_| {}).await;
            }
        };
        let (stored, loaded, ()) = tokio::join!(puts, loads, keeping);
        for (seq_hash, object) in stored.into_iter().flatten() {
            self.acknowledged.entry(seq_hash).or_default().insert(object);
        }
        for loaded in loaded {
            match loaded {
                Ok(count) => self.delivered += count,
                Err(wrong) => self.wrong.push(wrong),
            }
        }
    }

    async fn remove(&mut self) {
        let replica = self.any_replica();
        let at = self.dice.below(CONTEXTS);
        let chunks = &self.contexts[at].1;
        let seq_hash = chunks[self.dice.below(chunks.len())].seq_hash;
        // Whether it went through or not: nobody may count on the chunk any more.
        let _ = replica.remove_chunk(&tenant(), &model_id(), &seq_hash).await;
        self.acknowledged.remove(&seq_hash);
    }

    /// Everything heals; what was acknowledged must be there, byte for byte.
    pub(crate) async fn end(self) -> Outcome {
        self.store.heal();
        let reader = replica(&self.store);
        let mut lost = Vec::new();
        for seq_hash in self.acknowledged.keys() {
            // Contexts that share a beginning have other objects of one chunk.
            let all = self.contexts.iter().flat_map(|(_, chunks)| chunks);
            let written: Vec<_> =
                all.filter(|c| c.seq_hash == *seq_hash).map(|c| &c.bytes[HEADER_BYTES..]).collect();
            let found = match reader.preferred(&tenant(), &model_id(), seq_hash).await {
                Ok(key) => whole(&reader, &key, ByteRange::Whole).await,
                Err(error) => Err(error),
            };
            // The header may have been marked; everything behind it is the chunk.
            match found {
                Ok(bytes) if written.contains(&&bytes[HEADER_BYTES..]) => {}
                Ok(_) => lost.push(format!("{seq_hash}: other bytes")),
                Err(error) => lost.push(format!("{seq_hash}: {error}")),
            }
        }
        Outcome {
            lost,
            wrong: self.wrong,
            kept: self.acknowledged.len(),
            delivered: self.delivered,
            corruptions: self.store.corruptions(),
            injected: self.store.injected(),
            trace: self.store.trace(),
        }
    }
}

fn policy() -> GcPolicy {
    GcPolicy {
        grace: Duration::ZERO,
        tombstone_retention: Duration::from_secs(1 << 30),
        journal_retention: Duration::from_secs(1 << 30),
        actions_per_second: 0,
        ..GcPolicy::default()
    }
}

/// Stores a context chunk by chunk, and gives what was acknowledged.
async fn store_context(replica: Arc<Storage>, chunks: Vec<Chunk>) -> Vec<(SeqHash, ObjectDigest)> {
    let mut acknowledged = Vec::new();
    for chunk in chunks {
        let stored = replica.put_chunk(&tenant(), &model_id(), &chunk.seq_hash, body(&chunk.bytes)).await;
        if let Ok(stored) = stored {
            acknowledged.push((stored.seq_hash, stored.object_digest));
        }
    }
    acknowledged
}

async fn whole(replica: &Arc<Storage>, key: &ChunkKey, range: ByteRange) -> Result<Bytes, StorageError> {
    let parts: Vec<Bytes> = replica.read(key, range).await?.bytes.try_collect().await?;
    Ok(parts.concat().into())
}

/// A client: looks up, reads heads and pieces, believes nothing that is not covered by a checksum or a hash.
///
/// # Errors
/// What was wrong and got past all checks.
async fn load(replica: Arc<Storage>, root: RootHash, tokens: Vec<u32>, fresh: bool) -> Result<usize, String> {
    let query = Query::Tokens(tokens.clone());
    let Ok(found) = replica.lookup(&tenant(), &namespace(), &model_id(), query, fresh).await else {
        return Ok(0);
    };
    let mut delivered = 0;
    for hit in &found.chunks {
        let first = hit.first_token as usize;
        let end = first + hit.tokens as usize;
        let (tenant, model_id) = (tenant(), model_id());
        let key = ChunkKey { tenant, model_id, seq_hash: hit.seq_hash, object_digest: hit.object_digest };
        let Ok(head) = whole(&replica, &key, ByteRange::Bounded(0, hit.head_bytes - 1)).await else { break };
        // What does not verify is a miss.
        let Ok(head) = Head::parse(&head) else { break };
        let usable = first + hit.matched_tokens as usize;
        if head.verify_chain().is_err() || head.header.seq_hash != hit.seq_hash {
            break;
        }
        if head.tokens.get(..usable - first) != tokens.get(first..usable) {
            return Err(format!("{hit:?} holds other tokens than were looked up"));
        }
        let truth = (end <= tokens.len() && hit.matched_tokens == hit.tokens)
            .then(|| kvasir_types::TokenChain::new(root, &tokens[..end]).blocks().last().copied());
        if truth.flatten().is_some_and(|truth| truth != hit.seq_hash) {
            return Err(format!("{hit:?} is not the chunk of these tokens"));
        }
        delivered += usize::from(load_pieces(&replica, &key, &head).await?);
    }
    Ok(delivered)
}

/// Reads every piece by its own range and compares what passes its checksum with what was written.
async fn load_pieces(replica: &Arc<Storage>, key: &ChunkKey, head: &Head) -> Result<bool, String> {
    for (section, span, entry) in head.pieces() {
        let range = ByteRange::Bounded(entry.range.start, entry.range.end - 1);
        let Ok(bytes) = whole(replica, key, range).await else { return Ok(false) };
        if head.check_piece(section, span, &bytes).is_err() {
            return Ok(false);
        }
        let expected = chunks::piece(head.sections()[section].level.0, span, bytes.len());
        if bytes != expected {
            return Err(format!("section {section}, span {span} of {key:?} passed with wrong bytes"));
        }
    }
    Ok(true)
}
