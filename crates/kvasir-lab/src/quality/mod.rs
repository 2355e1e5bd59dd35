//! Size against quality: every codec, level and chunk length, on real KV of a real model.
//!
//! The first tokens of a window go through a codec, chunk by chunk; the rest is teacher forced over what comes back and
//! computed exactly. KL is that of the next-token distribution against the run over the exact cache, in nats per token.

mod ablation;
mod join;
mod judge;
mod measure;
mod rows;
mod suite;
mod targets;
pub mod tasks;
mod turns;

pub use ablation::{Ablation, Case, Ground, ablate, cases};
pub use join::{JoinError, join};
pub use measure::{Options, measure};
pub use rows::{QualityRow, csv};
pub use suite::{CODECS, Suite, SuiteOptions};
pub use targets::{Crossing, QUALITIES, Verdict, crossings, verdicts};
pub use turns::{Turn, TurnOptions, turns};

use std::ops::Range;

use kvasir_engine::Model;

use crate::BenchError;

/// Windows of one text.
#[derive(Debug, Clone)]
pub struct Text {
    /// Its kind, for reports.
    pub domain: String,
    /// Token windows of equal length.
    pub windows: Vec<Vec<u32>>,
    /// Number of the first of them among those that the text was divided into.
    pub first: usize,
    /// How many these were.
    pub spread: usize,
}

impl Text {
    /// At most `count` windows of `tokens` tokens, evenly spread over a text and not overlapping.
    ///
    /// # Errors
    /// [`BenchError::TooShort`] where there is not one; the tokeniser's errors.
    pub fn new(
        model: &Model,
        domain: &str,
        text: &str,
        count: usize,
        tokens: usize,
    ) -> Result<Self, BenchError> {
        let all = model.tokenizer().encode(text)?;
        let count = count.min(all.len() / tokens.max(1));
        if count == 0 {
            return Err(BenchError::TooShort { what: domain.to_owned(), needed: tokens, found: all.len() });
        }
        let stride = (all.len() - tokens) / count.saturating_sub(1).max(1);
        let window = |index: usize| all[index * stride..][..tokens].to_vec();
        let windows = (0..count).map(window).collect();
        Ok(Self { domain: domain.to_owned(), windows, first: 0, spread: count })
    }

    /// Only the windows of a range, as far as there are such: a long measurement in pieces.
    pub fn part(mut self, range: Range<usize>) -> Self {
        self.windows = self.windows.into_iter().take(range.end).skip(range.start).collect();
        self.first += range.start;
        self
    }
}
