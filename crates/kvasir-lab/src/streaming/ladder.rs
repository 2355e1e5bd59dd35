//! Size ladders: bytes and loss per level.

use std::time::Duration;

use kvasir_client::tuning::{ByteRate, FetchPlan, PlannedChunk, RecomputeModel};
use kvasir_types::TokenRange;

/// A ladder on which every policy runs, so that only the policies differ.
#[derive(Debug, Clone, PartialEq)]
pub struct Ladder {
    /// Its name in reports.
    pub name: &'static str,
    /// Bits per element of each level, coarsest first.
    pub bits: Vec<f64>,
    /// Quality loss at each level, 0 to 1.
    pub loss: Vec<f64>,
}

/// Published point of the paper (facts A): Mistral-7B on LongChat at 2.29 bits/element has 0.98 of the accuracy.
const PAPER_POINT: (f64, f64) = (2.29, 0.02);

impl Ladder {
    /// CacheGen's: its default level at the published 2.29 bits/element and loss 0.02, one finer and two
    /// coarser ones by bins of 2/3, 3/2 and 9/4 of the default's. Published are the default's size and accuracy
    /// and that all levels together take about what 8 bits take; sizes and losses of the other levels are
    /// modelled (entropy and distortion of a mid-tread quantised Laplacian).
    pub fn paper() -> Self {
        Self::around("paper", &[2.25, 1.5, 1.0, 1.0 / 1.5])
    }

    /// Kvasir's default shape: a base of 1 bit/element and three steps of 3:1 above it, same model.
    pub fn basis() -> Self {
        let base = step_of(1.0) / step_of(PAPER_POINT.0);
        Self::around("basis", &[base, base / 3.0, base / 9.0, base / 27.0])
    }

    /// The uniform baseline: 8 bits, taken as lossless.
    pub fn int8() -> Self {
        Self { name: "int8", bits: vec![8.0], loss: vec![0.0] }
    }

    /// Levels whose step is that of the published point times a factor.
    fn around(name: &'static str, factors: &[f64]) -> Self {
        let step = step_of(PAPER_POINT.0);
        let reference = laplace(step).1;
        let points = factors.iter().map(|f| laplace(step * f));
        let (bits, loss) =
            points.map(|(bits, power)| (bits, (PAPER_POINT.1 * power / reference).min(1.0))).unzip();
        Self { name, bits, loss }
    }
}

/// Entropy (bits) and distortion (of variance 2) of a unit-scale Laplacian under a mid-tread quantiser.
fn laplace(step: f64) -> (f64, f64) {
    let mass = |a: f64, b: f64| 0.5 * ((-a).exp() - (-b).exp());
    // Squared error against the bin's middle, by the midpoint rule: exact enough for a ladder.
    let error = |a: f64, b: f64, middle: f64| {
        let parts = 64;
        let width = (b - a) / f64::from(parts);
        (0..parts)
            .map(|i| {
                let x = a + width * (f64::from(i) + 0.5);
                0.5 * (-x).exp() * (x - middle).powi(2) * width
            })
            .sum::<f64>()
    };
    let zero = 2.0 * mass(0.0, step / 2.0);
    let mut bits = -zero * zero.log2();
    let mut power = 2.0 * error(0.0, step / 2.0, 0.0);
    for k in 1..2000 {
        let (low, high) = ((f64::from(k) - 0.5) * step, (f64::from(k) + 0.5) * step);
        let p = mass(low, high);
        if p < 1e-15 {
            break;
        }
        bits -= 2.0 * p * p.log2();
        power += 2.0 * error(low, high, f64::from(k) * step);
    }
    (bits, power)
}

/// The step at which the entropy is `bits`.
fn step_of(bits: f64) -> f64 {
    let (mut low, mut high) = (1e-3f64, 50.0f64);
    for _ in 0..80 {
        let middle = (low * high).sqrt();
        if laplace(middle).0 > bits { low = middle } else { high = middle }
    }
    (low * high).sqrt()
}

/// A model on a device, as far as a load cares.
#[derive(Debug, Clone, PartialEq)]
pub struct Engine {
    /// Cached elements of one token over all layers.
    pub elements_per_token: u64,
    /// Prefill.
    pub recompute: RecomputeModel,
    /// Decoding, seconds per token.
    pub decode_per_token: f64,
    /// Tokens of the prompt after the context.
    pub suffix_tokens: u64,
}

