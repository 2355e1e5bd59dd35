//! Request hints: the class, time and order of contexts that lookups reveal, for the subsequent reads and
//! writes of single chunks.
//!
//! HTTP requests for chunks arrive one by one, on any connection. The preceding lookup, which names the whole
//! context, associates them with the engine's request. All of this is a hint for eviction and read-ahead,
//! bounded, and lost with the process.

use std::sync::Arc;

use kvasir_eviction::{ClassId, ClassTable, Moment, RequestClass, TurnBucket, TurnInference};
use kvasir_store::{cache::BoundedMap, layout::ChunkKey};
use kvasir_types::{BLOCK_TOKENS, CHUNK_TOKENS_STEP, ModelId, Name, ObjectDigest, SeqHash};
use parking_lot::Mutex;

use crate::limits;

use super::{FrameKey, HotContext, HotObject};

/// A caller's description of its request; omitted fields are inferred.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestHint {
    /// Its type: text, file, search, agent, …
    pub kind: Option<Name>,
    /// Its turn in its conversation, from 1.
    pub turn: Option<u32>,
    /// Whether other replicas keep its route: what is read for it here is not kept.
    pub transient: bool,
    /// Whether this replica is the first of its route.
    pub is_first: bool,
    /// Whether frames in memory are verified again before they are served: what the caller had read was damaged.
    pub is_verified: bool,
}

/// One request of an engine.
#[derive(Debug, Clone, Copy, PartialEq)]
struct EngineRequest {
    class: ClassId,
    at: Moment,
    pace_seconds: Option<f32>,
}

/// What the records of one lookup have in common: they share it, because a lookup makes one for each chunk.
#[derive(Debug)]
struct RecordedLookup {
    request: EngineRequest,
    tenant: Name,
    model_id: ModelId,
}

/// The position of a chunk in a lookup.
#[derive(Debug, Clone)]
struct LookupRecord {
    lookup: Arc<RecordedLookup>,
    /// The object that the lookup found, if any.
    object: Option<(SeqHash, ObjectDigest)>,
    /// Its index in the lookup's response, and its neighbours there.
    index: usize,
    before: Option<SeqKey>,
    next: Option<SeqKey>,
}

impl LookupRecord {
    fn object_key(&self) -> Option<ChunkKey> {
        let RecordedLookup { tenant, model_id, .. } = &*self.lookup;
        let (seq_hash, object_digest) = self.object?;
        Some(ChunkKey { tenant: tenant.clone(), model_id: *model_id, seq_hash, object_digest })
    }
}

/// First bytes of a seq_hash: salted, so that collisions cannot be constructed.
type SeqKey = u64;

