//! How a request is sent: to the replica that keeps its prompt, to another one where that does not answer, and again.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::{StreamExt, stream};
use kvasir_api::{
    ErrorCode, HEADER_MEMBERS, HEADER_SPLIT, LookupQuery, LookupResponse, MEDIA_BLOCKS, MembersResponse,
    routes,
};
use kvasir_types::{Name, ObjectKey, RouteKey, SeqHash};
use reqwest::{
    Method, RequestBuilder, Response, Url,
    header::{CONTENT_TYPE, LOCATION},
};
use tokio::time::Instant;

use super::{Client, backoff, members::Base, problem, retry::RetryBudget, service};
use crate::{Error, limits};

/// Whether to ask another replica after an error. One whose store does not answer may be cut off from it alone, or the store is
/// down: then the question is a retry, which is taken from the budget.
fn asks_another(error: &Error, budget: &RetryBudget) -> bool {
    match error {
        Error::Transport(_) => true,
        Error::Api(api) => match api.known {
            Some(ErrorCode::CorruptChunk | ErrorCode::KeyLost) => false,
            Some(ErrorCode::StoreUnavailable) => budget.take(),
            _ => matches!(api.status, 502..=504),
        },
        _ => false,
    }
}

/// Whether an error says that the request had no effect: it did not arrive, or was turned away.
fn had_no_effect(error: &Error) -> bool {
    match error {
        Error::Transport(error) => error.is_connect(),
        // One whose store does not answer may have removed or stored something.
        Error::Api(api) => api.known == Some(ErrorCode::Throttled),
        _ => false,
    }
}

/// Whether an error says that what was to be removed is not stored.
fn finds_nothing(error: &Error) -> bool {
    use ErrorCode::{UnknownChunk, UnknownContext, UnknownObject};
    matches!(error.code(), Some(UnknownChunk | UnknownContext | UnknownObject))
}

/// A redirect, which is not followed: on the way to another scheme or host the credential would be dropped.
fn redirected(base: &Base, response: &Response) -> Error {
    // The query may hold a token.
    let without_query = |mut url: Url| {
        url.set_query(None);
        url.set_fragment(None);
        String::from(url)
    };
    let asked = without_query(response.url().clone());
    let path = asked.strip_prefix(&**base).unwrap_or_default();
    let location = response.headers().get(LOCATION).and_then(|to| to.to_str().ok());
    let to = location.and_then(|to| response.url().join(to).ok()).map(without_query);
    let address = to.as_deref().filter(|_| !path.is_empty()).and_then(|to| to.strip_suffix(path));
    let advice = match (address, &to) {
        (Some(address), _) => format!(": set the address to {address}"),
        (None, Some(to)) => format!(" to {to}: set the address of the service itself"),
        (None, None) => ": set the address of the service itself".to_owned(),
    };
    Error::Config { what: format!("{base} answers with a redirect{advice}") }
}

/// Makes copies of a request whose body is in memory.
fn copies(request: RequestBuilder) -> Result<impl FnMut() -> RequestBuilder, Error> {
    let Some(clone) = request.try_clone() else {
        return Err(Error::Config { what: "a streaming body is made anew for each attempt".into() });
    };
    let mut clone = Some(clone);
    Ok(move || {
        let next = request.try_clone();
        clone.take().or(next).expect("it was cloned before, so it can be cloned")
    })
}

impl Client {
    /// The same client for one prompt: its requests go to the replicas that keep the prompt hot, where those are known.
    #[must_use]
    pub fn for_prompt(&self, blocks: &[SeqHash]) -> Self {
        Self { target: self.members.target(blocks), ..self.clone() }
    }

    /// The same client for one opaque object: its requests go to the replicas that keep it hot, where those are known.
    pub(super) fn for_object(&self, namespace: &Name, key: &ObjectKey) -> Self {
        Self { target: self.members.target_of(RouteKey::of_object(namespace, key)), ..self.clone() }
    }