impl Engine {
    /// Mistral-7B on an A40 as in the CacheGen evaluation: 32 layers × 8 KV heads × 128 × 2; 7.24 G parameters.
    /// Prefill: its published simulation takes a chunk of 1.5 K tokens as 0.2 s (`run_adaptation.py`,
    /// `chunk_delay`), which is taken as the mean over a context of 9.4 K tokens; how it grows along the context
    /// follows from FLOPs. Decoding: 2 ms a chunk (0.1 TB/s of bf16 output, below every figure for GPU decoders in
    /// the design notes).
    pub fn mistral_7b_a40() -> Self {
        Self::mistral_7b(1.273e14)
    }

    /// The same from the device's data sheet: half of 149.7 TFLOP/s dense bf16, 2.1 s for 9.4 K tokens. The
    /// paper's “3.1–4.7 times below text” corresponds to this; its simulation assumes a faster prefill.
    pub fn mistral_7b_a40_data_sheet() -> Self {
        Self::mistral_7b(149.7e12 * 0.5)
    }

    fn mistral_7b(flops_per_second: f64) -> Self {
        Self {
            elements_per_token: 32 * 8 * 128 * 2,
            recompute: RecomputeModel::from_flops(7.24e9, 32, 4096, flops_per_second),
            decode_per_token: 2e-3 / 1536.0,
            suffix_tokens: 32,
        }
    }

    /// The same with only a share (0–1] of the GPU for this request.
    #[must_use]
    pub fn with_gpu_share(mut self, share: f64) -> Self {
        self.recompute = self.recompute.with_gpu_speed(share.min(1.0));
        self.decode_per_token /= share.clamp(1e-3, 1.0);
        self
    }

    /// The load of a context of `tokens` tokens in chunks of `chunk_tokens`.
    pub fn plan(&self, ladder: &Ladder, tokens: u64, chunk_tokens: u64, slo: Duration) -> FetchPlan {
        let chunk = |start: u64| {
            let range = TokenRange { start, end: (start + chunk_tokens).min(tokens) };
            let elements = (range.len() * self.elements_per_token) as f64;
            let bytes = ladder.bits.iter().map(|bits| ((elements * bits / 8.0) as u64).max(1)).collect();
            PlannedChunk { tokens: range, level_bytes: bytes, loss: ladder.loss.clone() }
        };
        FetchPlan {
            chunks: (0..tokens.div_ceil(chunk_tokens)).map(|i| chunk(i * chunk_tokens)).collect(),
            slo,
            suffix_time: self
                .recompute
                .predict(TokenRange { start: tokens, end: tokens + self.suffix_tokens }),
            prior_rate: None::<ByteRate>,
            first_byte: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ladders_have_their_published_points() {
        let paper = Ladder::paper();
        assert!((paper.bits[2] - 2.29).abs() < 1e-3 && (paper.loss[2] - 0.02).abs() < 1e-6);
        // All levels together take about as much as 8 bits (facts A).
        let sum: f64 = paper.bits.iter().sum();
        assert!((7.0..9.0).contains(&sum), "{sum}");
        let basis = Ladder::basis();
        assert!((basis.bits[0] - 1.0).abs() < 1e-3);
        // At high rate a 3:1 step costs log2 3 bits.
        assert!((basis.bits[3] - basis.bits[2] - 3f64.log2()).abs() < 0.05);
        for ladder in [paper, basis] {
            assert!(ladder.bits.is_sorted() && ladder.loss.iter().rev().is_sorted(), "{ladder:?}");
        }
    }

    #[test]
    fn the_paper_sizes_come_out() {
        let engine = Engine::mistral_7b_a40();
        let megabytes = |ladder: &Ladder, level: usize| {
            let plan = engine.plan(ladder, 9_400, 1536, Duration::from_secs(1));
            plan.chunks.iter().map(|c| c.level_bytes[level]).sum::<u64>() as f64 / 1e6
        };
        assert!((megabytes(&Ladder::paper(), 2) / 176.0 - 1.0).abs() < 0.01);
        assert!((megabytes(&Ladder::int8(), 0) / 622.0 - 1.0).abs() < 0.01);
        let prefill =
            |engine: &Engine| engine.recompute.predict(TokenRange { start: 0, end: 9_400 }).as_secs_f64();
        assert!((prefill(&engine) / (0.2 * 9_400.0 / 1_500.0) - 1.0).abs() < 0.01);
        assert!((2.0..2.3).contains(&prefill(&Engine::mistral_7b_a40_data_sheet())));
    }
}
