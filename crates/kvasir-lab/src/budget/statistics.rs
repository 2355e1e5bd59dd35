//! Statistics of a prefill over its own cache: one pass, bounded memory.

use super::HeadView;
use kvasir_engine::{EngineError, Model, Observer, PagedKv};

/// Attention received by every token and similarity across every layer, over one prefill.
#[derive(Debug, Clone)]
pub struct PrefixStatistics {
    token_ids: Vec<u32>,
    heads: usize,
    /// Width of the residual stream.
    hidden: usize,
    /// Queries closer than this count as local ([`HeadView::distant`]) and as history ([`HeadView::unimportant`]).
    window: usize,
    layers: Vec<Layer>,
}

#[derive(Debug, Clone)]
struct Layer {
    /// `[head][token]` each.
    received: Vec<f32>,
    distant: Vec<f32>,
    unimportant: Vec<f32>,
    /// Sum over tokens of the cosine between the residual stream before and after self-attention.
    similarity: f64,
}

impl PrefixStatistics {
    /// Prefills `tokens` into the empty cache `kv` and gathers statistics on the way. `window` is the number of
    /// last queries that Scissorhands remembers, and FastGen's reach of local attention.
    ///
    /// # Errors
    /// As [`Model::extend_kv`].
    pub fn gather(
        model: &Model,
        kv: &mut PagedKv,
        tokens: &[u32],
        window: usize,
    ) -> Result<Self, EngineError> {
        let heads = model.config().kv_heads;
        let zeros = || vec![0.0; heads * tokens.len()];
        let layer = || Layer { received: zeros(), distant: zeros(), unimportant: zeros(), similarity: 0.0 };
        let layers = (0..model.config().layers).map(|_| layer()).collect();
        let hidden = model.config().hidden;
        let mut statistics = Self { token_ids: tokens.to_vec(), heads, hidden, window, layers };
        model.extend_observed(kv, tokens, &mut statistics)?;
        Ok(statistics)
    }

    /// Tokens of the prefix.
    pub fn tokens(&self) -> usize {
        self.token_ids.len()
    }

    /// Layers of the model.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// KV heads per layer.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// Mean cosine similarity of the residual stream before and after each layer's self-attention
    /// (SqueezeAttention §3: high = the layer's attention changes little = unimportant).
    pub fn similarities(&self) -> Vec<f64> {
        self.layers.iter().map(|layer| layer.similarity / self.tokens().max(1) as f64).collect()
    }

    /// One head's statistics.
    pub fn head(&self, layer: usize, head: usize) -> HeadView<'_> {
        let range = head * self.tokens()..(head + 1) * self.tokens();
        let layer = &self.layers[layer];
        HeadView {
            token_ids: &self.token_ids,
            received: &layer.received[range.clone()],
            distant: &layer.distant[range.clone()],
            unimportant: &layer.unimportant[range],
        }
    }
}

impl Observer for PrefixStatistics {
    fn attention(&mut self, layer: usize, first: usize, cached: usize, probabilities: &[f32]) {
        let rows = probabilities.len() / (self.heads * cached);
        let (total, window) = (self.token_ids.len(), self.window);
        let queries = cached - first;
        let layer = &mut self.layers[layer];
        for (index, row) in probabilities.chunks_exact(cached).enumerate() {
            let (head, query) = (index / rows, first + index % rows % queries);
            let remembered = query + window >= total;
            for (token, &p) in row.iter().enumerate().take(query + 1) {
                let slot = head * total + token;
                layer.received[slot] += p;
                if token + window < query {
                    layer.distant[slot] += p;
                }
                if remembered && p < 1.0 / (query + 1) as f32 {
                    layer.unimportant[slot] += 1.0;
                }
            }
        }
    }

    fn residual(&mut self, layer: usize, before: &[f32], after: &[f32]) {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
        for (before, after) in before.chunks_exact(self.hidden).zip(after.chunks_exact(self.hidden)) {
            let norms = dot(before, before) * dot(after, after);
            self.layers[layer].similarity += dot(before, after) / norms.sqrt();
        }
    }
}
