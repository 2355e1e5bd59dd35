//! Cost models of computation: prefill from text, and decoding.

use std::time::Duration;

use kvasir_types::TokenRange;

/// Coefficients of prefill time over a prior: per request, per token, per token pair.
const FEATURES: usize = 3;
/// Weight of the prior, in observations.
const PRIOR_WEIGHT: f64 = 1.0;
/// Prior variance of an error common to all three terms: a GPU that is slower overall is more likely than an
/// error in one term.
const PRIOR_COMMON: f64 = 36.0;
/// Assumed spread of times on an unmeasured machine: standard deviation of their logarithm.
const SPREAD_PRIOR: f64 = 0.3;
/// Share of the observed error that remains after each new observation.
const SPREAD_KEEP: f64 = 0.7;
/// Standard deviations above the expected time that cover 99 of 100 times.
const RISK_DEVIATIONS: f64 = 2.33;
/// Largest logarithm of a caution: no deadline allows for more.
const CAUTION_LOG_MAX: f64 = 7.0;
/// Prefills of this many tokens and more have errors apart from shorter ones: launches and reading the
/// weights bound the short ones, arithmetic the long ones.
const LONG_TOKENS: u64 = 512;
/// Share of the past that remains after each new observation, so that the fit follows a GPU's load.
const FORGETTING: f64 = 0.98;

/// How far observed times were from their predictions, weighted towards recent ones.
#[derive(Debug, Clone, Copy, PartialEq)]
struct CostError {
    /// Mean of the logarithm of observed over predicted times.
    bias: f64,
    /// Mean square of its distance from the bias before.
    spread: f64,
    observed: bool,
}

impl CostError {
    const UNMEASURED: Self = Self { bias: 0.0, spread: SPREAD_PRIOR * SPREAD_PRIOR, observed: false };

    fn caution(&self) -> f64 {
        (self.bias + RISK_DEVIATIONS * self.spread.sqrt()).clamp(0.0, CAUTION_LOG_MAX).exp()
    }

    /// Learns from a time of `seconds` that was predicted as `before`, and as `after` once the model had learnt it.
    fn observe(&mut self, seconds: f64, before: Duration, after: Duration) {
        // The first observation shows the machine's speed, later ones its variation.
        let expected = if self.observed { before } else { after };
        self.observed = true;
        let error = (seconds / expected.as_secs_f64().max(1e-9)).ln().clamp(-3.0, 3.0);
        let surprise = error - self.bias;
        self.bias += (1.0 - SPREAD_KEEP) * surprise;
        self.spread = SPREAD_KEEP * self.spread + (1.0 - SPREAD_KEEP) * surprise * surprise;
    }
}

/// Prefill time of a token range behind a prefix, superlinear in context: with `n` tokens behind `c`,
/// `T = a + b n + g n (c + n / 2)`. The last term is attention; `a` is launch and scheduling.
///
/// The prior comes from FLOPs ([`RecomputeModel::from_flops`]) or from measured seconds
/// ([`RecomputeModel::from_seconds`]). Observations scale its three terms by recursive least squares on the
/// *relative* error (so that short and long prefills count alike), each factor held within `[0.02, 50]`.
///
/// Errors are learnt apart for prefills of fewer than 512 tokens and for the others, with their sign: where
/// the three terms cannot express how short and long ones differ, the fit lies between them, and only the
/// slower ones need caution.
#[derive(Debug, Clone, PartialEq)]
pub struct RecomputeModel {
    prior: [f64; FEATURES],
    factors: [f64; FEATURES],
    covariance: [[f64; FEATURES]; FEATURES],
    /// Of short prefills, and of long ones.
    errors: [CostError; 2],
    gpus: u32,
}

impl RecomputeModel {
    /// From seconds per request, per token, and per token pair.
    pub fn from_seconds(per_request: f64, per_token: f64, per_pair: f64) -> Self {
        let mut covariance = [[PRIOR_COMMON; FEATURES]; FEATURES];
        for (i, row) in covariance.iter_mut().enumerate() {
            row[i] += 1.0 / PRIOR_WEIGHT;
        }
        let prior = [per_request.max(0.0), per_token.max(1e-12), per_pair.max(0.0)];
        Self { prior, factors: [1.0; FEATURES], covariance, errors: [CostError::UNMEASURED; 2], gpus: 1 }
    }

