//! Chunk objects that are functions of a seed: valid in every respect that the service checks, and checkable by any reader
//! to the last byte without a copy.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use kvasir_container::{ChunkBuilder, ChunkMeta, Head, SectionId};
use kvasir_tests::{chunks, faulty::Dice};
use kvasir_types::{Level, ModelId, ObjectDigest, ProfileHash, RootHash, SPAN_TOKENS, SeqHash, TokenChain};

/// Levels of an object.
const LEVELS: u8 = 2;
/// Random bytes that pieces are cut from. Two pieces at random places of it differ in their first bytes.
const POOL_BYTES: usize = 24 << 20;

/// The bytes from which all objects of a run are cut.
#[derive(Debug, Clone)]
pub(crate) struct Pool {
    bytes: Vec<u8>,
    seed: u64,
}

/// An object that was made, without its payload.
#[derive(Debug, Clone)]
pub(crate) struct SyntheticObject {
    /// Number of the object in the run; with the pool it determines every byte.
    pub(crate) id: u64,
    /// Its chunk.
    pub(crate) seq_hash: SeqHash,
    /// Its name.
    pub(crate) object_digest: ObjectDigest,
    /// Its size.
    pub(crate) bytes: u64,
    /// Block hashes of its context up to its end.
    pub(crate) blocks: Arc<[SeqHash]>,
    head: Arc<[u8]>,
    piece_bytes: usize,
    spans: usize,
}

/// A context to be made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContextShape {
    /// Chunks.
    pub(crate) chunks: usize,
    /// Tokens of each.
    pub(crate) tokens: usize,
    /// Bytes of each, about.
    pub(crate) bytes: usize,
}

impl Pool {
    /// All of it from a seed.
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        let mut bytes = vec![0; POOL_BYTES];
        blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
        Arc::new(Self { bytes, seed })
    }

    /// The bytes of one piece.
    fn piece(&self, id: u64, number: usize, bytes: usize) -> &[u8] {
        let mut dice = Dice::new(self.seed ^ id.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (number as u64) << 56);
        let at = dice.below(self.bytes.len() - bytes + 1);
        &self.bytes[at..at + bytes]
    }

    /// Makes a context; its chunks have the ids `id ..`.
    pub(crate) fn context(
        &self,
        model_id: ModelId,
        root: RootHash,
        id: u64,
        shape: ContextShape,
    ) -> Result<Vec<(SyntheticObject, Vec<u8>)>> {
        let ContextShape { chunks: count, tokens, .. } = shape;
        let all = chunks::tokens(self.seed ^ id.wrapping_mul(0xd134_2543_de82_ef95), count * tokens);
        let chain = TokenChain::new(root, &all);
        let one = |nth: usize| {
            let link = chain.link(nth * tokens).context("chunks start at blocks")?;
            let mut meta = ChunkMeta::new(model_id, ProfileHash::of(chunks::PROFILE), link);
            meta.first_position = (nth * tokens) as u64;
            meta.level_count = LEVELS;
            let ends = ((nth + 1) * tokens).div_ceil(kvasir_types::BLOCK_TOKENS);
            let blocks = chain.blocks()[..ends].into();
            self.object(meta, &all[nth * tokens..(nth + 1) * tokens], id + nth as u64, shape, blocks)
        };
        (0..count).map(one).collect()
    }

    fn object(
        &self,
        meta: ChunkMeta,
        tokens: &[u32],
        id: u64,
        shape: ContextShape,
        blocks: Arc<[SeqHash]>,
    ) -> Result<(SyntheticObject, Vec<u8>)> {
        let spans = tokens.len().div_ceil(SPAN_TOKENS);
        let piece_bytes = (shape.bytes / (spans * usize::from(LEVELS))).max(16);
        ensure!(
            piece_bytes <= self.bytes.len(),
            "objects of {} bytes are too large for the pool",
            shape.bytes
        );
        let mut builder = ChunkBuilder::new(meta, tokens.to_vec())?;
        for level in 0..LEVELS {
            let pieces = (0..spans)
                .map(|span| Some(self.piece(id, usize::from(level) * spans + span, piece_bytes).to_vec()));
            let section = SectionId { scope: 0, band: 0, level: Level(level), flags: 0 };
            builder.section(section, pieces.collect())?;
        }
        let bytes = builder.finish()?;
        let head = Head::parse(&bytes)?;
        let known = SyntheticObject {
            id,
            seq_hash: *blocks.last().context("a chunk has tokens")?,
            object_digest: ObjectDigest::of(&bytes),
            bytes: bytes.len() as u64,
            blocks,
            head: bytes[..head.header.head_bytes() as usize].into(),
            piece_bytes,
            spans,
        };
        ensure!(known.is(self, 0, &bytes), "an object differs from its generator's output");
        Ok((known, bytes))
    }
}

impl SyntheticObject {
    /// Whether `bytes` equal this object's from `at` on. False if the length exceeds the object's end.
    pub(crate) fn is(&self, pool: &Pool, at: u64, bytes: &[u8]) -> bool {
        let (mut at, mut bytes) = (at as usize, bytes);
        if at + bytes.len() > self.bytes as usize {
            return false;
        }
        if at < self.head.len() {
            let count = bytes.len().min(self.head.len() - at);
            if bytes[..count] != self.head[at..at + count] {
                return false;
            }
            (at, bytes) = (at + count, &bytes[count..]);
        }
        while !bytes.is_empty() {
            let (number, within) =
                ((at - self.head.len()) / self.piece_bytes, (at - self.head.len()) % self.piece_bytes);
            if number >= self.spans * usize::from(LEVELS) {
                return false;
            }
            let count = bytes.len().min(self.piece_bytes - within);
            if bytes[..count] != pool.piece(self.id, number, self.piece_bytes)[within..within + count] {
                return false;
            }
            (at, bytes) = (at + count, &bytes[count..]);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_every_cut_is_checked() {
        let (pool, spec) = (Pool::new(3), chunks::spec());
        let root = RootHash::from([7; 32]);
        let shape = ContextShape { chunks: 2, tokens: 512, bytes: 9_000 };
        let made = pool.context(spec.model_id(), root, 40, shape).unwrap();
        assert_eq!(made[1].0.blocks.len(), 64);
        let (known, bytes) = &made[1];
        Head::parse(bytes).unwrap().verify_chain().unwrap();
        for at in (0..bytes.len()).step_by(97) {
            assert!(known.is(&pool, at as u64, &bytes[at..(at + 1_000).min(bytes.len())]));
            let mut wrong = bytes[at..(at + 1_000).min(bytes.len())].to_vec();
            *wrong.last_mut().unwrap() ^= 1;
            assert!(!known.is(&pool, at as u64, &wrong), "{at}");
        }
        // Neither another object's bytes nor more than there are.
        assert!(!known.is(&pool, 0, &made[0].1));
        assert!(!known.is(&pool, 1, bytes));
        assert!(!made[0].0.is(&pool, 1_000, &bytes[1_000..]));
    }
}
