//! The `seq_hash` chain, which identifies prefixes.

use std::fmt;

use crate::{BLOCK_TOKENS, ModelId, RootHash, SeqHash, hash::FieldHasher};

const BLOCK_DOMAIN: &[u8] = b"kvasir/2/block";
/// Most bytes of the message that a block's hash is of, without the bytes of its `extra`: four fields, each with its length.
const BLOCK_MESSAGE_BYTES: usize = 4 * 8 + BLOCK_DOMAIN.len() + 32 + BLOCK_TOKENS * 4;

/// Writes bytes to the front of `rest`, which is long enough, and leaves what is behind them.
fn put(rest: &mut &mut [u8], bytes: &[u8]) {
    if let Some((front, behind)) = std::mem::take(rest).split_at_mut_checked(bytes.len()) {
        front.copy_from_slice(bytes);
        *rest = behind;
    }
}

/// As [`FieldHasher::field`].
fn put_field(rest: &mut &mut [u8], bytes: &[u8]) {
    put(rest, &(bytes.len() as u64).to_le_bytes());
    put(rest, bytes);
}

/// Keys the block hashes of a namespace and model; derived from their [`RootHash`].
///
/// Without it, a guessed text cannot be checked against hashes. Only chunk objects contain it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ChainKey([u8; 32]);

impl ChainKey {
    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<[u8; 32]> for ChainKey {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for ChainKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChainKey(***)")
    }
}

/// The position at which a chunk joins its chain: the inputs for hashing its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainLink {
    /// The key of the chain's hashes.
    pub key: ChainKey,
    /// The `seq_hash` of the block before the chunk, or [`RootHash::first_parent`].
    pub parent: [u8; 32],
}

impl ChainLink {
    /// The link of a context's first chunk.
    pub fn first(root: RootHash) -> Self {
        Self { key: root.chain_key(), parent: root.first_parent() }
    }

    /// The hash of a block of 1 to [`BLOCK_TOKENS`] tokens that follows `self.parent`:
    /// `H keyed by self.key(parent, tokens as u32 LE, digest of the block's non-token inputs)`.
    ///
    /// The hash includes the number of tokens, so a shorter tail never equals a full block. `extra` is empty
    /// if the block has no images or other non-token inputs.
    pub fn next(&self, tokens: &[u32], extra: &[u8]) -> SeqHash {
        debug_assert!((1..=BLOCK_TOKENS).contains(&tokens.len()), "a block has 1 to 16 tokens");
        let mut message = [0; BLOCK_MESSAGE_BYTES];
        let mut rest = &mut message[..];
        put_field(&mut rest, BLOCK_DOMAIN);
        put_field(&mut rest, &self.parent);
        put(&mut rest, &(tokens.len() as u64 * 4).to_le_bytes());
        tokens.iter().for_each(|token| put(&mut rest, &token.to_le_bytes()));
        put(&mut rest, &(extra.len() as u64).to_le_bytes());
        let used = BLOCK_MESSAGE_BYTES - rest.len();
        let message = message.get(..used).unwrap_or(&message);
        if extra.is_empty() {
            // A prompt has thousands of blocks: a hasher that takes a field at a time takes half as long again.
            return (*blake3::keyed_hash(&self.key.0, message).as_bytes()).into();
        }
        (*blake3::Hasher::new_keyed(&self.key.0).update(message).update(extra).finalize().as_bytes()).into()
    }

    /// The hashes of the blocks of `tokens`, the last of them possibly partial.
    pub fn blocks(mut self, tokens: &[u32]) -> impl Iterator<Item = SeqHash> {
        tokens.chunks(BLOCK_TOKENS).map(move |block| {
            let hash = self.next(block, &[]);
            self.parent = *hash.as_bytes();
            hash
        })
    }
}

impl RootHash {
    /// `H("kvasir/2", tenant, namespace, salt, model_id)`, every field length-prefixed.
    ///
    /// Only the server calls this: the salt never leaves it. Callers get the root from `POST /v1/namespaces`
    /// and compute hashes themselves from then on.
    pub fn derive(tenant: &str, namespace: &str, salt: &[u8], model_id: &ModelId) -> Self {
        FieldHasher::new("kvasir/2")
            .field(tenant.as_bytes())
            .field(namespace.as_bytes())
            .field(salt)
            .field(model_id.as_bytes())
            .finish()
            .into()
    }

    /// The key of the hashes in this root's chains.
    pub fn chain_key(&self) -> ChainKey {
        ChainKey(blake3::derive_key("kvasir 2 chain key", self.as_bytes()))
    }

    /// The parent of a context's first block. The root itself occurs in no object, row, name or journal
    /// entry.
    pub fn first_parent(&self) -> [u8; 32] {
        blake3::derive_key("kvasir 2 first parent", self.as_bytes())
    }
}

/// The block hashes of a token sequence under one root.
///
/// The last block may be partial. Block `i` covers tokens `16 i .. min(16 (i + 1), tokens)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenChain {
    start: ChainLink,
    blocks: Vec<SeqHash>,
    token_count: usize,
}

impl TokenChain {
    /// Hashes `tokens` block by block, starting at `root`.
    pub fn new(root: RootHash, tokens: &[u32]) -> Self {
        let start = ChainLink::first(root);
        Self { start, blocks: start.blocks(tokens).collect(), token_count: tokens.len() }
    }

