//! A stored chunk for unit tests.

use std::sync::Arc;

use kvasir_api::{ChunkMatch, Via};
use kvasir_codec::container::{ChunkBuilder, ChunkMeta, Head, SectionId};
use kvasir_types::{Level, Medium, ModelId, ProfileHash, RootHash, SPAN_TOKENS, TokenChain};

use super::assembly::ExpectedTokens;

/// Two spans of two levels, one piece of 100 bytes each.
pub(super) struct SampleChunk {
    pub(super) object: ChunkMatch,
    pub(super) bytes: Vec<u8>,
    pub(super) head: Arc<Head>,
    pub(super) expected: ExpectedTokens,
}

pub(super) const MODEL: [u8; 32] = [1; 32];

impl SampleChunk {
    pub(super) fn new() -> Self {
        let tokens: Vec<u32> = (0..2 * SPAN_TOKENS as u32).collect();
        let chain = TokenChain::new(RootHash::from([7; 32]), &tokens);
        let (model, profile) = (ModelId::from(MODEL), ProfileHash::from([2; 32]));
        let meta = ChunkMeta { level_count: 2, ..ChunkMeta::new(model, profile, chain.link(0).unwrap()) };
        let mut builder = ChunkBuilder::new(meta, tokens.clone()).unwrap();
        for level in [0, 1].map(Level) {
            let pieces = vec![Some(vec![level.0; 100]); 2];
            builder.section(SectionId { scope: 0, band: 0, level, flags: 0 }, pieces).unwrap();
        }
        let bytes = builder.finish().unwrap();
        let head = Head::parse(&bytes).unwrap();
        let object = ChunkMatch {
            seq_hash: head.header.seq_hash,
            object_digest: [3; 32].into(),
            profile_hash: profile,
            first_token: 0,
            tokens: tokens.len() as u32,
            matched_tokens: tokens.len() as u32,
            bytes: bytes.len() as u64,
            head_bytes: head.header.head_bytes(),
            level_bytes: [0, 1].map(|l| head.level_bytes(Level(l)).unwrap()).to_vec(),
            kl_beneath: 0.25,
            errors: None,
            medium: Medium::Object,
            via: Via::Proxy,
        };
        let expected = ExpectedTokens { tokens: tokens.into(), chain: Arc::new(chain) };
        Self { object, bytes, head: Arc::new(head), expected }
    }
}
