//! The stored prefix of a token sequence, verified against the sequence.

use kvasir_api::ChunkMatch;
use kvasir_types::{LEVELS_MAX, TokenChain};
use tokio::time::Instant;

use crate::{
    Error, limits,
    rest::{BlockLookup, Client},
};

/// The stored prefix of a token sequence, chunk by chunk.
#[derive(Debug, Clone)]
pub(crate) struct Matched {
    /// The objects, in order, contiguous from token 0.
    pub(crate) chunks: Vec<ChunkMatch>,
    pub(crate) looked_up: Instant,
}

impl Matched {
    /// A miss.
    pub(crate) fn nothing() -> Self {
        Self { chunks: Vec::new(), looked_up: Instant::now() }
    }

    /// Sends a lookup and verifies the response.
    pub(crate) async fn ask(client: &Client, lookup: &BlockLookup) -> Result<Self, Error> {
        if lookup.chain().token_count() == 0 {
            return Ok(Self::nothing());
        }
        let looked_up = Instant::now();
        let chunks = lookup.send(client).await?.chunks;
        verify(&chunks, lookup.chain())?;
        let mut matched = Self { chunks, looked_up };
        // A service may be set up to store larger objects than this client reads: the prefix ends there.
        matched.take_while(|chunk| chunk.bytes <= limits::OBJECT_BYTES_MAX as u64);
        Ok(matched)
    }

    /// Tokens of the prefix.
    pub(crate) fn tokens(&self) -> u64 {
        self.chunks.last().map_or(0, |c| c.first_token + u64::from(c.matched_tokens))
    }

    /// Ends the prefix before the first chunk that is not `usable`.
    pub(crate) fn take_while(&mut self, mut usable: impl FnMut(&ChunkMatch) -> bool) {
        if let Some(end) = self.chunks.iter().position(|chunk| !usable(chunk)) {
            self.chunks.truncate(end);
        }
    }

    /// Shortens the prefix to at most `tokens` tokens.
    pub(crate) fn truncate(&mut self, tokens: u64) {
        self.chunks.retain(|c| c.first_token < tokens);
        if let Some(last) = self.chunks.last_mut() {
            let left = tokens - last.first_token;
            last.matched_tokens = last.matched_tokens.min(u32::try_from(left).unwrap_or(u32::MAX));
        }
    }
}

/// Verifies that a response is a prefix of the chain.
fn verify(chunks: &[ChunkMatch], chain: &TokenChain) -> Result<(), Error> {
    let mut next = 0;
    for (i, chunk) in chunks.iter().enumerate() {
        let whole = chunk.matched_tokens == chunk.tokens;
        let end = chunk.first_token.saturating_add(u64::from(chunk.matched_tokens));
        let problem = if chunk.first_token != next
            || chunk.matched_tokens == 0
            || chunk.matched_tokens > chunk.tokens
        {
            Some("does not begin where the previous one ends")
        } else if !whole && i + 1 < chunks.len() {
            Some("matches in part, but is not the last")
        } else if end > chain.token_count() as u64 {
            Some("extends beyond the requested tokens")
        } else if whole && chain.prefix_hash(end as usize) != Some(*chunk.seq_hash.as_bytes()) {
            Some("does not belong to these tokens")
        } else if !levels_are_possible(chunk) {
            Some("has invalid level sizes")
        } else {
            None
        };
        if let Some(what) = problem {
            return Err(Error::protocol(format!("chunk {i} of the lookup {what}")));
        }
        next = end;
    }
    Ok(())
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

    fn answer(chain: &TokenChain) -> Vec<ChunkMatch> {
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
            errors: None,
            medium: Medium::Object,
            via: Via::Proxy,
        };
        vec![chunk(0, 32, 32), chunk(32, 32, 16)]
    }

    #[test]
    fn answers_that_are_no_prefix_are_refused() {
        let chain = TokenChain::new(RootHash::from([7; 32]), &[5; 48]);
        assert!(verify(&answer(&chain), &chain).is_ok());
        let breakages: [fn(&mut [ChunkMatch]); 8] = [
            |a| a[0].first_token = 16,
            |a| a[1].first_token = 48,
            |a| a[0].matched_tokens = 16,
            |a| a[1].matched_tokens = 32,
            |a| a[0].seq_hash = [0; 32].into(),
            |a| a[0].level_bytes = vec![],
            |a| a[0].level_bytes = vec![60, 50],
            |a| a[0].level_bytes = vec![5, 50],
        ];
        for (i, break_it) in breakages.iter().enumerate() {
            let mut broken = answer(&chain);
            break_it(&mut broken);
            assert!(verify(&broken, &chain).is_err(), "breakage {i}");
        }
    }

    #[test]
    fn a_prefix_is_cut_at_a_token_and_at_a_chunk() {
        let chain = TokenChain::new(RootHash::from([7; 32]), &[5; 48]);
        let mut matched = Matched { chunks: answer(&chain), ..Matched::nothing() };
        assert_eq!(matched.tokens(), 48);
        matched.truncate(40);
        assert_eq!((matched.tokens(), matched.chunks.len()), (40, 2));
        matched.take_while(|chunk| chunk.first_token == 0);
        assert_eq!((matched.tokens(), matched.chunks.len()), (32, 1));
        matched.truncate(0);
        assert_eq!(matched.tokens(), 0);
    }
}
