//! The `seq_hash` chain: what makes two prefixes the same.

use crate::{BLOCK_TOKENS, ModelId, RootHash, SeqHash, hash::FieldHasher};

impl RootHash {
    /// `H("kvasir/1", tenant, namespace, salt, model_id)`, every field length-prefixed.
    ///
    /// Only the server calls this: the salt never leaves it. Callers get the root from
    /// `POST /v1/namespaces` and hash by themselves from then on.
    pub fn derive(tenant: &str, namespace: &str, salt: &[u8], model_id: &ModelId) -> Self {
        FieldHasher::new("kvasir/1")
            .field(tenant.as_bytes())
            .field(namespace.as_bytes())
            .field(salt)
            .field(model_id.as_bytes())
            .finish()
            .into()
    }
}

impl SeqHash {
    /// The next link: `H(parent, tokens as u32 LE, digest of the block's non-token inputs)`.
    ///
    /// `tokens` has 1 to [`BLOCK_TOKENS`] entries; its length enters the hash, so a shorter tail never
    /// equals a full block. `extra` is empty when the block has no images or other non-token inputs.
    pub fn next(parent: &[u8; 32], tokens: &[u32], extra: &[u8]) -> Self {
        debug_assert!((1..=BLOCK_TOKENS).contains(&tokens.len()), "a block has 1 to 16 tokens");
        let mut bytes = [0; BLOCK_TOKENS * 4];
        for (slot, token) in bytes.chunks_exact_mut(4).zip(tokens) {
            slot.copy_from_slice(&token.to_le_bytes());
        }
        let used = bytes.get(..tokens.len() * 4).unwrap_or(&bytes);
        FieldHasher::new("kvasir/1/block").field(parent).field(used).field(extra).finish().into()
    }
}

/// The block hashes of a token sequence under one root.
///
/// The last block may be partial. Block `i` covers tokens `16 i .. min(16 (i + 1), tokens)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenChain {
    root: RootHash,
    blocks: Vec<SeqHash>,
    token_count: usize,
}

impl TokenChain {
    /// Hashes `tokens` block by block, starting at `root`.
    pub fn new(root: RootHash, tokens: &[u32]) -> Self {
        let mut parent = *root.as_bytes();
        let blocks = tokens.chunks(BLOCK_TOKENS).map(|block| {
            let hash = SeqHash::next(&parent, block, &[]);
            parent = *hash.as_bytes();
            hash
        });
        Self { root, blocks: blocks.collect(), token_count: tokens.len() }
    }

    /// Hash of every block, in order.
    pub fn blocks(&self) -> &[SeqHash] {
        &self.blocks
    }

    /// The root the chain starts at.
    pub fn root(&self) -> RootHash {
        self.root
    }

    /// Number of tokens hashed.
    pub fn token_count(&self) -> usize {
        self.token_count
    }

    /// Tokens covered by blocks `0..=index` (all of them when `index` is past the end).
    pub fn tokens_through(&self, index: usize) -> usize {
        index.saturating_add(1).saturating_mul(BLOCK_TOKENS).min(self.token_count)
    }

    /// Identity of the prefix of `tokens` tokens, or `None` where no block ends there. The empty prefix is
    /// the root, as bytes, so that a first chunk's `parent_hash` is the root.
    pub fn prefix_hash(&self, tokens: usize) -> Option<[u8; 32]> {
        if tokens == 0 {
            return Some(*self.root.as_bytes());
        }
        let ends_a_block = tokens.is_multiple_of(BLOCK_TOKENS) || tokens == self.token_count;
        let block = self.blocks.get(tokens.div_ceil(BLOCK_TOKENS) - 1)?;
        (ends_a_block && tokens <= self.token_count).then(|| *block.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn root() -> RootHash {
        RootHash::derive("t", "n", b"salt", &[1; 32].into())
    }

    proptest! {
        #[test]
        fn chains_share_exactly_their_common_full_blocks(
            common in prop::collection::vec(any::<u32>(), 0..80), a in any::<u32>(), b in any::<u32>(),
        ) {
            prop_assume!(a != b);
            let chain = |last| TokenChain::new(root(), &[&common[..], &[last]].concat());
            let (x, y) = (chain(a), chain(b));
            let shared = x.blocks().iter().zip(y.blocks()).take_while(|(p, q)| p == q).count();
            prop_assert_eq!(shared, common.len() / BLOCK_TOKENS);
        }

        #[test]
        fn prefix_hash_agrees_with_hashing_the_prefix(tokens in prop::collection::vec(any::<u32>(), 1..100)) {
            let chain = TokenChain::new(root(), &tokens);
            for n in (BLOCK_TOKENS..=tokens.len()).step_by(BLOCK_TOKENS) {
                let whole = TokenChain::new(root(), &tokens[..n]);
                prop_assert_eq!(chain.prefix_hash(n), whole.blocks().last().map(|h| *h.as_bytes()));
            }
            prop_assert_eq!(chain.prefix_hash(0), Some(*root().as_bytes()));
            prop_assert_eq!(chain.prefix_hash(tokens.len() + 1), None);
        }
    }

    #[test]
    fn a_tail_is_not_the_block_it_could_become() {
        assert_ne!(SeqHash::next(&[0; 32], &[0], &[]), SeqHash::next(&[0; 32], &[0, 0], &[]));
        assert_ne!(SeqHash::next(&[0; 32], &[0], &[]), SeqHash::next(&[0; 32], &[0], &[1]));
    }

    #[test]
    fn the_root_depends_on_every_field() {
        let model = ModelId::from([1; 32]);
        let roots = [
            RootHash::derive("t", "n", b"s", &model),
            RootHash::derive("tn", "", b"s", &model),
            RootHash::derive("t", "n", b"z", &model),
            RootHash::derive("t", "n", b"s", &[2; 32].into()),
        ];
        assert_eq!(roots.iter().collect::<std::collections::BTreeSet<_>>().len(), roots.len());
    }
}
