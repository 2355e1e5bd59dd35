//! Saving: split into chunks, encode in the background, upload the missing ones.

mod admission;
mod queue;
mod report;
mod rows;

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::StreamExt;
use kvasir_api::ErrorCode;
use kvasir_codec::{ChunkEncoder, ChunkInput, KvBuffer, container::Head};
use kvasir_types::{ChainLink, Level, Loss, Quality, RootHash, SeqHash, TokenChain, TokenRange};
use tokio::time::Instant;

pub use admission::SaveRefusal;
pub(crate) use queue::SaveQueue;
pub use queue::{QueueConfig, QueueStats, SaveOutcome, SaveTicket};
pub use report::{ChunkOutcome, ChunkSaveReport, SaveProgress, SaveReport};

use self::rows::SaveRows;
use crate::{
    Error,
    limits::{ENCODE_PATIENCE, STORE_CONCURRENCY, TAIL_GROWTH_MIN},
    lookup::Matched,
    model::{Binding, Sample},
    rest::{Client, UploadPacer},
};

/// Leading tokens that the session itself has stored.
#[derive(Debug, Default)]
pub(crate) struct StoredTokens(AtomicUsize);

/// The data of a save, besides the KV.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) binding: Arc<Binding>,
    /// The tokens; the chain says how many of them are saved.
    pub(crate) tokens: Arc<Vec<u32>>,
    pub(crate) chain: Arc<TokenChain>,
    /// Loss of the KV beneath this KV. It is stored with the chunks.
    pub(crate) beneath: Loss,
    pub(crate) stored: Arc<StoredTokens>,
    /// Leading tokens that the session's lookup found.
    pub(crate) matched: usize,
}

impl Context {
    fn tokens(&self) -> &[u32] {
        &self.tokens[..self.chain.token_count()]
    }

    /// The same save of a chain that begins at another root, where nothing is stored.
    fn under(&self, root: RootHash) -> Self {
        let chain = Arc::new(TokenChain::new(root, self.tokens()));
        Self { chain, stored: Arc::default(), ..self.clone() }
    }

    /// Leading tokens that are known to be stored: their KV is not read.
    pub(crate) fn stored_tokens(&self) -> usize {
        self.matched.max(self.stored.0.load(Ordering::Relaxed)).min(self.chain.token_count())
    }
}

/// How a save shares CPU and network.
#[derive(Debug, Clone, Copy)]
enum Urgency {
    /// At full speed: two chunks at a time.
    Now,
    /// One chunk at a time, yielding to the client's loads.
    Background,
}

/// Stores contexts.
#[derive(Debug, Clone, Copy)]
struct Saver {
    chunk_tokens: usize,
    urgency: Urgency,
    /// As that of the [`QueueConfig`].
    kl_beneath_max: Option<f64>,
}

impl Saver {
    /// Looks up what is stored, encodes the missing chunks on blocking threads and uploads them. Call it
    /// again to resume.
    async fn save(
        &self,
        context: &mut Context,
        kv: SaveRows<'_>,
        mut progress: impl FnMut(SaveProgress) + Send,
    ) -> Result<SaveReport, Error> {
        let codec = &context.binding.codec;
        let kl_max = self.kl_beneath_max.or_else(|| codec.kl_beneath_max());
        let too_lossy = admission::check_beneath(context.beneath, kl_max).is_err();
        let at_once = match self.urgency {
            Urgency::Now => STORE_CONCURRENCY,
            Urgency::Background => 1,
        };
        let started = Instant::now();
        let lookup = context.binding.lookup(&context.chain, false);
        let found = match Matched::ask(&context.client, &lookup).await {
            // The service has lost its bucket.
            Err(error) if error.code() == Some(ErrorCode::UnknownModel) => {
                let root = context.binding.ask_for_root(&context.client).await?;
                if context.stored_tokens() > 0 {
                    // What this save continues is gone, and its KV may not be here.
                    return Err(error);
                }
                // Another attempt finds the model known, and must not go back to the former root.
                *context = context.under(root);
                Matched::nothing()
            }
            found => found?,
        };
        let context = &*context;
        let (chain, count) = (&context.chain, context.chain.token_count());
        let matched = found.tokens().max(context.stored_tokens() as u64);
        let cuts: Vec<Range<usize>> = (0..count)
            .step_by(self.chunk_tokens)
            .map(|start| start..(start + self.chunk_tokens).min(count))
            .collect();
        let total = cuts.len();
        let parts = cuts.into_iter().map(|range| async move {
            let outcome = if is_there(&range, matched, self.chunk_tokens) {
                ChunkOutcome::AlreadyThere
            } else if too_lossy {
                ChunkOutcome::TooLossy
            } else {
                self.save_chunk(context, range.clone(), kv).await?
            };
            Ok::<_, Error>((range, outcome))
        });
        let mut parts = futures::stream::iter(parts).buffered(at_once);
        let mut chunks = Vec::with_capacity(total);
        let mut bytes = 0;
        while let Some(part) = parts.next().await {
            let (range, outcome) = part?;
            if let ChunkOutcome::Stored { bytes: more, .. } = outcome {
                bytes += more;
                context.stored.0.fetch_max(range.end, Ordering::Relaxed);
            }
            chunks.push(ChunkSaveReport {
                tokens: TokenRange { start: range.start as u64, end: range.end as u64 },
                seq_hash: seq_hash(chain, range.end)?,
                outcome,
            });
            progress(SaveProgress { finished: chunks.len(), chunks: total, bytes });
        }
        Ok(SaveReport { chunks, elapsed: started.elapsed() })
    }

