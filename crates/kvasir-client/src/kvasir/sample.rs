//! A sample of the stored chunks, for programs that train a profile.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use kvasir_api::ErrorCode;
use kvasir_codec::{
    KvBuffer, Profile,
    container::{Head, Measured},
};
use kvasir_types::{Level, LevelError, Quality, SeqHash};

use super::Kvasir;
use crate::{
    Error,
    limits::{SAMPLE_BYTES_MAX, SAMPLE_CONCURRENCY, SAMPLE_TOKENS_MAX},
    model::{Unsuitable, Writer},
};

/// Stored KV, decoded at its finest level.
#[derive(Debug, Clone)]
pub struct StoredKv {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Position of the first of them.
    pub first_position: u64,
    /// Their KV, keys with their positions.
    pub kv: KvBuffer,
}

impl Kvasir {
    /// Reads and decodes a uniform sample of at most `chunks` chunks of the model over all namespaces, at
    /// most 512 tokens of each; fewer if together they would need more than 8 GiB. Excludes chunks that were
    /// computed over lossy KV or KV of unknown error, and those whose finest level is below
    /// [`Quality::Transparent`], because their errors are not the model's. The credential needs the role
    /// `admin`.
    ///
    /// # Errors
    /// `forbidden`, `unknown_model`; those of a chunk or profile that cannot be read or decoded. A chunk that
    /// is removed in the meantime is skipped.
    pub async fn sample(&self, chunks: usize) -> Result<Vec<StoredKv>, Error> {
        let client = self.rest();
        let sample = client.sample_chunks(&self.model_id(), chunks).await?;
        self.preload_profiles().await?;
        let chunk_bytes = sample.chunks.len() * self.spec().elements_per_token() * size_of::<f32>();
        let tokens_max = (SAMPLE_BYTES_MAX / chunk_bytes.max(1)).clamp(1, SAMPLE_TOKENS_MAX);
        let reads = sample.chunks.into_iter().map(|chunk| self.read_sampled(chunk, tokens_max));
        let reads = futures::stream::iter(reads).buffered(SAMPLE_CONCURRENCY);
        reads.try_filter_map(|found| std::future::ready(Ok(found))).try_collect().await
    }

    async fn read_sampled(&self, chunk: SeqHash, tokens_max: usize) -> Result<Option<StoredKv>, Error> {
        let object = match self.rest().get_chunk(&self.model_id(), &chunk).await {
            Err(error) if error.code() == Some(ErrorCode::UnknownChunk) => return Ok(None),
            object => object?,
        };
        let codec = &self.shared.own.codec;
        let head = Head::parse(&object).map_err(|error| Error::protocol(error.to_string()))?;
        let Some(decoder) = codec.decoder(&head.header.profile_hash) else { return Ok(None) };
        let finest = Level(head.header.level_count.saturating_sub(1));
        if !head.measured().is_some_and(|measured| is_good(measured, finest)) {
            return Ok(None);
        }
        let count = head.tokens.len().min(tokens_max);
        let tokens = head.tokens[..count].to_vec();
        let (first_position, mut kv) = (head.header.first_position, KvBuffer::new(&codec.spec, count));
        let decoded = tokio::task::spawn_blocking(move || {
            decoder.decode(&head, &object, finest, 0..count, &mut kv).map(|_| kv)
        });
        let kv = decoded.await?.map_err(|error| Error::protocol(format!("chunk {chunk}: {error}")))?;
        Ok(Some(StoredKv { tokens, first_position, kv }))
    }

    /// The profile that clients of the model now encode with; `None` if the service has none.
    ///
    /// # Errors
    /// Those of [`Client::list_profiles`](crate::rest::Client::list_profiles) and
    /// [`Client::get_profile`](crate::rest::Client::get_profile).
    pub async fn profile_in_force(&self) -> Result<Option<Arc<Profile>>, Error> {
        let found = Writer::in_force(self.rest(), self.spec(), None, false, &Unsuitable::default()).await?;
        Ok(found.map(|writer| Arc::clone(writer.profile())))
    }
}

/// Whether a chunk was computed from the text alone, and its finest level is good enough to train on.
fn is_good(measured: &Measured, finest: Level) -> bool {
    let is_own = measured.hops == 0 && measured.beneath == LevelError::NONE;
    is_own && measured.error(finest) <= Quality::Transparent.error_max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_transparent_kv_of_the_text_alone_is_trained_on() {
        let (transparent, coarse) = (Quality::Transparent.error_max(), Quality::Small.error_max());
        let good = |beneath, hops, own| {
            is_good(&Measured { beneath, hops, levels: vec![vec![coarse], vec![own]] }, Level(1))
        };
        assert!(good(LevelError::NONE, 0, transparent));
        assert!(!good(LevelError::NONE, 0, coarse));
        assert!(!good(transparent, 1, transparent));
        // Its encoder knew of a load, but not what it lost.
        assert!(!good(LevelError::UNKNOWN, 0, transparent));
    }
}
