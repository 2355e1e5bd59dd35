//! One range of one object, by whatever way brings it: hedged, renewed, fallen back.

use std::{ops::Range, pin::pin};

use bytes::Bytes;
use kvasir_api::Via;
use kvasir_types::{ModelId, ObjectDigest, SeqHash};
use tokio::time::Instant;

use super::{
    ObjectRange, ObjectRead,
    route::{Counters, Routes},
};
use crate::{Error, limits::DIRECT_SILENCE_MAX};

/// Names an object for reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ObjectName {
    pub(crate) model_id: ModelId,
    pub(crate) seq_hash: SeqHash,
    pub(crate) object_digest: ObjectDigest,
}

impl ObjectName {
    fn range(&self, range: &Range<u64>) -> ObjectRange {
        let Self { model_id, seq_hash, object_digest } = *self;
        ObjectRange { model_id, seq_hash, object_digest, start: range.start, end: range.end }
    }
}

/// Receives bytes as they arrive.
pub(crate) trait ByteSink: Send {
    /// Writes `bytes` that lie at `offset` of the object.
    fn write(&mut self, offset: u64, bytes: Bytes) -> impl Future<Output = ()> + Send;

    /// As [`write`](Self::write), of bytes that were here already.
    fn found(&mut self, offset: u64, bytes: Bytes) -> impl Future<Output = ()> + Send;
}

/// An opened read and its first bytes.
struct OpenedRead {
    read: ObjectRead,
    first: Bytes,
    direct: bool,
}

impl Routes {
    /// Reads a range and writes every piece to `sink` as it arrives.
    ///
    /// A presigned URL that is refused is renewed once; a direct read that fails in any way goes on through the
    /// service from where it stopped. Only the service's own failure is an error, and what arrived before it stays.
    pub(crate) async fn read(
        &self,
        object: &ObjectName,
        range: Range<u64>,
        through_service: bool,
        sink: &mut impl ByteSink,
    ) -> Result<(), Error> {
        let (mut via, generation) = match through_service {
            true => (Via::Proxy, 0),
            false => self.route(&object.object_digest).await,
        };
        let (mut next, mut renewed) = (range.start, false);
        loop {
            let outcome = self.stream(object, &mut next, range.end, &via, sink).await;
            let Err(error) = outcome else { return Ok(()) };
            if matches!(via, Via::Proxy) {
                return Err(error);
            }
            tracing::debug!(%error, "a direct read failed");
            via = if is_refusal(&error) && !renewed {
                renewed = true;
                self.after_refusal(&object.object_digest, generation).await
            } else {
                Via::Proxy
            };
            if matches!(via, Via::Proxy) {
                self.on_direct_failure().await;
            }
        }
    }

    async fn stream(
        &self,
        object: &ObjectName,
        next: &mut u64,
        end: u64,
        via: &Via,
        sink: &mut impl ByteSink,
    ) -> Result<(), Error> {
        let OpenedRead { mut read, first, direct } = self.open(object, &(*next..end), via).await?;
        let bytes = if direct { &self.counters.direct_bytes } else { &self.counters.proxy_bytes };
        let mut next_bytes = Some(first);
        while let Some(part) = next_bytes {
            let offset = *next;
            *next += part.len() as u64;
            Counters::count(bytes, part.len() as u64);
            sink.write(offset, part).await;
            next_bytes = within(direct, read.next()).await?;
        }
        Ok(())
    }

    /// Opens a read; where its first byte takes longer than nearly all lately did, once more, and the first of
    /// both to bring a byte is kept. The other is dropped, which cancels it.
    async fn open(&self, object: &ObjectName, range: &Range<u64>, via: &Via) -> Result<OpenedRead, Error> {
        let mut first = pin!(self.open_once(0, object, range, via));
        let latencies = &self.client().first_byte_latencies;
        let Some(patience) = latencies.hedge_after() else { return first.await };
        tokio::select! {
            biased;
            opened = &mut first => return opened,
            () = tokio::time::sleep(patience) => {}
        }
        if !latencies.take_hedge() {
            return first.await;
        }
        Counters::count(&self.counters.hedges, 1);
        // Another replica, where the client knows one.
        let mut second = pin!(self.open_once(1, object, range, &Via::Proxy));
        tokio::select! {
            biased;
            opened = &mut first => match opened {
                Ok(opened) => Ok(opened),
                Err(_) => self.won(second.await),
            },
            opened = &mut second => match opened {
                Ok(opened) => self.won(Ok(opened)),
                Err(_) => first.await,
            },
        }
    }

    fn won(&self, opened: Result<OpenedRead, Error>) -> Result<OpenedRead, Error> {
        Counters::count(&self.counters.hedges_won, u64::from(opened.is_ok()));
        opened
    }

    async fn open_once(
        &self,
        nth: usize,
        object: &ObjectName,
        range: &Range<u64>,
        via: &Via,
    ) -> Result<OpenedRead, Error> {
        let sent = Instant::now();
        Counters::count(&self.counters.requests, 1);
        let direct = matches!(via, Via::Direct { .. });
        let range = object.range(range);
        let mut read = within(direct, self.client().get_object_from(nth, &range, via)).await?;
        let Some(first) = within(direct, read.next()).await? else {
            return Err(Error::protocol("an empty answer to a range that is not empty"));
        };
        self.client().first_byte_latencies.observe(sent.elapsed());
        Ok(OpenedRead { read, first, direct })
    }
}

/// A direct read that falls silent is not waited for: there is another way. Through the service there is none, and how
/// long to wait is the fetcher's decision.
async fn within<T>(direct: bool, step: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    if !direct {
        return step.await;
    }
    let silent = || Error::protocol(format!("no byte for {} ms", DIRECT_SILENCE_MAX.as_millis()));
    tokio::time::timeout(DIRECT_SILENCE_MAX, step).await.unwrap_or_else(|_| Err(silent()))
}

/// Whether a store answered that it does not accept the URL (any more).
fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Api(api) if matches!(api.status, 400 | 401 | 403))
}
