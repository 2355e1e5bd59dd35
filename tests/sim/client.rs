//! Clients that trust only data covered by a checksum or a hash, and the record by which the model judges
//! their answers.

use std::{
    cell::{Cell, RefCell, RefMut},
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures::{TryStreamExt, stream};
use kvasir_api::ChunkMatch;
use kvasir_container::Head;
use kvasir_storage::{
    AnnouncedBody, ByteRange, ChunkError, PutChunk, PutError, Query, Storage, hot::RequestHint,
};
use kvasir_store::layout::{ChunkKey, Key};
use kvasir_tests::{
    chunks::{self, Chunk},
    faulty::{FINDING_OUT, FaultyStore, Tampered},
    model::{Interval, Keys, Lookup, Model, Outcome},
};
use kvasir_types::{ModelId, Name, ObjectDigest, ProfileHash, RootHash, TokenChain};
use tokio::time::Instant;
use uuid::Uuid;

use crate::node::{Node, REMOVALS_KEPT};

pub(crate) fn tenant() -> Name {
    "default".parse().expect("a name")
}

pub(crate) fn namespace() -> Name {
    "n".parse().expect("a name")
}

pub(crate) fn model_id() -> ModelId {
    chunks::spec().model_id()
}

pub(crate) fn body(
    bytes: &[u8],
) -> impl futures::Stream<Item = Result<Bytes, std::io::Error>> + Send + use<> {
    stream::iter([Ok(Bytes::copy_from_slice(bytes))])
}

/// Registers the model and its profile for a tenant, and opens a root.
pub(crate) async fn join(storage: &Arc<Storage>, tenant: &Name) -> Result<RootHash, PutError> {
    let hash = ProfileHash::of(chunks::PROFILE);
    storage.ingest().register_model(tenant, chunks::spec(), None).await?;
    storage.ingest().put_profile(tenant, &model_id(), &hash, None, body(chunks::PROFILE)).await?;
    Ok(storage.catalog().root(tenant, &namespace(), &model_id()).await?)
}

/// Stores one chunk.
pub(crate) async fn store(storage: &Arc<Storage>, chunk: &Chunk) -> Result<ObjectDigest, PutError> {
    send(storage, &RequestHint::default(), chunk, None).await
}

async fn send(
    storage: &Arc<Storage>,
    hint: &RequestHint,
    chunk: &Chunk,
    announced: Option<AnnouncedBody>,
) -> Result<ObjectDigest, PutError> {
    let hint = hint.clone();
    let put = PutChunk { announced, hint, ..PutChunk::new(&tenant(), &model_id(), &chunk.seq_hash) };
    Ok(storage.ingest().put_chunk(put, body(&chunk.bytes)).await?.object_digest)
}

/// How fine the simulated clock is.
const TICK: Duration = Duration::from_millis(1);

/// The requests and answers, judged by the model.
#[derive(Debug)]
pub(crate) struct Book {
    begun: Instant,
    last: Cell<Duration>,
    store: FaultyStore,
    model: RefCell<Model>,
    pub(crate) keys: RefCell<Keys>,
    pins: RefCell<BTreeMap<Uuid, u64>>,
    /// Contexts with a version that the adversary changed.
    changed_contexts: RefCell<BTreeSet<Uuid>>,
    pub(crate) wrong: RefCell<Vec<String>>,
    /// Chunks that clients began to store.
    writes: Cell<u64>,
    /// Chunks that a client got whole.
    pub(crate) delivered: Cell<usize>,
    /// How often an upload in parts ended in which way.
    pub(crate) uploads: RefCell<BTreeMap<&'static str, u64>>,
}

impl Book {
    pub(crate) fn new(store: FaultyStore, model: Model, keys: Keys) -> Self {
        Self {
            begun: Instant::now(),
            last: Cell::default(),
            store,
            model: RefCell::new(model),
            keys: RefCell::new(keys),
            pins: RefCell::default(),
            changed_contexts: RefCell::default(),
            wrong: RefCell::default(),
            writes: Cell::new(0),
            delivered: Cell::new(0),
            uploads: RefCell::default(),
        }
    }

    /// The simulated clock does not advance during events at the same moment, so each call adds a nanosecond:
    /// this orders the end of one request before the start of another.
    pub(crate) fn now(&self) -> Duration {
        let now = self.begun.elapsed().max(self.last.get() + Duration::from_nanos(1));
        self.last.set(now);
        now
    }

    pub(crate) fn since(&self, begun: Duration) -> Interval {
        Interval { begun, ended: self.now() }
    }

    /// The model, with the adversary's actions so far.
    pub(crate) fn model(&self) -> RefMut<'_, Model> {
        let mut model = self.model.borrow_mut();
        for Tampered { key, at, .. } in self.store.tampered() {
            let at = at.duration_since(self.begun);
            let is_of_keys = match &key {
                Key::Chunk(key) | Key::Tombstone(key) | Key::Gone(key) => key.model_id == ModelId::OPAQUE,
                Key::Listed(_) => true,
                _ => false,
            };
            if is_of_keys {
                // What else happened at that moment may have come before or after it.
                for at in [at, at + TICK] {
                    self.keys.borrow_mut().tampered(at);
                }
            }
            match key {
                Key::Chunk(key) => {
                    model.planted(key.seq_hash, key.object_digest);
                    // What else happened at that moment may have come before or after it.
                    for at in [at, at + TICK] {
                        model.damaged(key.seq_hash, at, at + FINDING_OUT);
                    }
                }
                // A collector that had decided about the name may come as late as tombstones live.
                Key::Tombstone(key) | Key::Gone(key) => model.tampered(key.seq_hash, at, at + REMOVALS_KEPT),
                // The batch has a new date: it is kept once more, and so is what is learnt of it.
                Key::Journal { .. } => model.tampered_journal(at, at + REMOVALS_KEPT * 2),
                Key::Context { context_id, .. } => {
                    self.changed_contexts.borrow_mut().insert(context_id);
                    if let Some(pin) = self.pins.borrow().get(&context_id) {
                        model.unpin(*pin, at);
                    }
                }
                _ => {}
            }
        }
        model
    }

    /// A pin was acknowledged.
    pub(crate) fn pinned(&self, pin: u64, context: Uuid, at: Interval, chunks: &[&Chunk]) {
        let mut model = self.model();
        if !self.changed_contexts.borrow().contains(&context) {
            self.pins.borrow_mut().insert(context, pin);
            model.pin(pin, at, chunks);
        }
    }

    pub(crate) fn judge(&self, judged: Result<(), String>) {
        if let Err(wrong) = judged {
            self.wrong.borrow_mut().push(wrong);
        }
    }

    /// Stores chunks one after the other, until the replica dies.
    pub(crate) async fn store(&self, node: &Node, chunks: &[Chunk]) {
        self.store_as(node, &RequestHint::default(), chunks).await;
    }

    /// The same, as the replica takes the requests for.
    pub(crate) async fn store_as(&self, node: &Node, hint: &RequestHint, chunks: &[Chunk]) {
        for chunk in chunks {
            let put = self.model().put_begins(node.id, self.now(), chunk);
            // One writer in two says what it sends, and one of four of these sends less and stores nothing.
            let writes = self.writes.replace(self.writes.get() + 1);
            let (object_digest, bytes) =
                (chunk.object_digest, chunk.bytes.len() as u64 + u64::from(writes % 8 == 7));
            let announced = (writes % 2 == 1).then_some(AnnouncedBody { object_digest, bytes });
            let answer = node.run(send(&node.storage, hint, chunk, announced)).await;
            let object = answer.as_ref().and_then(|answer| answer.as_ref().ok()).copied();
            let outcome = object.map_or(Outcome::Unknown, |_| Outcome::Acknowledged);
            self.judge(self.model().put_ends(put, self.now(), outcome, object));
            if answer.is_none() {
                return;
            }
        }
    }

    /// Removes all objects of a chunk.
    pub(crate) async fn remove(&self, node: &Node, chunk: &Chunk) {
        let seq_hash = chunk.seq_hash;
        let removal = self.model().removal_begins(node.id, self.now(), seq_hash, None);
        let (tenant, model_id) = (tenant(), model_id());
        let answer = node.run(node.storage.lifecycle().remove_chunk(&tenant, &model_id, &seq_hash)).await;
        let outcome = match answer {
            Some(Ok(_)) => Outcome::Acknowledged,
            // There was nothing, and it has not begun to remove anything.
            Some(Err(ChunkError::Unknown { .. })) => Outcome::Refused,
            _ => Outcome::Unknown,
        };
        self.model().removal_ends(removal, self.now(), outcome);
    }

    /// Asks for the object of a chunk without naming it.
    pub(crate) async fn name(&self, node: &Node, chunk: &Chunk) {
        let (begun, tenant, model_id) = (self.now(), tenant(), model_id());
        let named = node.run(node.storage.reads().preferred(&tenant, &model_id, &chunk.seq_hash)).await;
        if let Some(Ok(key)) = named {
            self.judge(self.model().named(self.since(begun), key.seq_hash, key.object_digest));
        }
    }

    /// Appends to the journal and reads it, as the service does every few seconds.
    pub(crate) async fn sync(&self, node: &Node) {
        // Its disk may be another's once it is dead.
        if node.life.is_over() {
            return;
        }
        let (changes, is_stored_due) = (node.storage.changes(), node.begin_turn());
        changes.empty_outdated_index();
        let _ = if is_stored_due {
            node.run(changes.journal_append()).await
        } else {
            node.run(changes.journal_append_removals()).await
        };
        let begun = self.now();
        let read = if is_stored_due {
            node.run(changes.journal_tail(node.reading())).await
        } else {
            node.run(changes.journal_tail_leaving_stored(node.reading())).await
        };
        if let Some(Ok(_)) = read {
            self.model().heard(node.id, self.since(begun));
        }
    }

    /// Looks up, reads heads and pieces, and has all that passes a client's checks judged. Returns whether the lookup was
    /// answered and all that it offered could be read.
    pub(crate) async fn load(&self, node: &Node, root: RootHash, tokens: &[u32], fresh: bool) -> bool {
        self.load_as(node, &RequestHint::default(), root, tokens, fresh).await
    }

    /// The same, as the replica takes the requests for.
    pub(crate) async fn load_as(
        &self,
        node: &Node,
        hint: &RequestHint,
        root: RootHash,
        tokens: &[u32],
        fresh: bool,
    ) -> bool {
        let chain = TokenChain::new(root, tokens);
        let query = Query::Tokens(tokens.to_vec());
        let (begun, asked, faults) = (self.now(), Instant::now(), node.life.faults());
        let (tenant, namespace, model_id) = (tenant(), namespace(), model_id());
        let asking = kvasir_storage::Lookup::new(&tenant, &namespace, &model_id, query).fresh(fresh);
        let asking = kvasir_storage::Lookup { hint: hint.clone(), ..asking };
        let found = node.run(node.storage.lookup(&asking)).await;
        let reached = node.life.has_reached_the_store(asked, faults);
        let answer = match found {
            None => return false,
            Some(Err(error)) => {
                let refused = Err(format!("a lookup by {} of a store that answers: {error}", node.id));
                self.judge(if reached { refused } else { Ok(()) });
                return false;
            }
            Some(Ok(answer)) => answer,
        };
        let (by, at, chain, answer) = (node.id, self.since(begun), &chain, &answer);
        let lookup = Lookup { by, at, fresh, reached, chain, tokens, answer };
        self.judge(self.model().lookup(lookup));
        let mut is_whole = true;
        for hit in &answer.chunks {
            let delivered = node.run(self.load_chunk((node, hint), hit, chain, tokens)).await == Some(true);
            self.delivered.set(self.delivered.get() + usize::from(delivered));
            is_whole &= delivered;
        }
        is_whole
    }

    /// Reads every piece by its range. Unverifiable data is a miss.
    async fn load_chunk(
        &self,
        (node, hint): (&Node, &RequestHint),
        hit: &ChunkMatch,
        chain: &TokenChain,
        tokens: &[u32],
    ) -> bool {
        let (storage, tenant, model_id) = (&node.storage, tenant(), model_id());
        let key = ChunkKey { tenant, model_id, seq_hash: hit.seq_hash, object_digest: hit.object_digest };
        let Ok(head) = read(storage, &key, ByteRange::Bounded(0, hit.head_bytes - 1), hint).await else {
            return false;
        };
        let Ok(head) = Head::parse(&head) else { return false };
        let first = hit.first_token as usize;
        if !is_of(&head, hit, chain, tokens.get(first..first + hit.matched_tokens as usize)) {
            return false;
        }
        for (section, span, entry) in head.pieces() {
            let range = ByteRange::Bounded(entry.range.start, entry.range.end - 1);
            let begun = self.now();
            let Ok(bytes) = read(storage, &key, range, hint).await else { return false };
            if head.check_piece(section, span, &bytes).is_err() {
                return false;
            }
            let (name, first) = (&key.object_digest, entry.range.start);
            self.judge(self.model().read((node.id, self.since(begun)), &key.seq_hash, name, first, &bytes));
        }
        true
    }
}

/// All bytes of a range.
pub(crate) async fn whole(
    storage: &Arc<Storage>,
    key: &ChunkKey,
    range: ByteRange,
) -> Result<Bytes, ChunkError> {
    read(storage, key, range, &RequestHint::default()).await
}

async fn read(
    storage: &Arc<Storage>,
    key: &ChunkKey,
    range: ByteRange,
    hint: &RequestHint,
) -> Result<Bytes, ChunkError> {
    let parts: Vec<Bytes> = storage.reads().read(key, range, hint).await?.bytes.try_collect().await?;
    Ok(parts.concat().into())
}

/// The client crate's comparison before decoding: the sections of a tail that ends at the same position,
/// which a misdirected read may return, are valid, and have the same sequence hash.
fn is_of(head: &Head, hit: &ChunkMatch, chain: &TokenChain, tokens: Option<&[u32]>) -> bool {
    let header = &head.header;
    head.verify_chain().is_ok()
        && header.seq_hash == hit.seq_hash
        && header.first_position == hit.first_token
        && header.object_bytes() == hit.bytes
        && chain.prefix_hash(hit.first_token as usize) == Some(header.parent_hash)
        && tokens.is_some_and(|tokens| head.tokens.get(..tokens.len()) == Some(tokens))
}
