//! A service in memory that fails on request.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    ops::RangeInclusive,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, Path, Query, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post, put},
};
use futures::StreamExt;
use kvasir_api::{
    ChunkErrors, ChunkMatch, ErrorCode, LookupQuery, LookupResponse, NamespaceRequest, NamespaceResponse,
    Problem, ProfileInfo, ProfileList, RegisteredModel, StoredChunk, Via, routes,
};
use kvasir_codec::container::{Head, ObjectVerifier};
use kvasir_types::{Level, Medium, ModelId, ModelSpec, ObjectDigest, ProfileHash, RootHash, SeqHash};
use tokio::{net::TcpListener, sync::Notify, task::JoinHandle};

/// Largest accepted body: the largest object of a service with default settings.
const BODY_BYTES_MAX: usize = 256 << 20;
/// How long a broken response waits before it breaks, so that its first half is sent.
const BREAK_PAUSE: Duration = Duration::from_millis(20);

/// The next failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// This many reads of objects respond 503.
    Unavailable(u32),
    /// This many reads break off half way.
    BreakOff(u32),
    /// This many reads of the object that include this byte have one of its bits flipped.
    Corrupt(ObjectDigest, u64, u32),
    /// Every read of the object is a 404.
    Gone(ObjectDigest),
    /// This many reads return another object's bytes.
    Misdirected(u32),
    /// This many reads return more than requested.
    TooLong(u32),
    /// This many reads report another start.
    OtherRange(u32),
    /// This many reads begin and never continue.
    Stall(u32),
    /// Reads do not respond until [`Server::release`].
    Hold,
    /// This many uploads of chunks respond 503.
    PutUnavailable(u32),
    /// This many registrations and lookups respond 503.
    ControlUnavailable(u32),
    /// Lookups do not respond until [`Server::release`].
    HoldLookups,
}

/// A chunk object and its parsed head.
#[derive(Debug)]
struct StoredObject {
    seq_hash: SeqHash,
    head: Head,
    bytes: Bytes,
}

#[derive(Debug, Default)]
struct Contents {
    models: BTreeSet<ModelId>,
    objects: BTreeMap<ObjectDigest, StoredObject>,
    profiles: BTreeMap<(ModelId, ProfileHash), Bytes>,
    faults: Vec<Fault>,
    puts: usize,
    profile_reads: usize,
    lookups: u32,
    rotations: u64,
    presigned: Option<(SocketAddr, u64)>,
}

#[derive(Debug, Default)]
struct Shared {
    contents: Mutex<Contents>,
    released: Notify,
}

/// An in-memory Kvasir service for tests of an engine. It checks every uploaded object as the real one does,
/// and fails on request. It has no tenants and no credentials, and writes nothing to disk. It stops when it
/// is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Starts a service on a free port of this machine.
    ///
    /// # Errors
    /// If no port can be bound.
    pub async fn start() -> std::io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let app = Router::new()
            .route(routes::MODELS, post(register))
            .route(routes::NAMESPACES, post(namespace))
            .route(routes::PROFILES, get(list_profiles))
            .route(routes::PROFILE, put(put_profile).get(get_profile))
            .route(routes::LOOKUP, post(lookup))
            .route(routes::CHUNK, put(put_chunk))
            .route(routes::CHUNK_OBJECT, get(get_object))
            .route(routes::LOADS, post(async || StatusCode::NO_CONTENT))
            .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
            .with_state(Arc::clone(&shared));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        // Dropping this value ends it.
        let task = tokio::spawn(async move { drop(axum::serve(listener, app).await) });
        Ok(Self { address, shared, task })
    }

    /// Its address, for [`Kvasir::builder`](crate::Kvasir::builder).
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Adds a failure to the active ones.
    pub fn fail(&self, fault: Fault) {
        self.shared.contents().faults.push(fault);
    }

    /// Ends all failures.
    pub fn release(&self) {
        self.shared.contents().faults.clear();
        self.shared.released.notify_waiters();
    }

    /// Stored objects.
    pub fn digests(&self) -> Vec<ObjectDigest> {
        self.shared.contents().objects.keys().copied().collect()
    }

    /// The bytes of an object.
    pub fn object(&self, digest: &ObjectDigest) -> Option<Bytes> {
        self.shared.contents().objects.get(digest).map(|object| object.bytes.clone())
    }

    /// Acknowledged uploads of chunks.
    pub fn puts(&self) -> usize {
        self.shared.contents().puts
    }

    /// Reads of profiles.
    pub fn profile_reads(&self) -> usize {
        self.shared.contents().profile_reads
    }

    /// Answered lookups.
    pub fn lookups(&self) -> u32 {
        self.shared.contents().lookups
    }

    /// Forgets everything, also the models and the roots of namespaces, like a service whose bucket was lost.
    pub fn clear(&self) {
        let mut contents = self.shared.contents();
        *contents = Contents { rotations: contents.rotations + 1, ..Contents::default() };
    }

    /// Gives every namespace a new root, as a rotation of salts does. Stored objects are kept.
    pub fn rotate_salts(&self) {
        self.shared.contents().rotations += 1;
    }

    /// Lookups that request presigned URLs get URLs that point to `store` and claim to be valid for
    /// `seconds`; their query contains the number of earlier lookups.
    pub fn presign(&self, store: SocketAddr, seconds: u64) {
        self.shared.contents().presigned = Some((store, seconds));
    }
}

