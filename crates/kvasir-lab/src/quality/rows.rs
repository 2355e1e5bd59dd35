//! Rows of the report.

use std::collections::BTreeMap;

use kvasir_engine::quality::{Estimate, Samples};
use kvasir_types::{LevelError, Quality};
use serde::{Deserialize, Serialize};

use super::Text;
use crate::{Coded, KvCodec};

/// One codec at one level and chunk length, over all windows of a text.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct QualityRow {
    /// One of [`CODECS`](super::CODECS).
    pub codec: String,
    /// Which profile, for codecs with several.
    pub variant: String,
    /// Setting, 0 is the coarsest.
    pub level: usize,
    /// Tokens per chunk.
    pub chunk_tokens: usize,
    /// The text.
    pub domain: String,
    /// Bytes that a reader holds once a model.
    pub profile_bytes: u64,
    /// Mean bytes per chunk, container included.
    pub bytes: f64,
    /// Bits per element.
    pub bits_per_element: f64,
    /// The largest error that the encoder measured in a chunk. `None` if it did not measure each of them, as those of peers do not.
    pub error: Option<LevelError>,
    /// Perplexity of the suffixes over the decoded prefixes.
    pub perplexity: f64,
    /// The same over the exact ones.
    pub perplexity_exact: f64,
    /// Mean KL, nats per token.
    pub kl: f64,
    /// That over the KL of `zeros`: over all that the prefix is worth. [`join`](super::join()) sets it; `None` if `zeros`
    /// did not run.
    pub kl_share: Option<f64>,
    /// Lower end of its 95 % interval, over windows: positions of one window are not independent.
    pub kl_low: f64,
    /// Upper end.
    pub kl_high: f64,
    /// Share of positions with the same most likely token.
    pub top1: f64,
    /// Lower end of its 95 % interval.
    pub top1_low: f64,
    /// Upper end.
    pub top1_high: f64,
    /// Share of the answers, or else of the tokens of a repeated passage, that are predicted right.
    pub retrieval: f64,
    /// The same over exact caches.
    pub retrieval_exact: f64,
    /// How many these are; 0 in rows that were written without it.
    #[serde(default)]
    pub asked: usize,
    /// Suffix tokens compared.
    pub positions: usize,
    /// Windows.
    pub windows: usize,
    /// How many windows the text was divided into.
    pub spread: usize,
    /// KL of every window, by its number in that spread.
    pub window_kl: BTreeMap<usize, f64>,
}

impl QualityRow {
    /// The best quality that all chunks have.
    pub fn quality(&self) -> Option<Quality> {
        self.error.and_then(Quality::of)
    }
}

/// Sums over the windows.
#[derive(Debug, Clone, Default)]
pub(super) struct Sums {
    bytes: u64,
    /// The largest so far.
    error: Option<LevelError>,
    samples: Samples,
    window_kl: BTreeMap<usize, f64>,
    retrieved: (usize, usize),
}

impl Sums {
    pub(super) fn add(&mut self, window: usize, coded: &Coded, samples: &Samples, retrieved: (usize, usize)) {
        self.bytes += coded.bytes;
        self.error = self.error.max(Some(coded.error));
        self.samples.append(samples);
        self.window_kl.insert(window, samples.summary().kl.mean);
        self.retrieved = (self.retrieved.0 + retrieved.0, self.retrieved.1 + retrieved.1);
    }

    /// `of` is (level, tokens per chunk, chunks per window); `elements` are those of a window's prefix.
    pub(super) fn row(
        &self,
        codec: &dyn KvCodec,
        (level, chunk_tokens, chunks): (usize, usize, usize),
        text: &Text,
        elements: usize,
        exact_retrieved: (usize, usize),
    ) -> QualityRow {
        let quality = self.samples.summary();
        let windows = self.window_kl.len();
        let kl = if windows > 1 { over_windows(&self.window_kl) } else { quality.kl };
        let share = |(right, all): (usize, usize)| right as f64 / all.max(1) as f64;
        QualityRow {
            codec: codec.name().to_owned(),
            variant: codec.variant().to_owned(),
            level,
            chunk_tokens,
            domain: text.domain.clone(),
            profile_bytes: codec.profile_bytes(),
            bytes: self.bytes as f64 / (windows * chunks).max(1) as f64,
            bits_per_element: self.bytes as f64 * 8.0 / (windows * elements).max(1) as f64,
            error: self.error.filter(|error| *error != LevelError::UNKNOWN),
            perplexity: quality.perplexity_lossy,
            perplexity_exact: quality.perplexity_exact,
            kl: kl.mean,
            kl_share: None,
            kl_low: kl.low.max(0.0),
            kl_high: kl.high,
            top1: quality.top1_agreement.mean,
            top1_low: quality.top1_agreement.low,
            top1_high: quality.top1_agreement.high,
            retrieval: share(self.retrieved),
            retrieval_exact: share(exact_retrieved),
            asked: self.retrieved.1,
            positions: quality.positions,
            windows,
            spread: text.spread,
            window_kl: self.window_kl.clone(),
        }
    }
}

/// Mean and interval over windows. Those of a book are equally long: the mean of their means is the mean. In those of
/// records the numbers of judged tokens differ by an answer.
pub(super) fn over_windows(kl: &BTreeMap<usize, f64>) -> Estimate {
    Estimate::of_mean(&kl.values().copied().collect::<Vec<_>>())
}

/// Rows as comma-separated values with a header. Only domains, which are file names, can contain commas or
/// quotes.
pub fn csv(rows: &[QualityRow]) -> String {
    let mut out = String::from(
        "codec,variant,level,chunk_tokens,domain,profile_bytes,bytes,bits_per_element,perplexity,perplexity_exact,\
         kl,kl_low,kl_high,top1,top1_low,top1_high,retrieval,retrieval_exact,positions,windows,kl_share,\
         error,quality\n",
    );
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    for row in rows {
        let numbers = [
            row.bytes,
            row.bits_per_element,
            row.perplexity,
            row.perplexity_exact,
            row.kl,
            row.kl_low,
            row.kl_high,
            row.top1,
            row.top1_low,
            row.top1_high,
            row.retrieval,
            row.retrieval_exact,
        ];
        let numbers: Vec<String> = numbers.iter().map(f64::to_string).collect();
        out.push_str(&format!(
            "{},{},{},{},{},{},{},{},{},{},{},{}\n",
            row.codec,
            quoted(&row.variant),
            row.level,
            row.chunk_tokens,
            quoted(&row.domain),
            row.profile_bytes,
            numbers.join(","),
            row.positions,
            row.windows,
            row.kl_share.map_or_else(String::new, |share| share.to_string()),
            row.error.map_or_else(String::new, |error| error.to_string()),
            row.quality().map_or("", Quality::name),
        ));
    }
    out
}
