//! Weights in Hugging Face's Llama names, converted once to `f32`.

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};

use super::{LlamaConfig, matrix::Matrix};
use crate::error::EngineError;

/// One decoder layer. Matrices are `[out, in]` as stored.
#[derive(Debug)]
pub(super) struct LayerWeights {
    pub(super) attention_norm: Vec<f32>,
    pub(super) q: Matrix,
    pub(super) k: Matrix,
    pub(super) v: Matrix,
    pub(super) o: Matrix,
    pub(super) mlp_norm: Vec<f32>,
    pub(super) gate: Matrix,
    pub(super) up: Matrix,
    pub(super) down: Matrix,
}

/// All weights.
#[derive(Debug)]
pub(super) struct Weights {
    /// `[vocab, hidden]`.
    pub(super) embedding: Matrix,
    pub(super) layers: Vec<LayerWeights>,
    pub(super) norm: Vec<f32>,
    /// `[vocab, hidden]`; none when it is the embedding.
    head: Option<Matrix>,
}

impl Weights {
    /// Takes the named tensors out of a safetensors file, checking every shape against `config`.
    pub(super) fn from_safetensors(bytes: &[u8], config: &LlamaConfig) -> Result<Self, EngineError> {
        let source = Source(SafeTensors::deserialize(bytes)?);
        let hidden = config.hidden;
        let vocabulary = |name| source.matrix(name, [config.vocab, hidden]);
        // One matrix with two names is stored under either.
        let embedding = vocabulary("model.embed_tokens").or_else(|missing| match config.tied {
            true => vocabulary("lm_head").map_err(|_| missing),
            false => Err(missing),
        })?;
        let layers = (0..config.layers).map(|i| layer(&source, i, config)).collect::<Result<_, _>>()?;
        let norm = source.values("model.norm", &[hidden])?;
        let head = (!config.tied).then(|| vocabulary("lm_head")).transpose()?;
        Ok(Self { embedding, layers, norm, head })
    }

    /// The output projection, `[vocab, hidden]`.
    pub(super) fn head(&self) -> &Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}

fn layer(source: &Source<'_>, index: usize, config: &LlamaConfig) -> Result<LayerWeights, EngineError> {
    let (hidden, mlp) = (config.hidden, config.intermediate);
    let (queries, keys) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
    let name = |name: &str| format!("model.layers.{index}.{name}");
    let matrix = |of: &str, rows: usize, columns: usize| source.matrix(&name(of), [rows, columns]);
    Ok(LayerWeights {
        attention_norm: source.values(&name("input_layernorm"), &[hidden])?,
        q: matrix("self_attn.q_proj", queries, hidden)?,
        k: matrix("self_attn.k_proj", keys, hidden)?,
        v: matrix("self_attn.v_proj", keys, hidden)?,
        o: matrix("self_attn.o_proj", hidden, queries)?,
        mlp_norm: source.values(&name("post_attention_layernorm"), &[hidden])?,
        gate: matrix("mlp.gate_proj", mlp, hidden)?,
        up: matrix("mlp.up_proj", mlp, hidden)?,
        down: matrix("mlp.down_proj", hidden, mlp)?,
    })
}

struct Source<'a>(SafeTensors<'a>);

impl Source<'_> {
    fn matrix(&self, name: &str, shape: [usize; 2]) -> Result<Matrix, EngineError> {
        Ok(Matrix::new(shape[1], self.values(name, &shape)?))
    }

    fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, EngineError> {
        let name = format!("{name}.weight");
        let found = self.0.tensor(&name).ok();
        let Some(tensor) = found.as_ref().filter(|tensor| tensor.shape() == shape) else {
            let found = found.map(|tensor| tensor.shape().to_vec());
            return Err(EngineError::Weight { name, expected: shape.to_vec(), found });
        };
        let data = tensor.data();
        match tensor.dtype() {
            Dtype::F16 => Ok(converted(data, |bytes| f16::from_le_bytes(bytes).to_f32())),
            Dtype::BF16 => Ok(converted(data, |bytes| bf16::from_le_bytes(bytes).to_f32())),
            Dtype::F32 => Ok(converted(data, f32::from_le_bytes)),
            dtype => Err(EngineError::WeightType { name, dtype }),
        }
    }
}

fn converted<const BYTES: usize>(data: &[u8], value: impl Fn([u8; BYTES]) -> f32) -> Vec<f32> {
    data.as_chunks::<BYTES>().0.iter().map(|bytes| value(*bytes)).collect()
}
