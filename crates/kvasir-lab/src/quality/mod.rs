//! Size against quality: every codec, level and chunk length, on real KV of a real model.
//!
//! The first tokens of a window go through a codec, chunk by chunk; the rest is teacher forced over what comes back and
//! computed exactly. KL is that of the next-token distribution against the run over the exact cache, in nats per token.

mod ablation;
mod join;
mod judge;
mod measure;
mod records;
mod rows;
mod suite;
mod targets;
pub mod tasks;
mod turns;

pub use ablation::{Ablation, Case, Ground, ablate, cases};
pub use join::{JoinError, join};
pub use measure::{Options, measure};
pub use records::RECORDS;
pub use rows::{QualityRow, csv};
pub use suite::{BUDGET, CODECS, FIRST, RETRAINED, RETRAINED_BUDGET, Suite, SuiteOptions, VARIANTS};
pub use targets::{Crossing, QUALITIES, Verdict, WORTH_SHARE, crossings, verdicts};
pub use turns::{Turn, TurnOptions, turns};

use std::ops::Range;

use kvasir_engine::Model;

use crate::BenchError;

/// A prefix that goes through the codecs, and a suffix that judges them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// The tokens of both.
    pub tokens: Vec<u32>,
    /// Which of them are answers that only the prefix holds, in the suffix. If there are any, nothing else is judged; a
    /// book has none.
    pub answers: Vec<Range<usize>>,
}

/// Windows of one text.
#[derive(Debug, Clone)]
pub struct Text {
    /// Its kind, for reports.
    pub domain: String,
    /// Windows of equal length.
    pub windows: Vec<Window>,
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
        let window =
            |index: usize| Window { tokens: all[index * stride..][..tokens].to_vec(), answers: Vec::new() };
        let windows = (0..count).map(window).collect();
        Ok(Self { domain: domain.to_owned(), windows, first: 0, spread: count })
    }

    /// Only the windows of a range, as far as there are such: a long measurement in pieces.
    pub fn part(mut self, range: Range<usize>) -> Self {
        self.windows = self.windows.into_iter().take(range.end).skip(range.start).collect();
        self.first += range.start;
        self
    }

    /// The tokens of its windows.
    pub fn into_tokens(self) -> Vec<Vec<u32>> {
        self.windows.into_iter().map(|window| window.tokens).collect()
    }
}
