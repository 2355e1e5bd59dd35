//! Token and layer budgets: which cached tokens each KV head of each layer keeps.
//!
//! A prefill is watched ([`PrefixStatistics`]), a [`TokenPolicy`] picks the tokens of every head under a budget,
//! [`squeeze()`] redistributes the budget over layers first if wanted, and the result ([`Keep`]) is applied by
//! hiding everything else from attention ([`Thinned`]), which is what dropping does. Keys keep the rotation of
//! their original positions. Tokens after the prefix are always kept.
//!
//! | policy | keeps | looks at attention |
//! |---|---|---|
//! | [`SlidingWindow`] | the last `b` | no |
//! | [`StreamingLlm`] (arXiv 2309.17453) | 4 sinks and the last `b − 4` | no |
//! | [`H2o`] (arXiv 2306.14048) | half recent, half with the largest accumulated attention | yes |
//! | [`Scissorhands`] (arXiv 2305.17118) | recent, and those least often unimportant within a history window | yes |
//! | [`FastGen`] (arXiv 2310.01801) | per head the cheapest of five sets that recovers enough attention | yes |
//!
//! What looks at attention has looked ahead: such a cache serves only the whole context it was made for
//! (`reuse: whole` in the model spec).

mod compress;
mod policy;
mod squeeze;
mod statistics;
mod stored;

use kvasir_types::{ModelSpec, Plane};

pub use compress::SurprisalCompressor;
pub use policy::{FastGen, H2o, HeadView, Scissorhands, SlidingWindow, StreamingLlm, TokenPolicy};
pub use squeeze::{layer_groups, squeeze};
pub use statistics::PrefixStatistics;
pub use stored::{ClassRows, ThinClass, ThinnedError, ThinnedStore};

use kvasir_engine::Observer;

/// The tokens that every KV head keeps of a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keep {
    tokens: usize,
    /// `[layer][head]`, ascending.
    kept: Vec<Vec<Vec<usize>>>,
}

impl Keep {
    /// Lets `policy` choose with a budget of tokens per layer.
    ///
    /// # Panics
    /// When there is not one budget a layer: a programmer error.
    pub fn choose(statistics: &PrefixStatistics, policy: &dyn TokenPolicy, budgets: &[usize]) -> Self {
        assert_eq!(budgets.len(), statistics.layers(), "one budget per layer");
        let kept = budgets.iter().enumerate().map(|(layer, &budget)| {
            let heads = 0..statistics.heads();
            heads
                .map(|head| policy.keep(&statistics.head(layer, head), budget.min(statistics.tokens())))
                .collect()
        });
        Self { tokens: statistics.tokens(), kept: kept.collect() }
    }

    /// The tokens of one head, ascending.
    pub fn head(&self, layer: usize, head: usize) -> &[usize] {
        &self.kept[layer][head]
    }

    /// Share of the cache's (head, token) pairs that is kept.
    pub fn share(&self) -> f64 {
        let (kept, heads) = self.kept.iter().flatten().fold((0, 0), |(k, h), head| (k + head.len(), h + 1));
        kept as f64 / (heads * self.tokens).max(1) as f64
    }

    /// Elements kept of a cache of `spec`.
    pub fn elements(&self, spec: &ModelSpec) -> usize {
        let per_head = |layer: usize, head: usize| -> usize {
            let planes = spec.layers[layer].layout.planes();
            Plane::ALL.iter().map(|&p| planes[p as usize].1 * self.head(layer, head).len()).sum()
        };
        (0..self.kept.len()).flat_map(|l| (0..self.kept[l].len()).map(move |h| per_head(l, h))).sum()
    }
}

/// Hides the tokens that a [`Keep`] dropped from attention.
#[derive(Debug, Clone, Copy)]
pub struct Thinned<'a>(pub &'a Keep);

impl Observer for Thinned<'_> {
    fn bias(&self, layer: usize, cached: usize) -> Option<Vec<f32>> {
        let heads = &self.0.kept[layer];
        let mut bias = vec![0.0; heads.len() * cached];
        for (row, kept) in bias.chunks_exact_mut(cached).zip(heads) {
            let prefix = self.0.tokens.min(cached);
            row[..prefix].fill(f32::NEG_INFINITY);
            kept.iter().filter(|&&token| token < prefix).for_each(|&token| row[token] = 0.0);
        }
        Some(bias)
    }
}

#[cfg(test)]
mod tests;