    async fn save_chunk(
        &self,
        context: &Context,
        range: Range<usize>,
        kv: SaveRows<'_>,
    ) -> Result<ChunkOutcome, Error> {
        let Context { client, binding, chain, .. } = context;
        let (codec, tokens) = (&binding.codec, context.tokens());
        let pacer = match self.urgency {
            Urgency::Now => None,
            Urgency::Background => Some(UploadPacer { active_loads: Arc::clone(&client.active_loads) }),
        };
        let hash = seq_hash(chain, range.end)?;
        let kv = Arc::new(kv.copy(&codec.spec, &range).await?);
        let sample = Sample { tokens: &tokens[range.clone()], first_position: range.start as u64, kv: &kv };
        let mut writer = codec.writer_for(client, sample).await?;
        let job = Arc::new(EncodeJob {
            tokens: tokens[range.clone()].to_vec(),
            preceding_token: range.start.checked_sub(1).map(|before| tokens[before]),
            first_position: range.start as u64,
            link: chain.link(range.start).ok_or_else(|| cut_error(range.start))?,
            kv: Arc::clone(&kv),
            beneath: context.beneath,
        });
        if let Some(pacer) = &pacer {
            pacer.before_encoding(ENCODE_PATIENCE).await;
        }
        let encoding = Instant::now();
        let mut object = job.encode(writer.encoder()).await?;
        // A trained profile suits text similar to its training data.
        if writer.may_miss() && misses_transparent(&object) {
            match codec.starter_for(client, sample).await {
                Ok(starter) => {
                    object = job.encode(starter.encoder()).await?;
                    writer = starter;
                }
                Err(error) => {
                    tracing::debug!(%error, "no first profile for a chunk that the trained one does not fit");
                }
            }
        }
        let (object, encode, started) = (bytes::Bytes::from(object), encoding.elapsed(), Instant::now());
        let put = || {
            client.put_chunk_of(
                Some(&binding.namespace),
                &codec.model_id,
                &hash,
                object.clone(),
                pacer.as_ref(),
            )
        };
        let stored = match put().await {
            // The service's bucket was emptied in the meantime.
            Err(error)
                if matches!(error.code(), Some(ErrorCode::UnknownModel | ErrorCode::UnknownProfile)) =>
            {
                writer.publish_again(client).await?;
                put().await?
            }
            stored => stored?,
        };
        if stored.seq_hash != hash {
            return Err(Error::protocol("it acknowledged a different chunk than the one sent"));
        }
        let upload = started.elapsed();
        Ok(ChunkOutcome::Stored {
            // Not always the digest of the sent object: a name under deletion is not used again.
            object_digest: stored.object_digest,
            profile_hash: writer.profile().hash(),
            bytes: stored.bytes,
            created: stored.created,
            encode,
            upload,
        })
    }
}

/// Whether a chunk need not be stored: it is covered, or a tail that grew too little.
fn is_there(range: &Range<usize>, matched: u64, chunk_tokens: usize) -> bool {
    let end = range.end as u64;
    let grown_little = range.len() < chunk_tokens
        && matched > range.start as u64
        && end - matched.min(end) < TAIL_GROWTH_MIN;
    end <= matched || grown_little
}

fn seq_hash(chain: &TokenChain, end: usize) -> Result<SeqHash, Error> {
    chain.prefix_hash(end).map(SeqHash::from).ok_or_else(|| cut_error(end))
}

fn cut_error(at: usize) -> Error {
    Error::protocol(format!("no block ends at token {at}"))
}

struct EncodeJob {
    tokens: Vec<u32>,
    preceding_token: Option<u32>,
    first_position: u64,
    link: ChainLink,
    kv: Arc<KvBuffer>,
    beneath: Loss,
}

/// Whether a client of quality [`Quality::Transparent`] would not find the object: the encoder measured a larger
/// error at the finest level, or none.
fn misses_transparent(object: &[u8]) -> bool {
    Head::parse(object).is_ok_and(|head| {
        let finest = Level(head.header.level_count.saturating_sub(1));
        let error = head.measured().map(|measured| measured.error(finest));
        error.is_none_or(|error| error > Quality::Transparent.error_max())
    })
}

impl EncodeJob {
    async fn encode(self: &Arc<Self>, encoder: &Arc<dyn ChunkEncoder>) -> Result<Vec<u8>, Error> {
        let (job, encoder) = (Arc::clone(self), Arc::clone(encoder));
        tokio::task::spawn_blocking(move || job.run(&*encoder)).await?
    }

    fn run(&self, encoder: &dyn ChunkEncoder) -> Result<Vec<u8>, Error> {
        let input = ChunkInput {
            tokens: &self.tokens,
            preceding_token: self.preceding_token,
            first_position: self.first_position,
            link: self.link,
            beneath: self.beneath,
            kv: &*self.kv,
        };
        let object = encoder.encode(&input);
        object.map_err(|source| Error::Encode { first_token: self.first_position, source })
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