    /// Changes the chain to that of `tokens`, which must equal the former tokens as far as both extend: a
    /// sequence that grew, or a prefix of it. Only new and partial blocks are hashed.
    pub fn resize(&mut self, tokens: &[u32]) {
        let shared = self.token_count.min(tokens.len());
        let unchanged = if self.token_count == tokens.len() {
            shared.div_ceil(BLOCK_TOKENS)
        } else {
            shared / BLOCK_TOKENS
        };
        self.blocks.truncate(unchanged);
        let parent = self.blocks.last().map_or(self.start.parent, |block| *block.as_bytes());
        let rest = tokens.get(unchanged * BLOCK_TOKENS..).unwrap_or_default();
        self.blocks.extend(ChainLink { parent, ..self.start }.blocks(rest));
        self.token_count = tokens.len();
    }

    /// Hash of every block, in order.
    pub fn blocks(&self) -> &[SeqHash] {
        &self.blocks
    }

    /// Number of tokens hashed.
    pub fn token_count(&self) -> usize {
        self.token_count
    }

    /// Tokens covered by blocks `0..=index` (all of them if `index` is beyond the end).
    pub fn tokens_through(&self, index: usize) -> usize {
        index.saturating_add(1).saturating_mul(BLOCK_TOKENS).min(self.token_count)
    }

    /// The link of a chunk that starts after the first `tokens` tokens, or `None` if no block ends there.
    pub fn link(&self, tokens: usize) -> Option<ChainLink> {
        Some(ChainLink { parent: self.prefix_hash(tokens)?, ..self.start })
    }

    /// Identity of the prefix of `tokens` tokens, or `None` if no block ends there. For the empty prefix, it
    /// is [`RootHash::first_parent`].
    pub fn prefix_hash(&self, tokens: usize) -> Option<[u8; 32]> {
        if tokens == 0 {
            return Some(self.start.parent);
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
        fn a_resized_chain_is_that_of_its_tokens(
            tokens in prop::collection::vec(any::<u32>(), 0..120), sizes in prop::collection::vec(0usize..120, 1..6),
        ) {
            let mut chain = TokenChain::new(root(), &[]);
            for size in sizes {
                let now = &tokens[..size.min(tokens.len())];
                chain.resize(now);
                prop_assert_eq!(&chain, &TokenChain::new(root(), now));
            }
        }

        #[test]
        fn prefix_hash_agrees_with_hashing_the_prefix(tokens in prop::collection::vec(any::<u32>(), 1..100)) {
            let chain = TokenChain::new(root(), &tokens);
            for n in (BLOCK_TOKENS..=tokens.len()).step_by(BLOCK_TOKENS) {
                let whole = TokenChain::new(root(), &tokens[..n]);
                prop_assert_eq!(chain.prefix_hash(n), whole.blocks().last().map(|h| *h.as_bytes()));
            }
            prop_assert_eq!(chain.prefix_hash(0), Some(root().first_parent()));
            prop_assert_eq!(chain.prefix_hash(tokens.len() + 1), None);
        }
    }

    #[test]
    fn a_tail_is_not_the_block_it_could_become() {
        let link = ChainLink::first(root());
        assert_ne!(link.next(&[0], &[]), link.next(&[0, 0], &[]));
        assert_ne!(link.next(&[0], &[]), link.next(&[0], &[1]));
    }

    #[test]
    fn a_block_is_hashed_as_fields() {
        let link = ChainLink::first(root());
        let tokens: Vec<u32> = (0..BLOCK_TOKENS as u32).map(|i| i * 0x0102_0305).collect();
        for (count, extra) in (1..=BLOCK_TOKENS).flat_map(|count| [(count, &b""[..]), (count, b"an image")]) {
            let bytes: Vec<u8> = tokens[..count].iter().flat_map(|token| token.to_le_bytes()).collect();
            let fields = FieldHasher::keyed(link.key.as_bytes(), "kvasir/2/block");
            let expected = fields.field(&link.parent).field(&bytes).field(extra).finish();
            assert_eq!(link.next(&tokens[..count], extra).as_bytes(), &expected, "{count}");
        }
    }

    /// FORMAT.md 3.2, computed by another implementation (Python's `blake3`).
    #[test]
    fn known_answers_of_a_chain() {
        let root = RootHash::from([7; 32]);
        let tokens: Vec<u32> = (0..20).collect();
        let chain = TokenChain::new(root, &tokens);
        let hashes = [
            SeqHash::from(*root.chain_key().as_bytes()),
            root.first_parent().into(),
            chain.blocks()[0],
            chain.blocks()[1],
        ];
        let known = [
            "50dde5cc95135ee7ccd20a9fc6506d37c5999004d9ff351650a9b3f8a0a71a85",
            "1e2bbbbca8a1d1affb58bca78577eb5defe973b74451aa9a2f90b9574bdf6f57",
            "a206d67966f35e2e1f046d64e31b7e88dd931b61d47379f72babb0d22d0bdfd2",
            "f3ecbc7ce96a7ca90aa49741641b316e7be11333ca904f7668810027ae31bd85",
        ];
        assert_eq!(hashes.map(|hash| hash.to_string()), known);
    }

    #[test]
    fn a_chain_needs_its_key() {
        let link = ChainLink::first(root());
        let other = ChainLink { key: ChainKey::from(link.parent), ..link };
        assert_ne!(link.next(&[1], &[]), other.next(&[1], &[]));
        assert!(!format!("{link:?}").contains(&format!("{:?}", link.key.as_bytes())), "keys are not printed");
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
