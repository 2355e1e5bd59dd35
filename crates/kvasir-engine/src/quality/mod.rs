//! Measures the cost of a lossy prefix: logit KL, top-1 agreement and perplexity against the uncompressed
//! prefix.
//!
//! Teacher forced: the prefix comes from the codec, the suffix is given and computed exactly over it, and both
//! runs see the same suffix tokens. Position `i` compares the two predictions after suffix token `i`.
//!
//! Intervals are 95 % and treat positions as independent; neighbouring positions are not quite, so with one
//! context they are a little narrow. Pool several contexts for figures that are to be published.

use crate::{
    error::EngineError,
    logits::{Logits, log_softmax, top1},
    model::Model,
    paged::PagedKv,
};

mod oracle;
mod roundtrip;

pub use oracle::KlOracle;
pub use roundtrip::{DecodedLevel, LevelQuality, RoundTripError, measure_levels, round_trip};

/// 97.5 % quantile of the normal distribution.
const Z95: f64 = 1.959_964;

/// A mean with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Estimate {
    /// Normal interval of a mean. NaN for no samples; of width 0 for one.
    pub fn of_mean(samples: &[f64]) -> Self {
        let n = samples.len() as f64;
        let mean = samples.iter().sum::<f64>() / n;
        let variance = samples.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
        let half = Z95 * (variance / n).sqrt();
        Self { mean, low: mean - half, high: mean + half }
    }

    /// Wilson interval of a proportion; accurate near 0 and 1, where agreement usually is.
    pub fn of_proportion(successes: usize, trials: usize) -> Self {
        let (n, p) = (trials as f64, successes as f64 / trials as f64);
        let centre = (p + Z95 * Z95 / (2.0 * n)) / (1.0 + Z95 * Z95 / n);
        let half = Z95 / (1.0 + Z95 * Z95 / n) * (p * (1.0 - p) / n + Z95 * Z95 / (4.0 * n * n)).sqrt();
        Self { mean: p, low: (centre - half).max(0.0), high: (centre + half).min(1.0) }
    }
}

/// Per-position comparisons, poolable over contexts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples {
    kl: Vec<f64>,
    agreements: usize,
    nats_exact: Vec<f64>,
    nats_lossy: Vec<f64>,
}

/// The figures of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Quality {
    /// Positions compared.
    pub positions: usize,
    /// KL(exact ‖ lossy) of the next-token distribution, in nats per token.
    pub kl: Estimate,
    /// Share of positions at which both predict the same token.
    pub top1_agreement: Estimate,
    /// Perplexity of the given suffix over the exact prefix.
    pub perplexity_exact: f64,
    /// Perplexity of the given suffix over the lossy prefix.
    pub perplexity_lossy: f64,
    /// Rise of the cross entropy in nats per token (paired, so far tighter than either perplexity).
    pub nats_rise: Estimate,
}

impl Samples {
    /// Adds a comparison of two runs over the same `suffix`; `logits[i]` follow `suffix[i]`.
    ///
    /// # Panics
    /// When the runs and the suffix differ in length: a programmer error.
    pub fn add(&mut self, exact: &Logits, lossy: &Logits, suffix: &[u32]) {
        self.add_at(exact, lossy, suffix, 0..suffix.len());
    }

    /// As [`add`](Self::add), at some positions only.
    ///
    /// # Panics
    /// As [`add`](Self::add), and for a position past the suffix.
    pub fn add_at(
        &mut self,
        exact: &Logits,
        lossy: &Logits,
        suffix: &[u32],
        positions: impl IntoIterator<Item = usize>,
    ) {
        assert!(exact.len() == suffix.len() && lossy.len() == suffix.len(), "one row a suffix token");
        for index in positions {
            let (p_row, q_row) = (exact.row(index), lossy.row(index));
            let (p, q) = (log_softmax(p_row), log_softmax(q_row));
            self.kl.push(p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum());
            self.agreements += usize::from(top1(p_row) == top1(q_row));
            if let Some(&target) = suffix.get(index + 1) {
                self.nats_exact.push(-p[target as usize]);
                self.nats_lossy.push(-q[target as usize]);
            }
        }
    }

    /// Adds the comparisons of other runs.
    pub fn append(&mut self, other: &Self) {
        self.kl.extend_from_slice(&other.kl);
        self.agreements += other.agreements;
        self.nats_exact.extend_from_slice(&other.nats_exact);
        self.nats_lossy.extend_from_slice(&other.nats_lossy);
    }

