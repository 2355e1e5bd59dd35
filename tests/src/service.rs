//! A running service and the plain HTTP requests of a test.

use std::{
    net::SocketAddr,
    ops::{Deref, DerefMut},
    path::Path,
    time::{Duration, Instant},
};

use kvasir_api::{
    Job, JobState, LookupRequest, LookupResponse, NamespaceRequest, NamespaceResponse, Problem, routes,
};
use kvasir_server::{Config, listen, run};
use kvasir_store::StoreConfig;
use kvasir_types::{ModelId, ModelSpec, ProfileHash, RootHash};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use tokio::{sync::oneshot, task::JoinHandle};

use crate::chunks::{self, Chunk};

/// Maximum time of a job before a test fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum time of a request until the end of its answer; then there is none.
const ANSWER_MAX: Duration = Duration::from_secs(120);
/// How long a running replica may refuse on a busy machine before a test fails, and the pause before it is asked again. One
/// request that its store does not answer takes up to 50 s by default.
pub const SERVED_AGAIN: Duration = Duration::from_secs(300);
/// See [`SERVED_AGAIN`].
pub const ASKED_AGAIN: Duration = Duration::from_millis(200);

/// A running service, as plain HTTP shows it.
#[derive(Debug, Clone)]
pub struct Api {
    /// Its address.
    pub address: SocketAddr,
    /// For requests to it.
    pub http: reqwest::Client,
}

/// A service in this process, on a free port.
#[derive(Debug)]
pub struct Service {
    api: Api,
    s3: Option<SocketAddr>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), kvasir_server::RunError>>,
}

impl Service {
    /// Starts over `store`, with everything else under `cache`.
    pub async fn start(store: StoreConfig, cache: &Path) -> Self {
        Self::start_with(store, cache, |_| {}).await
    }

    /// As [`start`](Self::start), with other settings.
    pub async fn start_with(store: StoreConfig, cache: &Path, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::embedded(cache).expect("a path");
        config.server.listen = SocketAddr::from(([127, 0, 0, 1], 0));
        config.store = store;
        change(&mut config);
        let listeners = listen(&config).await.expect("a free port");
        let address = listeners.address().expect("bound");
        let s3 = listeners.s3_address();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(run(config, listeners, async { drop(stopped.await) }));
        Self { api: Api::at(address), s3, stop: Some(stop), task }
    }

    /// The address of its S3 front, if it has one.
    pub fn s3(&self) -> Option<SocketAddr> {
        self.s3
    }

    /// Shuts down and waits for the end.
    pub async fn stop(mut self) {
        self.begin_stop();
        self.task.await.expect("no panic").expect("a clean end");
    }

    /// Begins a shutdown.
    pub fn begin_stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }
}

impl Deref for Service {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

impl DerefMut for Service {
    fn deref_mut(&mut self) -> &mut Api {
        &mut self.api
    }
}

impl Api {
    /// At an address.
    pub fn at(address: SocketAddr) -> Self {
        // Less than the 15 s after which the service closes an idle connection: a request sent just then has no answer.
        let http = reqwest::Client::builder().pool_idle_timeout(Duration::from_secs(10)).timeout(ANSWER_MAX);
        Self { address, http: http.build().expect("a client") }
    }

    /// Sends a request that may fail.
    ///
    /// # Errors
    /// Where there is no answer.
    pub async fn try_send(
        &self,
        method: Method,
        path: &str,
        body: impl Into<reqwest::Body>,
    ) -> reqwest::Result<Response> {
        let url = format!("http://{}{path}", self.address);
        self.http.request(method, url).body(body).send().await
    }

    /// Sends a request.
    pub async fn send(&self, method: Method, path: &str, body: impl Into<reqwest::Body>) -> Response {
        self.try_send(method, path, body).await.expect("an answer")
    }

    /// As [`send`](Self::send), of a replica that may refuse for [`SERVED_AGAIN`].
    pub async fn served(&self, method: Method, path: &str, body: Vec<u8>) -> Response {
        let url = format!("http://{}{path}", self.address);
        served(SERVED_AGAIN, || self.http.request(method.clone(), &url).body(body.clone())).await
    }

