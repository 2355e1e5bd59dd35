//! Model specs from Hugging Face configurations.
//!
//! [`ModelSpec::from_hf`] reads what shapes the KV cache and nothing else. What it reads and does not know it
//! refuses by the field's name: a wrong spec would let caches that differ be shared. Rules and defaults are those
//! of `transformers` 5.24, which `tests/models/run` compares by running a small model of each architecture.

mod architecture;
mod fields;
mod layers;
mod rope;

use serde_json::Value;

use self::{architecture::Architecture, fields::Fields};
use super::{KvDtype, ModelSpec, Pairing, Reuse, SpecError};

/// What a configuration does not say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HfOptions {
    /// Weights, e.g. `Qwen/Qwen3-8B`.
    pub weights: String,
    /// Revision of the weights: a commit, a digest, never a moving name.
    pub revision: String,
    /// Adapter (LoRA) id, if one changes the KV.
    pub adapter: Option<String>,
    /// Type of the cached values, where the engine's is not that of the weights (`dtype`).
    pub kv_dtype: Option<KvDtype>,
    /// How rotary pairs lie in cached keys, where the engine's differ from the architecture's. Of models with
    /// latent attention vLLM and SGLang keep the interleaved key, `transformers` the de-interleaved one (half).
    pub pairing: Option<Pairing>,
    /// Tokens of the longest context that is served. Needed where frequencies depend on it: LongRoPE has a list
    /// for contexts up to the original length and one for longer ones; dynamic NTK scaling lowers the base.
    pub context: Option<u64>,
}

/// A configuration that no spec follows from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HfError {
    /// Not JSON, or no object.
    #[error("no Hugging Face configuration: {0}")]
    Json(String),
    /// A field that is missing or has a value that is not known here.
    #[error("{field}: {value}: {advice}")]
    Field {
        /// Its path, e.g. `text_config.rope_scaling.rope_type`.
        field: String,
        /// What it holds, shortened.
        value: String,
        /// What would do.
        advice: String,
    },
    /// Fields that are possible each, and together give no cache.
    #[error("the configuration's cache is impossible: {0}")]
    Spec(#[from] SpecError),
}

impl ModelSpec {
    /// The spec of a model from the text of its `config.json`, as its authors published it.
    ///
    /// Both spellings of `transformers` are read: `torch_dtype`, `rope_theta` and `rope_scaling`, and since version
    /// 5 `dtype` and `rope_parameters`, alike for all layers or by layer type. Of multimodal models `text_config`
    /// counts. Weights that are quantised leave the type of the cache as it is.
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

/// The part that describes the language model, and how its architecture reads it.
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
            Err(text.refused("model_type", format!("not known here; known are {}", architecture::names())))
        }
    }
}

/// Fields of any architecture that change what is cached in ways that no spec has.
fn refuse_unknown(text: &Fields<'_>) -> Result<(), HfError> {
    if text.uint("num_kv_shared_layers")?.unwrap_or(0) > 0 {
        return Err(
            text.refused("num_kv_shared_layers", "layers that use the cache of others are not supported")
        );
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
        return Err(quantisation.refused("kv_cache_scheme", "say which type the engine caches (kv_dtype)"));
    }
    for (fields, name) in [(text, "dtype"), (text, "torch_dtype"), (whole, "dtype"), (whole, "torch_dtype")] {
        match fields.text(name)? {
            None => {}
            Some("bfloat16") => return Ok(KvDtype::Bf16),
            Some("float16") => return Ok(KvDtype::F16),
            Some("float32") => return Ok(KvDtype::F32),
            Some(_) => {
                return Err(fields.refused(
                    name,
                    "use bfloat16, float16 or float32, or say which type is cached (kv_dtype)",
                ));
            }
        }
    }
    Err(text.refused("dtype", "needed where no type is given (kv_dtype)"))
}

#[cfg(test)]
mod tests;
