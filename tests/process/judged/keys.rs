//! Clients of objects by key, over the REST API and over S3: the promises are the same for both.

use std::{
    cell::RefCell,
    net::SocketAddr,
    time::{Duration, Instant},
};

use kvasir_tests::{
    faulty::Dice,
    model::{Outcome, Replica},
    service::Api,
};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use tokio::time::sleep;

use super::{ASKED_AGAIN, History, SERVED_AGAIN, group::Group, judge};

/// Keys that clients of both write, and as many that only S3 clients do, which lists must have.
const SHARED: u8 = 2;
pub(super) const KEYS: u8 = 2 * SHARED;
/// Values of PUTs; those behind them are of uploads in parts.
pub(super) const VALUES: u8 = 3;
/// Longest pause between two requests.
const PAUSE: usize = 60;

/// The bytes of a value say which key and value they are of, and each part of them where it belongs.
pub(super) fn payload(key: u8, value: u8) -> Vec<u8> {
    let rest = (0..3_000 + usize::from(value)).map(|at| (at / 16) as u8 ^ key ^ value);
    [key, value].into_iter().chain(rest).collect()
}

/// A client of one replica for one request.
pub(super) struct Door<'a> {
    group: &'a Group<'a>,
    life: Replica,
    api: &'a Api,
    /// Its S3 address.
    s3: Option<SocketAddr>,
    namespace: &'a str,
}

impl<'a> Door<'a> {
    pub(super) fn new(
        group: &'a Group<'a>,
        namespace: &'a str,
        (life, api): (Replica, &'a Api),
        s3: Option<SocketAddr>,
    ) -> Self {
        Self { group, life, api, s3, namespace }
    }

    /// An operation on an upload of a key, over S3.
    pub(super) fn upload_request(&self, method: Method, key: u8, query: &str) -> RequestBuilder {
        let address = self.s3.expect("uploads are S3's");
        self.api.http.request(method, format!("http://{address}/{}/key-{key}?{query}", self.namespace))
    }

    fn request(&self, method: Method, key: u8) -> RequestBuilder {
        let url = match self.s3 {
            Some(address) => format!("http://{address}/{}/key-{key}", self.namespace),
            None => format!("http://{}/v1/namespaces/{}/objects/key-{key}", self.api.address, self.namespace),
        };
        self.api.http.request(method, url)
    }

    /// No mishap excuses an internal error.
    pub(super) async fn send(&self, request: RequestBuilder) -> Option<Response> {
        let answer = request.send().await.ok()?;
        let (status, url) = (answer.status(), answer.url());
        assert_ne!(status, StatusCode::INTERNAL_SERVER_ERROR, "{url}\n{}", self.group.log(self.life));
        Some(answer)
    }

    /// The value of a key, if there is one. `None` if the replica refuses, or the answer is incomplete.
    async fn get(&self, key: u8) -> Option<Result<Option<u8>, String>> {
        let answer = self.send(self.request(Method::GET, key)).await?;
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => return Some(Ok(None)),
            _ => return None,
        }
        let bytes = answer.bytes().await.ok()?;
        let value = bytes.get(1).copied().filter(|value| payload(key, *value) == bytes);
        Some(value.map(Some).ok_or_else(|| format!("key {key} has bytes of nobody")))
    }

    async fn remove(&self, key: u8) -> Outcome {
        match self.send(self.request(Method::DELETE, key)).await.map(|answer| answer.status()) {
            Some(StatusCode::NO_CONTENT) => Outcome::Acknowledged,
            Some(StatusCode::NOT_FOUND) => Outcome::Refused,
            _ => Outcome::Unknown,
        }
    }

    /// Removes several keys with one request, over S3.
    async fn remove_all(&self, address: SocketAddr, keys: &[u8]) -> Outcome {
        let objects = keys.iter().map(|key| format!("<Object><Key>key-{key}</Key></Object>"));
        let body = format!("<Delete>{}</Delete>", objects.collect::<String>());
        let request = self.api.http.post(format!("http://{address}/{}?delete", self.namespace)).body(body);
        let Some(answer) = self.send(request).await.filter(|answer| answer.status().is_success()) else {
            return Outcome::Unknown;
        };
        let text = answer.text().await.unwrap_or_default();
        let is_removed = |key: &u8| text.contains(&format!("<Deleted><Key>key-{key}</Key></Deleted>"));
        if keys.iter().all(is_removed) { Outcome::Acknowledged } else { Outcome::Unknown }
    }

    async fn list(&self) -> Option<String> {
        let url = format!("http://{}/{}?list-type=2", self.s3?, self.namespace);
        self.api.http.get(url).send().await.ok()?.error_for_status().ok()?.text().await.ok()
    }
}

pub(super) struct KeyClient<'a> {
    history: &'a History,
    group: &'a Group<'a>,
    dice: RefCell<Dice>,
}

impl<'a> KeyClient<'a> {
    pub(super) fn new(history: &'a History, group: &'a Group<'a>, seed: u64) -> Self {
        Self { history, group, dice: RefCell::new(Dice::new(seed)) }
    }

