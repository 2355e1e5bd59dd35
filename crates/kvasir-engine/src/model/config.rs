//! `config.json` in Hugging Face's Llama vocabulary, restricted to what the engine runs.

use kvasir_types::{KvDtype, KvLayout, LayerKv, ModelSpec, Pairing, ROTARY_DIMS_MAX, Reuse, Rope};
use serde::Deserialize;

use crate::error::ConfigError;

/// The keys we read. Keys that would change the arithmetic are read in order to be refused.
#[derive(Debug, Clone, Deserialize)]
struct RawConfig {
    model_type: String,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: usize,
    max_position_embeddings: usize,
    rms_norm_eps: f64,
    #[serde(default = "theta_default")]
    rope_theta: f64,
    #[serde(default)]
    rope_scaling: Option<serde_json::Value>,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default = "silu")]
    hidden_act: String,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    torch_dtype: Option<String>,
}

fn theta_default() -> f64 {
    10_000.0
}

fn silu() -> String {
    "silu".to_owned()
}

/// Sizes of a Llama-family model, validated against each other.
#[derive(Debug, Clone, PartialEq)]
pub struct LlamaConfig {
    /// Elements of the residual stream.
    pub hidden: usize,
    /// Elements of the feed-forward layer.
    pub intermediate: usize,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Longest context in tokens.
    pub context: usize,
    /// Epsilon of RMSNorm.
    pub norm_eps: f64,
    /// Base of the rotary embedding.
    pub rope_theta: f64,
    /// Whether the output projection is the embedding.
    pub tied: bool,
    /// Type of the cached values.
    pub kv_dtype: KvDtype,
}

impl LlamaConfig {
    /// Numbers in the weights.
    pub fn parameters(&self) -> u64 {
        let (hidden, layers) = (self.hidden as u64, self.layers as u64);
        let attention = 2 * hidden * ((self.heads + self.kv_heads) * self.head_dim) as u64;
        let feed_forward = 3 * hidden * self.intermediate as u64;
        let embeddings = self.vocab as u64 * hidden * if self.tied { 1 } else { 2 };
        embeddings + layers * (attention + feed_forward + 2 * hidden) + hidden
    }

    /// Parses and validates `config.json`.
    ///
    /// # Errors
    /// [`ConfigError`] when it is no Llama configuration, asks for something the engine has no code for
    /// (biases, scaled RoPE, other activations), or its sizes do not fit together.
    pub fn from_json(bytes: &[u8]) -> Result<Self, ConfigError> {
        let raw: RawConfig = serde_json::from_slice(bytes)?;
        refuse_unsupported(&raw)?;
        let kv_heads = raw.num_key_value_heads.unwrap_or(raw.num_attention_heads);
        let heads = raw.num_attention_heads;
        if heads == 0 || kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(ConfigError::Shape("num_attention_heads must be a multiple of num_key_value_heads"));
        }
        let head_dim = raw.head_dim.unwrap_or(raw.hidden_size / heads);
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(ConfigError::Shape("head_dim must be even and positive"));
        }
        if head_dim > ROTARY_DIMS_MAX as usize || !(raw.rope_theta > 1.0 && raw.rope_theta.is_finite()) {
            return Err(ConfigError::Shape("head_dim must be at most 1024 and rope_theta above 1"));
        }
        let sizes = [raw.hidden_size, raw.intermediate_size, raw.vocab_size, raw.max_position_embeddings];
        if sizes.into_iter().any(|n| n == 0 || n > 1 << 24) {
            return Err(ConfigError::Shape("sizes must be 1 to 2^24"));
        }
        let config = Self {
            hidden: raw.hidden_size,
            intermediate: raw.intermediate_size,
            layers: raw.num_hidden_layers,
            heads,
            kv_heads,
            head_dim,
            vocab: raw.vocab_size,
            context: raw.max_position_embeddings,
            norm_eps: raw.rms_norm_eps,
            rope_theta: raw.rope_theta,
            tied: raw.tie_word_embeddings,
            kv_dtype: kv_dtype(raw.torch_dtype.as_deref())?,
        };
        config.spec(String::new(), String::new()).validate()?;
        Ok(config)
    }

    /// The identity and layout of this model's KV cache: RoPE resolved, one GQA layout per layer.
    pub fn spec(&self, weights: String, revision: String) -> ModelSpec {
        // Validated sizes fit: heads and head elements are at most 65,536.
        let layout = KvLayout::Gqa { kv_heads: self.kv_heads as u32, head_dim: self.head_dim as u32 };
        ModelSpec {
            weights,
            revision,
            adapter: None,
            kv_dtype: self.kv_dtype,
            ropes: vec![Rope::plain(Pairing::Half, self.head_dim, self.rope_theta)],
            layers: vec![LayerKv { layout, rope: Some(0) }; self.layers],
            thinning: None,
            reuse: Reuse::Prefix,
        }
    }
}

