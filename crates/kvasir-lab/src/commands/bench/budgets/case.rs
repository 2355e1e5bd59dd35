//! Contexts whose prefix was prefilled and observed once, and sums over them.

use std::collections::BTreeSet;

use crate::budget::{
    FastGen, H2o, Keep, PrefixStatistics, Scissorhands, SlidingWindow, StreamingLlm, Thinned, TokenPolicy,
    squeeze,
};
use kvasir_engine::{
    EngineError, Logits, Model, PagedKv,
    quality::{Estimate, Samples},
};
use serde::Serialize;

/// Last queries that Scissorhands remembers, and FastGen's reach of local attention.
pub(super) const HISTORY: usize = 128;
/// SqueezeAttention's p if it is not swept: the paper's best.
pub(super) const SQUEEZE_P: f64 = 0.35;

/// A window.
pub(super) struct Case<'a> {
    pub(super) prefix: &'a [u32],
    pub(super) suffix: &'a [u32],
    pub(super) kv: PagedKv,
    pub(super) statistics: PrefixStatistics,
    pub(super) exact: Logits,
}

impl<'a> Case<'a> {
    pub(super) fn new(model: &Model, window: &'a [u32], prefix: usize) -> Result<Self, EngineError> {
        let (prefix, suffix) = window.split_at(prefix);
        let mut kv = model.new_kv()?;
        let statistics = PrefixStatistics::gather(model, &mut kv, prefix, HISTORY)?;
        let exact = model.logits(&mut kv.fork(prefix.len())?, suffix)?;
        Ok(Self { prefix, suffix, kv, statistics, exact })
    }

    /// The tokens that a policy keeps at a mean budget of `share`, squeezed by `p` if given.
    pub(super) fn keep(&self, policy: &dyn TokenPolicy, share: f64, p: Option<f64>) -> Keep {
        let budget = (self.prefix.len() as f64 * share).round() as usize;
        let budgets = match p {
            Some(p) => squeeze(&self.statistics.similarities(), budget, p),
            None => vec![budget; self.statistics.layers()],
        };
        Keep::choose(&self.statistics, policy, &budgets)
    }

    /// The suffix's logits over a cache of the prefix, of which only the tokens in `keep` are visible. The
    /// cache is not changed.
    pub(super) fn logits(
        &self,
        model: &Model,
        kv: &PagedKv,
        keep: Option<&Keep>,
    ) -> Result<Logits, EngineError> {
        let mut fork = kv.fork(kv.len())?;
        match keep {
            Some(keep) => model.logits_observed(&mut fork, self.suffix, &mut Thinned(keep)),
            None => model.logits(&mut fork, self.suffix),
        }
    }
}

/// The policies, with the papers' parameters.
pub(super) fn policies(model: &Model) -> Result<Vec<Box<dyn TokenPolicy>>, EngineError> {
    let mut punctuation = BTreeSet::new();
    for mark in [".", ",", ";", ":", "!", "?", "\"", "'", "(", ")", "\n"] {
        punctuation.extend(model.tokenizer().encode(mark)?);
    }
    Ok(vec![
        Box::new(SlidingWindow),
        Box::new(StreamingLlm { sinks: 4 }),
        Box::new(H2o { recent_share: 0.5 }),
        Box::new(Scissorhands { recent_share: 0.5 }),
        Box::new(FastGen { recovery: 0.95, ratio: 0.3, sinks: 4, punctuation }),
    ])
}

/// One setting over all windows. Intervals are over windows: positions of one window are not independent.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct BudgetRow {
    /// `none`, a policy, `text_dropping`.
    pub(super) method: String,
    /// `fp16`, `8-bit`, `level N`.
    pub(super) coding: String,
    /// Share of tokens requested.
    pub(super) budget: f64,
    /// SqueezeAttention's p, if used.
    pub(super) squeeze_p: Option<f64>,
    /// Share of (head, token) pairs that is kept.
    pub(super) kept: f64,
    /// Mean bytes of a context, positions and objects' heads included.
    pub(super) bytes: f64,
    /// Logit KL against the whole exact cache, nats per token.
    pub(super) kl: Estimate,
    /// Rise of the cross entropy, nats per token.
    pub(super) nats_rise: Estimate,
    /// Share of positions with the same most likely token.
    pub(super) top1: Estimate,
    /// Perplexity of the suffixes over the exact caches.
    pub(super) perplexity_exact: f64,
    /// Over these.
    pub(super) perplexity: f64,
    /// Windows.
    pub(super) windows: usize,
}

/// Sums for a row.
#[derive(Debug, Default)]
pub(super) struct Tally {
    kl: Vec<f64>,
    rise: Vec<f64>,
    top1: Vec<f64>,
    nats_exact: Vec<f64>,
    nats: Vec<f64>,
    kept: f64,
    bytes: f64,
}

impl Tally {
    pub(super) fn add(&mut self, case: &Case<'_>, lossy: &Logits, kept: f64, bytes: f64) {
        let mut samples = Samples::default();
        samples.add(&case.exact, lossy, case.suffix);
        let quality = samples.summary();
        self.kl.push(quality.kl.mean);
        self.rise.push(quality.nats_rise.mean);
        self.top1.push(quality.top1_agreement.mean);
        self.nats_exact.push(quality.perplexity_exact.ln());
        self.nats.push(quality.perplexity_lossy.ln());
        self.kept += kept;
        self.bytes += bytes;
    }

    pub(super) fn row(&self, method: &str, coding: &str, budget: f64, squeeze_p: Option<f64>) -> BudgetRow {
        let n = self.kl.len() as f64;
        let perplexity = |nats: &[f64]| (nats.iter().sum::<f64>() / n).exp();
        BudgetRow {
            method: method.to_owned(),
            coding: coding.to_owned(),
            budget,
            squeeze_p,
            kept: self.kept / n,
            bytes: self.bytes / n,
            kl: Estimate::of_mean(&self.kl),
            nats_rise: Estimate::of_mean(&self.rise),
            top1: Estimate::of_mean(&self.top1),
            perplexity_exact: perplexity(&self.nats_exact),
            perplexity: perplexity(&self.nats),
            windows: self.kl.len(),
        }
    }
}
