//! The way to an object: a presigned URL as long as it holds, the service otherwise.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use kvasir_api::{LookupRequest, LookupResponse, Via};
use kvasir_types::ObjectDigest;
use tokio::{sync::Mutex, time::Instant};

use super::Client;
use crate::{
    ReadReport,
    limits::{DIRECT_FAILURES_MAX, URL_AGE_DEFAULT, URL_MARGIN, URL_RENEWALS_MAX},
};

/// What the reads of a load did besides bringing bytes.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: AtomicU64,
    pub(crate) direct_bytes: AtomicU64,
    pub(crate) proxy_bytes: AtomicU64,
    pub(crate) hedges: AtomicU64,
    pub(crate) hedges_won: AtomicU64,
    pub(crate) fallbacks: AtomicU64,
    pub(crate) renewals: AtomicU64,
}

impl Counters {
    pub(crate) fn count(counter: &AtomicU64, more: u64) {
        counter.fetch_add(more, Ordering::Relaxed);
    }

    /// The counts so far.
    pub(crate) fn report(&self) -> ReadReport {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ReadReport {
            requests: of(&self.requests),
            direct_bytes: of(&self.direct_bytes),
            proxy_bytes: of(&self.proxy_bytes),
            hedges: of(&self.hedges),
            hedges_won: of(&self.hedges_won),
            fallbacks: of(&self.fallbacks),
            renewals: of(&self.renewals),
            repairs: 0,
        }
    }
}

#[derive(Debug, Clone)]
struct Presigned {
    url: String,
    until: Instant,
}

#[derive(Debug, Default)]
struct Book {
    urls: BTreeMap<ObjectDigest, Presigned>,
    /// Answers seen so far: who waited for a renewal does not ask once more.
    generation: u64,
    renewals_left: u32,
    /// Direct reads that failed otherwise than by a refusal.
    failures: u32,
}

/// The presigned URLs of a load's objects. They are renewed by asking for the same prefix again, once for all reads
/// that find theirs expired.
#[derive(Debug)]
pub(crate) struct Routes {
    client: Client,
    /// The lookup that gave them; none where nothing was presigned.
    request: Option<LookupRequest>,
    book: Mutex<Book>,
    pub(crate) counters: Arc<Counters>,
}

impl Routes {
    /// The routes of a plan, as its lookup at `looked_up` gave them.
    pub(crate) fn new(
        client: Client,
        request: Option<LookupRequest>,
        answer: &[(ObjectDigest, Via)],
        looked_up: Instant,
    ) -> Self {
        let mut book = Book { renewals_left: URL_RENEWALS_MAX, ..Book::default() };
        book.enter(answer.iter().map(|(digest, via)| (*digest, via)), looked_up);
        Self { client, request, book: Mutex::new(book), counters: Arc::default() }
    }

    pub(crate) const fn client(&self) -> &Client {
        &self.client
    }

    /// The way to read an object now, and the generation of that answer.
    pub(crate) async fn of(&self, object: &ObjectDigest) -> (Via, u64) {
        let mut book = self.book.lock().await;
        let expired = book.urls.get(object).is_some_and(|p| p.until <= Instant::now() + URL_MARGIN);
        if expired {
            self.renew(&mut book).await;
        }
        (book.via(object), book.generation)
    }

    /// A direct read failed: after a few, the store is not asked any more in this load.
    pub(crate) async fn on_direct_failure(&self) {
        Counters::count(&self.counters.fallbacks, 1);
        let mut book = self.book.lock().await;
        book.failures += 1;
        if book.failures >= DIRECT_FAILURES_MAX {
            book.urls.clear();
            book.renewals_left = 0;
        }
    }

    /// The way to read an object whose URL of `generation` was refused: a newer URL, else through the service.
    pub(crate) async fn after_refusal(&self, object: &ObjectDigest, generation: u64) -> Via {
        let mut book = self.book.lock().await;
        if book.generation == generation {
            book.urls.remove(object);
            self.renew(&mut book).await;
        }
        book.via(object)
    }

    /// Asks for new URLs. Whatever goes wrong, what is expired is read through the service.
    async fn renew(&self, book: &mut Book) {
        let now = Instant::now();
        book.urls.retain(|_, presigned| presigned.until > now + URL_MARGIN);
        book.generation += 1;
        let Some(request) = self.request.as_ref().filter(|_| book.renewals_left > 0) else { return };
        book.renewals_left -= 1;
        match self.client.lookup(request).await {
            Ok(LookupResponse { chunks, .. }) => {
                Counters::count(&self.counters.renewals, 1);
                book.enter(chunks.iter().map(|chunk| (chunk.object_digest, &chunk.via)), Instant::now());
            }
            Err(error) => tracing::debug!(%error, "presigned URLs could not be renewed"),
        }
    }
}

impl Book {
    fn enter<'a>(&mut self, answer: impl Iterator<Item = (ObjectDigest, &'a Via)>, at: Instant) {
        for (digest, via) in answer {
            if let Via::Direct { url, expires_in_s } = via {
                let age = match expires_in_s {
                    0 => URL_AGE_DEFAULT,
                    seconds => Duration::from_secs(*seconds).min(URL_AGE_DEFAULT * 24),
                };
                self.urls.insert(digest, Presigned { url: url.clone(), until: at + age });
            }
        }
    }

    fn via(&self, object: &ObjectDigest) -> Via {
        match self.urls.get(object) {
            Some(presigned) => Via::Direct { url: presigned.url.clone(), expires_in_s: 0 },
            None => Via::Proxy,
        }
    }
}
