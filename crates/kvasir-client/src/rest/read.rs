//! Reads one range of one object by any route: hedged, renewed, with fallback.

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
    /// Writes `bytes`, which are at `offset` of the object.
    fn write(&mut self, offset: u64, bytes: Bytes) -> impl Future<Output = ()> + Send;

    /// Like [`write`](Self::write), for bytes that were already here.
    fn found(&mut self, offset: u64, bytes: Bytes) -> impl Future<Output = ()> + Send;
}

/// An opened read and its first bytes.
struct OpenedRead {
    read: ObjectRead,
    first: Bytes,
    direct: bool,
}

impl Routes {
    /// Reads a range and writes every piece to `sink` as it arrives. A read that must go `through_service` follows a failed
    /// or damaged one: the service verifies its copy in memory before it answers.
    ///
    /// A presigned URL that is refused is renewed once. A direct read that fails in any way continues through
    /// the service from where it stopped. Only a failure of the service is an error, and bytes that arrived
    /// before it are kept.
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
            let outcome = self.stream(object, &mut next, range.end, &via, through_service, sink).await;
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
        verify: bool,
        sink: &mut impl ByteSink,
    ) -> Result<(), Error> {
        let OpenedRead { mut read, first, direct } = self.open(object, &(*next..end), via, verify).await?;
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

    /// Opens a read. If its first byte takes longer than for nearly all recent reads, opens a second one and
    /// keeps the first that yields a byte. The other is dropped, which cancels it.
    async fn open(
        &self,
        object: &ObjectName,
        range: &Range<u64>,
        via: &Via,
        verify: bool,
    ) -> Result<OpenedRead, Error> {
        let mut first = pin!(self.open_once(0, object, range, via, verify));
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
        let mut second = pin!(self.open_once(1, object, range, &Via::Proxy, verify));
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
        verify: bool,
    ) -> Result<OpenedRead, Error> {
        let sent = Instant::now();
        Counters::count(&self.counters.requests, 1);
        let direct = matches!(via, Via::Direct { .. });
        let range = object.range(range);
        let read = self.client().get_object_from(nth, &range, via, verify, Some(self.deadline));
        let mut read = within(direct, read).await?;
        let Some(first) = within(direct, read.next()).await? else {
            return Err(Error::protocol("an empty response to a range that is not empty"));
        };
        self.client().first_byte_latencies.observe(sent.elapsed());
        Ok(OpenedRead { read, first, direct })
    }
}

/// Bounds the silence of a direct read: there is another route. Through the service there is none, and the
/// fetcher decides how long to wait.
async fn within<T>(direct: bool, step: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    if !direct {
        return step.await;
    }
    let silent = || Error::protocol(format!("no byte for {} ms", DIRECT_SILENCE_MAX.as_millis()));
    tokio::time::timeout(DIRECT_SILENCE_MAX, step).await.unwrap_or_else(|_| Err(silent()))
}

/// Whether a store refused the URL, for instance because it has expired.
fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Api(api) if matches!(api.status, 400 | 401 | 403))
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;
    use crate::{
        Deadline,
        rest::{Client, ClientConfig},
    };

    #[derive(Default)]
    struct Collected(Vec<u8>);

    impl ByteSink for Collected {
        async fn write(&mut self, offset: u64, bytes: Bytes) {
            assert_eq!(offset, self.0.len() as u64);
            self.0.extend_from_slice(&bytes);
        }

        async fn found(&mut self, offset: u64, bytes: Bytes) {
            self.write(offset, bytes).await;
        }
    }

    /// The head of the request that a read sends, in lower case.
    async fn head_of_read(through_service: bool) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let client = Client::new(url, ClientConfig::default()).unwrap();
        let routes = Routes::new(client, Deadline::none(), None, &[], Instant::now());
        let answer = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                head.push(char::from(stream.read_u8().await.unwrap()));
            }
            let text =
                "HTTP/1.1 206 Partial Content\r\ncontent-range: bytes 0-1/9\r\ncontent-length: 2\r\n\r\nab";
            stream.write_all(text.as_bytes()).await.unwrap();
            head.to_ascii_lowercase()
        };
        let (model_id, seq_hash, object_digest) = ([1; 32].into(), [2; 32].into(), [3; 32].into());
        let object = ObjectName { model_id, seq_hash, object_digest };
        let mut sink = Collected::default();
        let (head, read) = tokio::join!(answer, routes.read(&object, 0..2, through_service, &mut sink));
        read.unwrap();
        assert_eq!(sink.0, b"ab");
        head
    }

    #[tokio::test]
    async fn a_read_after_damage_has_the_service_verify_its_copy() {
        assert!(head_of_read(true).await.contains("cache-control: no-cache\r\n"));
        assert!(!head_of_read(false).await.contains("cache-control"));
    }

    #[tokio::test]
    async fn a_read_says_how_long_the_load_may_take() {
        let head = head_of_read(false).await;
        let left = head.lines().find_map(|line| line.strip_prefix("kvasir-deadline-ms: ")).unwrap();
        assert!((3_500_000..=3_600_000).contains(&left.parse::<u64>().unwrap()), "{left} of an hour");
    }
}
