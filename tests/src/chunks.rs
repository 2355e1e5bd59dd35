//! Synthetic chunk objects: valid in every checked respect, without a codec.

use std::ops::Range;

use kvasir_container::{ChunkBuilder, ChunkMeta, SectionId};
use kvasir_types::{
    KvDtype, KvLayout, LayerKv, Level, ModelSpec, ObjectDigest, ProfileHash, Reuse, RootHash, SPAN_TOKENS,
    SeqHash, TokenChain,
};

/// A model that no engine runs.
pub fn spec() -> ModelSpec {
    let layer = LayerKv { layout: KvLayout::Gqa { kv_heads: 2, head_dim: 64 }, rope: None };
    ModelSpec {
        weights: "kvasir/synthetic".to_owned(),
        revision: "1".to_owned(),
        adapter: None,
        kv_dtype: KvDtype::Bf16,
        ropes: Vec::new(),
        layers: vec![layer; 2],
        thinning: None,
        reuse: Reuse::Prefix,
    }
}

/// Bytes used as a profile.
pub const PROFILE: &[u8] = b"a profile nobody decodes";

/// A chunk object and its names.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its chunk.
    pub seq_hash: SeqHash,
    /// Its name.
    pub object_digest: ObjectDigest,
}

/// Deterministic tokens.
pub fn tokens(seed: u64, count: usize) -> Vec<u32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as u32
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// The chunk `tokens[start..end]` of a context, with pieces of `piece_bytes` at each of two levels.
pub fn chunk(root: RootHash, tokens: &[u32], start: usize, end: usize, piece_bytes: usize) -> Chunk {
    variant(root, tokens, start, end, piece_bytes, 0)
}

/// As [`chunk`], of another model.
pub fn chunk_of(
    spec: &ModelSpec,
    root: RootHash,
    tokens: &[u32],
    start: usize,
    end: usize,
    piece_bytes: usize,
) -> Chunk {
    build(spec, root, tokens, start..end, piece_bytes, 0)
}

/// As [`chunk`]; each `variant` has different bytes, as if another device had written it.
pub fn variant(
    root: RootHash,
    tokens: &[u32],
    start: usize,
    end: usize,
    piece_bytes: usize,
    variant: u8,
) -> Chunk {
    build(&spec(), root, tokens, start..end, piece_bytes, variant)
}

fn build(
    spec: &ModelSpec,
    root: RootHash,
    tokens: &[u32],
    Range { start, end }: Range<usize>,
    piece_bytes: usize,
    variant: u8,
) -> Chunk {
    let chain = TokenChain::new(root, &tokens[..end]);
    let link = chain.link(start).expect("chunks start at blocks");
    let mut meta = ChunkMeta::new(spec.model_id(), ProfileHash::of(PROFILE), link);
    meta.first_position = start as u64;
    meta.level_count = 2;
    let mut builder = ChunkBuilder::new(meta, tokens[start..end].to_vec()).expect("within limits");
    let spans = (end - start).div_ceil(SPAN_TOKENS);
    for level in [Level(0), Level(1)] {
        let one = |span: usize| Some(piece(level.0 ^ variant, span, piece_bytes));
        let id = SectionId { scope: 0, band: 0, level, flags: 0 };
        builder.section(id, (0..spans).map(one).collect()).expect("within limits");
    }
    let bytes = builder.finish().expect("in order");
    let seq_hash = *chain.blocks().last().expect("not empty");
    Chunk { object_digest: ObjectDigest::of(&bytes), bytes, seq_hash }
}

/// The bytes of a piece of a synthetic chunk.
pub fn piece(level: u8, span: usize, bytes: usize) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[level]).update(&span.to_le_bytes());
    let mut out = vec![0; bytes.max(1)];
    hasher.finalize_xof().fill(&mut out);
    out
}

/// A whole context in chunks of `chunk_tokens`.
pub fn context(root: RootHash, tokens: &[u32], chunk_tokens: usize, piece_bytes: usize) -> Vec<Chunk> {
    let starts = (0..tokens.len()).step_by(chunk_tokens);
    starts.map(|s| chunk(root, tokens, s, (s + chunk_tokens).min(tokens.len()), piece_bytes)).collect()
}