fn refuse_unsupported(raw: &RawConfig) -> Result<(), ConfigError> {
    let refuse = |key, value: String, supported| Err(ConfigError::Unsupported { key, value, supported });
    if raw.model_type != "llama" {
        return refuse("model_type", raw.model_type.clone(), "llama");
    }
    if raw.hidden_act != "silu" {
        return refuse("hidden_act", raw.hidden_act.clone(), "silu");
    }
    if raw.attention_bias || raw.mlp_bias {
        return refuse("attention_bias, mlp_bias", "true".to_owned(), "models without biases");
    }
    match &raw.rope_scaling {
        Some(scaling) if !scaling.is_null() => refuse("rope_scaling", scaling.to_string(), "plain RoPE"),
        _ => Ok(()),
    }
}

fn kv_dtype(torch_dtype: Option<&str>) -> Result<KvDtype, ConfigError> {
    match torch_dtype {
        Some("float16") => Ok(KvDtype::F16),
        Some("bfloat16") => Ok(KvDtype::Bf16),
        Some("float32") | None => Ok(KvDtype::F32),
        Some(other) => Err(ConfigError::Unsupported {
            key: "torch_dtype",
            value: other.to_owned(),
            supported: "float16, bfloat16, float32",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TINY: &str = include_str!("../../assets/kvasir-tiny/config.json");

    #[test]
    fn the_shipped_configuration_resolves() {
        let config = LlamaConfig::from_json(TINY.as_bytes()).expect("valid");
        assert_eq!((config.layers, config.heads, config.kv_heads, config.head_dim), (8, 4, 2, 64));
        let spec = config.spec("w".to_owned(), "r".to_owned());
        assert_eq!(spec.bytes_per_token(), 8 * 2 * 2 * 64 * 2);
        assert_eq!(spec.ropes[0].freqs.len(), 32);
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        let cases = [
            ("\"llama\"", "\"mamba\"", "model_type"),
            ("\"silu\"", "\"gelu\"", "hidden_act"),
            ("\"attention_bias\": false", "\"attention_bias\": true", "attention_bias"),
            ("\"mlp_bias\": false", "\"rope_scaling\": {\"factor\": 8.0}", "rope_scaling"),
            ("\"float16\"", "\"int4\"", "torch_dtype"),
            ("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", "num_key_value_heads"),
            ("\"head_dim\": 64", "\"head_dim\": 63", "head_dim"),
            ("\"head_dim\": 64", "\"head_dim\": 2048", "head_dim"),
            ("\"rope_theta\": 10000.0", "\"rope_theta\": 0.5", "rope_theta"),
            ("\"num_hidden_layers\": 8", "\"num_hidden_layers\": 0", "layers"),
            ("\"vocab_size\": 2048", "\"vocab_size\": 0", "sizes"),
        ];
        for (from, to, names) in cases {
            assert!(TINY.contains(from), "{from}");
            let error = LlamaConfig::from_json(TINY.replace(from, to).as_bytes()).expect_err(to);
            assert!(error.to_string().contains(names), "{error}");
        }
    }
}