impl Shared {
    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn hold(&self, fault: Fault) {
        let released = self.released.notified();
        let is_held = self.contents().faults.contains(&fault);
        if is_held {
            released.await;
        }
    }
}

impl Contents {
    /// Spends one use of a counted fault.
    fn strikes(&mut self, left: impl Fn(&mut Fault) -> Option<&mut u32>) -> bool {
        for fault in &mut self.faults {
            if let Some(left) = left(fault).filter(|left| **left > 0) {
                *left -= 1;
                return true;
            }
        }
        false
    }

    fn via(&self, digest: &ObjectDigest, direct: bool) -> Via {
        match self.presigned {
            Some((address, expires_in_s)) if direct => Via::Direct {
                url: format!("http://{address}/{digest}?lookup={}", self.lookups),
                expires_in_s,
            },
            _ => Via::Proxy,
        }
    }

    /// The object that starts at token `next` of this chain and matches the most blocks.
    fn best_match(&self, next: u64, blocks: &[[u8; 32]], direct: bool) -> Option<ChunkMatch> {
        let ours = blocks.get(next as usize / kvasir_types::BLOCK_TOKENS..)?;
        let matched = |object: &StoredObject| {
            let both = object.head.block_hashes.iter().zip(ours);
            let blocks = both.take_while(|(a, b)| a[..] == b[..a.len()]).count() as u32;
            (blocks * kvasir_types::BLOCK_TOKENS as u32).min(object.head.header.token_count)
        };
        let here = self.objects.iter().filter(|(_, object)| object.head.header.first_position == next);
        let (digest, object) = here.max_by_key(|(_, object)| matched(object))?;
        let header = &object.head.header;
        (matched(object) > 0).then(|| ChunkMatch {
            seq_hash: object.seq_hash,
            object_digest: *digest,
            profile_hash: header.profile_hash,
            first_token: next,
            tokens: header.token_count,
            matched_tokens: matched(object),
            bytes: object.bytes.len() as u64,
            head_bytes: header.head_bytes(),
            level_bytes: (0..header.level_count).filter_map(|l| object.head.level_bytes(Level(l))).collect(),
            kl_beneath: header.kl_beneath,
            errors: object.head.measured().map(|measured| ChunkErrors {
                levels: (0..header.level_count).map(|l| measured.error(Level(l))).collect(),
                beneath: measured.beneath,
                hops: measured.hops,
            }),
            medium: Medium::Disk,
            via: self.via(digest, direct),
        })
    }
}

fn problem(code: ErrorCode) -> Response {
    let status = StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let problem = Json(Problem::new(code, "the test asked for this, or sent something wrong"));
    (status, [(header::CONTENT_TYPE, kvasir_api::MEDIA_PROBLEM)], problem).into_response()
}

