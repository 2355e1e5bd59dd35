//! The spec of a model's KV cache, exact enough that engines with equal specs may share bytes.
//!
//! `MODEL-SPEC.md` of this crate documents the JSON of a spec field by field, with examples.

pub mod hf;
mod layer_runs;
mod precise;
mod rope;
mod rope_json;

use serde::{Deserialize, Serialize};

use crate::{
    LAYERS_MAX, ModelId,
    hash::FieldHasher,
    limits::{ROPES_MAX, ROTARY_DIMS_MAX, SPEC_TEXT_BYTES_MAX},
};

pub use rope::{Pairing, Rope, RopeError, RopeFormula, RopeScaling};

/// Identity and layout of a model's KV cache. Hashes to [`ModelId`]; independent of tensor and pipeline
/// parallelism.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// Weights, e.g. `meta-llama/Meta-Llama-3-8B`.
    pub weights: String,
    /// Revision of the weights: a commit or digest, never a moving name.
    pub revision: String,
    /// Adapter (LoRA) id, if one changes the KV.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// Type of the cached values.
    pub kv_dtype: KvDtype,
    /// Rotary embeddings that layers refer to by index.
    #[serde(default, deserialize_with = "rope_json::ropes")]
    pub ropes: Vec<Rope>,
    /// One entry per layer, in order. JSON combines equal neighbours into one entry with a `count`.
    #[serde(with = "layer_runs")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<layer_runs::LayerRun>))]
    pub layers: Vec<LayerKv>,
    /// Method by which tokens were dropped, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinning: Option<Thinning>,
    /// Whether any prefix is reusable, or only the whole context.
    #[serde(default)]
    pub reuse: Reuse,
}

/// Element type of a cache.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvDtype {
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
    /// IEEE single.
    F32,
    /// FP8, 4 exponent bits.
    Fp8E4m3,
    /// Signed 8-bit integers with a scale.
    Int8,
}

impl KvDtype {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::Fp8E4m3 | Self::Int8 => 1,
        }
    }
}

/// One layer's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerKv {
    /// Shape of the layer's cache.
    pub layout: KvLayout,
    /// Index into [`ModelSpec::ropes`]; absent if keys are not rotated.
    pub rope: Option<u8>,
}

/// Shape of one layer's cache, per token.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum KvLayout {
    /// K and V of `[kv_heads, head_dim]` each. MHA and MQA are its special cases.
    Gqa {
        /// Key/value heads.
        kv_heads: u32,
        /// Elements of a head.
        head_dim: u32,
    },
    /// As `Gqa`, but only the last `window` tokens have KV.
    SlidingWindow {
        /// Key/value heads.
        kv_heads: u32,
        /// Elements of a head.
        head_dim: u32,
        /// Tokens kept.
        window: u32,
    },
    /// Multi-head latent attention: plane K is `[latent]`, plane V is `[rope_dims]`, one "head" each.
    Mla {
        /// Elements of the latent.
        latent: u32,
        /// Elements of the shared rotary key.
        rope_dims: u32,
    },
    /// A layer without a cache.
    None,
}

impl KvLayout {
    /// `[heads, elements of a head]` of the two planes K and V.
    pub const fn planes(self) -> [(usize, usize); 2] {
        match self {
            Self::Gqa { kv_heads, head_dim } | Self::SlidingWindow { kv_heads, head_dim, .. } => {
                [(kv_heads as usize, head_dim as usize); 2]
            }
            Self::Mla { latent, rope_dims } => [(1, latent as usize), (1, rope_dims as usize)],
            Self::None => [(0, 0); 2],
        }
    }
}

/// A method that dropped tokens before the cache was stored, with its parameters.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thinning {
    /// e.g. `h2o`, `streaming_llm`.
    pub method: String,
    /// Canonical text of the parameters.
    #[serde(default)]
    pub parameters: String,
}

/// Which part of a stored context may be reused.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reuse {
    /// Any prefix.
    #[default]
    Prefix,
    /// Only the whole context: the method looked ahead (H2O, Scissorhands).
    Whole,
}

/// An invalid spec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// No layer, or more than [`LAYERS_MAX`].
    #[error("a model must have 1 to {LAYERS_MAX} layers; this spec has {layers}")]
    Layers {
        /// Layers found.
        layers: usize,
    },
    /// Too many ropes.
    #[error("a model may have at most {ROPES_MAX} ropes; this spec has {ropes}")]
    Ropes {
        /// Ropes found.
        ropes: usize,
    },
    /// Names that are too long.
    #[error(
        "weights, revision, adapter and thinning may have {SPEC_TEXT_BYTES_MAX} bytes together; these have {bytes}"
    )]
    Text {
        /// Bytes found.
        bytes: usize,
    },
    /// A dimension is zero or too large.
    #[error("layer {layer}: heads and head elements must be 1 to 65536 and their product at most 65536")]
    Shape {
        /// The layer.
        layer: usize,
    },
    /// A layer names a rope that does not exist.
    #[error("layer {layer} names rope {rope}, but the spec has {ropes} ropes")]
    RopeIndex {
        /// The layer.
        layer: usize,
        /// Index named.
        rope: u8,
        /// Number of ropes.
        ropes: usize,
    },
    /// A rope that cannot rotate anything, whether or not a layer names it.
    #[error(
        "rope {rope}: it needs 1 to {} frequencies, and an attention_factor above 0 and at most {:e}",
        ROTARY_DIMS_MAX / 2,
        f32::MAX
    )]
    Rope {
        /// The rope.
        rope: usize,
    },
    /// A rope rotates more elements than a head has.
    #[error("layer {layer}: its rope does not fit heads of {head_dim} elements")]
    RopeShape {
        /// The layer.
        layer: usize,
        /// Elements of a head.
        head_dim: usize,
    },
}

