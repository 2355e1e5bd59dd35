//! One step of the decoder over any number of sequences: RMSNorm, grouped-query attention over pages, SwiGLU.
//!
//! Everything but attention runs over the tokens of all sequences at once (continuous batching): a decode step
//! of eight sequences reads the weights once, not eight times.

use candle_core::{D, Device, Tensor};
use candle_nn::ops::{rms_norm, silu, softmax_last_dim};
use kvasir_types::Plane;

use super::{Model, observe::Observer, weights::LayerWeights};
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
    /// Appends `tokens` to the cache and returns the last layer's normalised output, `[tokens, hidden]`.
    pub(super) fn forward(
        &self,
        kv: &mut PagedKv,
        tokens: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<Tensor, EngineError> {
        self.forward_batch(&mut [StepItem { kv, tokens }], observer)
    }

    /// Appends every item's tokens to its cache and returns the normalised output of all of them, in order,
    /// `[tokens of all items, hidden]`. Nothing is committed to any cache on an error.
    pub(super) fn forward_batch(
        &self,
        items: &mut [StepItem<'_>],
        observer: &mut dyn Observer,
    ) -> Result<Tensor, EngineError> {
        for item in items.iter_mut() {
            let end = item.kv.len() + item.tokens.len();
            self.check(item.tokens, end)?;
            item.kv.reserve(end)?;
        }
        let eps = self.config.norm_eps as f32;
        let ids: Vec<u32> = items.iter().flat_map(|item| item.tokens).copied().collect();
        let mut x = self.weights.embedding.index_select(&Tensor::new(ids, &Device::Cpu)?, 0)?;
        for (index, layer) in self.weights.layers.iter().enumerate() {
            observer.enter(index)?;
            let normed = rms_norm(&x, &layer.attention_norm, eps)?;
            let attention = self.attend(items, (index, layer), &normed, observer)?;
            let after = (&x + attention)?;
            observer.residual(index, &x, &after)?;
            let normed = rms_norm(&after, &layer.mlp_norm, eps)?;
            let gated = (silu(&linear(&normed, &layer.gate)?)? * linear(&normed, &layer.up)?)?;
            x = (after + linear(&gated, &layer.down)?)?;
        }
        for item in items.iter_mut() {
            item.kv.commit(item.kv.len() + item.tokens.len())?;
        }
        Ok(rms_norm(&x, &self.weights.norm, eps)?)
    }

    /// Logits `[token][vocab]` of the forward pass's output.
    pub(super) fn project(&self, hidden: &Tensor) -> Result<Vec<f32>, EngineError> {
        Ok(linear(hidden, &self.weights.head)?.flatten_all()?.to_vec1()?)
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

    /// Self-attention of one layer: projections over all items at once, attention item by item.
    fn attend(
        &self,
        items: &mut [StepItem<'_>],
        (index, layer): (usize, &LayerWeights),
        x: &Tensor,
        observer: &mut dyn Observer,
    ) -> Result<Tensor, EngineError> {
        let (heads, kv_heads, dim) = (self.config.heads, self.config.kv_heads, self.config.head_dim);
        let (q, k, v) = (linear(x, &layer.q)?, linear(x, &layer.k)?, linear(x, &layer.v)?);
        let mut outputs = Vec::with_capacity(items.len());
        let mut row = 0;
        for item in items.iter_mut() {
            let (first, tokens) = (item.kv.len(), item.tokens.len());
            let part = |x: &Tensor, heads: usize| x.narrow(0, row, tokens)?.reshape((tokens, heads, dim));
            let q = self.rotary.rotate(&part(&q, heads)?, first)?;
            let k = self.rotary.rotate(&part(&k, kv_heads)?, first)?;
            let v = part(&v, kv_heads)?;
            item.kv.write_layer(index, first, &k.flatten_all()?.to_vec1()?, &v.flatten_all()?.to_vec1()?);
            outputs.push(self.attention(item.kv, index, &q, observer)?);
            row += tokens;
        }
        linear(&Tensor::cat(&outputs, 0)?, &layer.o)
    }

    /// Attention of rotated queries `[tokens, heads, dim]` over everything cached, their own tokens included;
    /// answers `[tokens, heads × dim]`.
    fn attention(
        &self,
        kv: &PagedKv,
        layer: usize,
        q: &Tensor,
        observer: &mut dyn Observer,
    ) -> Result<Tensor, EngineError> {
        let (tokens, heads, dim) = q.dims3()?;
        let (kv_heads, groups) = (self.config.kv_heads, heads / self.config.kv_heads);
        let (first, cached) = (kv.len(), kv.len() + tokens);
        let read =
            |plane| Tensor::from_vec(kv.gather(layer, plane, cached), (kv_heads, cached, dim), q.device());
        let (keys, values) = (read(Plane::K)?, read(Plane::V)?);
        // [tokens, heads, dim] → [kv_heads, groups × tokens, dim]: query heads of a group share their KV head.
        let q = q.reshape((tokens, kv_heads, groups, dim))?.permute((1, 2, 0, 3))?;
        let q = (q.contiguous()?.reshape((kv_heads, groups * tokens, dim))? * (dim as f64).powf(-0.5))?;
        observer.queries(layer, &q)?;
        let mut scores = q.matmul(&keys.t()?)?;
        if tokens > 1 {
            let mask = causal_mask(tokens, first, q.device())?;
            scores = scores.reshape((heads, tokens, cached))?.broadcast_add(&mask)?;
            scores = scores.reshape((kv_heads, groups * tokens, cached))?;
        }
        if let Some(bias) = observer.bias(layer, cached) {
            scores = scores.broadcast_add(&Tensor::from_vec(bias, (kv_heads, 1, cached), q.device())?)?;
        }
        let probabilities = softmax_last_dim(&scores)?;
        observer.attention(layer, first, &probabilities)?;
        let out = probabilities.matmul(&values)?.reshape((kv_heads, groups, tokens, dim))?;
        Ok(out.permute((2, 0, 1, 3))?.contiguous()?.reshape((tokens, heads * dim))?)
    }
}

/// `x · weightᵀ`, the weight as stored, `[out, in]`.
fn linear(x: &Tensor, weight: &Tensor) -> Result<Tensor, EngineError> {
    Ok(x.matmul(&weight.transpose(D::Minus2, D::Minus1)?)?)
}

/// `[tokens, first + tokens]`: token `i` of the step sees the cached tokens and the step's up to itself.
fn causal_mask(tokens: usize, first: usize, device: &Device) -> Result<Tensor, EngineError> {
    let cached = first + tokens;
    let row = |i: usize| (0..cached).map(move |j| if j <= first + i { 0.0f32 } else { f32::NEG_INFINITY });
    Ok(Tensor::from_vec((0..tokens).flat_map(row).collect(), (tokens, cached), device)?)
}