    /// From the model and the device: `2 × parameters` FLOPs per token, `4 × layers × hidden` per token pair
    /// (QK and PV products), at `flops_per_second` *sustained* (peak times utilisation).
    pub fn from_flops(parameters: f64, layers: usize, hidden: usize, flops_per_second: f64) -> Self {
        let pair = 4.0 * layers as f64 * hidden as f64;
        Self::from_seconds(2e-3, 2.0 * parameters / flops_per_second, pair / flops_per_second)
    }

    /// This model on a device that is `speed` times as fast.
    #[must_use]
    pub fn with_gpu_speed(mut self, speed: f64) -> Self {
        for term in &mut self.prior {
            *term /= speed.clamp(1e-3, 1e3);
        }
        self
    }

    /// This model for an engine whose GPUs compute one request together, `gpus` of them. It changes no
    /// predicted time, only the reported savings of a load; 0 if nothing would be computed.
    #[must_use]
    pub fn on_gpus(mut self, gpus: u32) -> Self {
        self.gpus = gpus;
        self
    }

    /// Predicted work of computing `tokens` over the KV of everything before them, in GPU-seconds.
    pub fn gpu_seconds(&self, tokens: TokenRange) -> f64 {
        self.predict(tokens).as_secs_f64() * f64::from(self.gpus)
    }

    fn features(&self, tokens: TokenRange) -> [f64; FEATURES] {
        let n = tokens.len() as f64;
        let pairs = n * (tokens.start as f64 + n / 2.0);
        [self.prior[0], self.prior[1] * n, self.prior[2] * pairs]
    }

    /// Predicted time of computing `tokens` over the KV of everything before them.
    pub fn predict(&self, tokens: TokenRange) -> Duration {
        if tokens.is_empty() {
            return Duration::ZERO;
        }
        let seconds: f64 = self.features(tokens).iter().zip(self.factors).map(|(f, x)| f * x).sum();
        Duration::try_from_secs_f64(seconds.clamp(0.0, 86_400.0)).unwrap_or_default()
    }

    /// The factor by which computing `tokens` may exceed [`predict`](Self::predict) (at least 1): 99 of 100
    /// prefills stay within it, by the errors of those of fewer than 512 tokens or of the others, weighted
    /// towards recent ones. Until one of its length is observed, the other length's errors count, and before
    /// the first prefill an assumed spread.
    pub fn caution(&self, tokens: TokenRange) -> f64 {
        self.error(tokens).caution()
    }

    fn error(&self, tokens: TokenRange) -> CostError {
        let class = length_class(tokens);
        let own = self.errors[class];
        if own.observed { own } else { self.errors[1 - class] }
    }

    /// Learns from one prefill that took `took`.
    pub fn observe(&mut self, tokens: TokenRange, took: Duration) {
        let seconds = took.as_secs_f64();
        if tokens.is_empty() || seconds <= 0.0 {
            return;
        }
        let (before, mut error) = (self.predict(tokens), self.error(tokens));
        self.fit(tokens, seconds);
        error.observe(seconds, before, self.predict(tokens));
        self.errors[length_class(tokens)] = error;
    }

    fn fit(&mut self, tokens: TokenRange, seconds: f64) {
        // Relative least squares: divide features and target by the observed time.
        let x = self.features(tokens).map(|f| f / seconds);
        let mut px = [0.0; FEATURES];
        for (p, row) in px.iter_mut().zip(&self.covariance) {
            *p = row.iter().zip(x).map(|(a, b)| a * b).sum();
        }
        let denominator = FORGETTING + x.iter().zip(px).map(|(a, b)| a * b).sum::<f64>();
        if !denominator.is_finite() || denominator < FORGETTING {
            return; // rounding cost the matrix its definiteness: this sample would teach nonsense
        }
        let error = 1.0 - x.iter().zip(self.factors).map(|(a, b)| a * b).sum::<f64>();
        for ((factor, row), p) in self.factors.iter_mut().zip(&mut self.covariance).zip(px) {
            *factor = (*factor + p / denominator * error).clamp(0.02, 50.0);
            for (entry, q) in row.iter_mut().zip(px) {
                // Capped: unobserved directions must not grow without bound under forgetting.
                *entry = ((*entry - p * q / denominator) / FORGETTING).clamp(-10.0, 10.0);
            }
        }
    }
}