    /// The keys that each replica is asked for, as indices into `keys` in order, and the client that asks it.
    pub(super) fn by_replica<'a>(
        &self,
        namespace: &Name,
        keys: impl IntoIterator<Item = &'a ObjectKey>,
    ) -> Vec<(Self, Vec<usize>)> {
        let mut replicas: Vec<(Base, Self, Vec<usize>)> = Vec::new();
        for (index, key) in keys.into_iter().enumerate() {
            let client = self.for_object(namespace, key);
            let Some(base) = self.members.order(&client.target, 0).into_iter().next() else { continue };
            match replicas.iter_mut().find(|(of, ..)| *of == base) {
                Some((.., indices)) => indices.push(index),
                None => replicas.push((base, client, vec![index])),
            }
        }
        replicas.into_iter().map(|(_, client, indices)| (client, indices)).collect()
    }

    /// Asks for the replicas of the service unless they are known. After a failure, all requests use the given address.
    pub async fn learn_members(&self) {
        self.refresh_members(None).await;
    }

    /// As [`learn_members`](Self::learn_members), and where the list in use is not that of `epoch`.
    async fn refresh_members(&self, epoch: Option<&str>) {
        let Some(refreshing) = self.members.begin_refresh(epoch) else { return };
        let new = match self.json::<MembersResponse>(self.request(Method::GET, routes::MEMBERS)).await {
            Ok(list) => refreshing.take(list),
            Err(error) => return tracing::debug!(%error, "the members of the service are not known"),
        };
        let this = self.clone();
        let probing = tokio::spawn(async move {
            let probe = async |base: Base| {
                if !this.members.probe(&this.http.reads, &base).await {
                    this.probe_until_it_answers(base);
                }
            };
            stream::iter(new).for_each_concurrent(limits::MEMBER_PROBES, probe).await;
        });
        let _ = tokio::time::timeout(limits::MEMBERS_PROBED_WITHIN, probing).await;
    }

    /// Probes a replica that is passed over until it answers, has left the list, or the client is gone. Requests never wait for a
    /// replica that is away.
    fn probe_until_it_answers(&self, base: Base) {
        let (http, members) = (self.http.reads.clone(), Arc::downgrade(&self.members));
        tokio::spawn(async move {
            let mut pause = limits::MEMBER_PROBE_PAUSE_MIN;
            loop {
                tokio::time::sleep(pause).await;
                let Some(members) = members.upgrade().filter(|members| members.is_away(&base)) else {
                    return;
                };
                if members.probe(&http, &base).await {
                    return;
                }
                pause = (pause * 2).min(limits::MEMBER_PROBE_PAUSE_MAX);
            }
        });
    }

    /// Sends an idempotent request until it succeeds, its error is final, or attempts or budget run out.
    pub(super) async fn send(&self, request: RequestBuilder) -> Result<Response, Error> {
        self.send_from(0, request).await
    }

    /// As [`send`](Self::send), to the replica `first` places behind the best one first.
    pub(super) async fn send_from(&self, first: usize, request: RequestBuilder) -> Result<Response, Error> {
        self.send_again_from(first, &|_| true, copies(request)?).await
    }

    /// Sends a control request that is not idempotent: again only after an error that says that it had no effect.
    pub(super) async fn send_not_idempotent(&self, request: RequestBuilder) -> Result<Response, Error> {
        let request = request.timeout(limits::CONTROL_TIMEOUT);
        self.send_again_from(0, &had_no_effect, copies(request)?).await
    }

    /// Sends a control request that removes something. A try whose answer was lost may have removed it: the next one then finds
    /// nothing, and the request has succeeded.
    pub(super) async fn send_removal(&self, request: RequestBuilder) -> Result<(), Error> {
        let may_be_removed = AtomicBool::new(false);
        let repeats = |error: &Error| {
            if error.is_retryable() && !had_no_effect(error) {
                may_be_removed.store(true, Ordering::Relaxed);
            }
            true
        };
        let request = request.timeout(limits::CONTROL_TIMEOUT);
        match self.send_again_from(0, &repeats, copies(request)?).await {
            Err(error) if may_be_removed.load(Ordering::Relaxed) && finds_nothing(&error) => Ok(()),
            sent => sent.map(drop),
        }
    }

    /// As [`send`](Self::send), of a request that is made anew for each attempt.
    pub(super) async fn send_again(
        &self,
        request: impl FnMut() -> RequestBuilder,
    ) -> Result<Response, Error> {
        self.send_again_from(0, &|_| true, request).await
    }

    /// Sends again after errors that `repeats` lets pass.
    async fn send_again_from(
        &self,
        first: usize,
        repeats: &(dyn Fn(&Error) -> bool + Sync),
        mut request: impl FnMut() -> RequestBuilder,
    ) -> Result<Response, Error> {
        let mut attempt = 0;
        loop {
            // The first attempt asks every replica of the target, later ones the one that is best by then.
            let sent = match attempt {
                0 => Box::pin(self.send_to_any(first, repeats, &mut request)).await,
                _ => Box::pin(self.send_to(&self.members.order(&self.target, first)[0], request())).await,
            };
            let error = match sent {
                Ok(response) => {
                    self.budget.on_success();
                    return Ok(response);
                }
                Err(error) => error,
            };
            attempt += 1;
            if !error.is_retryable() || !repeats(&error) {
                return Err(error);
            }
            let again = attempt < limits::ATTEMPTS_MAX && self.budget.take();
            match backoff(attempt, Some(&error)).filter(|_| again) {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return Err(error),
            }
        }
    }

    /// Sends a request once: to the replica `first` places behind the best one, and at once to the next of the target where that
    /// cannot be reached or cannot serve it. The last error is returned if none can.
    pub(super) async fn send_once_from(
        &self,
        first: usize,
        request: impl FnMut() -> RequestBuilder,
    ) -> Result<Response, Error> {
        self.send_to_any(first, &|_| true, request).await
    }

    async fn send_to_any(
        &self,
        first: usize,
        repeats: &(dyn Fn(&Error) -> bool + Sync),
        mut request: impl FnMut() -> RequestBuilder,
    ) -> Result<Response, Error> {
        let bases = self.members.order(&self.target, first);
        let mut others = bases.iter().skip(1);
        let mut sent = self.send_to(&bases[0], request()).await;
        while let Err(error) = &sent
            && let Some(base) = others.next()
            && repeats(error)
            && asks_another(error, &self.budget)
        {
            sent = self.send_to(base, request()).await;
        }
        sent
    }

    /// Sends a request to one replica, once.
    async fn send_to(&self, base: &Base, request: RequestBuilder) -> Result<Response, Error> {
        let mut request = request.build().map_err(Error::Transport)?;
        let path = request.url().as_str().strip_prefix(self.members.named_in_requests()).unwrap_or_default();
        let url = format!("{base}{path}").parse();
        *request.url_mut() =
            url.map_err(|error| Error::protocol(format!("{base} is no address: {error}")))?;
        // Uploads have times of their own, longer than a server may be silent.
        let is_upload = request.timeout().is_some_and(|limit| *limit > self.config.read_timeout);
        let http = if is_upload { &self.http.uploads } else { &self.http.reads };
        match http.execute(request).await {
            Ok(response) if response.status().is_redirection() => Err(redirected(base, &response)),
            Ok(response) => {
                self.note_answer(base, &response);
                problem::check(response).await
            }
            Err(error) => {
                if self.members.on_unreachable(base) {
                    self.probe_until_it_answers(Arc::clone(base));
                }
                Err(Error::Transport(error))
            }
        }
    }

    /// Learns from the head of an answer.
    fn note_answer(&self, base: &Base, response: &Response) {
        self.members.on_answer(base);
        let text = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        let split = text(HEADER_SPLIT).into_iter().flat_map(|text| text.split(','));
        split.filter_map(|route| route.trim().parse().ok()).for_each(|route| self.members.on_split(route));
        if let Some(epoch) = text(HEADER_MEMBERS)
            && !self.members.has(epoch)
        {
            let (this, epoch) = (self.clone(), epoch.to_owned());
            tokio::spawn(async move { this.refresh_members(Some(&epoch)).await });
        } else if self.members.asks_again() {
            let this = self.clone();
            tokio::spawn(async move { this.refresh_members(None).await });
        }
    }

    /// As [`lookup`](Self::lookup), by block hashes alone and without JSON on the way there. A replica that takes longer than
    /// nearly all lookups did of late is not waited for: the next one is asked as well.
    ///
    /// # Errors
    /// As there.
    pub async fn lookup_blocks(
        &self,
        target: &LookupQuery,
        blocks: &[SeqHash],
    ) -> Result<LookupResponse, Error> {
        let body: Vec<u8> = blocks.iter().flat_map(|block| *block.as_bytes()).collect();
        let request = self.request(Method::POST, &service::with_query(routes::LOOKUP, target)?);
        let request = request.header(CONTENT_TYPE, MEDIA_BLOCKS).body(body);
        let second = request.try_clone().filter(|_| self.members.has_a_second(&self.target));
        let (sent, latencies) = (Instant::now(), &self.lookup_latencies);
        let mut first = pin!(self.json_from(0, request));
        let hedge = async {
            match second.zip(latencies.hedge_after()) {
                Some((second, patience)) => {
                    tokio::time::sleep(patience).await;
                    if latencies.take_hedge() { Some(second) } else { None }
                }
                None => None,
            }
        };
        let second = tokio::select! {
            biased;
            answer = &mut first => {
                // A refusal comes sooner than what was asked for.
                if answer.is_ok() {
                    latencies.observe(sent.elapsed());
                }
                return answer;
            }
            Some(second) = hedge => second,
        };
        let mut second = pin!(self.json_from(1, second));
        let (answer, other) = tokio::select! {
            biased;
            answer = &mut first => (answer, second),
            answer = &mut second => (answer, first),
        };
        match answer {
            Ok(found) => Ok(found),
            Err(_) => other.await,
        }
    }
}
