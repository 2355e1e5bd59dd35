//! The contents and the deadline of a load.

use std::time::Duration;

use kvasir_types::{Level, TokenRange};

use super::byte_rate::ByteRate;

/// One chunk of a load: the sizes of its byte prefixes and the loss of each level.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedChunk {
    /// Tokens of the context that this chunk covers (a last chunk may be used in part).
    pub tokens: TokenRange,
    /// `level_bytes[l]`: length of the object's prefix that decodes to level `l`; not decreasing (a level may add nothing), not empty, not zero.
    pub level_bytes: Vec<u64>,
    /// `loss[l]`: predicted quality loss of the chunk's tokens at level `l` (logit KL, nats per token); as
    /// long as `level_bytes`, not increasing. Text has loss 0.
    pub loss: Vec<f64>,
}

impl PlannedChunk {
    /// A chunk with unknown losses: each level is assumed to divide the step by three, which changes the KL
    /// by a factor of about three (bitstream design, section 3).
    pub fn with_default_loss(tokens: TokenRange, level_bytes: Vec<u64>) -> Self {
        let loss = Self::default_loss(level_bytes.len());
        Self { tokens, level_bytes, loss }
    }

    /// Losses of `levels` levels, if the profile does not contain them.
    pub(crate) fn default_loss(levels: usize) -> Vec<f64> {
        (1..=levels).rev().map(|from_top| 3e-4 * 3f64.powi(from_top as i32 - 1)).collect()
    }

    /// The finest level.
    pub fn top_level(&self) -> Level {
        Level(self.level_bytes.len().saturating_sub(1) as u8)
    }

    /// Prefix bytes of `level`, clamped to the finest level.
    pub fn bytes_at(&self, level: Level) -> u64 {
        self.level_bytes.get(level.index()).or(self.level_bytes.last()).copied().unwrap_or(0)
    }

    /// Predicted loss at `level`, clamped to the finest level.
    pub fn loss_at(&self, level: Level) -> f64 {
        self.loss.get(level.index()).or(self.loss.last()).copied().unwrap_or(0.0)
    }

    /// The best level that a prefix of `bytes` decodes to.
    pub fn level_of_prefix(&self, bytes: u64) -> Option<Level> {
        self.level_bytes.iter().rposition(|&need| need <= bytes).map(|l| Level(l as u8))
    }

    pub(super) fn is_valid(&self) -> bool {
        !self.level_bytes.is_empty()
            && self.level_bytes.len() <= kvasir_types::LEVELS_MAX
            && self.level_bytes.len() == self.loss.len()
            && self.level_bytes.is_sorted()
            && self.level_bytes.first().is_some_and(|&base| base > 0)
    }
}

/// A load: chunks in context order and the time budget.
#[derive(Debug, Clone, PartialEq)]
pub struct FetchPlan {
    /// The chunks, in context order, contiguous.
    pub chunks: Vec<PlannedChunk>,
    /// Target time to first token, from the start of the load.
    pub slo: Duration,
    /// Time the engine needs from the last resolved chunk to the first token (the suffix's prefill).
    pub suffix_time: Duration,
    /// Throughput known from earlier loads, if any.
    pub prior_rate: Option<ByteRate>,
    /// Time to first byte of a request, known from earlier ones, if any.
    pub first_byte: Option<Duration>,
}

impl FetchPlan {
    /// When the last chunk must be resolved to meet the SLO.
    pub fn deadline(&self) -> Duration {
        self.slo.saturating_sub(self.suffix_time)
    }

    /// Whether every chunk has at least one level, non-decreasing sizes, and as many losses.
    pub fn is_valid(&self) -> bool {
        self.chunks.iter().all(PlannedChunk::is_valid)
            && self.chunks.iter().zip(self.chunks.iter().skip(1)).all(|(a, b)| a.tokens.end == b.tokens.start)
    }
}
