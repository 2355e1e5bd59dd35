//! The chunk API over plain HTTP; every received byte is compared with the generator's.

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use kvasir_api::{
    HEADER_OBJECT_DIGEST, LookupRequest, LookupResponse, MEDIA_CHUNK, NamespaceRequest, NamespaceResponse,
    routes,
};
use kvasir_tests::chunks;
use kvasir_types::{ModelId, ProfileHash, RootHash};
use reqwest::{Method, Response, header};

use super::{
    objects::{Pool, SyntheticObject},
    record::{Completion, Failure},
};
use crate::index_rows;

/// The objects of one tenant, and the requests for them.
#[derive(Debug)]
pub(crate) struct Tenant {
    pub(crate) pool: Arc<Pool>,
    pub(crate) http: reqwest::Client,
    /// URLs of the replicas.
    pub(crate) replicas: Vec<String>,
    pub(crate) token: Option<String>,
    pub(crate) model_id: ModelId,
    pub(crate) root: RootHash,
    /// The acknowledged objects: all of them must be stored.
    acknowledged: RwLock<Vec<Arc<SyntheticObject>>>,
}

/// Patience of an HTTP request for its connection and between two parts of an answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a connection is kept for the next request: less than the 15 s after which the service closes it,
/// because a request sent at that moment would fail.
const KEPT: Duration = Duration::from_secs(10);

/// Many kept connections.
pub(crate) fn http_client() -> anyhow::Result<reqwest::Client> {
    let builder = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT).read_timeout(READ_TIMEOUT);
    Ok(builder.tcp_nodelay(true).pool_max_idle_per_host(1_024).pool_idle_timeout(KEPT).build()?)
}

/// Reasons for which a lookup fails that should have matched.
const NOT_FOUND: &str = "not found";
const ANOTHER: &str = "another object";

/// A kind of failure, from a bounded set.
fn broken(error: &reqwest::Error) -> Failure {
    let kind = match error {
        e if e.is_connect() => "connect",
        e if e.is_timeout() => "timeout",
        e if e.is_body() || e.is_decode() => "body broke off",
        _ => "connection broke",
    };
    Failure::new(kind)
}

async fn success(response: Response) -> Result<Response, Failure> {
    if response.status().is_success() {
        return Ok(response);
    }
    let status = response.status().as_u16();
    let text = response.text().await.unwrap_or_default();
    let code = serde_json::from_str::<serde_json::Value>(&text).ok();
    let code = code.and_then(|problem| Some(problem["code"].as_str()?.to_owned()));
    Err(Failure::new(format!("{status} {}", code.unwrap_or_default()).trim()))
}

impl Tenant {
    /// Registers the synthetic model, its profile and the namespace.
    pub(crate) async fn register(
        pool: Arc<Pool>,
        http: reqwest::Client,
        replicas: Vec<String>,
        token: Option<String>,
    ) -> anyhow::Result<Self> {
        let spec = chunks::spec();
        let model_id = spec.model_id();
        let root = RootHash::from([0; 32]);
        let mut tenant =
            Self { pool, http, replicas, token, model_id, root, acknowledged: RwLock::default() };
        let json = |value: serde_json::Result<Vec<u8>>| value.context("serialises");
        let send = async |method: Method, path: &str, body: Vec<u8>| {
            let response = tenant.request(0, method, path).body(body).send().await?;
            ensure!(response.status().is_success(), "{path}: {}", response.status());
            anyhow::Ok(response)
        };
        send(Method::POST, routes::MODELS, json(serde_json::to_vec(&spec))?).await?;
        let profile = routes::profile(&model_id, &ProfileHash::of(chunks::PROFILE));
        send(Method::PUT, &profile, chunks::PROFILE.to_vec()).await?;
        let request = NamespaceRequest { namespace: "n".parse()?, model_id };
        let answer = send(Method::POST, routes::NAMESPACES, json(serde_json::to_vec(&request))?).await?;
        let NamespaceResponse { root } = answer.json().await?;
        tenant.root = root;
        Ok(tenant)
    }

