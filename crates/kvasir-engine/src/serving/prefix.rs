//! Prefix reuse in memory: finished sequences stay, forks of them serve the next request.

use std::collections::HashMap;

use kvasir_types::{BLOCK_TOKENS, RootHash, SeqHash, TokenChain};

use crate::{error::PagedError, paged::PagedKv};

/// Finished caches, found by the chain hash of any of their full blocks. Forks share pages, so sequences with a
/// common prefix hold it once.
#[derive(Debug, Default)]
pub struct PrefixCache {
    sequences: HashMap<u64, Sequence>,
    /// Which sequence holds a block, and how many tokens it ends at.
    blocks: HashMap<SeqHash, (u64, usize)>,
    clock: u64,
}

#[derive(Debug)]
struct Sequence {
    kv: PagedKv,
    blocks: Vec<SeqHash>,
    used: u64,
}

/// Chains in memory mix nothing: one pool, one model, one process.
fn chain(tokens: &[u32]) -> Vec<SeqHash> {
    let full = tokens.len() / BLOCK_TOKENS * BLOCK_TOKENS;
    TokenChain::new(RootHash::from([0; 32]), &tokens[..full]).blocks().to_vec()
}

impl PrefixCache {
    /// Sequences held.
    pub fn len(&self) -> usize {
        self.sequences.len()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    /// A fork with the longest held prefix of `tokens`, in full blocks; none where no block matches.
    ///
    /// # Errors
    /// [`PagedError::PoolFull`] when the tail of the prefix cannot be copied.
    pub fn lookup(&mut self, tokens: &[u32]) -> Result<Option<PagedKv>, PagedError> {
        let hashes = chain(tokens);
        let Some((id, end)) = hashes.iter().rev().find_map(|hash| self.blocks.get(hash).copied()) else {
            return Ok(None);
        };
        self.clock += 1;
        let Some(sequence) = self.sequences.get_mut(&id) else { return Ok(None) };
        sequence.used = self.clock;
        sequence.kv.fork(end).map(Some)
    }

    /// Keeps the KV of `tokens`, all of which `kv` holds.
    pub fn insert(&mut self, tokens: &[u32], kv: PagedKv) {
        let blocks = chain(tokens);
        if blocks.last().is_none_or(|last| self.blocks.contains_key(last)) {
            return; // nothing to find it by, or all of it is held already
        }
        self.clock += 1;
        let id = self.clock;
        for (index, hash) in blocks.iter().enumerate() {
            self.blocks.insert(*hash, (id, (index + 1) * BLOCK_TOKENS));
        }
        self.sequences.insert(id, Sequence { kv, blocks, used: id });
    }

    /// Drops the least recently used sequence; false when there is none. Blocks that others hold too stay found.
    pub fn evict(&mut self) -> bool {
        let Some((&id, _)) = self.sequences.iter().min_by_key(|(_, sequence)| sequence.used) else {
            return false;
        };
        self.sequences.remove(&id);
        self.blocks.retain(|_, (holder, _)| *holder != id);
        for (&other, sequence) in &self.sequences {
            for (index, hash) in sequence.blocks.iter().enumerate() {
                self.blocks.entry(*hash).or_insert((other, (index + 1) * BLOCK_TOKENS));
            }
        }
        true
    }
}
