//! The remaining routes: contexts, explain, usage, reports, jobs, events.

use std::collections::VecDeque;

use kvasir_api::{
    Context, ContextChange, ContextList, ContextRequest, ContextVersions, ContextsQuery, Event,
    EventsDropped, EventsQuery, ExplainRequest, ExplainResponse, Job, JobRequest, LoadRecord, TrainingList,
    TrainingRecord, UsageResponse, routes,
};
use kvasir_types::{ModelId, SeqHash};
use reqwest::{Method, Response};
use uuid::Uuid;

use super::{
    Client,
    body::{read_bounded, read_json},
};
use crate::{Error, limits};

impl Client {
    /// Explains why a lookup misses.
    ///
    /// # Errors
    /// As for every request: see [`Error`].
    pub async fn explain(&self, request: &ExplainRequest) -> Result<ExplainResponse, Error> {
        self.json(self.with_json(Method::POST, routes::EXPLAIN, request)?).await
    }

    /// Creates a context.
    ///
    /// # Errors
    /// `unknown_chunk`, `invalid_context`. After an error of the connection or the store it may have been created: each request
    /// makes one of its own, so [`list_contexts`](Self::list_contexts) before another attempt.
    pub async fn create_context(&self, request: &ContextRequest) -> Result<Context, Error> {
        let request = self.with_json(Method::POST, routes::CONTEXTS, request)?;
        read_json(self.send_not_idempotent(request).await?).await
    }

    /// A page of contexts.
    ///
    /// # Errors
    /// As every request: see [`Error`].
    pub async fn list_contexts(&self, query: &ContextsQuery) -> Result<ContextList, Error> {
        self.json(self.request(Method::GET, &with_query(routes::CONTEXTS, query)?)).await
    }

    /// A context's newest version, or another one.
    ///
    /// # Errors
    /// `unknown_context`.
    pub async fn context(&self, context_id: &Uuid, version: Option<u64>) -> Result<Context, Error> {
        let query = kvasir_api::ContextQuery { version };
        self.json(self.request(Method::GET, &with_query(&routes::context(context_id), &query)?)).await
    }

    /// The versions of a context.
    ///
    /// # Errors
    /// `unknown_context`.
    pub async fn context_versions(&self, context_id: &Uuid) -> Result<ContextVersions, Error> {
        self.json(self.request(Method::GET, &routes::context_versions(context_id))).await
    }

    /// Writes a new version of a context.
    ///
    /// # Errors
    /// `unknown_context`, `invalid_context`, `context_conflict`.
    pub async fn change_context(&self, context_id: &Uuid, change: &ContextChange) -> Result<Context, Error> {
        self.json(self.with_json(Method::PATCH, &routes::context(context_id), change)?).await
    }

    /// Deletes a context.
    ///
    /// # Errors
    /// `unknown_context`.
    pub async fn delete_context(&self, context_id: &Uuid) -> Result<(), Error> {
        self.send_removal(self.request(Method::DELETE, &routes::context(context_id))).await
    }

    /// Removes all objects of a chunk: lookups stop offering it at once, and its bytes are deleted after the
    /// grace period.
    ///
    /// # Errors
    /// `unknown_chunk`.
    pub async fn delete_chunk(&self, model_id: &ModelId, seq_hash: &SeqHash) -> Result<(), Error> {
        self.send_removal(self.request(Method::DELETE, &routes::chunk(model_id, seq_hash))).await
    }

    /// The caller's tenant's usage of the store.
    ///
    /// # Errors
    /// As for every request: see [`Error`].
    pub async fn usage(&self) -> Result<UsageResponse, Error> {
        self.json(self.request(Method::GET, routes::USAGE)).await
    }

    /// Reports a load to the service, which counts every report.
    ///
    /// # Errors
    /// As for every request: see [`Error`].
    pub async fn report_load(&self, record: &LoadRecord) -> Result<(), Error> {
        let request = self.with_json(Method::POST, routes::LOADS, record)?;
        self.send_not_idempotent(request).await.map(|_| ())
    }

    /// Reports how an attempt to make a model's next profile ended. Needs the role `admin`.
    ///
    /// # Errors
    /// `unknown_model`, `forbidden`.
    pub async fn report_training(&self, model_id: &ModelId, record: &TrainingRecord) -> Result<(), Error> {
        let request = self.with_json(Method::POST, &routes::trainings(model_id), record)?;
        self.send_not_idempotent(request).await.map(|_| ())
    }

    /// The latest trainings of a model that were reported to the replica that answers.
    ///
    /// # Errors
    /// `unknown_model`.
    pub async fn trainings(&self, model_id: &ModelId) -> Result<TrainingList, Error> {
        self.json(self.request(Method::GET, &routes::trainings(model_id))).await
    }

    /// Starts a job on the replica that receives the request.
    ///
    /// # Errors
    /// `job_running`.
    pub async fn start_job(&self, request: &JobRequest) -> Result<Job, Error> {
        let request = self.with_json(Method::POST, routes::JOBS, request)?;
        read_json(self.send_not_idempotent(request).await?).await
    }