    fn below(&self, n: usize) -> usize {
        self.dice.borrow_mut().below(n)
    }

    fn door<'b>(&'b self, life: Replica, api: &'b Api, s3: Option<SocketAddr>) -> Door<'b> {
        Door::new(self.group, &self.history.namespace, (life, api), s3)
    }

    /// Until the history is over.
    pub(super) async fn run(self) {
        while !self.history.is_over.get() {
            sleep(Duration::from_millis(self.below(PAUSE) as u64)).await;
            let live = self.group.doors();
            if live.is_empty() {
                continue;
            }
            let (life, api, s3) = &live[self.below(live.len())];
            let key = self.below(KEYS.into()) as u8;
            let s3 = (key >= SHARED || self.below(2) == 0).then_some(*s3);
            let door = self.door(*life, api, s3);
            match self.below(10) {
                0..4 => self.put(&door, key, self.below(VALUES.into()) as u8).await,
                4 => self.remove(&door, key).await,
                _ => self.get(&door, key).await,
            }
        }
    }

    async fn put(&self, door: &Door<'_>, key: u8, value: u8) {
        let history = self.history;
        let put = history.keys.borrow_mut().put_begins(key, value, history.now());
        let mut request = door.request(Method::PUT, key).body(payload(key, value));
        let is_create = self.below(4) == 0;
        if is_create {
            request = request.header("if-none-match", "*");
        }
        let outcome = match door.send(request).await.map(|answer| answer.status()) {
            Some(StatusCode::OK) if is_create && door.s3.is_none() => {
                return judge(Err(format!("key {key} was to be created, and had value {value}")));
            }
            Some(StatusCode::OK | StatusCode::CREATED) => Outcome::Acknowledged,
            // Another one of the same value may have come at the same moment: both are refused, and the value stays.
            Some(StatusCode::PRECONDITION_FAILED) if is_create => Outcome::Unknown,
            Some(StatusCode::PRECONDITION_FAILED) => Outcome::Refused,
            _ => Outcome::Unknown,
        };
        history.count_key(outcome, door.s3.is_some());
        let ended = history.now();
        judge(history.judged(|| history.keys.borrow_mut().put_ends(put, ended, outcome)));
    }

    async fn remove(&self, door: &Door<'_>, key: u8) {
        let history = self.history;
        let batch = door.s3.filter(|_| self.below(2) == 0);
        let keys = if batch.is_some() { vec![key, (key + 1) % KEYS] } else { vec![key] };
        let begins = |key: &u8| history.keys.borrow_mut().removal_begins(*key, history.now());
        let removals: Vec<_> = keys.iter().map(begins).collect();
        let outcome = match batch {
            Some(address) => door.remove_all(address, &keys).await,
            None => door.remove(key).await,
        };
        for removal in removals {
            history.keys.borrow_mut().removal_ends(removal, history.now(), outcome);
        }
    }

    async fn get(&self, door: &Door<'_>, key: u8) {
        let (history, begun) = (self.history, self.history.now());
        // Nothing and an error are what a cache may always answer.
        let Some(found) = door.get(key).await else { return };
        let at = history.since(begun);
        let got = |value: Option<u8>| {
            let Some(value) = value else { return Ok(()) };
            history.judged_at(at, || self.group.log(door.life), || history.keys.borrow().got(key, at, value))
        };
        judge(found.and_then(got));
    }

    /// Checks that all replicas find the promised objects through both APIs at the end, and that objects
    /// written by S3 clients are listed.
    pub(super) async fn find_owed(&self) {
        let history = self.history;
        history.settle();
        for (life, api, s3) in self.group.doors() {
            for s3 in [None, Some(s3)] {
                let door = self.door(life, &api, s3);
                let (begun, mut listed) = (Instant::now(), door.list().await);
                // Sealed tenants have no lists.
                while s3.is_some() && listed.is_none() && self.group.keys.is_none() {
                    assert!(begun.elapsed() < SERVED_AGAIN, "no list\n{}", self.group.log(life));
                    sleep(ASKED_AGAIN).await;
                    listed = door.list().await;
                }
                // Time goes on, and with it what a collector may take.
                let owed = history.keys.borrow().owed(history.now());
                for (key, value) in owed {
                    let (asked, mut found) = (Instant::now(), door.get(key).await);
                    // The store is slow at times on a busy machine. A miss is judged at once.
                    while found.is_none() {
                        assert!(asked.elapsed() < SERVED_AGAIN, "key {key}: {}", self.group.log(life));
                        sleep(ASKED_AGAIN).await;
                        found = door.get(key).await;
                    }
                    let is_listed =
                        listed.as_ref().is_none_or(|list| list.contains(&format!("<Key>key-{key}<")));
                    let is_owed = history.keys.borrow().owed(history.now()).contains(&(key, value));
                    if is_owed && (found != Some(Ok(Some(value))) || (key >= SHARED && !is_listed)) {
                        judge(Err(format!(
                            "key {key} owes value {value}, and {s3:?} has {found:?}; listed: {listed:?}"
                        )));
                    }
                }
            }
        }
    }
}
