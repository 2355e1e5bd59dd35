//! The tasks of a load: reads and decodes, each reporting what happened and when.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use kvasir_api::{ChunkMatch, Via};
use kvasir_codec::{ChunkDecoder, KvBuffer, container::Head};
use kvasir_types::{Level, ModelId, ModelSpec, TokenChain};
use tokio::{sync::mpsc, time::Instant};

use super::report::LoadError;
use crate::{
    Client, ClientError, ObjectRange,
    fetcher::{Event, RequestId},
    transport::backoff,
};

/// Something a task has to say.
pub(super) enum Arrival {
    /// Bytes of a request, in order.
    Bytes { request: RequestId, chunk: usize, at: Instant, bytes: Bytes },
    /// A request is over.
    Ended { request: RequestId, chunk: usize, at: Instant, result: Result<(), ClientError> },
    /// A decode is over; rows are in the buffer, from token 0 of the chunk on.
    Decoded { chunk: usize, at: Instant, took: Duration, result: Result<KvBuffer, LoadError> },
}

/// One read to do.
pub(super) struct Read {
    pub(super) client: Client,
    pub(super) model_id: ModelId,
    pub(super) chunk: usize,
    pub(super) object: ChunkMatch,
    pub(super) request: RequestId,
    pub(super) start: u64,
    pub(super) end: u64,
    /// Reads of this chunk that failed before.
    pub(super) failures: u32,
}

impl Read {
    /// Reads the range and reports pieces and end. A first failure of a presigned URL falls back to the
    /// service; later attempts wait (full jitter) and spend the client's retry budget.
    pub(super) async fn run(self, arrivals: mpsc::Sender<Arrival>) {
        let result = self.stream(&arrivals).await;
        let end = Arrival::Ended { request: self.request, chunk: self.chunk, at: Instant::now(), result };
        // Nobody listens any more when the load was dropped.
        let _ = arrivals.send(end).await;
    }

    async fn stream(&self, arrivals: &mpsc::Sender<Arrival>) -> Result<(), ClientError> {
        if self.failures > 0 {
            if !self.client.take_retry() {
                return Err(ClientError::protocol("the retry budget is spent"));
            }
            tokio::time::sleep(backoff(self.failures, None).unwrap_or_default()).await;
        }
        let range = ObjectRange {
            model_id: self.model_id,
            seq_hash: self.object.seq_hash,
            object_digest: self.object.object_digest,
            start: self.start,
            end: self.end,
        };
        let via = if self.failures == 0 { &self.object.via } else { &Via::Proxy };
        let mut read = self.client.get_object(&range, via).await?;
        while let Some(bytes) = read.next().await? {
            let piece =
                Arrival::Bytes { request: self.request, chunk: self.chunk, at: Instant::now(), bytes };
            if arrivals.send(piece).await.is_err() {
                break;
            }
        }
        Ok(())
    }
}

/// One decode to do.
pub(super) struct Decode {
    pub(super) chunk: usize,
    pub(super) level: Level,
    pub(super) object: ChunkMatch,
    pub(super) prefix: Bytes,
    pub(super) tokens: Arc<[u32]>,
    pub(super) chain: Arc<TokenChain>,
    pub(super) spec: Arc<ModelSpec>,
    pub(super) decoder: Arc<dyn ChunkDecoder>,
}

impl Decode {
    /// Verifies and decodes on a blocking thread, into a buffer of its own: a load that is dropped meanwhile
    /// never writes into pages that belong to someone else.
    pub(super) fn run(self) -> Arrival {
        let started = Instant::now();
        let result = self.decode();
        let at = Instant::now();
        Arrival::Decoded { chunk: self.chunk, at, took: at - started, result }
    }

    fn decode(&self) -> Result<KvBuffer, LoadError> {
        let head = Head::parse(&self.prefix).map_err(|e| LoadError::Object(e.to_string()))?;
        self.check_identity(&head)?;
        let count = self.object.matched_tokens as usize;
        let mut rows = KvBuffer::new(&self.spec, count);
        self.decoder
            .decode(&head, &self.prefix, self.level, 0..count, &mut rows)
            .map_err(|e| LoadError::Object(e.to_string()))?;
        Ok(rows)
    }

    /// The object must hold these very tokens behind this very prefix, whatever the service says.
    fn check_identity(&self, head: &Head) -> Result<(), LoadError> {
        let first = self.object.first_token as usize;
        let matched = self.object.matched_tokens as usize;
        let ours = self.tokens.get(first..first + matched);
        let wrong = if ours.is_none() || head.tokens.get(..matched) != ours {
            Some("it holds other tokens")
        } else if self.chain.prefix_hash(first) != Some(head.header.parent_hash) {
            Some("it continues another prefix")
        } else if head.header.first_position != self.object.first_token {
            Some("its KV is of other positions")
        } else {
            None
        };
        match wrong {
            Some(what) => Err(LoadError::Object(what.into())),
            None => head.verify_chain().map_err(|e| LoadError::Object(e.to_string())),
        }
    }
}

/// The core's event of an arrival.
pub(super) fn event_of(arrival: &Arrival) -> Event {
    match arrival {
        Arrival::Bytes { request, bytes, .. } => {
            Event::Bytes { request: *request, bytes: bytes.len() as u64 }
        }
        Arrival::Ended { request, result: Ok(()), .. } => Event::Completed { request: *request },
        Arrival::Ended { request, result: Err(error), .. } => {
            Event::Failed { request: *request, permanent: !error.is_retryable() }
        }
        Arrival::Decoded { chunk, took, result: Ok(_), .. } => Event::Decoded { chunk: *chunk, took: *took },
        Arrival::Decoded { chunk, .. } => Event::DecodeFailed { chunk: *chunk },
    }
}