    /// A job's progress.
    ///
    /// # Errors
    /// `unknown_job`.
    pub async fn job(&self, job_id: &Uuid) -> Result<Job, Error> {
        self.json(self.request(Method::GET, &routes::job(job_id))).await
    }

    /// The service's metrics in the Prometheus text format.
    ///
    /// # Errors
    /// As for every request: see [`Error`].
    pub async fn metrics(&self) -> Result<String, Error> {
        let request = self.request(Method::GET, routes::METRICS).timeout(limits::CONTROL_TIMEOUT);
        let body = read_bounded(self.send(request).await?, limits::CONTROL_BYTES_MAX).await?;
        String::from_utf8(body).map_err(|e| Error::protocol(e.to_string()))
    }

    /// Opens the event stream. It ends only when the service stops or the connection breaks.
    ///
    /// # Errors
    /// As for every request: see [`Error`].
    pub async fn events(&self, query: &EventsQuery) -> Result<EventStream, Error> {
        let response = self.send(self.request(Method::GET, &with_query(routes::EVENTS, query)?)).await?;
        Ok(EventStream { response, bytes: Vec::new(), ready: VecDeque::new() })
    }
}

/// A path with a query; absent fields are omitted.
pub(super) fn with_query(path: &str, query: &impl serde::Serialize) -> Result<String, Error> {
    let fields = serde_json::to_value(query).map_err(|e| Error::Config { what: e.to_string() })?;
    let mut pairs = url::form_urlencoded::Serializer::new(String::new());
    for (name, value) in fields.as_object().into_iter().flatten() {
        match value {
            serde_json::Value::Null => {}
            serde_json::Value::String(text) => {
                pairs.append_pair(name, text);
            }
            other => {
                pairs.append_pair(name, &other.to_string());
            }
        }
    }
    Ok(format!("{path}?{}", pairs.finish()))
}

/// A message of the event stream.
#[derive(Debug, Clone, PartialEq)]
pub enum EventMessage {
    /// An event.
    Event(Box<Event>),
    /// The service ends the stream: this reader was too slow.
    Dropped(EventsDropped),
}

/// An open stream of server-sent events.
#[derive(Debug)]
pub struct EventStream {
    response: Response,
    bytes: Vec<u8>,
    ready: VecDeque<EventMessage>,
}

impl EventStream {
    /// The next event; `None` once the service has ended the stream.
    ///
    /// # Errors
    /// If the connection breaks, or the data is not a valid event.
    pub async fn next(&mut self) -> Result<Option<EventMessage>, Error> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Ok(Some(message));
            }
            let Some(part) = self.response.chunk().await.map_err(Error::Transport)? else {
                return Ok(None);
            };
            self.bytes.extend_from_slice(&part);
            while let Some(end) = self.bytes.windows(2).position(|two| two == b"\n\n") {
                let text: Vec<u8> = self.bytes.drain(..end + 2).collect();
                self.ready.extend(parse(&text)?);
            }
            if self.bytes.len() > limits::EVENT_BYTES_MAX {
                return Err(Error::protocol("an event without an end"));
            }
        }
    }
}