    /// GETs with headers.
    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Response {
        let mut request = self.http.get(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.send().await.expect("an answer")
    }

    /// Starts a job and waits for its end.
    ///
    /// # Panics
    /// When it does not come.
    pub async fn job(&self, request: &str) -> Job {
        let response = self.send(Method::POST, routes::JOBS, request.to_owned()).await;
        assert_eq!(response.status(), StatusCode::ACCEPTED);
        let mut job: Job = response.json().await.expect("its JSON");
        let begun = Instant::now();
        while job.state == JobState::Running {
            assert!(begun.elapsed() < PATIENCE, "{job:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
            job = self.get(&routes::job(&job.job_id), &[]).await.json().await.expect("its JSON");
        }
        assert_eq!(job.state, JobState::Done, "{job:?}");
        job
    }

    /// Registers the synthetic model and its profile, and returns the root of a namespace.
    pub async fn prepare(&self, namespace: &str) -> (ModelId, RootHash) {
        self.prepare_model(namespace, &chunks::spec()).await
    }

    /// As [`prepare`](Self::prepare), of another model.
    pub async fn prepare_model(&self, namespace: &str, spec: &ModelSpec) -> (ModelId, RootHash) {
        let model_id = spec.model_id();
        let json = serde_json::to_vec(spec).expect("serialises");
        assert!(self.served(Method::POST, routes::MODELS, json).await.status().is_success());
        let profile = routes::profile(&model_id, &ProfileHash::of(chunks::PROFILE));
        assert!(self.served(Method::PUT, &profile, chunks::PROFILE.to_vec()).await.status().is_success());
        let request = NamespaceRequest { namespace: namespace.parse().expect("a name"), model_id };
        let json = serde_json::to_vec(&request).expect("serialises");
        let response = self.served(Method::POST, routes::NAMESPACES, json).await;
        assert_eq!(response.status(), StatusCode::OK);
        let NamespaceResponse { root } = response.json().await.expect("its JSON");
        (model_id, root)
    }

    /// PUTs a chunk under its own name.
    pub async fn put(&self, model_id: &ModelId, chunk: &Chunk) -> Response {
        self.send(Method::PUT, &routes::chunk(model_id, &chunk.seq_hash), chunk.bytes.clone()).await
    }

    /// Looks up.
    pub async fn lookup(&self, request: &LookupRequest) -> LookupResponse {
        let json = serde_json::to_vec(request).expect("serialises");
        let response = self.send(Method::POST, routes::LOOKUP, json).await;
        assert_eq!(response.status(), StatusCode::OK);
        response.json().await.expect("its JSON")
    }

    /// Looks tokens up in namespace `n`, as a fresh caller.
    pub async fn lookup_tokens(&self, model_id: ModelId, tokens: &[u32]) -> LookupResponse {
        self.lookup(&lookup_request(model_id, "n", tokens, true)).await
    }

    /// The text of `/metrics`.
    pub async fn metrics(&self) -> String {
        self.get(routes::METRICS, &[]).await.text().await.expect("text")
    }
}

/// The answer of a replica that nobody ends. Asks again if there is none, or if the replica refuses because its store is slow.
///
/// # Panics
/// When it does so for longer than `patience`.
pub async fn served(patience: Duration, request: impl Fn() -> RequestBuilder) -> Response {
    let begun = Instant::now();
    loop {
        let (http, request) = request().build_split();
        let request = request.expect("a request");
        let what = format!("{} {}", request.method(), request.url());
        let (status, text) = match http.execute(request).await {
            Ok(answer) if answer.status() != StatusCode::SERVICE_UNAVAILABLE => return answer,
            Ok(answer) => (Some(answer.status()), answer.text().await.unwrap_or_default()),
            Err(error) => (None, error.to_string()),
        };
        assert!(begun.elapsed() < patience, "{what} is not served: {status:?} {text}");
        tokio::time::sleep(ASKED_AGAIN).await;
    }
}

/// Asserts that a response is the problem `code`.
pub async fn expect_problem(response: Response, code: &str) -> Problem {
    let status = response.status();
    let media = response.headers()["content-type"].clone();
    let text = response.text().await.expect("text");
    let problem: Problem = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{status} {text}: {e}"));
    assert_eq!(problem.code.as_str(), code, "{text}");
    assert_eq!(media, kvasir_api::MEDIA_PROBLEM);
    assert_eq!(problem.status, status.as_u16());
    assert!(problem.detail.len() > 10, "says what to do: {text}");
    problem
}

/// A request that looks up tokens in a namespace.
pub fn lookup_request(model_id: ModelId, namespace: &str, tokens: &[u32], fresh: bool) -> LookupRequest {
    let namespace = namespace.parse().expect("a name");
    let tokens = Some(tokens.to_vec());
    LookupRequest { model_id, namespace, tokens, block_hashes: None, chunk_ids: None, fresh, direct: false }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    /// The answer that is served after these.
    async fn served_after(patience: Duration, answers: &[Option<&str>]) -> Response {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/there", listener.local_addr().expect("bound"));
        let answers = async {
            for status in answers.iter().chain([&Some("201 Created")]) {
                let (mut client, _) = listener.accept().await.expect("a client");
                assert!(client.read(&mut [0; 1 << 10]).await.expect("a request") > 0);
                let answer = |status: &str| format!("HTTP/1.1 {status}\r\ncontent-length: 4\r\n\r\nbusy");
                client.write_all(status.map(answer).unwrap_or_default().as_bytes()).await.expect("writes");
            }
        };
        // Without a time of its own, which would be over at once where the clock does not run.
        let http = reqwest::Client::new();
        tokio::join!(answers, served(patience, || http.get(&url))).1
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_breaks_off_or_refuses_is_asked_again() {
        let answer = served_after(SERVED_AGAIN, &[None, Some("503 Busy")]).await;
        assert_eq!(answer.status(), StatusCode::CREATED);
    }

    #[tokio::test]
    #[should_panic(expected = "/there is not served: Some(503) busy")]
    async fn what_a_replica_refuses_for_too_long_is_reported() {
        served_after(Duration::ZERO, &[Some("503 Busy")]).await;
    }
}
