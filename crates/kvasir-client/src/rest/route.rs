//! The route to an object: a presigned URL while it is valid, otherwise the service.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use kvasir_api::{LookupResponse, Via};
use kvasir_types::ObjectDigest;
use tokio::{sync::Mutex, time::Instant};

use super::{BlockLookup, Client};
use crate::{
    Deadline, Error,
    limits::{DIRECT_FAILURES_MAX, DIRECT_SILENCE_MAX, URL_AGE_DEFAULT, URL_MARGIN, URL_RENEWALS_MAX},
};

/// How the bytes of a load arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadReport {
    /// HTTP requests sent, including hedges and repairs.
    pub requests: u64,
    /// Bytes read directly from the object store.
    pub direct_bytes: u64,
    /// Bytes read through the service.
    pub proxy_bytes: u64,
    /// Requests sent once more because their first byte was late.
    pub hedges: u64,
    /// Of these, how many were the first to respond.
    pub hedges_won: u64,
    /// Direct reads that continued through the service.
    pub fallbacks: u64,
    /// Times that presigned URLs were renewed.
    pub renewals: u64,
    /// Pieces that failed their checksum and were read again.
    pub repairs: u64,
}

/// Counters of a load's reads.
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

/// A presigned URL and its expiry.
#[derive(Debug, Clone)]
struct PresignedUrl {
    url: String,
    expires_at: Instant,
}

/// The presigned URLs of one load by object, and the remaining budget for renewals.
#[derive(Debug, Default)]
struct RouteTable {
    urls: BTreeMap<ObjectDigest, PresignedUrl>,
    /// Number of the last renewal. A read that waited for a renewal compares it and does not renew again.
    generation: u64,
    renewals_left: u32,
    /// Direct reads that failed for a reason other than a refusal.
    failures: u32,
}

/// The presigned URLs of a load's objects. They are renewed by repeating the lookup of the same prefix, once
/// for all reads that find theirs expired.
#[derive(Debug)]
pub(crate) struct Routes {
    client: Client,
    /// The lookup that returned them; `None` if no URL was presigned.
    lookup: Option<BlockLookup>,
    /// When the load is due.
    pub(super) deadline: Deadline,
    table: Mutex<RouteTable>,
    pub(crate) counters: Arc<Counters>,
}

impl Routes {
    /// The routes of a plan from its lookup at `looked_up`, for a load with this deadline.
    pub(crate) fn new(
        client: Client,
        deadline: Deadline,
        lookup: Option<BlockLookup>,
        answer: &[(ObjectDigest, Via)],
        looked_up: Instant,
    ) -> Self {
        let mut table = RouteTable { renewals_left: URL_RENEWALS_MAX, ..RouteTable::default() };
        table.insert_presigned(answer.iter().map(|(digest, via)| (*digest, via)), looked_up);
        Self { client, lookup, deadline, table: Mutex::new(table), counters: Arc::default() }
    }

    pub(crate) const fn client(&self) -> &Client {
        &self.client
    }

    /// The present route to an object, and the generation of that result.
    pub(crate) async fn route(&self, object: &ObjectDigest) -> (Via, u64) {
        let mut table = self.table.lock().await;
        let expired = table.urls.get(object).is_some_and(|p| p.expires_at <= Instant::now() + URL_MARGIN);
        if expired {
            self.renew(&mut table).await;
        }
        (table.via(object), table.generation)
    }

    /// A direct read failed. After a few failures, this load no longer reads from the store directly.
    pub(crate) async fn on_direct_failure(&self) {
        Counters::count(&self.counters.fallbacks, 1);
        let mut table = self.table.lock().await;
        table.failures += 1;
        if table.failures >= DIRECT_FAILURES_MAX {
            table.urls.clear();
            table.renewals_left = 0;
        }
    }

    /// The route to an object whose URL of `generation` was refused: a newer URL, otherwise the service.
    pub(crate) async fn after_refusal(&self, object: &ObjectDigest, generation: u64) -> Via {
        let mut table = self.table.lock().await;
        if table.generation == generation {
            table.urls.remove(object);
            self.renew(&mut table).await;
        }
        table.via(object)
    }

    /// Requests new URLs. Whatever fails, objects with expired URLs are read through the service, and so they are if the
    /// service takes long to answer: all reads of the load wait for it.
    async fn renew(&self, table: &mut RouteTable) {
        let now = Instant::now();
        table.urls.retain(|_, presigned| presigned.expires_at > now + URL_MARGIN);
        table.generation += 1;
        let Some(lookup) = self.lookup.as_ref().filter(|_| table.renewals_left > 0) else { return };
        table.renewals_left -= 1;
        let answer = tokio::time::timeout(DIRECT_SILENCE_MAX, lookup.send(&self.client)).await;
        match answer.unwrap_or_else(|_| Err(Error::protocol("the lookup took too long"))) {
            Ok(LookupResponse { chunks, .. }) => {
                Counters::count(&self.counters.renewals, 1);
                table.insert_presigned(
                    chunks.iter().map(|chunk| (chunk.object_digest, &chunk.via)),
                    Instant::now(),
                );
            }
            Err(error) => tracing::debug!(%error, "presigned URLs could not be renewed"),
        }
    }
}

impl RouteTable {
    fn insert_presigned<'a>(&mut self, answer: impl Iterator<Item = (ObjectDigest, &'a Via)>, at: Instant) {
        for (digest, via) in answer {
            if let Via::Direct { url, expires_in_s } = via {
                let age = match expires_in_s {
                    0 => URL_AGE_DEFAULT,
                    seconds => Duration::from_secs(*seconds).min(URL_AGE_DEFAULT * 24),
                };
                self.urls.insert(digest, PresignedUrl { url: url.clone(), expires_at: at + age });
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