impl ModelSpec {
    /// Checks that every rope and every layer is valid.
    ///
    /// # Errors
    /// The first problem found, as a [`SpecError`].
    pub fn validate(&self) -> Result<(), SpecError> {
        if self.layers.is_empty() || self.layers.len() > LAYERS_MAX {
            return Err(SpecError::Layers { layers: self.layers.len() });
        }
        if self.ropes.len() > ROPES_MAX {
            return Err(SpecError::Ropes { ropes: self.ropes.len() });
        }
        let thinning = self.thinning.as_ref().map_or(0, |t| t.method.len() + t.parameters.len());
        let adapter = self.adapter.as_deref().map_or(0, str::len);
        let bytes = self.weights.len() + self.revision.len() + adapter + thinning;
        if bytes > SPEC_TEXT_BYTES_MAX {
            return Err(SpecError::Text { bytes });
        }
        // Also check ropes that no layer names: JSON has no number for a factor beyond f32, so such a spec,
        // once stored, could not be read again.
        let turns = |r: &Rope| {
            (2..=ROTARY_DIMS_MAX as usize).contains(&r.rotary_dims())
                && r.attention_factor.is_finite()
                && r.attention_factor > 0.0
        };
        if let Some(rope) = self.ropes.iter().position(|rope| !turns(rope)) {
            return Err(SpecError::Rope { rope });
        }
        for (index, layer) in self.layers.iter().enumerate() {
            self.validate_layer(index, layer)?;
        }
        Ok(())
    }

    fn validate_layer(&self, index: usize, layer: &LayerKv) -> Result<(), SpecError> {
        let possible = |(heads, dim): (usize, usize)| {
            (1..=65_536).contains(&heads) && (1..=65_536).contains(&dim) && heads * dim <= 65_536
        };
        if layer.layout != KvLayout::None && !layer.layout.planes().into_iter().all(possible) {
            return Err(SpecError::Shape { layer: index });
        }
        let Some(rope_index) = layer.rope else { return Ok(()) };
        let Some(rope) = self.ropes.get(usize::from(rope_index)) else {
            return Err(SpecError::RopeIndex { layer: index, rope: rope_index, ropes: self.ropes.len() });
        };
        let head_dim = match layer.layout {
            KvLayout::Mla { rope_dims, .. } => rope_dims as usize,
            KvLayout::Gqa { .. } | KvLayout::SlidingWindow { .. } | KvLayout::None => {
                layer.layout.planes()[0].1
            }
        };
        if rope.offset as usize + rope.rotary_dims() <= head_dim {
            Ok(())
        } else {
            Err(SpecError::RopeShape { layer: index, head_dim })
        }
    }

    /// Bytes of one token's cache over all layers, uncompressed.
    pub fn bytes_per_token(&self) -> usize {
        self.elements_per_token() * self.kv_dtype.bytes()
    }

    /// Elements of one token's cache over all layers.
    pub fn elements_per_token(&self) -> usize {
        self.layers.iter().flat_map(|l| l.layout.planes()).map(|(heads, dim)| heads * dim).sum()
    }

    /// BLAKE3 over a canonical, length-prefixed binary form (never over JSON text).
    pub fn model_id(&self) -> ModelId {
        let mut hasher = FieldHasher::new("kvasir/1/model")
            .field(self.weights.as_bytes())
            .field(self.revision.as_bytes())
            .field(&[u8::from(self.adapter.is_some())])
            .field(self.adapter.as_deref().unwrap_or_default().as_bytes())
            .field(&[self.kv_dtype as u8, self.reuse as u8])
            .field(&(self.ropes.len() as u64).to_le_bytes());
        for rope in &self.ropes {
            let freqs: Vec<u8> = rope.freqs.iter().flat_map(|f| f.to_le_bytes()).collect();
            hasher = hasher
                .field(&[rope.pairing as u8])
                .field(&rope.offset.to_le_bytes())
                .field(&rope.attention_factor.to_bits().to_le_bytes())
                .field(&freqs);
        }
        hasher = hasher.field(&(self.layers.len() as u64).to_le_bytes());
        for layer in &self.layers {
            let (kind, shape) = match layer.layout {
                KvLayout::Gqa { kv_heads, head_dim } => (0u8, [kv_heads, head_dim, 0]),
                KvLayout::SlidingWindow { kv_heads, head_dim, window } => (1, [kv_heads, head_dim, window]),
                KvLayout::Mla { latent, rope_dims } => (2, [latent, rope_dims, 0]),
                KvLayout::None => (3, [0; 3]),
            };
            let shape: Vec<u8> = shape.iter().flat_map(|v| v.to_le_bytes()).collect();
            let rope = layer.rope.map_or([0, 0], |r| [1, r]);
            hasher = hasher.field(&[kind]).field(&shape).field(&rope);
        }
        let (method, parameters) =
            self.thinning.as_ref().map_or(("", ""), |t| (t.method.as_str(), t.parameters.as_str()));
        hasher
            .field(&[u8::from(self.thinning.is_some())])
            .field(method.as_bytes())
            .field(parameters.as_bytes())
            .finish()
            .into()
    }
}

#[cfg(test)]
mod tests;
