//! Prompts whose cache is stored in chunks of equal size.

use anyhow::{Context as _, Result};
use bytes::Bytes;
use kvasir_container::{ChunkBuilder, ChunkMeta, SectionId};
use kvasir_tests::chunks;
use kvasir_types::{BLOCK_TOKENS, Level, ModelId, ProfileHash, RootHash, SPAN_TOKENS, SeqHash, TokenChain};

/// Tokens of a chunk: a block of Mooncake's traces.
pub(super) const CHUNK_TOKENS: usize = 512;
/// Levels of a chunk.
const LEVELS: u8 = 2;

/// A prompt.
#[derive(Debug)]
pub(super) struct Prompt {
    tokens: Vec<u32>,
    chain: TokenChain,
}

impl Prompt {
    /// Of parts of 512 tokens: equal numbers are equal tokens.
    pub(super) fn new(root: RootHash, parts: &[u64]) -> Self {
        let tokens: Vec<u32> = parts.iter().flat_map(|part| chunks::tokens(*part, CHUNK_TOKENS)).collect();
        Self { chain: TokenChain::new(root, &tokens), tokens }
    }

    /// Hashes of its blocks.
    pub(super) fn blocks(&self) -> &[SeqHash] {
        self.chain.blocks()
    }

    /// How many chunks it has.
    pub(super) fn chunks(&self) -> usize {
        self.tokens.len() / CHUNK_TOKENS
    }

    /// One of its chunks, with `bytes` of payload that depend on it.
    pub(super) fn chunk(&self, model_id: ModelId, nth: usize, bytes: usize) -> Result<(SeqHash, Bytes)> {
        let tokens = nth * CHUNK_TOKENS..(nth + 1) * CHUNK_TOKENS;
        let link = self.chain.link(tokens.start).context("chunks start at blocks")?;
        let seq_hash = self.blocks()[tokens.end / BLOCK_TOKENS - 1];
        let mut meta = ChunkMeta::new(model_id, ProfileHash::of(chunks::PROFILE), link);
        meta.first_position = tokens.start as u64;
        meta.level_count = LEVELS;
        let mut builder = ChunkBuilder::new(meta, self.tokens[tokens].to_vec())?;
        let spans = CHUNK_TOKENS / SPAN_TOKENS;
        let mut payload = blake3::Hasher::new().update(seq_hash.as_bytes()).finalize_xof();
        for level in 0..LEVELS {
            let piece = |_| {
                let mut piece = vec![0; (bytes / (spans * usize::from(LEVELS))).max(1)];
                payload.fill(&mut piece);
                Some(piece)
            };
            let section = SectionId { scope: 0, band: 0, level: Level(level), flags: 0 };
            builder.section(section, (0..spans).map(piece).collect())?;
        }
        Ok((seq_hash, builder.finish()?.into()))
    }
}