fn control_fails(shared: &Shared) -> bool {
    shared.contents().strikes(|f| if let Fault::ControlUnavailable(left) = f { Some(left) } else { None })
}

async fn register(State(shared): State<Arc<Shared>>, Json(spec): Json<ModelSpec>) -> Response {
    if control_fails(&shared) {
        return problem(ErrorCode::StoreUnavailable);
    }
    let model_id = spec.model_id();
    let created = shared.contents().models.insert(model_id);
    Json(RegisteredModel { model_id, created }).into_response()
}

async fn namespace(State(shared): State<Arc<Shared>>, Json(request): Json<NamespaceRequest>) -> Response {
    let contents = shared.contents();
    if !contents.models.contains(&request.model_id) {
        return problem(ErrorCode::UnknownModel);
    }
    let salt = contents.rotations.to_le_bytes();
    let root = RootHash::derive("default", request.namespace.as_str(), &salt, &request.model_id);
    Json(NamespaceResponse { root }).into_response()
}

async fn list_profiles(State(shared): State<Arc<Shared>>, Path(model): Path<ModelId>) -> Response {
    let contents = shared.contents();
    if !contents.models.contains(&model) {
        return problem(ErrorCode::UnknownModel);
    }
    let of_model = contents.profiles.iter().filter(|((of, _), _)| *of == model);
    let info = |((_, hash), bytes): (&(_, ProfileHash), &Bytes)| ProfileInfo {
        profile_hash: *hash,
        bytes: bytes.len() as u64,
        stored_at_ms: None,
    };
    Json(ProfileList { profiles: of_model.map(info).collect() }).into_response()
}

async fn put_profile(
    State(shared): State<Arc<Shared>>,
    Path(key): Path<(ModelId, ProfileHash)>,
    body: Bytes,
) -> Response {
    if ProfileHash::of(&body) != key.1 {
        return problem(ErrorCode::InvalidProfile);
    }
    let mut contents = shared.contents();
    if !contents.models.contains(&key.0) {
        return problem(ErrorCode::UnknownModel);
    }
    contents.profiles.insert(key, body);
    StatusCode::CREATED.into_response()
}

async fn get_profile(State(shared): State<Arc<Shared>>, Path(key): Path<(ModelId, ProfileHash)>) -> Response {
    let mut contents = shared.contents();
    contents.profile_reads += 1;
    let found = contents.profiles.get(&key).cloned();
    found.map_or_else(|| problem(ErrorCode::UnknownProfile), IntoResponse::into_response)
}

async fn lookup(
    State(shared): State<Arc<Shared>>,
    Query(query): Query<LookupQuery>,
    body: Bytes,
) -> Response {
    shared.hold(Fault::HoldLookups).await;
    if control_fails(&shared) {
        return problem(ErrorCode::StoreUnavailable);
    }
    let (blocks, rest) = body.as_chunks::<32>();
    if !rest.is_empty() {
        return problem(ErrorCode::BadRequest);
    }
    let mut contents = shared.contents();
    if !contents.models.contains(&query.model_id) {
        return problem(ErrorCode::UnknownModel);
    }
    contents.lookups += 1;
    let (mut chunks, mut matched_tokens) = (Vec::new(), 0);
    while let Some(best) = contents.best_match(matched_tokens, blocks, query.direct) {
        matched_tokens += u64::from(best.matched_tokens);
        let is_whole = best.matched_tokens == best.tokens;
        chunks.push(best);
        if !is_whole {
            break;
        }
    }
    Json(LookupResponse { matched_tokens, chunks }).into_response()
}

