//! `store_kv`: cut, encode off the caller's path, upload what is not there yet.

mod admission;
mod queue;

use std::{ops::Range, sync::Arc, time::Duration};

use futures::StreamExt;
use kvasir_codec::{ChunkEncoder, ChunkInput, KvBuffer, KvSource, Tokens};
use kvasir_types::{ChainLink, ObjectDigest, Plane, SeqHash, TokenChain, TokenRange};
use tokio::time::Instant;

pub use admission::{AdmissionPolicy, StoreRefusal};
pub use queue::{DropPolicy, QueueConfig, QueueStats, StoreOutcome, StoreQueue, StoreTicket};

use super::KvClient;
use crate::{
    ClientError,
    fetcher::ByteRate,
    limits::{ENCODE_PATIENCE, STORE_CONCURRENCY, TAIL_GROWTH_MIN},
    transport::UploadPacer,
};

/// What a store is about, besides tokens and KV.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StoreOptions {
    /// Predicted KL, in nats a token, of the prefix that this KV was computed over: the load's
    /// [`kl_beneath`](crate::LoadReport::kl_beneath), 0 over an exact prefix. It is kept with the chunks, and adds to
    /// that of whoever loads them.
    pub kl_beneath: f64,
    /// Chunks above this bound are not stored. When absent, twice the predicted KL of the profile's finest level.
    pub kl_beneath_max: Option<f64>,
    /// Leading tokens that are known to be stored: their chunks are not read.
    pub stored_tokens: usize,
    /// Request class, for admission.
    pub class: String,
    /// What it may hold up.
    pub urgency: Urgency,
}

/// How a store shares CPU and network.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Urgency {
    /// As fast as it can: two chunks at a time.
    #[default]
    Now,
    /// One chunk at a time, stepping aside while the client loads something.
    Background {
        /// Most bytes a second, even when nothing is loaded.
        rate: Option<ByteRate>,
    },
}

/// One finished chunk of a store, as it happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreProgress {
    /// Chunks finished so far, this one included.
    pub finished: usize,
    /// Chunks in all.
    pub chunks: usize,
    /// Bytes uploaded so far.
    pub bytes: u64,
}

/// What became of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkOutcome {
    /// Uploaded, and durable.
    Stored {
        /// Its object.
        object_digest: ObjectDigest,
        /// Size of the object.
        bytes: u64,
        /// False when the very same object was there already.
        created: bool,
        /// Time spent encoding.
        encode: Duration,
        /// Time spent uploading.
        upload: Duration,
    },
    /// Its tokens are stored already, or it is a tail with too few new ones.
    AlreadyThere,
    /// It was computed over a prefix that was loaded too coarsely to build on.
    TooLossy,
}

/// What a store did with one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkStoreReport {
    /// The chunk's tokens.
    pub tokens: TokenRange,
    /// Its identity.
    pub seq_hash: SeqHash,
    /// What became of it.
    pub outcome: ChunkOutcome,
}

/// What a store did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreReport {
    /// One entry per chunk, in order.
    pub chunks: Vec<ChunkStoreReport>,
    /// Whole duration.
    pub elapsed: Duration,
}

impl StoreReport {
    /// Bytes uploaded.
    pub fn bytes(&self) -> u64 {
        self.chunks
            .iter()
            .map(|c| if let ChunkOutcome::Stored { bytes, .. } = c.outcome { bytes } else { 0 })
            .sum()
    }
}

impl KvClient {
    /// Stores the KV of `tokens` (a whole context from its first token on): asks what is there, encodes the
    /// missing chunks on blocking threads and uploads them, at most two in memory at a time.
    ///
    /// Resuming is calling it again: what was acknowledged is found by the lookup. `progress` is called after
    /// each chunk.
    ///
    /// # Errors
    /// The first chunk that could not be encoded or uploaded. Chunks acknowledged before it stay stored and
    /// usable.
    pub async fn store_kv(
        &self,
        tokens: &[u32],
        kv: &dyn KvSource,
        progress: impl FnMut(StoreProgress) + Send,
    ) -> Result<StoreReport, ClientError> {
        self.store_kv_with(tokens, kv, &StoreOptions::default(), progress).await
    }

    /// Most predicted KL beneath what is stored, unless a store says otherwise.
    pub(super) fn kl_beneath_stored_max(&self) -> f64 {
        let own = self.decoders.get(&self.encoder.profile_hash()).and_then(|decoder| decoder.level_kl());
        own.and_then(|kl| kl.last().map(|finest| 2.0 * finest)).unwrap_or(f64::INFINITY)
    }