    /// The figures over everything added. Means of nothing are NaN.
    pub fn summary(&self) -> Quality {
        let mean = |nats: &[f64]| nats.iter().sum::<f64>() / nats.len() as f64;
        let rises: Vec<f64> = self.nats_lossy.iter().zip(&self.nats_exact).map(|(q, p)| q - p).collect();
        Quality {
            positions: self.kl.len(),
            kl: Estimate::of_mean(&self.kl),
            top1_agreement: Estimate::of_proportion(self.agreements, self.kl.len()),
            perplexity_exact: mean(&self.nats_exact).exp(),
            perplexity_lossy: mean(&self.nats_lossy).exp(),
            nats_rise: Estimate::of_mean(&rises),
        }
    }
}

/// Runs `suffix` over both prefixes and adds the comparison to `samples`. The prefixes are not changed.
///
/// # Errors
/// As [`Model::logits`]; the pools of both prefixes need room for a copy of the tail and the suffix.
pub fn compare_prefixes(
    model: &Model,
    exact: &PagedKv,
    lossy: &PagedKv,
    suffix: &[u32],
    samples: &mut Samples,
) -> Result<(), EngineError> {
    let run = |kv: &PagedKv| model.logits(&mut kv.fork(kv.len())?, suffix);
    samples.add(&run(exact)?, &run(lossy)?, suffix);
    Ok(())
}

/// Perplexity of `tokens` (all but the first) after nothing.
///
/// # Errors
/// As [`Model::logits`]; [`EngineError::EmptyPrompt`] for fewer than two tokens.
pub fn perplexity(model: &Model, tokens: &[u32]) -> Result<f64, EngineError> {
    if tokens.len() < 2 {
        return Err(EngineError::EmptyPrompt);
    }
    let logits = model.logits(&mut model.new_kv()?, tokens)?;
    let nats: f64 = logits.rows().zip(&tokens[1..]).map(|(row, &t)| -log_softmax(row)[t as usize]).sum();
    Ok((nats / (tokens.len() - 1) as f64).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_runs_cost_nothing_and_known_ones_what_they_must() {
        let exact = Logits::new(vec![0.0, 0.0, 1.0, 0.0], 2);
        let mut same = Samples::default();
        same.add(&exact, &exact, &[0, 1]);
        let quality = same.summary();
        assert_eq!((quality.kl.mean, quality.top1_agreement.mean, quality.nats_rise.mean), (0.0, 1.0, 0.0));
        assert!((quality.perplexity_exact - 2.0).abs() < 1e-12, "a fair coin has perplexity 2");

        // p = (1/2, 1/2), q = (1/4, 3/4): KL = ½ ln 2 + ½ ln ⅔.
        let lossy = Logits::new(vec![0.0, 3f32.ln(), 1.0, 0.0], 2);
        let mut apart = Samples::default();
        apart.add(&exact, &lossy, &[0, 0]);
        let quality = apart.summary();
        let expected = 0.5 * 2f64.ln() + 0.5 * (2.0f64 / 3.0).ln();
        assert!((quality.kl.mean * 2.0 - expected).abs() < 1e-7);
        assert_eq!(quality.top1_agreement.mean, 0.5);
        assert!((quality.nats_rise.mean - 2f64.ln()).abs() < 1e-7);

        // The second position of the two is alike in both runs.
        for (position, kl) in [(0, expected), (1, 0.0)] {
            let mut alone = Samples::default();
            alone.add_at(&exact, &lossy, &[0, 0], [position]);
            let quality = alone.summary();
            assert!(quality.positions == 1 && (quality.kl.mean - kl).abs() < 1e-7, "{position}");
        }
    }

    #[test]
    fn intervals_hold_their_mean_and_shrink_with_samples() {
        let few = Estimate::of_mean(&[1.0, 2.0, 3.0]);
        let many = Estimate::of_mean(&[1.0, 2.0, 3.0].repeat(100));
        assert!(few.low < 2.0 && 2.0 < few.high && many.high - many.low < few.high - few.low);
        let sure = Estimate::of_proportion(100, 100);
        assert!(sure.mean == 1.0 && sure.low > 0.95 && sure.low < 0.97, "Wilson: 0.963");
    }
}