async fn put_chunk(
    State(shared): State<Arc<Shared>>,
    Path((model, seq_hash)): Path<(ModelId, SeqHash)>,
    bytes: Bytes,
) -> Response {
    let mut verifier = ObjectVerifier::new();
    let head = verifier.push(&bytes).ok().and_then(|()| verifier.finish().ok());
    let Some(head) = head else { return problem(ErrorCode::InvalidChunk) };
    if head.header.seq_hash != seq_hash {
        return problem(ErrorCode::ChunkMismatch);
    }
    let mut contents = shared.contents();
    if !contents.models.contains(&model) {
        return problem(ErrorCode::UnknownModel);
    }
    if !contents.profiles.contains_key(&(model, head.header.profile_hash)) {
        return problem(ErrorCode::UnknownProfile);
    }
    if contents.strikes(|f| if let Fault::PutUnavailable(left) = f { Some(left) } else { None }) {
        return problem(ErrorCode::StoreUnavailable);
    }
    contents.puts += 1;
    let (object_digest, size) = (ObjectDigest::of(&bytes), bytes.len() as u64);
    let created = contents.objects.insert(object_digest, StoredObject { seq_hash, head, bytes }).is_none();
    Json(StoredChunk { seq_hash, object_digest, bytes: size, created }).into_response()
}

/// `bytes=START-LAST` within an object of `total` bytes.
fn requested_range(headers: &HeaderMap, total: usize) -> Option<RangeInclusive<usize>> {
    let (start, last) = headers.get(header::RANGE)?.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
    let (start, last): (usize, usize) = (start.parse().ok()?, last.parse().ok()?);
    (start <= last && last < total).then_some(start..=last)
}

async fn get_object(
    State(shared): State<Arc<Shared>>,
    Path((_, _, digest)): Path<(String, String, ObjectDigest)>,
    headers: HeaderMap,
) -> Response {
    shared.hold(Fault::Hold).await;
    let mut contents = shared.contents();
    if contents.strikes(|f| if let Fault::Unavailable(left) = f { Some(left) } else { None }) {
        return problem(ErrorCode::StoreUnavailable);
    }
    let is_gone = contents.faults.contains(&Fault::Gone(digest));
    let Some(mut bytes) = contents.objects.get(&digest).filter(|_| !is_gone).map(|o| o.bytes.to_vec()) else {
        return problem(ErrorCode::UnknownChunk);
    };
    if contents.strikes(|f| if let Fault::Misdirected(left) = f { Some(left) } else { None })
        && let Some((_, other)) = contents.objects.iter().find(|(other, _)| **other != digest)
    {
        bytes = other.bytes.to_vec();
        bytes.resize(1 << 20, 7);
    }
    let total = bytes.len();
    let Some(range) = requested_range(&headers, total) else {
        return problem(ErrorCode::RangeNotSatisfiable);
    };
    let (start, last) = (*range.start(), *range.end());
    for fault in &mut contents.faults {
        if let Fault::Corrupt(object, at, left) = fault
            && *object == digest
            && *left > 0
            && range.contains(&(*at as usize))
        {
            *left -= 1;
            bytes[*at as usize] ^= 0x40;
        }
    }
    let mut part = bytes[range].to_vec();
    let mut content_range = format!("bytes {start}-{last}/{total}");
    if contents.strikes(|f| if let Fault::TooLong(left) = f { Some(left) } else { None }) {
        part.extend_from_slice(&[9; 1000]);
    }
    if contents.strikes(|f| if let Fault::OtherRange(left) = f { Some(left) } else { None }) {
        content_range = format!("bytes {}-{last}/{total}", start + 1);
    }
    let answer_headers =
        [(header::CONTENT_RANGE, content_range), (header::CONTENT_LENGTH, part.len().to_string())];
    let half = Ok::<_, std::io::Error>(Bytes::copy_from_slice(&part[..part.len() / 2]));
    let body = if contents.strikes(|f| if let Fault::Stall(left) = f { Some(left) } else { None }) {
        Body::from_stream(futures::stream::iter([half]).chain(futures::stream::pending()))
    } else if contents.strikes(|f| if let Fault::BreakOff(left) = f { Some(left) } else { None }) {
        let broken = futures::stream::iter([half, Err(std::io::Error::other("cable cut"))]);
        Body::from_stream(broken.then(|item| async move {
            if item.is_err() {
                tokio::time::sleep(BREAK_PAUSE).await;
            }
            item
        }))
    } else {
        Body::from(part)
    };
    (StatusCode::PARTIAL_CONTENT, answer_headers, body).into_response()
}