/// Index of a prefill's errors.
fn length_class(tokens: TokenRange) -> usize {
    usize::from(tokens.len() >= LONG_TOKENS)
}

/// Time to verify and decode a chunk: per token and per compressed byte, corrected by observations. Its
/// errors are not kept by length: the chunks of a load have one length, but for the last.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodeModel {
    per_token: f64,
    per_byte: f64,
    scale: f64,
    error: CostError,
}

impl DecodeModel {
    /// From seconds per token and per compressed byte.
    pub const fn from_seconds(per_token: f64, per_byte: f64) -> Self {
        Self { per_token, per_byte, scale: 1.0, error: CostError::UNMEASURED }
    }

    /// These times multiplied by `factor`, which nobody has measured: how far the first decode is from them is no
    /// variation.
    #[must_use]
    pub(crate) fn assumed(self, factor: f64) -> Self {
        Self { scale: self.scale * factor, error: CostError::UNMEASURED, ..self }
    }

    /// Predicted time for `tokens` tokens out of `bytes` bytes.
    pub fn predict(&self, tokens: u64, bytes: u64) -> Duration {
        let seconds = self.scale * (self.per_token * tokens as f64 + self.per_byte * bytes as f64);
        Duration::try_from_secs_f64(seconds.clamp(0.0, 86_400.0)).unwrap_or_default()
    }

    /// The factor by which a decode may exceed [`predict`](Self::predict) (at least 1), learnt like
    /// [`RecomputeModel::caution`].
    pub fn caution(&self) -> f64 {
        self.error.caution()
    }

