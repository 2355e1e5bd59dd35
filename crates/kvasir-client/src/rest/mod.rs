//! The service's REST API: requests with types, typed errors, retries under a shared budget. For tools; an
//! engine needs [`Kvasir`](crate::Kvasir).

mod active_loads;
mod block_lookup;
mod body;
mod class;
mod first_byte;
mod identities;
mod members;
mod object;
mod opaque;
mod problem;
mod profiles;
mod read;
mod retry;
mod route;
mod send;
mod service;
mod shared_reads;
mod upload_pacer;

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use kvasir_api::{
    ChunkSample, ConfigResponse, HEADER_NAMESPACE, HEADER_OBJECT_DIGEST, HEADER_ROUTE, LookupRequest,
    LookupResponse, MEDIA_CHUNK, ModelList, NamespaceRequest, NamespaceResponse, RegisteredModel,
    SampleQuery, StoredChunk, routes,
};
use kvasir_types::{ModelId, ModelSpec, Name, ObjectDigest, RootHash, SeqHash};
use reqwest::{
    Certificate, Method, RequestBuilder,
    header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue},
    redirect,
};
use url::Url;

pub(crate) use active_loads::{ActiveLoadGuard, ActiveLoads};
pub(crate) use block_lookup::BlockLookup;
pub use class::RequestClass;
use members::{Members, Target};
pub use object::{ObjectRange, ObjectRead};
use profiles::RefusedProfiles;
pub(crate) use read::{ByteSink, ObjectName};
pub(crate) use retry::backoff;
pub use route::ReadReport;
pub(crate) use route::Routes;
pub use service::{EventMessage, EventStream};
pub(crate) use shared_reads::{SharedObject, SharedReads};
pub(crate) use upload_pacer::UploadPacer;
use upload_pacer::transfer_time_max;

pub use crate::error::ApiError;
use crate::{Error, limits};

/// Configuration of requests.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Longest wait for a connection.
    pub connect_timeout: Duration,
    /// Longest silence during a response. Control requests and uploads have a time for the whole request, and where that is
    /// longer, it alone.
    pub read_timeout: Duration,
    /// Sent as `Authorization: Bearer …` to the service, and to no other host.
    pub token: Option<BearerToken>,
    /// CA certificates to trust in addition to the system's, as PEM.
    pub ca_certificates: Option<Vec<u8>>,
    /// Class of requests, unless [`Client::for_request`] sets another.
    pub class: RequestClass,
    /// The zone that this process runs in: of two replicas that keep a context, one in the same zone is asked first.
    pub zone: Option<Name>,
}

/// A credential; its text never appears in logs.
#[derive(Clone)]
pub struct BearerToken(HeaderValue);

impl BearerToken {
    /// A token of the service, or a JSON Web Token; surrounding white space is ignored.
    ///
    /// # Errors
    /// [`Error::Config`] if it is empty or has characters that a header cannot contain.
    pub fn new(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        let what = || "the token is empty or has characters that a header cannot contain".to_owned();
        let value = HeaderValue::try_from(format!("Bearer {text}")).ok().filter(|_| !text.is_empty());
        let mut value = value.ok_or_else(|| Error::Config { what: what() })?;
        value.set_sensitive(true);
        Ok(Self(value))
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            connect_timeout: limits::CONNECT_TIMEOUT,
            read_timeout: limits::READ_TIMEOUT,
            token: None,
            ca_certificates: None,
            class: RequestClass::default(),
            zone: None,
        }
    }
}

/// The connections to the service.
#[derive(Debug, Clone)]
struct Connections {
    reads: reqwest::Client,
    /// Without a limit on the server's silence: reqwest counts the time in which a body is sent as such.
    uploads: reqwest::Client,
}

impl Connections {
    fn new(config: &ClientConfig) -> Result<Self, Error> {
        let build = |read_timeout: Option<Duration>| {
            let mut builder = connections(config)?.redirect(redirect::Policy::none());
            if let Some(limit) = read_timeout {
                builder = builder.read_timeout(limit);
            }
            builder.build().map_err(Error::Transport)
        };
        Ok(Self { reads: build(Some(config.read_timeout))?, uploads: build(None)? })
    }
}

