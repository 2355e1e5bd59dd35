//! A client that stores, removes, looks up, reads, names and pins; the model judges every answer.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    time::{Duration, Instant},
};

use kvasir_api::{Context, ContextRequest, LookupResponse, StoredChunk, routes};
use kvasir_tests::{
    chunks::Chunk,
    faulty::Dice,
    model::{Lookup, Outcome, Replica},
    process::Log,
    service::Api,
};
use kvasir_types::{ObjectDigest, SeqHash, TokenChain};
use reqwest::{Method, Response, StatusCode};
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use super::{ASKED_AGAIN, History, SERVED_AGAIN, group::Group, judge};

/// Longest pause between two requests.
const PAUSE: usize = 80;
/// What a replica logs of a lookup for which it could not ask the store.
const INDEX_ALONE: &str = "uses the index alone";
/// How much later than an answer a pipe delivers what was logged before it.
const LOG_DELAY: Duration = Duration::from_secs(5);

/// What became of what a replica offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Loaded {
    /// All of it was read.
    Whole,
    /// The replica refused, did not answer, or was cut off from the store.
    Refused,
    /// It has no object of a chunk.
    Gone,
}

pub(super) struct Client<'a> {
    history: &'a History,
    group: &'a Group<'a>,
    dice: RefCell<Dice>,
}

impl<'a> Client<'a> {
    pub(super) fn new(history: &'a History, group: &'a Group<'a>, seed: u64) -> Self {
        Self { history, group, dice: RefCell::new(Dice::new(seed)) }
    }

    fn below(&self, n: usize) -> usize {
        self.dice.borrow_mut().below(n)
    }

    /// Until the history is over.
    pub(super) async fn run(self) {
        let mut pins = Vec::new();
        while !self.history.is_over.get() {
            sleep(Duration::from_millis(self.below(PAUSE) as u64)).await;
            let live = self.group.live();
            if live.is_empty() {
                continue;
            }
            let (life, api) = &live[self.below(live.len())];
            let (tokens, chunks) = &self.history.contexts[self.below(self.history.contexts.len())];
            let chunk = &chunks[self.below(chunks.len())];
            match self.below(20) {
                0..6 => self.store(*life, api, chunks).await,
                6 => self.remove(*life, api, chunk).await,
                7 => self.store_and_remove(*life, api, chunk).await,
                8 | 9 => self.name(*life, api, chunk).await,
                10 => pins.extend(self.pin(*life, api, chunks).await),
                11 if !pins.is_empty() => {
                    let pin = pins.swap_remove(self.below(pins.len()));
                    self.unpin(*life, api, pin).await;
                }
                _ => {
                    self.load(*life, api, (tokens, chunks), self.below(2) == 0).await;
                }
            }
        }
    }

    /// Stores chunks one after the other.
    async fn store(&self, life: Replica, api: &Api, chunks: &[Chunk]) {
        for chunk in &chunks[..1 + self.below(chunks.len())] {
            self.store_one(life, api, chunk).await;
        }
    }

    async fn store_one(&self, life: Replica, api: &Api, chunk: &Chunk) {
        let history = self.history;
        let put = history.model.borrow_mut().put_begins(life, history.now(), chunk);
        let path = routes::chunk(&history.model_id, &chunk.seq_hash);
        let answer = api.try_send(Method::PUT, &path, chunk.bytes.clone()).await;
        let stored: Option<StoredChunk> = self.expect(life, answer).await;
        let object = stored.map(|stored| stored.object_digest);
        history.stored.borrow_mut().extend(object.map(|object| (chunk.seq_hash, object)));
        let outcome = object.map_or(Outcome::Unknown, |_| Outcome::Acknowledged);
        judge(history.model.borrow_mut().put_ends(put, history.now(), outcome, object));
    }

    async fn remove(&self, life: Replica, api: &Api, chunk: &Chunk) {
        let history = self.history;
        let removal = history.model.borrow_mut().removal_begins(life, history.now(), chunk.seq_hash, None);
        let path = routes::chunk(&history.model_id, &chunk.seq_hash);
        let answer = self.send(life, api, Method::DELETE, &path, Vec::new()).await;
        let outcome = match answer.map(|answer| answer.status()) {
            Some(StatusCode::NO_CONTENT) => Outcome::Acknowledged,
            // There was nothing, and it has not begun to remove anything.
            Some(StatusCode::NOT_FOUND) => Outcome::Refused,
            _ => Outcome::Unknown,
        };
        history.model.borrow_mut().removal_ends(removal, history.now(), outcome);
    }

