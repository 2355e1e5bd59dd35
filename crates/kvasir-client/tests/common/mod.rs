//! A service in memory that misbehaves on request, and a toy model with a trained profile.
#![allow(clippy::unwrap_used, reason = "a test's own service")]
#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod pages;
pub(crate) mod store;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, OnceLock},
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::{get, post, put},
};
use futures::StreamExt;
use kvasir_api::{
    ChunkMatch, ErrorCode, LookupRequest, LookupResponse, NamespaceRequest, NamespaceResponse, Problem,
    RegisteredModel, StoredChunk, Via, routes,
};
use kvasir_client::{Client, ClientConfig, KvClient};
use kvasir_codec::{CpuDecoder, CpuEncoder, KvBuffer, Profile, container::ObjectVerifier};
use kvasir_train::{Recipe, TrainingContext, train};
use kvasir_types::{
    KvDtype, KvLayout, LayerKv, Level, Medium, ModelSpec, ObjectDigest, Pairing, Reuse, RootHash, Rope,
    SeqHash,
};

/// Layers of the toy model: a direct profile has scopes of four, so that it decodes in two groups.
pub(crate) const LAYERS: usize = 6;

/// What goes wrong next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The next reads answer 503, this many times.
    Unavailable(u32),
    /// The next reads break off half way, this many times.
    BreakOff(u32),
    /// Reads of this object that hold this byte flip a bit of it, this many times.
    Corrupt(ObjectDigest, u64, u32),
    /// Every read of this object is a 404.
    Gone(ObjectDigest),
    /// Uploads answer 503, this many times.
    PutUnavailable(u32),
    /// Reads of an object answer another's bytes, this many times.
    Misdirected(u32),
    /// Reads answer more than was asked for, this many times.
    TooLong(u32),
    /// Reads say that they start elsewhere, this many times.
    OtherRange(u32),
    /// Reads begin and never go on, this many times.
    Stall(u32),
    /// Control requests answer 503, this many times.
    ControlUnavailable(u32),
    /// Reads answer nothing until [`Service::flow`].
    Hold,
}

#[derive(Debug, Default)]
pub(crate) struct Service {
    pub objects: Mutex<BTreeMap<ObjectDigest, (SeqHash, Vec<u8>)>>,
    pub faults: Mutex<Vec<Fault>>,
    pub puts: Mutex<u32>,
    /// Where presigned URLs point to, and how long they say they live; and how many lookups gave some.
    pub presigned: Mutex<Option<(SocketAddr, u64)>>,
    pub presigned_lookups: Mutex<u32>,
    held: tokio::sync::Notify,
}

type Shared = Arc<Service>;

impl Service {
    fn presign(&self, digest: &ObjectDigest, direct: bool) -> Via {
        match *self.presigned.lock().unwrap() {
            Some((address, expires_in_s)) if direct => {
                let lookups = *self.presigned_lookups.lock().unwrap();
                Via::Direct { url: format!("http://{address}/{digest}?lookup={lookups}"), expires_in_s }
            }
            _ => Via::Proxy,
        }
    }

    /// Ends [`Fault::Hold`].
    pub(crate) fn flow(&self) {
        self.faults.lock().unwrap().retain(|fault| *fault != Fault::Hold);
        self.held.notify_waiters();
    }

    async fn hold(&self) {
        let flowing = self.held.notified();
        let is_held = self.faults.lock().unwrap().contains(&Fault::Hold);
        if is_held {
            flowing.await;
        }
    }

    /// Spends one use of a counted fault.
    fn strikes(&self, kind: impl Fn(&mut Fault) -> Option<&mut u32>) -> bool {
        let mut faults = self.faults.lock().unwrap();
        for fault in faults.iter_mut() {
            if let Some(left) = kind(fault).filter(|left| **left > 0) {
                *left -= 1;
                return true;
            }
        }
        false
    }
}

fn problem(code: ErrorCode) -> Response {
    let status = StatusCode::from_u16(code.status()).unwrap();
    (status, [("content-type", kvasir_api::MEDIA_PROBLEM)], Json(Problem::new(code, "told to")))
        .into_response()
}

pub(crate) async fn start() -> (SocketAddr, Shared) {
    let service = Shared::default();
    let app = Router::new()
        .route(routes::MODELS, post(register))
        .route(routes::NAMESPACES, post(namespace))
        .route(routes::LOOKUP, post(lookup))
        .route(routes::CHUNK, put(put_chunk))
        .route(routes::CHUNK_OBJECT, get(get_object))
        .layer(axum::extract::DefaultBodyLimit::disable())
        .with_state(Arc::clone(&service));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (address, service)
}