/// Connections are kept alive and, over HTTP/2, receive a whole part without waiting for credit, in long frames.
fn connections(config: &ClientConfig) -> Result<reqwest::ClientBuilder, Error> {
    let mut builder = reqwest::Client::builder()
        .connect_timeout(config.connect_timeout)
        .tcp_nodelay(true)
        .pool_max_idle_per_host(limits::IDLE_CONNECTIONS)
        .pool_idle_timeout(limits::IDLE_TIME_MAX)
        .http2_initial_stream_window_size(limits::H2_STREAM_WINDOW_BYTES)
        .http2_initial_connection_window_size(limits::H2_CONNECTION_WINDOW_BYTES)
        .http2_max_frame_size(limits::H2_FRAME_BYTES_MAX)
        .user_agent(concat!("kvasir-client/", env!("CARGO_PKG_VERSION")));
    if let Some(pem) = &config.ca_certificates {
        let what = |e| Error::Config { what: format!("ca_certificates are not valid PEM: {e}") };
        for certificate in Certificate::from_pem_bundle(pem).map_err(what)? {
            builder = builder.add_root_certificate(certificate);
        }
    }
    Ok(builder)
}

/// The service's REST API. Cheap to clone; clones share connections and the retry budget.
#[derive(Debug, Clone)]
pub struct Client {
    http: Connections,
    /// For presigned URLs: connections to the store, never with the service's credentials.
    direct: reqwest::Client,
    members: Arc<Members>,
    /// Where its requests go.
    target: Target,
    config: ClientConfig,
    budget: Arc<retry::RetryBudget>,
    pub(crate) first_byte_latencies: Arc<first_byte::FirstByteLatencies>,
    lookup_latencies: Arc<first_byte::FirstByteLatencies>,
    pub(crate) active_loads: Arc<ActiveLoads>,
    pub(crate) shared_reads: Arc<SharedReads>,
    refused_profiles: Arc<RefusedProfiles>,
}

