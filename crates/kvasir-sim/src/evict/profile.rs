//! What a trace looks like.
use std::collections::HashMap;
use foldhash::fast::RandomState;
use kvasir_storage::eviction::{ClassId, Moment};
use super::trace::Request;

/// Facts.
#[derive(Debug, Default)]
pub struct TraceProfile {
    /// Requests.
    pub requests: u64,
    /// Block accesses.
    pub block_accesses: u64,
    /// Unique.
    pub unique_blocks: u64,
    /// Tokens of a block.
    pub block_tokens: u64,
    /// ideal hits.
    pub ideal_hits: u64,
    last: HashMap<u64, Moment, RandomState>,
}
impl TraceProfile {
    pub(super) fn note(&mut self, r: &Request, _class: ClassId) {
        self.requests += 1;
        self.block_accesses += r.blocks.len() as u64;
        if self.block_tokens == 0 && !r.blocks.is_empty() {
            self.block_tokens = 1u64 << (r.input_tokens as f64 / r.blocks.len() as f64).max(1.0).log2().round() as u32;
        }
        self.ideal_hits += r.blocks.iter().take_while(|b| self.last.contains_key(b)).count() as u64;
        for b in &r.blocks { self.last.insert(*b, r.at); }
    }
    pub(super) fn finish(&mut self) { self.unique_blocks = self.last.len() as u64; self.last = HashMap::default(); }
}
