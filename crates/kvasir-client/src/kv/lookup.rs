//! What of a token sequence is stored.

use std::sync::Arc;

use kvasir_api::{ChunkMatch, LOOKUP_BLOCKS_MAX, LookupRequest, LookupResponse};
use kvasir_types::{LEVELS_MAX, ProfileHash, TokenChain};

use super::KvClient;
use crate::ClientError;

/// The stored prefix of a token sequence, chunk by chunk.
#[derive(Debug, Clone)]
pub struct LoadPlan {
    pub(super) tokens: Arc<[u32]>,
    pub(super) chain: Arc<TokenChain>,
    pub(super) chunks: Vec<ChunkMatch>,
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
    /// Chunks of another profile end the prefix: they would need another decoder.
    ///
    /// # Errors
    /// Those of [`Client::lookup`](crate::Client::lookup); [`ClientError::Protocol`] when the answer is not a
    /// prefix of these tokens. A miss is an empty plan.
    pub async fn lookup(&self, tokens: &[u32]) -> Result<LoadPlan, ClientError> {
        let chain = self.chain(tokens);
        let mut block_hashes = chain.blocks().to_vec();
        if block_hashes.is_empty() {
            return Ok(LoadPlan { tokens: tokens.into(), chain: Arc::new(chain), chunks: Vec::new() });
        }
        block_hashes.truncate(LOOKUP_BLOCKS_MAX);
        let request = LookupRequest {
            model_id: self.model_id,
            namespace: self.namespace.clone(),
            tokens: None,
            block_hashes: Some(block_hashes),
            fresh: false,
            direct: false,
        };
        let response = self.client.lookup(&request).await?;
        let chunks = accept(response, &chain, self.encoder.profile_hash())?;
        Ok(LoadPlan { tokens: tokens.into(), chain: Arc::new(chain), chunks })
    }
}

/// Checks an answer against the chain it must be a prefix of, and cuts it before a foreign profile.
fn accept(
    response: LookupResponse,
    chain: &TokenChain,
    profile: ProfileHash,
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
    Ok(response.chunks.into_iter().take_while(|chunk| chunk.profile_hash == profile).collect())
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
        let profile = ProfileHash::from([2; 32]);
        assert_eq!(accept(answer(&chain), &chain, profile).unwrap().len(), 2);
        assert_eq!(accept(answer(&chain), &chain, [3; 32].into()).unwrap().len(), 0);
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
            assert!(accept(broken, &chain, profile).is_err(), "breakage {i}");
        }
    }
}
