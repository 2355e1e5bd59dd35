//! Block hashes of prompts that were looked up lately.
//!
//! A block's hash needs the one before it, so those of a long prompt are computed one after the other: 98,304 tokens take 1.6 ms of a
//! core. The next turn of a conversation begins with the same tokens. They are compared, which costs a tenth.

use std::sync::Arc;

use kvasir_store::cache::BoundedMap;
use kvasir_types::{BLOCK_TOKENS, ChainLink, RootHash, SeqHash};

use crate::limits;

/// Tokens that are remembered together.
const SEGMENT_TOKENS: usize = 64 * BLOCK_TOKENS;

/// Where a segment joins its chain, and its tokens. All of it is compared; the key of the chain keeps tenants apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Segment {
    chain_key: [u8; 32],
    parent: [u8; 32],
    tokens: Arc<[u32]>,
}

/// The block hashes of segments.
#[derive(Debug)]
pub(crate) struct ChainCache(BoundedMap<Segment, Arc<[SeqHash]>>);

impl ChainCache {
    pub(crate) fn new() -> Self {
        Self(BoundedMap::new(limits::CHAIN_SEGMENTS_MAX, None))
    }

    /// The hashes of the blocks of `tokens` from `root` on, the last of them possibly partial.
    pub(crate) fn blocks(&self, root: RootHash, tokens: &[u32]) -> Vec<SeqHash> {
        let (mut link, mut blocks) =
            (ChainLink::first(root), Vec::with_capacity(tokens.len().div_ceil(BLOCK_TOKENS)));
        let (segments, rest) = tokens.as_chunks::<SEGMENT_TOKENS>();
        for tokens in segments {
            let (chain_key, parent) = (*link.key.as_bytes(), link.parent);
            let segment = Segment { chain_key, parent, tokens: tokens[..].into() };
            match self.0.get(&segment) {
                Some(known) => blocks.extend_from_slice(&known),
                None => {
                    let hashed: Arc<[SeqHash]> = link.blocks(tokens).collect();
                    blocks.extend_from_slice(&hashed);
                    self.0.insert(segment, hashed);
                }
            }
            link.parent = blocks.last().map_or(parent, |block| *block.as_bytes());
        }
        blocks.extend(link.blocks(rest));
        blocks
    }
}

#[cfg(test)]
mod tests {
    use kvasir_types::TokenChain;

    use super::*;

    #[test]
    fn known_prompts_have_the_hashes_of_new_ones() {
        let cache = ChainCache::new();
        let tokens: Vec<u32> =
            (0..5 * SEGMENT_TOKENS as u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
        let mut other = tokens.clone();
        other[SEGMENT_TOKENS + 7] ^= 1;
        for root in [RootHash::from([1; 32]), RootHash::from([2; 32])] {
            for tokens in [&tokens, &other, &tokens] {
                for count in
                    [0, 1, 17, SEGMENT_TOKENS - 1, SEGMENT_TOKENS, 2 * SEGMENT_TOKENS + 16, tokens.len()]
                {
                    let expected = TokenChain::new(root, &tokens[..count]);
                    assert_eq!(cache.blocks(root, &tokens[..count]), expected.blocks(), "{count} tokens");
                }
            }
        }
    }

    #[test]
    fn its_memory_is_bounded() {
        let cache = ChainCache::new();
        for seed in 0..limits::CHAIN_SEGMENTS_MAX as u32 + 100 {
            cache.blocks(RootHash::from([3; 32]), &vec![seed; SEGMENT_TOKENS]);
        }
        assert!(cache.0.dropped() > 0);
    }
}
