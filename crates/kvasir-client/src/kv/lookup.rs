//! What of a token sequence is stored.

use std::sync::Arc;

use kvasir_api::{ChunkMatch, LOOKUP_BLOCKS_MAX, LookupRequest, LookupResponse};
use kvasir_types::{LEVELS_MAX, ProfileHash, TokenChain};
use tokio::time::Instant;

use super::KvClient;
use crate::ClientError;

/// The stored prefix of a token sequence, chunk by chunk.
#[derive(Debug, Clone)]
pub struct LoadPlan {
    pub(super) tokens: Arc<[u32]>,
    pub(super) chain: Arc<TokenChain>,
    pub(super) chunks: Vec<ChunkMatch>,
    /// What was asked: asking again renews presigned URLs.
    pub(super) request: Option<LookupRequest>,
    pub(super) looked_up: Instant,
}

impl LoadPlan {
    /// Tokens of the prefix that can be loaded. An engine computes the last token of a prompt in any case.
    pub fn matched_tokens(&self) -> u64 {
        self.chunks.last().map_or(0, |c| c.first_token + u64::from(c.matched_tokens))
    }

    /// The tokens that were looked up.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The objects, in order.
    pub fn chunks(&self) -> &[ChunkMatch] {
        &self.chunks
    }

    /// The objects, to change how they are read (another replica, a presigned URL); what is read is verified
    /// against the tokens in any case.
    pub fn chunks_mut(&mut self) -> &mut [ChunkMatch] {
        &mut self.chunks
    }

    /// The same plan for at most `tokens` tokens.
    #[must_use]
    pub fn truncated(mut self, tokens: u64) -> Self {
        self.chunks.retain(|c| c.first_token < tokens);
        if let Some(last) = self.chunks.last_mut() {
            let left = tokens - last.first_token;
            last.matched_tokens = last.matched_tokens.min(u32::try_from(left).unwrap_or(u32::MAX));
        }
        self
    }
}

impl KvClient {
    /// Finds the longest stored prefix of `tokens` that this client can decode.
    ///
    /// Chunks of a profile that this client has no decoder for end the prefix, and chunks computed over a lossier
    /// prefix than it accepts.
    ///
    /// # Errors
    /// Those of [`Client::lookup`](crate::Client::lookup); [`ClientError::Protocol`] when the answer is not a
    /// prefix of these tokens. A miss is an empty plan.
    pub async fn lookup(&self, tokens: &[u32]) -> Result<LoadPlan, ClientError> {
        let chain = self.chain(tokens);
        let mut block_hashes = chain.blocks().to_vec();
        if block_hashes.is_empty() {
            let (chain, chunks, looked_up) = (Arc::new(chain), Vec::new(), Instant::now());
            return Ok(LoadPlan { tokens: tokens.into(), chain, chunks, request: None, looked_up });
        }
        block_hashes.truncate(LOOKUP_BLOCKS_MAX);
        let request = LookupRequest {
            model_id: self.model_id,
            namespace: self.namespace.clone(),
            tokens: None,
            block_hashes: Some(block_hashes),
            chunk_ids: None,
            fresh: false,
            direct: self.direct,
        };
        let looked_up = Instant::now();
        let response = self.client.lookup(&request).await?;
        let mut chunks = accept(response, &chain, |profile| self.decoders.contains_key(profile))?;
        if let Some(reached) = chunks.iter().position(|chunk| chunk.kl_beneath > self.kl_beneath_max) {
            chunks.truncate(reached);
        }
        let (chain, request) = (Arc::new(chain), request.direct.then_some(request));
        Ok(LoadPlan { tokens: tokens.into(), chain, chunks, request, looked_up })
    }
}

/// Checks an answer against the chain it must be a prefix of, and cuts it before a foreign profile.
fn accept(
    response: LookupResponse,
    chain: &TokenChain,
    decodes: impl Fn(&ProfileHash) -> bool,
) -> Result<Vec<ChunkMatch>, ClientError> {
    let count = response.chunks.len();
    let mut next = 0;
    for (i, chunk) in response.chunks.iter().enumerate() {
        let whole = chunk.matched_tokens == chunk.tokens;
        let end = chunk.first_token.saturating_add(u64::from(chunk.matched_tokens));
        let problem = if chunk.first_token != next
            || chunk.matched_tokens == 0
            || chunk.matched_tokens > chunk.tokens
        {
            Some("does not begin where the one before ends")
        } else if !whole && i + 1 < count {
            Some("matches in part but is not the last")
        } else if end > chain.token_count() as u64 {
            Some("reaches past the tokens that were asked for")
        } else if whole && chain.prefix_hash(end as usize) != Some(*chunk.seq_hash.as_bytes()) {
            Some("is not of these tokens")
        } else if !levels_are_possible(chunk) {
            Some("has impossible level sizes")
        } else {
            None
        };
        if let Some(what) = problem {
            return Err(ClientError::protocol(format!("chunk {i} of the lookup {what}")));
        }
        next = end;
    }
    Ok(response.chunks.into_iter().take_while(|chunk| decodes(&chunk.profile_hash)).collect())
}

fn levels_are_possible(chunk: &ChunkMatch) -> bool {
    (1..=LEVELS_MAX).contains(&chunk.level_bytes.len())
        && chunk.level_bytes.is_sorted()
        && chunk.level_bytes.first().is_some_and(|&base| base >= chunk.head_bytes && base > 0)
        && chunk.level_bytes.last().is_some_and(|&top| top <= chunk.bytes)
}

#[cfg(test)]
mod tests {
    use kvasir_api::Via;
    use kvasir_types::{Medium, RootHash, SeqHash};

    use super::*;

    fn answer(chain: &TokenChain) -> LookupResponse {
        let chunk = |first: u64, tokens: u32, matched: u32| ChunkMatch {
            seq_hash: SeqHash::from(chain.prefix_hash(first as usize + tokens as usize).unwrap_or([9; 32])),
            object_digest: [1; 32].into(),
            profile_hash: [2; 32].into(),
            first_token: first,
            tokens,
            matched_tokens: matched,
            bytes: 100,
            head_bytes: 10,
            level_bytes: vec![50, 100],
            kl_beneath: 0.0,
            medium: Medium::Object,
            via: Via::Proxy,
        };
        LookupResponse { matched_tokens: 48, chunks: vec![chunk(0, 32, 32), chunk(32, 32, 16)] }
    }

    #[test]
    fn answers_that_are_no_prefix_are_refused() {
        let chain = TokenChain::new(RootHash::from([7; 32]), &[5; 48]);
        let ours = |profile: &ProfileHash| *profile == ProfileHash::from([2; 32]);
        assert_eq!(accept(answer(&chain), &chain, ours).unwrap().len(), 2);
        assert_eq!(accept(answer(&chain), &chain, |_| false).unwrap().len(), 0);
        let breakages: [fn(&mut LookupResponse); 8] = [
            |a| a.chunks[0].first_token = 16,
            |a| a.chunks[1].first_token = 48,
            |a| a.chunks[0].matched_tokens = 16,
            |a| a.chunks[1].matched_tokens = 32,
            |a| a.chunks[0].seq_hash = [0; 32].into(),
            |a| a.chunks[0].level_bytes = vec![],
            |a| a.chunks[0].level_bytes = vec![60, 50],
            |a| a.chunks[0].level_bytes = vec![5, 50],
        ];
        for (i, break_it) in breakages.iter().enumerate() {
            let mut broken = answer(&chain);
            break_it(&mut broken);
            assert!(accept(broken, &chain, ours).is_err(), "breakage {i}");
        }
    }
}