async fn register(State(service): State<Shared>, Json(spec): Json<ModelSpec>) -> Response {
    if service.strikes(|f| if let Fault::ControlUnavailable(left) = f { Some(left) } else { None }) {
        return problem(ErrorCode::StoreUnavailable);
    }
    Json(RegisteredModel { model_id: spec.model_id(), created: true }).into_response()
}

async fn namespace(Json(request): Json<NamespaceRequest>) -> Json<NamespaceResponse> {
    let root = RootHash::derive("default", request.namespace.as_str(), b"salt", &request.model_id);
    Json(NamespaceResponse { root })
}

/// Follows the chain greedily: the object that starts where the last ended and matches most blocks.
async fn lookup(State(service): State<Shared>, Json(request): Json<LookupRequest>) -> Json<LookupResponse> {
    let hashes = request.block_hashes.unwrap();
    *service.presigned_lookups.lock().unwrap() += u32::from(request.direct);
    let objects = service.objects.lock().unwrap();
    let mut chunks: Vec<ChunkMatch> = Vec::new();
    let mut next = 0u64;
    loop {
        let mut best: Option<ChunkMatch> = None;
        for (digest, (seq_hash, bytes)) in objects.iter() {
            let mut verifier = ObjectVerifier::new();
            verifier.push(bytes).unwrap();
            let head = verifier.finish().unwrap();
            if head.header.first_position != next {
                continue;
            }
            let ours = &hashes[(next as usize / 16).min(hashes.len())..];
            let blocks =
                head.block_hashes.iter().zip(ours).take_while(|(a, b)| a[..] == b.as_bytes()[..8]).count();
            let matched = (blocks as u32 * 16).min(head.header.token_count);
            if matched > best.as_ref().map_or(0, |b| b.matched_tokens) {
                best = Some(ChunkMatch {
                    seq_hash: *seq_hash,
                    object_digest: *digest,
                    profile_hash: head.header.profile_hash,
                    first_token: next,
                    tokens: head.header.token_count,
                    matched_tokens: matched,
                    bytes: bytes.len() as u64,
                    head_bytes: head.header.head_bytes(),
                    level_bytes: (0..head.header.level_count)
                        .map(|l| head.level_bytes(Level(l)).unwrap())
                        .collect(),
                    kl_beneath: head.header.kl_beneath,
                    medium: Medium::Disk,
                    via: service.presign(digest, request.direct),
                });
            }
        }
        let Some(best) = best else { break };
        next += u64::from(best.matched_tokens);
        let whole = best.matched_tokens == best.tokens;
        chunks.push(best);
        if !whole {
            break;
        }
    }
    Json(LookupResponse { matched_tokens: next, chunks })
}

async fn put_chunk(
    State(service): State<Shared>,
    Path((_, seq_hash)): Path<(String, SeqHash)>,
    body: Bytes,
) -> Response {
    let mut verifier = ObjectVerifier::new();
    let head = verifier.push(&body).ok().and_then(|()| verifier.finish().ok());
    let Some(head) = head else { return problem(ErrorCode::InvalidChunk) };
    if head.header.seq_hash != seq_hash {
        return problem(ErrorCode::ChunkMismatch);
    }
    if service.strikes(|f| if let Fault::PutUnavailable(left) = f { Some(left) } else { None }) {
        return problem(ErrorCode::StoreUnavailable);
    }
    *service.puts.lock().unwrap() += 1;
    let object_digest = ObjectDigest::of(&body);
    let created = service.objects.lock().unwrap().insert(object_digest, (seq_hash, body.to_vec())).is_none();
    Json(StoredChunk { seq_hash, object_digest, bytes: body.len() as u64, created }).into_response()
}