/// One message; `None` for a comment.
fn parse(message: &[u8]) -> Result<Option<EventMessage>, Error> {
    let text = str::from_utf8(message).map_err(|e| Error::protocol(e.to_string()))?;
    let field = |name: &str| {
        let lines = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        lines.map(|value| value.strip_prefix(' ').unwrap_or(value)).next()
    };
    let Some(data) = field("data") else { return Ok(None) };
    let wrong = |e: serde_json::Error| Error::protocol(format!("an invalid event: {e}"));
    Ok(Some(match field("event") {
        Some("dropped") => EventMessage::Dropped(serde_json::from_str(data).map_err(wrong)?),
        _ => EventMessage::Event(serde_json::from_str(data).map_err(wrong)?),
    }))
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;
    use crate::rest::ClientConfig;

    const THROTTLED: &str =
        "HTTP/1.1 429 Later\r\nconnection: close\r\ncontent-length: 20\r\n\r\n{\"code\":\"throttled\"}";

    /// A client of a service that gives each connection one of these answers, or none for an empty one and behind them, and how
    /// many requests came.
    async fn answering(answers: &'static [&'static str]) -> (Client, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound")).parse().expect("a URL");
        let requests = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&requests);
        tokio::spawn(async move {
            let mut answered = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                stream.read_buf(&mut Vec::with_capacity(1 << 14)).await.expect("a request");
                // Without an answer the connection ends here.
                let answer = answers.get(count.fetch_add(1, Ordering::Relaxed));
                if let Some(answer) = answer.filter(|answer| !answer.is_empty()) {
                    stream.write_all(answer.as_bytes()).await.expect("the client waits");
                    answered.push(stream);
                }
            }
        });
        (Client::new(url, ClientConfig::default()).expect("an address"), requests)
    }

    #[tokio::test]
    async fn what_counts_each_time_is_sent_again_only_where_it_was_turned_away() {
        let context = ContextRequest {
            model_id: [1; 32].into(),
            namespace: "n".parse().expect("a name"),
            chunks: Vec::new(),
            labels: BTreeMap::new(),
            ttl_s: None,
            pinned: true,
        };
        let (client, requests) = answering(&[]).await;
        assert!(client.create_context(&context).await.is_err());
        assert_eq!(requests.load(Ordering::Relaxed), 1, "it may have been created");
        let load = LoadRecord {
            slo_ms: 1,
            elapsed_ms: 1,
            loaded_tokens: 1,
            recomputed_tokens: 0,
            bytes_by_level: BTreeMap::new(),
            direct_bytes: 0,
            tokens_by_level: BTreeMap::new(),
            saved_gpu_ms: 0,
            timeline: None,
        };
        let (client, requests) =
            answering(&[THROTTLED, "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n"]).await;
        client.report_load(&load).await.expect("it is counted once");
        assert_eq!(requests.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn what_a_lost_answer_removed_is_removed_and_what_never_was_is_unknown() {
        const UNKNOWN: &str = "HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 26\r\n\r\n\
                               {\"code\":\"unknown_context\"}";
        const NO_STORE: &str = "HTTP/1.1 503 Later\r\nconnection: close\r\ncontent-length: 28\r\n\r\n\
                                {\"code\":\"store_unavailable\"}";
        let perhaps: [&[&str]; 2] = [&["", UNKNOWN], &[NO_STORE, UNKNOWN]];
        for answers in perhaps {
            let (client, requests) = answering(answers).await;
            client.delete_context(&Uuid::nil()).await.expect("the first try may have removed it");
            assert_eq!(requests.load(Ordering::Relaxed), 2);
        }
        let never: [&[&str]; 2] = [&[UNKNOWN], &[THROTTLED, UNKNOWN]];
        for answers in never {
            let (client, _) = answering(answers).await;
            let error = client.delete_context(&Uuid::nil()).await.expect_err("no try removed it");
            assert_eq!(error.code(), Some(kvasir_api::ErrorCode::UnknownContext), "{answers:?}");
        }
    }

    #[tokio::test]
    async fn a_lookup_that_is_refused_tells_nothing_of_a_first_byte() {
        const UNKNOWN: &str = "HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 24\r\n\r\n\
                               {\"code\":\"unknown_model\"}";
        const NOTHING: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 32\r\n\r\n\
                               {\"matched_tokens\":0,\"chunks\":[]}";
        let (client, _) = answering(&[UNKNOWN, NOTHING]).await;
        let namespace = "n".parse().expect("a name");
        let target =
            kvasir_api::LookupQuery { model_id: [1; 32].into(), namespace, fresh: false, direct: false };
        client.lookup_blocks(&target, &[]).await.expect_err("it is refused");
        assert_eq!(client.expected_first_byte(), None);
        client.lookup_blocks(&target, &[]).await.expect("it is answered");
        assert!(client.expected_first_byte().is_some());
    }

    /// A credential would be dropped on the way there, and the service would refuse the request.
    #[tokio::test]
    async fn a_redirect_is_refused_with_the_address_to_set() {
        const MOVED: &str = "HTTP/1.1 308 Permanent Redirect\r\nconnection: close\r\n\
                             location: https://127.0.0.1:9/v1/usage\r\ncontent-length: 0\r\n\r\n";
        const LOGIN: &str = "HTTP/1.1 302 Found\r\nconnection: close\r\n\
                             location: https://127.0.0.1:9/login?token=5ec7e7\r\ncontent-length: 0\r\n\r\n";
        const NOWHERE: &str = "HTTP/1.1 302 Found\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let redirects: [(&[&str], &str); 3] = [
            (&[MOVED], "a redirect: set the address to https://127.0.0.1:9"),
            (&[LOGIN], "a redirect to https://127.0.0.1:9/login: set the address of the service itself"),
            (&[NOWHERE], "a redirect: set the address of the service itself"),
        ];
        for (answers, advice) in redirects {
            let (client, requests) = answering(answers).await;
            match client.usage().await {
                Err(Error::Config { what }) => assert!(what.ends_with(advice), "{what}"),
                other => panic!("{other:?}"),
            }
            assert_eq!(requests.load(Ordering::Relaxed), 1);
        }
    }

    #[test]
    fn messages_are_read_and_comments_are_not() {
        assert_eq!(parse(b":\n\n").expect("a comment"), None);
        let dropped =
            parse(b"event: dropped\ndata: {\"missed\":3,\"detail\":\"slow\"}\n\n").expect("an event");
        assert_eq!(
            dropped,
            Some(EventMessage::Dropped(EventsDropped { missed: 3, detail: "slow".to_owned() }))
        );
        assert!(parse(b"event: stored\ndata: {}\n\n").is_err(), "an event has an id");
        assert!(parse(b"\xff\n\n").is_err());
    }
}