    /// One of those that were acknowledged, by a number in 0..1.
    pub(crate) fn known(&self, share: f64) -> Option<Arc<SyntheticObject>> {
        let objects = self.acknowledged.read().unwrap_or_else(PoisonError::into_inner);
        objects.get(((objects.len() as f64 * share) as usize).min(objects.len().saturating_sub(1))).cloned()
    }

    /// One of the first `of` that were acknowledged, by a number in 0..1.
    pub(crate) fn known_of(&self, share: f64, of: usize) -> Option<Arc<SyntheticObject>> {
        let objects = self.acknowledged.read().unwrap_or_else(PoisonError::into_inner);
        objects.get(((of as f64 * share) as usize).min(of.saturating_sub(1))).cloned()
    }

    /// How many.
    pub(crate) fn count(&self) -> usize {
        self.acknowledged.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Notes an acknowledgement.
    pub(crate) fn keep(&self, known: Arc<SyntheticObject>) {
        self.acknowledged.write().unwrap_or_else(PoisonError::into_inner).push(known);
    }

    /// A request to a replica.
    pub(crate) fn request(&self, replica: usize, method: Method, path: &str) -> reqwest::RequestBuilder {
        let url = format!("{}{path}", self.replicas[replica]);
        let request = self.http.request(method, url);
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// Replicas by preference for an object: rendezvous hashing, so that each holds its own part hot.
    fn preferred(&self, known: &SyntheticObject) -> Vec<usize> {
        let weight = |replica: &usize| {
            let mut hasher = blake3::Hasher::new();
            hasher.update(known.object_digest.as_bytes()).update(&replica.to_le_bytes());
            u64::from_le_bytes(hasher.finalize().as_bytes()[..8].try_into().expect("eight bytes"))
        };
        let mut replicas: Vec<usize> = (0..self.replicas.len()).collect();
        replicas.sort_by_cached_key(|replica| std::cmp::Reverse(weight(replica)));
        replicas
    }

    /// Reads an object, or its first `range` bytes, from the replica that holds it hot, and from the others
    /// if that one does not respond.
    pub(crate) async fn read(
        &self,
        known: &SyntheticObject,
        range: Option<u64>,
        pace: Option<u64>,
    ) -> Result<Completion, Failure> {
        let mut last = Failure::new("there is no replica");
        for (again, replica) in self.preferred(known).into_iter().enumerate() {
            match self.read_from(replica, known, range, pace).await {
                Ok(bytes) => return Ok(Completion { bytes, again: again as u32, ..Completion::default() }),
                Err(failure) if failure.wrong => return Err(failure),
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    /// As [`read`](Self::read), from one replica.
    pub(crate) async fn read_from(
        &self,
        replica: usize,
        known: &SyntheticObject,
        range: Option<u64>,
        pace: Option<u64>,
    ) -> Result<u64, Failure> {
        let path = routes::chunk_object(&self.model_id, &known.seq_hash, &known.object_digest);
        let mut request = self.request(replica, Method::GET, &path);
        let expected = range.map_or(known.bytes, |range| range.min(known.bytes));
        if range.is_some() {
            request = request.header(header::RANGE, format!("bytes=0-{}", expected - 1));
        }
        let response = request.send().await.map_err(|e| broken(&e))?;
        let mut response = success(response).await?;
        let mut at = 0;
        while let Some(part) = response.chunk().await.map_err(|e| broken(&e))? {
            if !known.is(&self.pool, at, &part) {
                return Err(Failure::wrong(format!("wrong bytes from {at} on")));
            }
            at += part.len() as u64;
            if let Some(rate) = pace {
                tokio::time::sleep(Duration::from_secs_f64(part.len() as f64 / rate as f64)).await;
            }
        }
        // Fewer bytes than announced are an error of the connection; this many were announced.
        if at == expected { Ok(at) } else { Err(Failure::wrong(format!("{at} bytes instead of {expected}"))) }
    }

    /// Stores an object, and records it once it is acknowledged. If a replica fails, another is tried, as
    /// clients do.
    pub(crate) async fn store(&self, known: SyntheticObject, object: Bytes) -> Result<Completion, Failure> {
        let path = routes::chunk(&self.model_id, &known.seq_hash);
        let mut last = Failure::new("there is no replica");
        for (again, replica) in self.preferred(&known).into_iter().enumerate() {
            let request = self.request(replica, Method::PUT, &path);
            let request = request
                .header(header::CONTENT_TYPE, MEDIA_CHUNK)
                .header(HEADER_OBJECT_DIGEST, known.object_digest.to_string())
                .body(object.clone());
            let answer = match request.send().await {
                Ok(response) => success(response).await,
                Err(error) => Err(broken(&error)),
            };
            match answer {
                Ok(_) => {
                    self.keep(Arc::new(known));
                    return Ok(Completion {
                        bytes: object.len() as u64,
                        again: again as u32,
                        ..Completion::default()
                    });
                }
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    /// Looks a stored context up by its block hashes; less than all of it is a failure.
    pub(crate) async fn lookup(
        &self,
        replica: usize,
        known: &SyntheticObject,
        fresh: bool,
    ) -> Result<Completion, Failure> {
        let request = LookupRequest {
            model_id: self.model_id,
            namespace: "n".parse().map_err(|_| Failure::new("a name"))?,
            tokens: None,
            block_hashes: Some(known.blocks.to_vec()),
            chunk_ids: None,
            fresh,
            direct: false,
        };
        let tokens = (known.blocks.len() * kvasir_types::BLOCK_TOKENS) as u64;
        let (found, bytes) = self.ask(replica, &request).await?;
        let object = found.chunks.last().map(|chunk| chunk.object_digest);
        if found.matched_tokens == tokens && object == Some(known.object_digest) {
            return Ok(Completion { bytes, ..Completion::default() });
        }
        Err(Failure::new(if found.matched_tokens < tokens { NOT_FOUND } else { ANOTHER }))
    }

    /// As [`lookup`](Self::lookup), from the next replica in turn, and from the others if that one does not
    /// respond.
    pub(crate) async fn lookup_anywhere(
        &self,
        number: usize,
        known: &SyntheticObject,
    ) -> Result<Completion, Failure> {
        let mut last = Failure::new("there is no replica");
        for again in 0..self.replicas.len() {
            match self.lookup((number + again) % self.replicas.len(), known, false).await {
                Ok(done) => return Ok(Completion { again: again as u32, ..done }),
                Err(failure) if [NOT_FOUND, ANOTHER].contains(&failure.cause.as_str()) => {
                    return Err(failure);
                }
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    /// Looks a context of index rows up by its chunks; less than all of it is a failure.
    pub(crate) async fn lookup_rows(&self, replica: usize, context: usize) -> Result<Completion, Failure> {
        let request = LookupRequest {
            model_id: self.model_id,
            namespace: "n".parse().map_err(|_| Failure::new("a name"))?,
            tokens: None,
            block_hashes: None,
            chunk_ids: Some(index_rows::context(self.root, context).chunk_ids()),
            fresh: false,
            direct: false,
        };
        let (found, bytes) = self.ask(replica, &request).await?;
        let whole = found.matched_tokens == index_rows::CONTEXT_TOKENS as u64;
        if whole { Ok(Completion { bytes, ..Completion::default() }) } else { Err(Failure::new(NOT_FOUND)) }
    }

    /// Sends a lookup, and returns the answer with its size.
    async fn ask(&self, replica: usize, request: &LookupRequest) -> Result<(LookupResponse, u64), Failure> {
        let json = serde_json::to_vec(request).map_err(|e| Failure::new(e.to_string()))?;
        let call = self.request(replica, Method::POST, routes::LOOKUP).body(json);
        let response = success(call.send().await.map_err(|e| broken(&e))?).await?;
        let body = response.bytes().await.map_err(|e| broken(&e))?;
        let found =
            serde_json::from_slice(&body).map_err(|_| Failure::new("the answer is not valid JSON"))?;
        Ok((found, body.len() as u64))
    }
}
