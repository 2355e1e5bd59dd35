//! Sequences of requests to a private service, over an in-memory store and on a clock that never waits.
//!
//! An input is requests as text, separated by a byte that occurs in no text. For any input, nothing panics
//! and no response is an internal error; and an object stored by key is read back unchanged.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    http::{HeaderName, Method, Request, StatusCode, Uri, header},
};
use futures::StreamExt;
use kvasir_storage::{Storage, index::Index};
use kvasir_store::{OpenStore, observe::NoObserver};
use tower::ServiceExt;

use crate::{
    auth::Authenticator,
    cluster::Cluster,
    config::Config,
    journal_sync::JournalSync,
    metrics::Metrics,
    router::{routes, with_middleware},
    s3,
    state::AppState,
};

const SEPARATOR: u8 = 0xff;
const REQUESTS_MAX: usize = 12;
/// Parts of a response that are read: event streams never end.
const PARTS_MAX: usize = 64;
const INDEX_BYTES: u64 = 1 << 20;
/// Host of every request.
const HOST: &str = "localhost";

/// Requests to the API.
pub fn api_requests(data: &[u8]) {
    static ROUTES: LazyLock<Router<AppState>> = LazyLock::new(routes);
    send_all(data, |state| with_middleware(ROUTES.clone(), state));
}

/// Requests to the S3 front end.
pub fn s3_requests(data: &[u8]) {
    send_all(data, |state| s3::router(state, &[]).expect("no domain is wrong"));
}

fn send_all(data: &[u8], front: impl FnOnce(AppState) -> Router) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        let front = front(new_service().await);
        let mut stored = StoredValues::default();
        for text in data.split(|byte| *byte == SEPARATOR).take(REQUESTS_MAX) {
            let Some(sent) = SentRequest::parse(text) else { continue };
            let Some(request) = sent.request() else { continue };
            let answer = front.clone().oneshot(request).await.expect("routers do not fail");
            let status = answer.status();
            assert_ne!(status, StatusCode::INTERNAL_SERVER_ERROR, "{sent:?}");
            let (mut body, mut parts) = (Vec::new(), answer.into_body().into_data_stream().take(PARTS_MAX));
            while let Ok(Some(Ok(part))) = tokio::time::timeout(Duration::from_secs(1), parts.next()).await {
                body.extend_from_slice(&part);
            }
            stored.judge(&sent, status, &body);
        }
    });
    runtime.shutdown_background();
}

/// A service without authentication.
async fn new_service() -> AppState {
    static METRICS: LazyLock<Arc<Metrics>> = LazyLock::new(|| Arc::new(Metrics::new()));
    let mut config = Config::default();
    config.store.url = "memory://".parse().expect("a URL");
    config.storage.spool_directory = std::env::temp_dir().join("kvasir-fuzz");
    let authenticator = Authenticator::open(&config).expect("there are no files");
    let journal = JournalSync::new(config.journal.interval);
    let state =
        AppState::new(Arc::clone(&METRICS), authenticator, None, None, None, journal, Cluster::default());
    let store = OpenStore::open(&config.store, Arc::new(NoObserver)).expect("memory");
    let abilities = store.probe().await.expect("memory answers");
    let index = Index::memory_within(INDEX_BYTES);
    state.set_storage(Storage::new(store, abilities, index, config.storage, None));
    state
}

#[derive(Debug)]
struct SentRequest<'a> {
    method: Method,
    uri: Uri,
    headers: Vec<(HeaderName, &'a str)>,
    body: &'a [u8],
}

impl<'a> SentRequest<'a> {
    /// A line with method and path, headers, an empty line and the body.
    fn parse(text: &'a [u8]) -> Option<Self> {
        let head_bytes = text.windows(2).position(|two| two == b"\n\n").unwrap_or(text.len());
        let mut lines = std::str::from_utf8(&text[..head_bytes]).ok()?.split('\n');
        let (method, uri) = lines.next()?.split_once(' ')?;
        let header =
            |line: &'a str| line.split_once(": ").and_then(|(name, value)| Some((name.parse().ok()?, value)));
        let headers: Option<Vec<(HeaderName, _)>> = lines.map(header).collect();
        // The protocol's parser handles these.
        let framing = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::HOST];
        let headers = headers?.into_iter().filter(|(name, _)| !framing.contains(name)).collect();
        let body = text.get(head_bytes + 2..).unwrap_or_default();
        let uri: Uri = uri.parse().ok()?;
        // Refused for its host, whatever is stored.
        if uri.authority().is_some_and(|authority| authority != HOST) {
            return None;
        }
        Some(Self { method: method.parse().ok()?, uri, headers, body })
    }

    fn request(&self) -> Option<Request<Body>> {
        let mut request = Request::builder().method(&self.method).uri(&self.uri).header(header::HOST, HOST);
        if !self.body.is_empty() {
            request = request.header(header::CONTENT_LENGTH, self.body.len());
        }
        for (name, value) in &self.headers {
            request = request.header(name, *value);
        }
        request.body(Body::from(Bytes::copy_from_slice(self.body))).ok()
    }
}

/// Objects stored by requests without conditions.
#[derive(Default)]
struct StoredValues(HashMap<String, Vec<u8>>);

impl StoredValues {
    fn judge(&mut self, sent: &SentRequest<'_>, status: StatusCode, answer: &[u8]) {
        let is_plain = sent.uri.query().is_none() && sent.headers.is_empty();
        let path = sent.uri.path();
        // Over S3 the first segment is the bucket, which may be made again with another body.
        let is_object = match path.strip_prefix("/v1/") {
            Some(rest) => rest.contains("/objects/"),
            None => path.trim_start_matches('/').split_once('/').is_some_and(|(_, key)| !key.is_empty()),
        };
        match (&sent.method, is_plain && is_object) {
            (&Method::GET, true) => {
                if let Some(value) = self.0.get(path) {
                    assert_eq!((status, answer), (StatusCode::OK, &value[..]), "{sent:?}");
                }
            }
            (&Method::GET | &Method::HEAD, _) => {}
            (&Method::PUT, true) if status.is_success() => {
                let before = self.0.insert(path.to_owned(), sent.body.to_vec());
                assert!(before.is_none_or(|before| before == sent.body), "{sent:?} changed a value");
            }
            // Refused: nothing changed.
            (&Method::PUT, true) => {}
            // Any other request may remove objects, or store them under another spelling of their path.
            _ => self.0.clear(),
        }
    }
}
