//! A large hot index without the objects: rows for chunks that are only looked up.

use std::{
    path::Path,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Result;
use kvasir_storage::index::{Index, IndexEntry, IndexRow, Scope};
use kvasir_tests::chunks;
use kvasir_types::{BLOCK_TOKENS, ModelId, ProfileHash, RootHash, SeqHash, TokenChain};

/// Tokens per chunk.
pub(crate) const CHUNK_TOKENS: usize = 1536;
/// Chunks and tokens of a context that scenarios look up.
pub(crate) const CONTEXT_CHUNKS: usize = 16;
pub(crate) const CONTEXT_TOKENS: usize = CONTEXT_CHUNKS * CHUNK_TOKENS;
const CHUNK_BLOCKS: usize = CHUNK_TOKENS / BLOCK_TOKENS;
/// Bytes of a row's head, and of its object up to each level: about those of an 8B model's chunk.
const HEAD_BYTES: u32 = 8_000;
const LEVEL_BYTES: [u64; 4] = [1 << 20, 2 << 20, 5 << 20, 10 << 20];

/// A context of whole chunks, by its block hashes.
#[derive(Debug, Clone)]
pub(crate) struct SyntheticContext {
    root: RootHash,
    blocks: Vec<SeqHash>,
}

impl SyntheticContext {
    /// Number `number` under a root, with made-up hashes that match no tokens.
    pub(crate) fn made_up(root: RootHash, number: usize, chunks: usize) -> Self {
        let mut bytes = vec![0; CHUNK_BLOCKS * chunks * 32];
        let mut hasher = blake3::Hasher::new();
        hasher.update(root.as_bytes()).update(&number.to_le_bytes()).finalize_xof().fill(&mut bytes);
        Self { root, blocks: bytes.as_chunks().0.iter().map(|hash| SeqHash::from(*hash)).collect() }
    }

    /// Of these tokens.
    pub(crate) fn of_tokens(root: RootHash, tokens: &[u32]) -> Self {
        Self { root, blocks: TokenChain::new(root, tokens).blocks().to_vec() }
    }

    /// Its chunks.
    pub(crate) fn chunk_ids(&self) -> Vec<SeqHash> {
        self.blocks.iter().skip(CHUNK_BLOCKS - 1).step_by(CHUNK_BLOCKS).copied().collect()
    }

    fn entries(&self) -> impl Iterator<Item = IndexEntry> {
        let mut parent_hash = self.root.first_parent();
        self.blocks.chunks_exact(CHUNK_BLOCKS).enumerate().map(move |(chunk, blocks)| {
            let last = blocks[CHUNK_BLOCKS - 1];
            let row = Arc::new(IndexRow {
                seq_hash: last,
                object_digest: (*last.as_bytes()).into(),
                profile_hash: ProfileHash::of(chunks::PROFILE),
                first_position: (chunk * CHUNK_TOKENS) as u64,
                token_count: CHUNK_TOKENS as u32,
                kl_beneath: 0.0,
                errors: None,
                head_bytes: HEAD_BYTES,
                object_bytes: LEVEL_BYTES[LEVEL_BYTES.len() - 1],
                level_bytes: LEVEL_BYTES.to_vec(),
            });
            let blocks = IndexEntry::short_blocks(blocks.iter().map(|b| &b.as_bytes()[..]));
            IndexEntry { parent_hash: std::mem::replace(&mut parent_hash, *last.as_bytes()), blocks, row }
        })
    }
}

/// Context number `number` under a root, as looked up by scenarios.
pub(crate) fn context(root: RootHash, number: usize) -> SyntheticContext {
    SyntheticContext::made_up(root, number, CONTEXT_CHUNKS)
}

/// The index of a replica that is not running.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IndexLocation<'a> {
    /// Its `cache.directory`.
    pub(crate) cache: &'a Path,
    /// The identity of its store.
    pub(crate) store_identity: [u8; 32],
    /// Bytes of page cache while it is filled.
    pub(crate) memory_bytes: u64,
    /// Of the default tenant.
    pub(crate) model_id: ModelId,
}

/// Writes the rows of contexts.
pub(crate) fn fill(
    location: IndexLocation<'_>,
    contexts: impl Iterator<Item = SyntheticContext>,
) -> Result<()> {
    let index = Index::sled(location.cache.to_owned(), location.store_identity, location.memory_bytes)?;
    let scope = Scope::new(&"default".parse()?, &location.model_id);
    for context in contexts {
        context.entries().for_each(|entry| index.insert(scope, &entry));
    }
    // The store is on this machine and has its time. A service empties an index that has not heard its journal.
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
    index.set_heard_until(i64::try_from(now)?);
    index.flush();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_follow_each_other_from_the_root() {
        let root = RootHash::from([3; 32]);
        for context in [
            SyntheticContext::made_up(root, 5, 3),
            SyntheticContext::of_tokens(root, &chunks::tokens(1, 3 * CHUNK_TOKENS)),
        ] {
            let (ids, entries): (_, Vec<_>) = (context.chunk_ids(), context.entries().collect());
            assert_eq!(entries.len(), 3);
            assert_eq!(entries[0].parent_hash, root.first_parent());
            for (nth, pair) in entries.windows(2).enumerate() {
                assert_eq!(pair[1].parent_hash, *ids[nth].as_bytes());
            }
            assert!(entries.iter().zip(&ids).all(|(entry, id)| entry.row.seq_hash == *id));
        }
        assert_ne!(
            SyntheticContext::made_up(root, 5, 1).chunk_ids(),
            SyntheticContext::made_up(root, 6, 1).chunk_ids()
        );
    }
}
