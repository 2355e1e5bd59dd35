//! One step of the decoder: RMSNorm, grouped-query attention over pages, SwiGLU.

use candle_core::{D, Device, Tensor};
use candle_nn::ops::{rms_norm, silu, softmax_last_dim};
use kvasir_types::Plane;

use super::{Model, observe::Observer, weights::LayerWeights};
use crate::{error::EngineError, paged::PagedKv};

impl Model {
    /// Appends `tokens` to the cache and returns the last layer's normalised output, `[tokens, hidden]`.
    pub(super) fn forward(
        &self,
        kv: &mut PagedKv,
        tokens: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<Tensor, EngineError> {
        let (first, end) = (kv.len(), kv.len() + tokens.len());
        self.check(tokens, end)?;
        kv.reserve(end)?;
        let ids = Tensor::new(tokens, &Device::Cpu)?;
        let mut x = self.weights.embedding.index_select(&ids, 0)?;
        for (index, layer) in self.weights.layers.iter().enumerate() {
            let normed = rms_norm(&x, &layer.attention_norm, self.config.norm_eps as f32)?;
            let attention = self.attention(kv, (index, layer), &normed, first, observer)?;
            let after = (&x + attention)?;
            observer.residual(index, &x, &after)?;
            let normed = rms_norm(&after, &layer.mlp_norm, self.config.norm_eps as f32)?;
            let gated = (silu(&linear(&normed, &layer.gate)?)? * linear(&normed, &layer.up)?)?;
            x = (after + linear(&gated, &layer.down)?)?;
        }
        kv.commit(end)?;
        Ok(rms_norm(&x, &self.weights.norm, self.config.norm_eps as f32)?)
    }

    /// Logits `[token][vocab]` of the forward pass's output.
    pub(super) fn project(&self, hidden: &Tensor) -> Result<Vec<f32>, EngineError> {
        Ok(linear(hidden, &self.weights.head)?.flatten_all()?.to_vec1()?)
    }

    fn check(&self, tokens: &[u32], end: usize) -> Result<(), EngineError> {
        let (vocab, context) = (self.config.vocab, self.config.context);
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocab) {
            return Err(EngineError::Token { token, vocab });
        }
        if end > context {
            return Err(EngineError::ContextLength { tokens: end, context });
        }
        Ok(())
    }

    /// Self-attention of the step's tokens over everything cached, themselves included.
    fn attention(
        &self,
        kv: &mut PagedKv,
        (index, layer): (usize, &LayerWeights),
        x: &Tensor,
        first: usize,
        observer: &mut dyn Observer,
    ) -> Result<Tensor, EngineError> {
        let (tokens, _) = x.dims2()?;
        let (heads, kv_heads, dim) = (self.config.heads, self.config.kv_heads, self.config.head_dim);
        let groups = heads / kv_heads;
        let split = |x: Tensor, heads: usize| x.reshape((tokens, heads, dim));
        let q = self.rotary.rotate(&split(linear(x, &layer.q)?, heads)?, first)?;
        let k = self.rotary.rotate(&split(linear(x, &layer.k)?, kv_heads)?, first)?;
        let v = linear(x, &layer.v)?;
        kv.write_layer(index, first, &k.flatten_all()?.to_vec1()?, &v.flatten_all()?.to_vec1()?);

        let cached = first + tokens;
        let read =
            |plane| Tensor::from_vec(kv.gather(index, plane, cached), (kv_heads, cached, dim), x.device());
        let (keys, values) = (read(Plane::K)?, read(Plane::V)?);
        // [tokens, heads, dim] → [kv_heads, groups × tokens, dim]: query heads of a group share their KV head.
        let q = q.reshape((tokens, kv_heads, groups, dim))?.permute((1, 2, 0, 3))?;
        let q = (q.contiguous()?.reshape((kv_heads, groups * tokens, dim))? * (dim as f64).powf(-0.5))?;
        let mut scores = q.matmul(&keys.t()?)?;
        if tokens > 1 {
            let mask = causal_mask(tokens, first, x.device())?;
            scores = scores.reshape((kv_heads * groups, tokens, cached))?.broadcast_add(&mask)?;
            scores = scores.reshape((kv_heads, groups * tokens, cached))?;
        }
        if let Some(bias) = observer.bias(index, cached) {
            scores = scores.broadcast_add(&Tensor::from_vec(bias, (kv_heads, 1, cached), x.device())?)?;
        }
        let probabilities = softmax_last_dim(&scores)?;
        observer.attention(index, first, &probabilities)?;
        let out = probabilities.matmul(&values)?.reshape((kv_heads, groups, tokens, dim))?;
        linear(&out.permute((2, 0, 1, 3))?.contiguous()?.reshape((tokens, heads * dim))?, &layer.o)
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