    /// Learns from one decode: an EWMA (weight 0.3) of observed over predicted, and its error.
    pub fn observe(&mut self, tokens: u64, bytes: u64, took: Duration) {
        let unscaled = self.per_token * tokens as f64 + self.per_byte * bytes as f64;
        if unscaled > 0.0 {
            let before = self.predict(tokens, bytes);
            let ratio = (took.as_secs_f64() / unscaled).clamp(1e-3, 1e3);
            self.scale = 0.7 * self.scale + 0.3 * ratio;
            self.error.observe(ratio * unscaled, before, self.predict(tokens, bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(start: u64, end: u64) -> TokenRange {
        TokenRange { start, end }
    }

    #[test]
    fn prefill_is_superlinear_and_additive_but_for_the_request_term() {
        let model = RecomputeModel::from_flops(7.2e9, 32, 4096, 6e13);
        let (whole, first, second) =
            (model.predict(range(0, 8192)), model.predict(range(0, 4096)), model.predict(range(4096, 8192)));
        assert!(whole > first * 2 - Duration::from_millis(3));
        assert!(second > first);
        let split = (first + second).as_secs_f64();
        assert!((split - whole.as_secs_f64() - 2e-3).abs() < 1e-6);
    }

    #[test]
    fn the_fit_converges_to_a_device_three_times_slower() {
        let mut model = RecomputeModel::from_seconds(2e-3, 1e-5, 1e-10);
        let truth = RecomputeModel::from_seconds(6e-3, 3e-5, 5e-10);
        for i in 0..200u64 {
            let (start, n) = (i * 37 % 9000, 64 + i * 113 % 4000);
            model.observe(range(start, start + n), truth.predict(range(start, start + n)));
        }
        for tokens in [range(0, 500), range(3000, 4536), range(8000, 9000)] {
            let (a, b) = (model.predict(tokens).as_secs_f64(), truth.predict(tokens).as_secs_f64());
            assert!((a / b - 1.0).abs() < 0.05, "{tokens:?}: {a} against {b}");
        }
    }

    #[test]
    fn one_prefill_tells_how_fast_the_gpu_is() {
        for speed in [0.25, 0.5, 2.0] {
            let mut model = RecomputeModel::from_seconds(2e-3, 1e-4, 1e-9);
            let truth = model.clone().with_gpu_speed(speed);
            model.observe(range(0, 1536), truth.predict(range(0, 1536)));
            let next = range(1536, 3072);
            let ratio = model.predict(next).as_secs_f64() / truth.predict(next).as_secs_f64();
            assert!((0.75..1.3).contains(&ratio), "{speed}: {ratio}");
        }
    }

    #[test]
    fn caution_follows_the_spread_of_the_errors() {
        let mut model = RecomputeModel::from_seconds(2e-3, 1e-4, 1e-9);
        let tokens = range(0, 1536);
        let unknown = model.caution(tokens);
        assert!((1.5..2.5).contains(&unknown), "{unknown}");
        let even = model.predict(tokens);
        (0..20).for_each(|_| model.observe(tokens, even));
        assert!((1.0..1.1).contains(&model.caution(tokens)), "{}", model.caution(tokens));
        for i in 0..20 {
            model.observe(tokens, if i % 2 == 0 { even * 3 } else { even });
        }
        assert!(model.caution(tokens) > unknown, "{}", model.caution(tokens));
        assert_eq!(model.caution(range(0, 9)), model.caution(tokens), "of short ones nothing else is known");
    }

    proptest! {
        /// An engine takes 30 % longer for prefills of one length, which no term of the model expresses.
        /// Plans keep free what those take, and nothing beyond the prediction for the others.
        #[test]
        fn errors_at_one_length_make_no_plan_cautious_at_the_other(
            slow_long: bool, lengths in prop::collection::vec((16..LONG_TOKENS, LONG_TOKENS..8192), 40..80),
        ) {
            let mut model = RecomputeModel::from_seconds(0.0, 1e-4, 0.0);
            let even = model.clone();
            let truth = |n: u64| {
                let slow = (n >= LONG_TOKENS) == slow_long;
                even.predict(range(0, n)).mul_f64(if slow { 1.3 } else { 1.0 })
            };
            for n in lengths.iter().flat_map(|&(short, long)| [short, long]) {
                model.observe(range(0, n), truth(n));
            }
            for (short, long) in lengths {
                let (slow, other) = if slow_long { (long, short) } else { (short, long) };
                let caution = |n: u64| model.caution(range(0, n));
                prop_assert!(caution(other) < 1.02, "{other} tokens: {}", caution(other));
                let kept = model.predict(range(0, slow)).mul_f64(caution(slow));
                let kept = kept.as_secs_f64() / truth(slow).as_secs_f64();
                prop_assert!((0.99..1.1).contains(&kept), "{slow} tokens: {kept}");
            }
        }
    }

    #[test]
    fn decodes_have_their_own_errors() {
        let mut model = DecodeModel::from_seconds(1e-5, 0.0);
        let (tokens, unknown) = (1536, model.caution());
        let even = model.predict(tokens, 0);
        (0..20).for_each(|_| model.observe(tokens, 0, even));
        assert!((1.0..1.1).contains(&model.caution()), "{}", model.caution());
        let mut assumed = model.clone().assumed(0.1);
        assumed.observe(tokens, 0, even);
        assert!(assumed.caution() < 6.0, "ten times what was only assumed: {}", assumed.caution());
        for i in 0..20 {
            model.observe(tokens, 0, if i % 2 == 0 { even * 3 } else { even });
        }
        assert!(model.caution() > unknown, "{}", model.caution());
        // One that takes four times as long shows at once: plans keep that much free for the next one.
        let mut slow = DecodeModel::from_seconds(1e-5, 0.0);
        slow.observe(tokens, 0, even * 4);
        assert!(slow.predict(tokens, 0).mul_f64(slow.caution()) > even * 4);
        slow.observe(tokens, 0, Duration::ZERO);
        assert!(slow.caution().is_finite());
    }

    #[test]
    fn absurd_observations_leave_finite_predictions() {
        let mut model = RecomputeModel::from_seconds(0.0, 0.0, 0.0);
        for took in [Duration::from_nanos(1), Duration::from_secs(1 << 40), Duration::ZERO, Duration::MAX] {
            for _ in 0..50 {
                model.observe(range(0, 1 << 20), took);
                model.observe(range(5, 6), took);
            }
            assert!(model.predict(range(0, 1 << 20)) <= Duration::from_secs(86_400));
        }
    }
}
