//! How a load is to be done.

use std::time::Duration;

use crate::fetcher::{ByteRate, DecodeModel, EstimatorKind, Policy, Progressive, RecomputeModel, TextMode};

/// How a load is to be done. [`KvClient::options`](crate::KvClient::options) fills it with what earlier loads taught.
#[derive(Debug)]
pub struct LoadOptions {
    /// Time to first token that is asked for, from now on.
    pub slo: Duration,
    /// Time the engine needs after the load (prefill of the suffix).
    pub suffix_time: Duration,
    /// Which levels to read when.
    pub policy: Box<dyn Policy>,
    /// Throughput estimator.
    pub estimator: EstimatorKind,
    /// Throughput of an earlier load ([`LoadReport::rate`](crate::LoadReport::rate)).
    pub prior_rate: Option<ByteRate>,
    /// What computing from text costs on this engine.
    pub recompute: RecomputeModel,
    /// What decoding costs here.
    pub decode: DecodeModel,
    /// Predicted loss of each level, coarsest first; the profile's predicted KL when absent, a factor of three a
    /// level when that is not known either.
    pub level_loss: Option<Vec<f64>>,
    /// Whether the engine computes text ranges while the load goes on (and says so with
    /// [`Load::computed`](crate::Load::computed)) or after it.
    pub text: TextMode,
    /// Blocks whose predicted KL, with what lies beneath them, is above this many nats a token are flagged.
    pub kl_bound: Option<f64>,
}

impl LoadOptions {
    /// [`Progressive`] within `slo`, with the harmonic mean of 20 samples.
    pub fn new(slo: Duration, recompute: RecomputeModel) -> Self {
        Self {
            slo,
            suffix_time: Duration::ZERO,
            policy: Box::new(Progressive::new()),
            estimator: EstimatorKind::Harmonic,
            prior_rate: None,
            recompute,
            decode: DecodeModel::from_seconds(5e-6, 1e-8),
            level_loss: None,
            text: TextMode::Deferred,
            kl_bound: None,
        }
    }
}