impl Client {
    /// A client of the service at `base`, e.g. `http://127.0.0.1:7480`.
    ///
    /// # Errors
    /// [`Error::Config`] if `base` is not an HTTP address.
    #[allow(clippy::needless_pass_by_value, reason = "kept by the client")]
    pub fn new(base: Url, config: ClientConfig) -> Result<Self, Error> {
        if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
            let what = format!("{base} is not a service address: use http://host:port or https://host:port");
            return Err(Error::Config { what });
        }
        if base.query().is_some() || base.fragment().is_some() {
            let what = format!("{base} has a query or a fragment: use http://host:port, or that with a path");
            return Err(Error::Config { what });
        }
        if !base.username().is_empty() || base.password().is_some() {
            let what = "the address has a user or a password: give the credential as a token".to_owned();
            return Err(Error::Config { what });
        }
        let http = Connections::new(&config)?;
        let direct =
            connections(&config)?.read_timeout(config.read_timeout).build().map_err(Error::Transport)?;
        let members = Arc::new(Members::new(base.as_str().trim_end_matches('/'), config.zone.clone()));
        Ok(Self {
            http,
            direct,
            target: members.given(),
            members,
            config,
            budget: Arc::new(retry::RetryBudget::new()),
            first_byte_latencies: Arc::default(),
            lookup_latencies: Arc::default(),
            active_loads: Arc::default(),
            shared_reads: Arc::default(),
            refused_profiles: Arc::default(),
        })
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let mut request =
            self.http.reads.request(method, format!("{}{path}", self.members.named_in_requests()));
        if let Some(route) = self.target.route {
            request = request.header(HEADER_ROUTE, route.to_string());
        }
        let request = match &self.config.token {
            Some(BearerToken(value)) => request.header(AUTHORIZATION, value),
            None => request,
        };
        self.config.class.apply(request)
    }

    /// Class of requests, unless a request sets another.
    pub(crate) const fn class(&self) -> &RequestClass {
        &self.config.class
    }

    /// The time to first byte to expect of a read: the median of the last ones, or the fastest of the last lookups where that
    /// is less or there are too few reads; `None` before the first of either. A time so long that loads read nothing is
    /// measured by no read, but each load follows a lookup, which waits for a round trip as a read does.
    pub(crate) fn expected_first_byte(&self) -> Option<Duration> {
        let reads = self.first_byte_latencies.quantile(0.5);
        reads.into_iter().chain(self.lookup_latencies.fastest()).min()
    }

    /// The same client on behalf of one engine request, whose class is sent to the service.
    #[must_use]
    pub fn for_request(&self, class: RequestClass) -> Self {
        let mut this = self.clone();
        this.config.class = class;
        this
    }

    async fn json<T: serde::de::DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, Error> {
        self.json_from(0, request).await
    }

    /// As [`json`](Self::json), of the replica `first` places behind the best one first.
    async fn json_from<T: serde::de::DeserializeOwned>(
        &self,
        first: usize,
        request: RequestBuilder,
    ) -> Result<T, Error> {
        body::read_json(self.send_from(first, request.timeout(limits::CONTROL_TIMEOUT)).await?).await
    }

    fn with_json(
        &self,
        method: Method,
        path: &str,
        body: &impl serde::Serialize,
    ) -> Result<RequestBuilder, Error> {
        let body = serde_json::to_vec(body).map_err(|e| Error::Config { what: e.to_string() })?;
        Ok(self.request(method, path).header(CONTENT_TYPE, "application/json").body(body))
    }

    /// The service's properties and limits.
    ///
    /// # Errors
    /// As for every request: see [`Error`].
    pub async fn config(&self) -> Result<ConfigResponse, Error> {
        self.json(self.request(Method::GET, routes::CONFIG)).await
    }

    /// Whether the service is ready for traffic.
    ///
    /// # Errors
    /// As for every request: see [`Error`].
    pub async fn ready(&self) -> Result<(), Error> {
        self.send(self.request(Method::GET, routes::READYZ).timeout(limits::CONTROL_TIMEOUT))
            .await
            .map(|_| ())
    }

    /// Registers a model; registering it again is no error.
    ///
    /// # Errors
    /// [`Error::Spec`] before anything is sent, `invalid_model_spec` from the service.
    pub async fn register_model(&self, spec: &ModelSpec) -> Result<RegisteredModel, Error> {
        spec.validate()?;
        let registered: RegisteredModel =
            self.json(self.with_json(Method::POST, routes::MODELS, spec)?).await?;
        if registered.model_id != spec.model_id() {
            return Err(Error::protocol("it computed another model_id for this spec"));
        }
        Ok(registered)
    }

    /// The spec of a registered model, as JSON.
    ///
    /// # Errors
    /// `unknown_model`.
    pub async fn model(&self, model_id: &ModelId) -> Result<ModelSpec, Error> {
        self.json(self.request(Method::GET, &routes::model(model_id))).await
    }

    /// The models of the caller's tenant, by id, at most 1,000.
    ///
    /// # Errors
    /// As for every request: see [`Error`].
    pub async fn list_models(&self) -> Result<ModelList, Error> {
        self.json(self.request(Method::GET, routes::MODELS)).await
    }

    /// Where token chains of a namespace start.
    ///
    /// # Errors
    /// `unknown_model`.
    pub async fn namespace_root(&self, model_id: ModelId, namespace: &Name) -> Result<RootHash, Error> {
        let body = NamespaceRequest { namespace: namespace.clone(), model_id };
        let answer: NamespaceResponse =
            self.json(self.with_json(Method::POST, routes::NAMESPACES, &body)?).await?;
        Ok(answer.root)
    }

    /// The longest usable prefix.
    ///
    /// # Errors
    /// As for every request: see [`Error`]. A miss is an empty response.
    pub async fn lookup(&self, request: &LookupRequest) -> Result<LookupResponse, Error> {
        self.json(self.with_json(Method::POST, routes::LOOKUP, request)?).await
    }

    /// Stored chunks of a model in all namespaces, a uniform sample of at most `chunks`. Needs the role
    /// `admin`.
    ///
    /// # Errors
    /// `unknown_model`, `forbidden`.
    pub async fn sample_chunks(&self, model_id: &ModelId, chunks: usize) -> Result<ChunkSample, Error> {
        let query = SampleQuery { chunks: Some(chunks) };
        let path = service::with_query(&routes::sample(model_id), &query)?;
        self.json(self.request(Method::GET, &path)).await
    }

    /// The whole preferred object of a chunk.
    ///
    /// # Errors
    /// `unknown_chunk`.
    pub async fn get_chunk(&self, model_id: &ModelId, seq_hash: &SeqHash) -> Result<Vec<u8>, Error> {
        let request = self.request(Method::GET, &routes::chunk(model_id, seq_hash));
        body::read_bounded(self.send(request).await?, limits::OBJECT_BYTES_MAX).await
    }

    /// Stores a chunk object. When this returns, it is durable.
    ///
    /// # Errors
    /// `invalid_chunk`, `chunk_mismatch`, `unknown_profile`, `body_too_large`, `store_unavailable`.
    pub async fn put_chunk(
        &self,
        model_id: &ModelId,
        seq_hash: &SeqHash,
        object: Bytes,
    ) -> Result<StoredChunk, Error> {
        self.put_chunk_of(None, model_id, seq_hash, object, None).await
    }

    /// Like [`put_chunk`](Self::put_chunk), in a namespace, with a pacer.
    pub(crate) async fn put_chunk_of(
        &self,
        namespace: Option<&Name>,
        model_id: &ModelId,
        seq_hash: &SeqHash,
        object: Bytes,
        pacer: Option<&UploadPacer>,
    ) -> Result<StoredChunk, Error> {
        let (length, digest) = (object.len(), ObjectDigest::of(&object).to_string());
        let request = || {
            let body = pacer.map_or_else(|| object.clone().into(), |pacer| pacer.body(object.clone()));
            let mut request = self.request(Method::PUT, &routes::chunk(model_id, seq_hash));
            if let Some(namespace) = namespace {
                request = request.header(HEADER_NAMESPACE, namespace.as_str());
            }
            request
                .header(CONTENT_TYPE, MEDIA_CHUNK)
                .header(CONTENT_LENGTH, length)
                .header(HEADER_OBJECT_DIGEST, &digest)
                .timeout(pacer.map_or_else(|| transfer_time_max(length), |pacer| pacer.time_max(length)))
                .body(body)
        };
        body::read_json(self.send_again(request).await?).await
    }

    pub(crate) fn take_retry(&self) -> bool {
        self.budget.take()
    }
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncReadExt, net::TcpListener};

    use super::*;

    /// What a server is told of frames, before the first request (RFC 9113, sections 3.4 and 6.5).
    #[tokio::test]
    async fn over_http2_frames_may_be_longer_than_the_default() {
        const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        const MAX_FRAME_SIZE: u16 = 5;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let http = connections(&ClientConfig::default()).unwrap().http2_prior_knowledge().build().unwrap();
        let told = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut preface = [0; PREFACE.len()];
            stream.read_exact(&mut preface).await.unwrap();
            assert_eq!(preface, PREFACE);
            let mut head = [0; 9];
            stream.read_exact(&mut head).await.unwrap();
            let mut settings = vec![0u8; usize::from(u16::from_be_bytes([head[1], head[2]]))];
            stream.read_exact(&mut settings).await.unwrap();
            let mut settings = settings.chunks_exact(6);
            settings.find_map(|setting| {
                let (name, value) = setting.split_first_chunk().unwrap();
                let value = u32::from_be_bytes(value.try_into().unwrap());
                (u16::from_be_bytes(*name) == MAX_FRAME_SIZE).then_some(value)
            })
        };
        let told = tokio::select! {
            told = told => told,
            answer = http.get(url).send() => panic!("nothing answers: {answer:?}"),
        };
        assert_eq!(told, Some(limits::H2_FRAME_BYTES_MAX));
        assert!(told > Some(16 << 10), "longer than the default");
        // The parts of three chunks take turns.
        let turn_bits = 3 * limits::PARTS_AT_ONCE_MAX as u32 * limits::H2_FRAME_BYTES_MAX * 8;
        let turn = Duration::from_secs(1) * turn_bits / 19_000_000;
        assert!(turn < limits::SHARED_SILENCE_MAX, "{turn:?}");
    }
}