    /// In the same moment.
    async fn store_and_remove(&self, life: Replica, api: &Api, chunk: &Chunk) {
        let remove = async {
            sleep(Duration::from_millis(self.below(10) as u64)).await;
            self.remove(life, api, chunk).await;
        };
        tokio::join!(self.store_one(life, api, chunk), remove);
    }

    /// Asks for the object of a chunk without naming it.
    async fn name(&self, life: Replica, api: &Api, chunk: &Chunk) {
        let (history, begun) = (self.history, self.history.now());
        let path = routes::chunk(&history.model_id, &chunk.seq_hash);
        let Some(answer) = self.send(life, api, Method::HEAD, &path, Vec::new()).await else { return };
        if answer.status() != StatusCode::OK {
            return;
        }
        let etag = answer.headers()["etag"].to_str().expect("text").trim_matches('"').to_owned();
        let object: ObjectDigest = etag.parse().expect("a digest");
        let at = history.since(begun);
        judge(history.judged(|| history.model.borrow_mut().named(at, chunk.seq_hash, object)));
    }

    /// Pins the first chunks of a context. Returns the pin and the context if it was acknowledged.
    async fn pin(&self, life: Replica, api: &Api, chunks: &[Chunk]) -> Option<(u64, uuid::Uuid)> {
        let (history, begun) = (self.history, self.history.now());
        let chunks: Vec<&Chunk> = chunks.iter().take(2).collect();
        let request = ContextRequest {
            model_id: history.model_id,
            namespace: history.namespace.parse().expect("a name"),
            chunks: chunks.iter().map(|chunk| chunk.seq_hash).collect(),
            labels: Default::default(),
            ttl_s: None,
            pinned: true,
        };
        let body = serde_json::to_vec(&request).expect("serialises");
        let answer = self.send(life, api, Method::POST, routes::CONTEXTS, body).await?;
        if answer.status() != StatusCode::CREATED {
            return None;
        }
        let context: Context = answer.json().await.ok()?;
        let pin = history.pins.get();
        history.pins.set(pin + 1);
        history.model.borrow_mut().pin(pin, history.since(begun), &chunks);
        Some((pin, context.context_id))
    }

    async fn unpin(&self, life: Replica, api: &Api, (pin, context): (u64, uuid::Uuid)) {
        self.history.model.borrow_mut().unpin(pin, self.history.now());
        self.send(life, api, Method::DELETE, &routes::context(&context), Vec::new()).await;
    }