fn seq_key(hash: &[u8; 32]) -> SeqKey {
    hash.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// The recent requests.
#[derive(Debug)]
pub struct RequestLog {
    classes: Mutex<(ClassTable, TurnInference<SeqKey>)>,
    records: BoundedMap<SeqKey, LookupRecord>,
    /// Recently requested chunks: their first frame, and the time of the request.
    asked: BoundedMap<SeqKey, (FrameKey, Moment)>,
}

impl Default for RequestLog {
    fn default() -> Self {
        Self {
            classes: Mutex::default(),
            records: BoundedMap::new(limits::HOT_LOOKUP_RECORDS_MAX, None),
            asked: BoundedMap::new(limits::HOT_LOOKUP_RECORDS_MAX, None),
        }
    }
}

impl RequestLog {
    /// The class with a [`ClassId::index`], for metrics.
    pub fn class_at(&self, index: usize) -> Option<RequestClass> {
        self.classes.lock().0.classes().nth(index).flatten().cloned()
    }

    /// The class of an id, for people.
    pub fn class(&self, id: ClassId) -> Option<RequestClass> {
        self.classes.lock().0.class(id).cloned()
    }

    /// Records a lookup: its `blocks` and the objects that it found, in order, each with its chunk. Returns the request's
    /// class.
    ///
    /// Turns and paces are inferred on a grid of 256 tokens and the end of the request: requests that share a
    /// long prefix and each add less than that look like turns of one conversation. Callers that know better
    /// can state them.
    pub fn record_lookup(
        &self,
        (tenant, model_id): (&Name, &ModelId),
        hint: &RequestHint,
        blocks: &[SeqHash],
        found: &[(SeqHash, ObjectDigest)],
        now: Moment,
    ) -> ClassId {
        let step = CHUNK_TOKENS_STEP / BLOCK_TOKENS;
        let mut grid: Vec<SeqKey> =
            blocks.iter().skip(step - 1).step_by(step).map(|hash| seq_key(hash.as_bytes())).collect();
        if let Some(end) = blocks.last().filter(|_| !blocks.len().is_multiple_of(step)) {
            grid.push(seq_key(end.as_bytes()));
        }
        self.record((tenant, model_id), hint, grid, found, now)
    }

    /// Records opaque objects found for one request, in the order of its keys: the order replaces the
    /// context, which their names do not reveal.
    pub fn record_run(&self, tenant: &Name, hint: &RequestHint, found: &[ChunkKey], now: Moment) {
        let grid = found.iter().map(|key| seq_key(key.seq_hash.as_bytes())).collect();
        let found: Vec<_> = found.iter().map(|key| (key.seq_hash, key.object_digest)).collect();
        self.record((tenant, &ModelId::OPAQUE), hint, grid, &found, now);
    }

    fn record(
        &self,
        (tenant, model_id): (&Name, &ModelId),
        hint: &RequestHint,
        grid: Vec<SeqKey>,
        found: &[(SeqHash, ObjectDigest)],
        now: Moment,
    ) -> ClassId {
        let request = {
            let mut guard = self.classes.lock();
            let (classes, turns) = &mut *guard;
            let (turn, pace_seconds) = turns.turn_of(&grid, now);
            let class = classes.intern(&class_of(tenant, hint, turn));
            EngineRequest { class, at: now, pace_seconds }
        };
        let lookup = Arc::new(RecordedLookup { request, tenant: tenant.clone(), model_id: *model_id });
        let of_grid = grid.into_iter().map(|key| {
            let lookup = Arc::clone(&lookup);
            (key, LookupRecord { lookup, object: None, index: 0, before: None, next: None })
        });
        let key_at = |index: usize| found.get(index).map(|(seq_hash, _)| seq_key(seq_hash.as_bytes()));
        let of_chunks = found.iter().enumerate().map(|(index, object)| {
            let (lookup, object) = (Arc::clone(&lookup), *object);
            let (before, next) = (index.checked_sub(1).and_then(key_at), key_at(index + 1));
            let record = LookupRecord { lookup, object: Some(object), index, before, next };
            (seq_key(object.0.as_bytes()), record)
        });
        self.records.insert_all(of_grid.chain(of_chunks));
        request.class
    }

    /// The known properties of the request that reads or writes `object`: from its lookup, otherwise from the
    /// caller.
    pub fn context(&self, object: &HotObject, hint: &RequestHint, now: Moment) -> HotContext {
        let key = seq_key(object.chunk().seq_hash.as_bytes());
        let named = seq_key(&object.header().parent_hash);
        let recent = |record: &LookupRecord| {
            now.seconds_since(record.lookup.request.at) < limits::HOT_REQUEST_SECONDS_MAX
        };
        let record = self.records.get(&key).or_else(|| self.records.get(&named)).filter(recent);
        let (parent, position) = match &record {
            // It does not name its predecessor: the request did.
            Some(record) if object.header().is_opaque() => (record.before, record.index as u64),
            _ => (Some(named), object.header().first_position / CHUNK_TOKENS_STEP as u64),
        };
        let request = record.map(|record| record.lookup.request).unwrap_or_else(|| {
            let class = self.classes.lock().0.intern(&class_of(object.tenant(), hint, 1));
            EngineRequest { class, at: now, pace_seconds: None }
        });
        // Another replica may serve the previous chunk: do not wait for one that was never requested here.
        let parent = parent.and_then(|parent| self.asked.get(&parent));
        let parent = parent.filter(|(_, at)| *at == request.at).map(|(frame, _)| frame);
        self.asked.insert(key, (object.key(0), request.at));
        HotContext {
            class: request.class,
            at: Some(request.at),
            pace_seconds: request.pace_seconds,
            position: u32::try_from(position).unwrap_or(u32::MAX),
            parent,
            is_first: hint.is_first,
        }
    }

    /// The objects after `object` in the context of its lookup, as far as reading ahead pays: if it is the
    /// first, or its predecessor was read here as well.
    pub fn behind(&self, object: &HotObject, context: &HotContext, count: usize) -> Vec<ChunkKey> {
        let Some(record) = self.records.get(&seq_key(object.chunk().seq_hash.as_bytes())) else {
            return Vec::new();
        };
        let at = record.lookup.request.at;
        if context.at != Some(at) || record.index > 0 && context.parent.is_none() {
            return Vec::new();
        }
        // A later request may have taken over a chunk of this one.
        let same_request = |next: &LookupRecord| next.lookup.request.at == at;
        let follow = |at: &LookupRecord| self.records.get(&at.next?).filter(same_request);
        let behind = std::iter::successors(follow(&record), follow);
        behind.map_while(|record| record.object_key()).take(count).collect()
    }
}

fn class_of(tenant: &Name, hint: &RequestHint, turn: u32) -> RequestClass {
    RequestClass {
        tenant: tenant.as_str().to_owned(),
        kind: hint.kind.as_ref().map_or_else(String::new, |kind| kind.as_str().to_owned()),
        turn: TurnBucket::of(hint.turn.unwrap_or(turn)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_container::{Head, OpaqueHead};
    use kvasir_eviction::limits::{CLASSES_MAX, CLASSES_PER_TENANT_MAX};
    use kvasir_types::RootHash;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    /// With a tenant that invents a type for every request, and an unlimited number of tenants, memory and
    /// metric series stay bounded.
    #[test]
    fn hostile_classes_share_one() {
        let log = RequestLog::default();
        let block = |n: u64| vec![SeqHash::from(*blake3::hash(&n.to_le_bytes()).as_bytes()); 16];
        let look = |tenant: &Name, n: u64| {
            let hint = RequestHint {
                kind: Some(name(&format!("t{n}"))),
                turn: Some(n as u32 % 40 + 1),
                ..RequestHint::default()
            };
            log.record_lookup((tenant, &ModelId::OPAQUE), &hint, &block(n), &[], Moment::from_millis(n))
        };
        let mallory = name("mallory");
        for n in 0..100_000 {
            look(&mallory, n);
        }
        assert_eq!(look(&mallory, 100_000), ClassId::OTHER);
        assert_eq!(log.classes.lock().0.len(), 1 + CLASSES_PER_TENANT_MAX);
        assert_ne!(look(&name("alice"), 1), ClassId::OTHER, "others are told apart as before");
        for n in 0..2_000 {
            look(&name(&format!("x{n}")), n);
        }
        assert_eq!(log.classes.lock().0.len(), CLASSES_MAX);
    }

    fn object(key: &str) -> HotObject {
        let (chain_key, key) = (RootHash::from([7; 32]).chain_key(), key.parse().unwrap());
        let mut head = OpaqueHead::new(chain_key, &key, 3).unwrap();
        head.push(b"abc").unwrap();
        let head = head.finish([1; 32], 2, 3).unwrap();
        let object_digest = ObjectDigest::of(&[&head[..], b"abc"].concat());
        let head = Head::parse(&head).unwrap();
        let seq_hash = head.header.seq_hash;
        HotObject::new(
            &ChunkKey { tenant: name("t"), model_id: ModelId::OPAQUE, seq_hash, object_digest },
            &head,
        )
    }

    /// Objects by key do not name their predecessor: a request for several at once does.
    #[test]
    fn objects_by_key_are_a_context_in_the_order_of_their_request() {
        let log = RequestLog::default();
        let [first, second, third, other] = ["c", "a", "b", "d"].map(object);
        let order = [&first, &second, &third].map(|object| object.chunk().clone());
        let hint = RequestHint::default();
        log.record_run(&name("t"), &hint, &order, Moment::from_millis(5));
        let context = |object| log.context(object, &hint, Moment::from_millis(6));
        let at_first = context(&first);
        assert_eq!((at_first.position, at_first.parent), (0, None));
        assert_eq!(log.behind(&first, &at_first, 2), order[1..]);
        let at_second = context(&second);
        assert_eq!((at_second.position, at_second.parent), (1, Some(first.key(0))));
        assert_eq!(at_second.at, at_first.at, "one request");
        let at_third = context(&third);
        assert_eq!((at_third.position, at_third.parent), (2, Some(second.key(0))));
        assert_eq!(log.behind(&third, &at_third, 2), []);
        let alone = context(&other);
        assert_eq!((alone.position, alone.parent, alone.at), (0, None, Some(Moment::from_millis(6))));
    }
}
