//! Weights in Hugging Face's Llama names, converted once to the compute type.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};

use super::LlamaConfig;
use crate::error::EngineError;

/// One decoder layer. Matrices are `[out, in]` as stored.
#[derive(Debug)]
pub(super) struct LayerWeights {
    pub(super) attention_norm: Tensor,
    pub(super) q: Tensor,
    pub(super) k: Tensor,
    pub(super) v: Tensor,
    pub(super) o: Tensor,
    pub(super) mlp_norm: Tensor,
    pub(super) gate: Tensor,
    pub(super) up: Tensor,
    pub(super) down: Tensor,
}

/// All weights, f32.
#[derive(Debug)]
pub(super) struct Weights {
    /// `[vocab, hidden]`.
    pub(super) embedding: Tensor,
    pub(super) layers: Vec<LayerWeights>,
    pub(super) norm: Tensor,
    /// `[vocab, hidden]`; the embedding itself when tied.
    pub(super) head: Tensor,
}

impl Weights {
    /// Takes the named tensors out of a safetensors file, checking every shape against `config`.
    pub(super) fn from_safetensors(bytes: &[u8], config: &LlamaConfig) -> Result<Self, EngineError> {
        let mut source = Source { tensors: candle_core::safetensors::load_buffer(bytes, &Device::Cpu)? };
        let hidden = config.hidden;
        let embedding = source.take("model.embed_tokens.weight", &[config.vocab, hidden])?;
        let layers = (0..config.layers).map(|i| layer(&mut source, i, config)).collect::<Result<_, _>>()?;
        let norm = source.take("model.norm.weight", &[hidden])?;
        let head = if config.tied {
            embedding.clone()
        } else {
            source.take("lm_head.weight", &[config.vocab, hidden])?
        };
        Ok(Self { embedding, layers, norm, head })
    }
}

fn layer(source: &mut Source, index: usize, config: &LlamaConfig) -> Result<LayerWeights, EngineError> {
    let (hidden, mlp) = (config.hidden, config.intermediate);
    let (queries, keys) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
    let mut take =
        |name: &str, shape: &[usize]| source.take(&format!("model.layers.{index}.{name}.weight"), shape);
    Ok(LayerWeights {
        attention_norm: take("input_layernorm", &[hidden])?,
        q: take("self_attn.q_proj", &[queries, hidden])?,
        k: take("self_attn.k_proj", &[keys, hidden])?,
        v: take("self_attn.v_proj", &[keys, hidden])?,
        o: take("self_attn.o_proj", &[hidden, queries])?,
        mlp_norm: take("post_attention_layernorm", &[hidden])?,
        gate: take("mlp.gate_proj", &[mlp, hidden])?,
        up: take("mlp.up_proj", &[mlp, hidden])?,
        down: take("mlp.down_proj", &[hidden, mlp])?,
    })
}

struct Source {
    tensors: HashMap<String, Tensor>,
}

impl Source {
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, EngineError> {
        let tensor = self.tensors.remove(name);
        match tensor {
            Some(tensor) if tensor.dims() == shape => Ok(tensor.to_dtype(DType::F32)?),
            other => Err(EngineError::Weight {
                name: name.to_owned(),
                expected: shape.to_vec(),
                found: other.map(|t| t.dims().to_vec()),
            }),
        }
    }
}
