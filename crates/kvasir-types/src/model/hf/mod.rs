//! Model specs from Hugging Face configurations.
//!
//! [`ModelSpec::from_hf`] reads only the fields that determine the KV cache. It rejects unknown values of
//! those, by field name: a wrong spec would let incompatible caches be shared. Rules and defaults are those
//! of `transformers` 5.24; `tests/models/run` verifies them by running a small model of each architecture.

mod architecture;
mod fields;
mod layers;
mod rope;

use serde_json::Value;

use self::{architecture::Architecture, fields::Fields};
use super::{KvDtype, ModelSpec, Pairing, Reuse, SpecError};

/// Parameters that a configuration does not contain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HfOptions {
    /// Weights, e.g. `Qwen/Qwen3-8B`.
    pub weights: String,
    /// Revision of the weights: a commit or digest, never a moving name.
    pub revision: String,
    /// Adapter (LoRA) id, if one changes the KV.
    pub adapter: Option<String>,
    /// Type of the cached values, if the engine's differs from that of the weights (`dtype`).
    pub kv_dtype: Option<KvDtype>,
    /// Layout of rotary pairs in cached keys, if the engine's differs from the architecture's. For models
    /// with latent attention, vLLM and SGLang cache the interleaved key, `transformers` the de-interleaved
    /// one (half).
    pub pairing: Option<Pairing>,
    /// Tokens of the longest context served. Required if frequencies depend on it: LongRoPE has one list for
    /// contexts up to the original length and one for longer ones; dynamic NTK scaling raises the base.
    pub context: Option<u64>,
}

/// A configuration that cannot be converted to a spec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HfError {
    /// Not JSON, or not an object.
    #[error("not a Hugging Face configuration: {0}")]
    Json(String),
    /// A field that is missing, or has an unsupported value.
    #[error("{field}: {value}: {advice}")]
    Field {
        /// Its path, e.g. `text_config.rope_scaling.rope_type`.
        field: String,
        /// Its value, shortened.
        value: String,
        /// What is expected.
        advice: String,
    },
    /// Fields that are valid individually, but not together.
    #[error("the configuration has no valid cache: {0}")]
    Spec(#[from] SpecError),
}

impl ModelSpec {
    /// The spec of a model from the text of its `config.json`, as its authors published it.
    ///
    /// Both spellings of `transformers` are read: `torch_dtype`, `rope_theta` and `rope_scaling`, and since
    /// version 5 `dtype` and `rope_parameters`, for all layers or by layer type. For multimodal models,
    /// `text_config` is read. Quantised weights do not change the type of the cache.
    ///
    /// # Errors
    /// [`HfError`] naming the field that shapes the cache and is missing or not known.
    ///
    /// ```
    /// use kvasir_types::{ModelSpec, hf::HfOptions};
    ///
    /// let config = r#"{
    ///     "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    ///     "num_key_value_heads": 8, "rope_theta": 500000.0, "torch_dtype": "bfloat16"
    /// }"#;
    /// let options = HfOptions { weights: "meta-llama/Meta-Llama-3-8B".into(), revision: "8cde5ca".into(), ..Default::default() };
    /// let spec = ModelSpec::from_hf(config, &options)?;
    /// assert_eq!(spec.bytes_per_token(), 131_072);
    /// # Ok::<(), kvasir_types::hf::HfError>(())
    /// ```
    pub fn from_hf(config: &str, options: &HfOptions) -> Result<Self, HfError> {
        let config: Value = serde_json::from_str(config).map_err(|e| HfError::Json(e.to_string()))?;
        let whole = Fields::new(&config).ok_or_else(|| HfError::Json("not an object".to_owned()))?;
        let (text, architecture) = text_model(&whole)?;
        refuse_unknown(&text)?;
        let kv_dtype = match options.kv_dtype {
            Some(dtype) => dtype,
            None => dtype(&whole, &text)?,
        };
        let (layers, ropes) = layers::read(&text, architecture, options)?;
        let spec = Self {
            weights: options.weights.clone(),
            revision: options.revision.clone(),
            adapter: options.adapter.clone(),
            kv_dtype,
            ropes,
            layers,
            thinning: None,
            reuse: Reuse::Prefix,
        };
        spec.validate()?;
        Ok(spec)
    }
}

/// The part that describes the language model, and its architecture.
fn text_model<'a>(whole: &Fields<'a>) -> Result<(Fields<'a>, &'static Architecture), HfError> {
    let kind = whole.required_text("model_type")?;
    let text = match whole.object("text_config")? {
        Some(text) if architecture::WRAPPERS.contains(&kind) => text,
        _ => whole.clone(),
    };
    let kind = text.text("model_type")?.unwrap_or(kind);
    match architecture::of(kind) {
        Some(architecture) => Ok((text, architecture)),
        None => {
            Err(text.refused("model_type", format!("not supported; supported are {}", architecture::names())))
        }
    }
}

/// Rejects fields of any architecture that change the cache in ways that specs cannot express.
fn refuse_unknown(text: &Fields<'_>) -> Result<(), HfError> {
    if text.uint("num_kv_shared_layers")?.unwrap_or(0) > 0 {
        return Err(text.refused(
            "num_kv_shared_layers",
            "layers that share the cache of other layers are not supported",
        ));
    }
    if text.get("dual_chunk_attention_config").is_some() {
        return Err(text.refused(
            "dual_chunk_attention_config",
            "keys rotated by positions in chunks are not supported; remove it if the engine ignores it",
        ));
    }
    for flag in ["use_bidirectional_attention", "is_encoder_decoder"] {
        if text.flag(flag)? == Some(true) {
            return Err(text.refused(flag, "only causal decoders are supported"));
        }
    }
    Ok(())
}

fn dtype(whole: &Fields<'_>, text: &Fields<'_>) -> Result<KvDtype, HfError> {
    if let Some(quantisation) = whole.object("quantization_config")?
        && quantisation.object("kv_cache_scheme")?.is_some()
    {
        return Err(
            quantisation.refused("kv_cache_scheme", "give the type that the engine caches (kv_dtype)")
        );
    }
    for (fields, name) in [(text, "dtype"), (text, "torch_dtype"), (whole, "dtype"), (whole, "torch_dtype")] {
        match fields.text(name)? {
            None => {}
            Some("bfloat16") => return Ok(KvDtype::Bf16),
            Some("float16") => return Ok(KvDtype::F16),
            Some("float32") => return Ok(KvDtype::F32),
            Some(_) => {
                return Err(fields
                    .refused(name, "use bfloat16, float16 or float32, or give the cached type (kv_dtype)"));
            }
        }
    }
    Err(text.refused("dtype", "required unless a type is given (kv_dtype)"))
}

#[cfg(test)]
mod tests;
