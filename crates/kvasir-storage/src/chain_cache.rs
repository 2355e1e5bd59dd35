//! Block hashes of prompts that were looked up lately.
//!
//! A block's hash needs the one before it, so those of a long prompt are computed one after the other: 98,304 tokens take 1.6 ms of a
//! core. The next turn of a conversation begins with the same tokens. They are compared, which costs a tenth.

use std::{hash::BuildHasher, sync::Arc};

use foldhash::fast::RandomState;
use kvasir_store::cache::BoundedMap;
use kvasir_types::{BLOCK_TOKENS, ChainLink, RootHash, SeqHash};

use crate::limits;

/// Tokens that are remembered together.
const SEGMENT_TOKENS: usize = 64 * BLOCK_TOKENS;

/// Where a segment joins its chain, and a hash of its tokens, so that nothing is copied to ask for it. The key of the
/// chain keeps tenants apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SegmentKey {
    chain_key: [u8; 32],
    parent: [u8; 32],
    token_hash: u64,
}

/// A segment's tokens, which are compared, and the hashes of its blocks.
#[derive(Debug, Clone)]
struct Segment {
    tokens: Arc<[u32]>,
    blocks: Arc<[SeqHash]>,
}

/// The block hashes of segments.
#[derive(Debug)]
pub(crate) struct ChainCache {
    segments: BoundedMap<SegmentKey, Segment>,
    token_hashes: RandomState,
}

impl ChainCache {
    pub(crate) fn new() -> Self {
        let segments = BoundedMap::new(limits::CHAIN_SEGMENTS_MAX, None);
        Self { segments, token_hashes: RandomState::default() }
    }

    fn key(&self, link: &ChainLink, tokens: &[u32]) -> SegmentKey {
        let (chain_key, parent) = (*link.key.as_bytes(), link.parent);
        SegmentKey { chain_key, parent, token_hash: self.token_hashes.hash_one(tokens) }
    }

    /// The hashes of the blocks of `tokens` from `root` on, the last of them possibly partial.
    pub(crate) fn blocks(&self, root: RootHash, tokens: &[u32]) -> Vec<SeqHash> {
        let (mut link, mut blocks) =
            (ChainLink::first(root), Vec::with_capacity(tokens.len().div_ceil(BLOCK_TOKENS)));
        let (segments, rest) = tokens.as_chunks::<SEGMENT_TOKENS>();
        for tokens in segments {
            let key = self.key(&link, tokens);
            match self.segments.get(&key).filter(|known| *known.tokens == tokens[..]) {
                Some(known) => blocks.extend_from_slice(&known.blocks),
                None => {
                    let hashed: Arc<[SeqHash]> = link.blocks(tokens).collect();
                    blocks.extend_from_slice(&hashed);
                    self.segments.insert(key, Segment { tokens: tokens[..].into(), blocks: hashed });
                }
            }
            link.parent = blocks.last().map_or(link.parent, |block| *block.as_bytes());
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
        assert!(cache.segments.dropped() > 0);
    }

    #[test]
    fn tokens_of_the_same_hash_are_told_apart() {
        let (cache, root) = (ChainCache::new(), RootHash::from([4; 32]));
        let [tokens, other] = [1, 2].map(|token| vec![token; SEGMENT_TOKENS]);
        cache.blocks(root, &other);
        let (_, segment) = cache.segments.all().pop().expect("a segment");
        cache.segments.insert(cache.key(&ChainLink::first(root), &tokens), segment);
        assert_eq!(cache.blocks(root, &tokens), TokenChain::new(root, &tokens).blocks());
    }
}
