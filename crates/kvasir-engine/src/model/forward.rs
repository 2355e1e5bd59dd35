//! One step of the decoder over any number of sequences: RMSNorm, grouped-query attention over pages, SwiGLU.
//!
//! Everything but attention runs over the tokens of all sequences at once (continuous batching): a decode step
//! of eight sequences reads the weights once, not eight times.

use faer::{MatRef, Par};
use rayon::prelude::*;

use super::{
    Model,
    matrix::{Matrix, product, softmax},
    observe::Observer,
    weights::LayerWeights,
};
use crate::{error::EngineError, paged::PagedKv};

/// One sequence's part of a step: `tokens` are appended to `kv`.
#[derive(Debug)]
pub struct StepItem<'a> {
    /// The sequence's cache.
    pub kv: &'a mut PagedKv,
    /// Its next tokens, at least one.
    pub tokens: &'a [u32],
}

impl Model {
    /// Appends `tokens` to the cache and returns the last layer's normalised output, `[token][hidden]`.
    pub(super) fn forward(
        &self,
        kv: &mut PagedKv,
        tokens: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<Matrix, EngineError> {
        self.forward_batch(&mut [StepItem { kv, tokens }], observer)
    }

    /// Appends every item's tokens to its cache and returns the normalised output of all of them, in order,
    /// `[token of all items][hidden]`. Nothing is committed to any cache on an error.
    pub(super) fn forward_batch(
        &self,
        items: &mut [StepItem<'_>],
        observer: &mut dyn Observer,
    ) -> Result<Matrix, EngineError> {
        for item in items.iter_mut() {
            let end = item.kv.len() + item.tokens.len();
            self.check(item.tokens, end)?;
            item.kv.reserve(end)?;
        }
        let eps = self.config.norm_eps as f32;
        let ids = items.iter().flat_map(|item| item.tokens).map(|&token| token as usize);
        let mut x = self.weights.embedding.select(ids);
        for (index, layer) in self.weights.layers.iter().enumerate() {
            observer.enter(index)?;
            let mut after =
                self.attend(items, (index, layer), &x.rms_norm(&layer.attention_norm, eps), observer)?;
            after.add(&x);
            observer.residual(index, x.values(), after.values());
            let normed = after.rms_norm(&layer.mlp_norm, eps);
            let gated = normed.linear(&layer.gate).gate(&normed.linear(&layer.up));
            after.add(&gated.linear(&layer.down));
            x = after;
        }
        for item in items.iter_mut() {
            item.kv.commit(item.kv.len() + item.tokens.len())?;
        }
        Ok(x.rms_norm(&self.weights.norm, eps))
    }

    fn check(&self, tokens: &[u32], end: usize) -> Result<(), EngineError> {
        let (vocab, context) = (self.config.vocab, self.config.context);
        if tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocab) {
            return Err(EngineError::Token { token, vocab });
        }
        if end > context {
            return Err(EngineError::ContextLength { tokens: end, context });
        }
        Ok(())
    }

    /// Self-attention of one layer: projections over all items at once, attention per item.
    fn attend(
        &self,
        items: &mut [StepItem<'_>],
        (index, layer): (usize, &LayerWeights),
        x: &Matrix,
        observer: &mut dyn Observer,
    ) -> Result<Matrix, EngineError> {
        let (heads, kv_heads) = (self.config.heads, self.config.kv_heads);
        let (q, k, v) = (x.linear(&layer.q), x.linear(&layer.k), x.linear(&layer.v));
        let mut outputs = Vec::with_capacity(q.values().len());
        let mut row = 0;
        for item in items.iter_mut() {
            let (first, rows) = (item.kv.len(), row..row + item.tokens.len());
            let (mut q, mut k) = (q.rows(rows.clone()).to_vec(), k.rows(rows.clone()).to_vec());
            self.rotary.rotate(&mut q, heads, first);
            self.rotary.rotate(&mut k, kv_heads, first);
            item.kv.write_layer(index, first, &k, v.rows(rows.clone()))?;
            outputs.extend(self.attention(item.kv, index, &q, observer)?);
            row = rows.end;
        }
        Ok(Matrix::new(heads * self.config.head_dim, outputs).linear(&layer.o))
    }

    /// Attention of rotated queries `[token][head][element]` over everything cached, their own tokens included;
    /// answers `[token][head][element]`.
    fn attention(
        &self,
        kv: &PagedKv,
        layer: usize,
        q: &[f32],
        observer: &mut dyn Observer,
    ) -> Result<Vec<f32>, EngineError> {
        let (heads, kv_heads, dim) = (self.config.heads, self.config.kv_heads, self.config.head_dim);
        let (tokens, groups) = (q.len() / (heads * dim), heads / kv_heads);
        let (first, cached) = (kv.len(), kv.len() + tokens);
        let [keys, values] = kv.gather(layer, cached)?;
        // Query heads of a group share their KV head, so they are stored together: [kv head][head of the
        // group][token].
        let scale = (dim as f32).sqrt().recip();
        let of_head =
            |head: usize| (0..tokens).flat_map(move |token| &q[(token * heads + head) * dim..][..dim]);
        let queries: Vec<f32> = (0..heads).flat_map(of_head).map(|value| value * scale).collect();
        let bias = observer.bias(layer, cached);
        let mut probabilities = vec![0.0; heads * tokens * cached];
        let mut out = vec![0.0; queries.len()];
        let of_group = (groups * tokens * dim, groups * tokens * cached, cached * dim);
        let parts = queries.par_chunks_exact(of_group.0).zip(out.par_chunks_exact_mut(of_group.0));
        let parts = parts.zip(probabilities.par_chunks_exact_mut(of_group.1));
        let cached_parts = keys.par_chunks_exact(of_group.2).zip(values.par_chunks_exact(of_group.2));
        parts.zip(cached_parts).enumerate().for_each(|(head, (((q, out), scores), (keys, values)))| {
            let rows = |rows| MatRef::from_row_major_slice(rows, cached, dim);
            product(scores, q, rows(keys).transpose(), Par::Seq);
            let bias = bias.as_ref().map(|bias| &bias[head * cached..][..cached]);
            for (row, scores) in scores.chunks_exact_mut(cached).enumerate() {
                // A token of the step sees the cached ones and the step's up to itself.
                let (seen, unseen) = scores.split_at_mut(first + row % tokens + 1);
                if let Some(bias) = bias {
                    seen.iter_mut().zip(bias).for_each(|(score, bias)| *score += bias);
                }
                softmax(seen);
                unseen.fill(0.0);
            }
            product(out, scores, rows(values), Par::Seq);
        });
        observer.attention(layer, first, cached, &probabilities);

        let of_token = |token: usize| (0..heads).map(move |head| (head * tokens + token) * dim);
        Ok((0..tokens).flat_map(of_token).flat_map(|at| &out[at..at + dim]).copied().collect())
    }
}