async fn get_object(
    State(service): State<Shared>,
    Path((_, _, digest)): Path<(String, String, ObjectDigest)>,
    headers: HeaderMap,
) -> Response {
    service.hold().await;
    if service.strikes(|f| if let Fault::Unavailable(left) = f { Some(left) } else { None }) {
        return problem(ErrorCode::StoreUnavailable);
    }
    let found = service.objects.lock().unwrap().get(&digest).cloned();
    let gone = service.faults.lock().unwrap().contains(&Fault::Gone(digest));
    let Some((_, mut bytes)) = found.filter(|_| !gone) else { return problem(ErrorCode::UnknownChunk) };
    if service.strikes(|f| if let Fault::Misdirected(left) = f { Some(left) } else { None }) {
        let objects = service.objects.lock().unwrap();
        bytes = objects.iter().find(|(other, _)| **other != digest).unwrap().1.1.clone();
        bytes.resize(1 << 20, 7);
    }
    let range = headers["range"].to_str().unwrap().strip_prefix("bytes=").unwrap().to_owned();
    let (start, last) = range.split_once('-').unwrap();
    let (start, last): (usize, usize) = (start.parse().unwrap(), last.parse().unwrap());
    let total = bytes.len();
    let flip = |f: &mut Fault| match f {
        Fault::Corrupt(object, at, left) if *object == digest && (start..=last).contains(&(*at as usize)) => {
            Some((*at as usize, left)).filter(|(_, left)| **left > 0).map(|(at, left)| {
                *left -= 1;
                at
            })
        }
        _ => None,
    };
    if let Some(at) = service.faults.lock().unwrap().iter_mut().find_map(flip) {
        bytes[at] ^= 0x40;
    }
    let mut part = bytes[start..=last].to_vec();
    let mut content_range = format!("bytes {start}-{last}/{total}");
    if service.strikes(|f| if let Fault::TooLong(left) = f { Some(left) } else { None }) {
        part.extend_from_slice(&[9; 1000]);
    }
    if service.strikes(|f| if let Fault::OtherRange(left) = f { Some(left) } else { None }) {
        content_range = format!("bytes {}-{last}/{total}", start + 1);
    }
    let headers = [("content-range", content_range), ("content-length", part.len().to_string())];
    if service.strikes(|f| if let Fault::Stall(left) = f { Some(left) } else { None }) {
        let half = Ok::<_, std::io::Error>(Bytes::copy_from_slice(&part[..part.len() / 2]));
        let silent = futures::stream::iter([half]).chain(futures::stream::pending());
        return (StatusCode::PARTIAL_CONTENT, headers, Body::from_stream(silent)).into_response();
    }
    if service.strikes(|f| if let Fault::BreakOff(left) = f { Some(left) } else { None }) {
        let half = Ok::<_, std::io::Error>(Bytes::copy_from_slice(&part[..part.len() / 2]));
        let broken = futures::stream::iter([half, Err(std::io::Error::other("cable cut"))]);
        // The pause lets the first half leave before the connection is torn down.
        let slow = broken.then(|item| async move {
            if item.is_err() {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            item
        });
        return (StatusCode::PARTIAL_CONTENT, headers, Body::from_stream(slow)).into_response();
    }
    (StatusCode::PARTIAL_CONTENT, headers, part).into_response()
}

pub(crate) fn spec() -> ModelSpec {
    let layer = LayerKv { layout: KvLayout::Gqa { kv_heads: 2, head_dim: 8 }, rope: Some(0) };
    ModelSpec {
        weights: "toy".into(),
        revision: "1".into(),
        adapter: None,
        kv_dtype: KvDtype::F16,
        ropes: vec![Rope::plain(Pairing::Half, 8, 10_000.0)],
        layers: vec![layer; LAYERS],
        thinning: None,
        reuse: Reuse::Prefix,
    }
}

pub(crate) fn tokens(count: usize, seed: u32) -> Vec<u32> {
    (0..count as u32).map(|i| (i + seed * 10_007).wrapping_mul(2_654_435_761) >> 7 & 31).collect()
}

/// KV that depends on the token and a little on the position.
pub(crate) fn kv(tokens: &[u32]) -> KvBuffer {
    let mut buffer = KvBuffer::new(&spec(), tokens.len());
    let count = buffer.as_slice().len();
    for (i, value) in buffer.as_mut_slice().iter_mut().enumerate() {
        let token = tokens[i / 8 % tokens.len()] as f32;
        *value =
            (token * 0.37 + (i % 8) as f32).sin() + ((i * 7919 % count) as f32 / count as f32 - 0.5) * 0.3;
    }
    buffer
}

pub(crate) fn profile() -> Arc<Profile> {
    static PROFILE: OnceLock<Arc<Profile>> = OnceLock::new();
    let make = || {
        let text = tokens(1024, 99);
        let context = TrainingContext { kv: kv(&text), tokens: text };
        let profile = train(&spec(), &[context], &Recipe::Direct, &mut |_, _| ()).unwrap();
        let kl: Vec<f32> = (0..profile.level_count()).map(|level| 0.1 / 3f32.powi(level as i32)).collect();
        Arc::new(profile.with_predicted_kl(&kl).unwrap())
    };
    Arc::clone(PROFILE.get_or_init(make))
}

pub(crate) async fn client(address: SocketAddr) -> KvClient {
    let spec = Arc::new(spec());
    let client = Client::new(format!("http://{address}").parse().unwrap(), ClientConfig::default()).unwrap();
    let encoder = Arc::new(CpuEncoder::new(Arc::clone(&spec), profile()).unwrap());
    let decoder = Arc::new(CpuDecoder::new(Arc::clone(&spec), profile()).unwrap());
    let kv = KvClient::new(client, spec, "test".parse().unwrap(), encoder, decoder).await.unwrap();
    kv.with_chunk_tokens(256).unwrap()
}