    /// As [`store_kv`](Self::store_kv), with options.
    ///
    /// # Errors
    /// As [`store_kv`](Self::store_kv).
    pub async fn store_kv_with(
        &self,
        tokens: &[u32],
        kv: &dyn KvSource,
        options: &StoreOptions,
        mut progress: impl FnMut(StoreProgress) + Send,
    ) -> Result<StoreReport, ClientError> {
        let most = options.kl_beneath_max.unwrap_or_else(|| self.kl_beneath_stored_max());
        let too_lossy = options.kl_beneath > most;
        let at_once = match options.urgency {
            Urgency::Now => STORE_CONCURRENCY,
            Urgency::Background { .. } => 1,
        };
        let started = Instant::now();
        let stored = self.lookup(tokens).await?;
        let chain = &stored.chain;
        let matched = stored.matched_tokens().max(options.stored_tokens as u64);
        let cuts: Vec<Range<usize>> = (0..tokens.len())
            .step_by(self.chunk_tokens)
            .map(|s| s..(s + self.chunk_tokens).min(tokens.len()))
            .collect();
        let total = cuts.len();
        let parts = cuts.into_iter().map(|range| async move {
            if is_there(&range, matched, self.chunk_tokens) {
                return Ok((range, ChunkOutcome::AlreadyThere));
            }
            if too_lossy {
                return Ok((range, ChunkOutcome::TooLossy));
            }
            let outcome = self.store_chunk(tokens, range.clone(), chain, kv, options).await?;
            Ok::<_, ClientError>((range, outcome))
        });
        let mut parts = futures::stream::iter(parts).buffered(at_once);
        let mut chunks = Vec::with_capacity(total);
        let mut bytes = 0;
        while let Some(part) = parts.next().await {
            let (range, outcome) = part?;
            if let ChunkOutcome::Stored { bytes: more, .. } = outcome {
                bytes += more;
            }
            chunks.push(ChunkStoreReport {
                tokens: TokenRange { start: range.start as u64, end: range.end as u64 },
                seq_hash: seq_hash(chain, range.end)?,
                outcome,
            });
            progress(StoreProgress { finished: chunks.len(), chunks: total, bytes });
        }
        Ok(StoreReport { chunks, elapsed: started.elapsed() })
    }

    async fn store_chunk(
        &self,
        tokens: &[u32],
        range: Range<usize>,
        chain: &TokenChain,
        kv: &dyn KvSource,
        options: &StoreOptions,
    ) -> Result<ChunkOutcome, ClientError> {
        let pacer = match options.urgency {
            Urgency::Now => None,
            Urgency::Background { rate } => {
                Some(UploadPacer { active_loads: Arc::clone(&self.client.active_loads), rate })
            }
        };
        let hash = seq_hash(chain, range.end)?;
        let job = EncodeJob {
            tokens: tokens[range.clone()].to_vec(),
            preceding_token: range.start.checked_sub(1).map(|before| tokens[before]),
            first_position: range.start as u64,
            link: chain.link(range.start).ok_or_else(|| cut_error(range.start))?,
            kv: self.copy_rows(kv, &range).await,
            kl_beneath: options.kl_beneath as f32,
            encoder: Arc::clone(&self.encoder),
        };
        if let Some(pacer) = &pacer {
            pacer.before_encoding(ENCODE_PATIENCE).await;
        }
        let (object, encode) = tokio::task::spawn_blocking(move || job.run()).await??;
        let started = Instant::now();
        let (namespace, pacer) = (Some(&self.namespace), pacer.as_ref());
        let stored = self.client.put_chunk_of(namespace, &self.model_id, &hash, object.into(), pacer).await?;
        if stored.seq_hash != hash {
            return Err(ClientError::protocol("it acknowledged another chunk than the one that was sent"));
        }
        let upload = started.elapsed();
        Ok(ChunkOutcome::Stored {
            // Not always the digest of what was sent: a name under deletion is not used again.
            object_digest: stored.object_digest,
            bytes: stored.bytes,
            created: stored.created,
            encode,
            upload,
        })
    }

    /// A copy that outlives the caller's borrow, so that encoding can go on elsewhere; one chunk at a time.
    async fn copy_rows(&self, kv: &dyn KvSource, range: &Range<usize>) -> KvBuffer {
        let mut rows = KvBuffer::new(&self.spec, range.len());
        let source = Tokens::from(kv, range.start);
        for layer in 0..self.spec.layers.len() {
            for plane in Plane::ALL {
                for head in 0..rows.heads(layer, plane) {
                    source.read(layer, plane, head, 0..range.len(), rows.rows_mut(layer, plane, head));
                }
            }
            tokio::task::yield_now().await;
        }
        rows
    }
}

/// Whether a chunk need not be stored: covered, or a tail that grew too little.
fn is_there(range: &Range<usize>, matched: u64, chunk_tokens: usize) -> bool {
    let end = range.end as u64;
    let grown_little = range.len() < chunk_tokens
        && matched > range.start as u64
        && end - matched.min(end) < TAIL_GROWTH_MIN;
    end <= matched || grown_little
}

fn seq_hash(chain: &TokenChain, end: usize) -> Result<SeqHash, ClientError> {
    chain.prefix_hash(end).map(SeqHash::from).ok_or_else(|| cut_error(end))
}

fn cut_error(at: usize) -> ClientError {
    ClientError::protocol(format!("no block ends at token {at}"))
}

struct EncodeJob {
    tokens: Vec<u32>,
    preceding_token: Option<u32>,
    first_position: u64,
    link: ChainLink,
    kv: KvBuffer,
    kl_beneath: f32,
    encoder: Arc<dyn ChunkEncoder>,
}

impl EncodeJob {
    fn run(self) -> Result<(Vec<u8>, Duration), ClientError> {
        let started = Instant::now();
        let input = ChunkInput {
            tokens: &self.tokens,
            preceding_token: self.preceding_token,
            first_position: self.first_position,
            link: self.link,
            kl_beneath: self.kl_beneath,
            kv: &self.kv,
        };
        let object = self.encoder.encode(&input);
        let object =
            object.map_err(|source| ClientError::Encode { first_token: self.first_position, source })?;
        Ok((object, started.elapsed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_stored() {
        assert!(is_there(&(0..1536), 1536, 1536));
        assert!(!is_there(&(0..1536), 1520, 1536));
        assert!(!is_there(&(1536..1600), 1536, 1536)); // a new tail
        assert!(is_there(&(1536..1700), 1600, 1536)); // a tail with 100 new tokens
        assert!(!is_there(&(1536..1900), 1600, 1536)); // a tail with 300
        assert!(is_there(&(0..100), 5000, 1536));
    }
}