    /// The answer, if there is one. No mishap excuses an internal error.
    async fn send(
        &self,
        life: Replica,
        api: &Api,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Option<Response> {
        let answer = api.try_send(method, path, body).await.ok()?;
        let status = answer.status();
        assert_ne!(status, StatusCode::INTERNAL_SERVER_ERROR, "{path}\n{}", self.group.log(life));
        Some(answer)
    }

    /// Looks up, and reads the offered chunks.
    pub(super) async fn load(
        &self,
        life: Replica,
        api: &Api,
        (tokens, chunks): (&[u32], &[Chunk]),
        fresh: bool,
    ) -> Loaded {
        // Taken before it may be killed.
        let (history, log) = (self.history, self.group.log_lines(life));
        let request = history.lookup_of(tokens, fresh);
        let (begun, asked) = (history.now(), Instant::now());
        let body = serde_json::to_vec(&request).expect("serialises");
        let answer = api.try_send(Method::POST, routes::LOOKUP, body.clone()).await;
        let id = answer.as_ref().ok().and_then(|answer| answer.headers().get("x-request-id").cloned());
        let Some(answer) = self.expect::<LookupResponse>(life, answer).await else { return Loaded::Refused };
        let chain = TokenChain::new(history.root, tokens);
        let (by, at, answer, chain) = (life, history.since(begun), &answer, &chain);
        let judged_as = |reached| {
            let lookup = Lookup { by, at, fresh, reached, chain, tokens, answer };
            history.judged_at(at, || log.text(), || history.model.borrow_mut().lookup(lookup))
        };
        let (mut judged, mut loaded) = (judged_as(self.group.reached_the_store(asked)), Loaded::Whole);
        if judged.is_err() {
            let id = id.as_ref().and_then(|id| id.to_str().ok()).expect("every answer has an id");
            if let Some(why) = cut_off(api, &log, id).await {
                history.excuse(why);
                (judged, loaded) = (judged_as(false), Loaded::Refused);
            }
        }
        if let Err(wrong) = judged {
            let offered = answer.chunks.iter().map(|hit| hit.seq_hash);
            let of: BTreeSet<SeqHash> = chunks.iter().map(|chunk| chunk.seq_hash).chain(offered).collect();
            let stored = self.group.stored(&of).await;
            let told: String = of.iter().map(|hash| history.model.borrow().record_of(hash)).collect();
            let again = api.try_send(Method::POST, routes::LOOKUP, body).await;
            let again = self.expect::<LookupResponse>(life, again).await;
            let log = log.text();
            panic!(
                "{wrong}\nof these chunks:\n{told}in the bucket:\n{stored}asked again, it answers {again:?}\n{log}"
            );
        }
        for hit in &answer.chunks {
            let path = routes::chunk_object(&history.model_id, &hit.seq_hash, &hit.object_digest);
            let (begun, asked) = (history.now(), Instant::now());
            let Ok(answer) = api.try_send(Method::GET, &path, "").await else { return Loaded::Refused };
            let status = answer.status();
            if status != StatusCode::OK {
                let is_refused = status == StatusCode::SERVICE_UNAVAILABLE;
                assert!(status == StatusCode::NOT_FOUND || is_refused, "{status}\n{}", log.text());
                if is_refused && self.group.reached_the_store(asked) && reaches_the_store(api).await {
                    self.served_again(life, api, &path).await;
                }
                loaded = loaded.max(if is_refused { Loaded::Refused } else { Loaded::Gone });
                continue;
            }
            // An answer that breaks off is none.
            let Ok(bytes) = answer.bytes().await else { return Loaded::Refused };
            let at = history.since(begun);
            let read = || {
                let mut model = history.model.borrow_mut();
                model.read((life, at), &hit.seq_hash, &hit.object_digest, 0, &bytes)
            };
            let read = history.judged_at(at, || log.text(), read);
            judge(read.map_err(|wrong| format!("{wrong}\n{}", log.text())));
        }
        loaded
    }

    /// A replica that is not cut off may refuse a read because the store was slow once, as on a busy machine, but not for
    /// long.
    async fn served_again(&self, life: Replica, api: &Api, path: &str) {
        let begun = Instant::now();
        while let Ok(answer) = api.try_send(Method::GET, path, "").await {
            let status = answer.status();
            if matches!(status, StatusCode::OK | StatusCode::NOT_FOUND) {
                return;
            }
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{}", self.group.log(life));
            assert!(begun.elapsed() < SERVED_AGAIN, "{path} is refused\n{}", self.group.log(life));
            sleep(ASKED_AGAIN).await;
        }
    }

    /// The body of a success. A replica that is killed or drained need not answer; one that runs does.
    async fn expect<T: DeserializeOwned>(
        &self,
        life: Replica,
        answer: reqwest::Result<Response>,
    ) -> Option<T> {
        let answer = answer.ok()?;
        let status = answer.status();
        let text = answer.text().await.ok()?;
        if status.is_success() {
            return Some(serde_json::from_str(&text).expect("its JSON"));
        }
        assert!(status == StatusCode::SERVICE_UNAVAILABLE, "{status} {text}\n{}", self.group.log(life));
        None
    }
}

/// Why a replica could not ask the store for a lookup, if it could not though nobody cut it off: where the store is slow, as on a
/// busy machine, its breaker leaves it alone, or the store does not answer in time.
async fn cut_off(api: &Api, log: &Log, id: &str) -> Option<&'static str> {
    if !reaches_the_store(api).await {
        return Some("breaker open");
    }
    let begun = Instant::now();
    while !log.has(id, INDEX_ALONE) {
        if begun.elapsed() > LOG_DELAY {
            return None;
        }
        sleep(ASKED_AGAIN).await;
    }
    Some("index alone")
}

/// Whether a replica does not leave the store alone now.
async fn reaches_the_store(api: &Api) -> bool {
    let Ok(answer) = api.try_send(Method::GET, routes::METRICS, "").await else { return false };
    let text = answer.text().await.unwrap_or_default();
    text.lines().any(|line| line == "kvasir_store_breaker_open 0")
}
