//! Well-known models and GPUs, each with the source of its numbers.

use std::{borrow::Cow, sync::LazyLock};

use kvasir_types::{
    KvDtype, KvLayout, ModelSpec,
    hf::{HfError, HfOptions},
};
use serde::Serialize;

use super::Rate;
use crate::config::ModelSizes;

/// A run of equal layers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LayerRun {
    /// Layers.
    pub count: u32,
    /// Their cache.
    pub layout: KvLayout,
}

/// The data about a model that the arithmetic needs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelPreset {
    /// Its name.
    pub name: Cow<'static, str>,
    /// Layers by kind; the order of kinds does not affect sizes.
    pub layers: Cow<'static, [LayerRun]>,
    /// All parameters, in units of 10⁹.
    pub parameters: f64,
    /// Parameters used for each token, in units of 10⁹.
    pub active_parameters: f64,
    /// Bits per parameter as the weights are stored.
    pub weight_bits: f64,
    /// Query heads × elements per head, for the attention's FLOP.
    pub query_elements: u64,
    /// Longest context in tokens.
    pub context: u64,
    /// Source of these numbers.
    pub source: Cow<'static, str>,
}

const fn gqa(count: u32, kv_heads: u32, head_dim: u32) -> LayerRun {
    LayerRun { count, layout: KvLayout::Gqa { kv_heads, head_dim } }
}

const fn dense(
    name: &'static str,
    layers: &'static [LayerRun],
    parameters: f64,
    query_elements: u64,
    context: u64,
    source: &'static str,
) -> ModelPreset {
    ModelPreset {
        name: Cow::Borrowed(name),
        layers: Cow::Borrowed(layers),
        parameters,
        active_parameters: parameters,
        weight_bits: 16.0,
        query_elements,
        context,
        source: Cow::Borrowed(source),
    }
}

/// Equal neighbours as one run.
fn runs(spec: &ModelSpec) -> Cow<'static, [LayerRun]> {
    let run = |layers: &[kvasir_types::LayerKv]| {
        layers.first().map(|layer| LayerRun { count: layers.len() as u32, layout: layer.layout })
    };
    spec.layers.chunk_by(|a, b| a.layout == b.layout).filter_map(run).collect()
}

impl ModelPreset {
    /// A model without a preset, from its spec. A spec does not contain query heads, so the elements of the
    /// widest plane of KV are counted instead, which slightly understates the attention's FLOP of a GQA
    /// model.
    pub fn from_spec(spec: &ModelSpec, parameters: f64, context: u64) -> Self {
        let widest =
            spec.layers.iter().flat_map(|layer| layer.layout.planes()).map(|(heads, dim)| heads * dim);
        Self {
            name: Cow::Owned(spec.weights.clone()),
            layers: runs(spec),
            parameters,
            active_parameters: parameters,
            weight_bits: 16.0,
            query_elements: widest.max().unwrap_or(0) as u64,
            context,
            source: Cow::Borrowed("the given model spec"),
        }
    }

    /// A model without a preset, from the text of its Hugging Face `config.json`.
    ///
    /// # Errors
    /// As [`ModelSpec::from_hf`].
    pub fn from_config(name: &str, config: &str) -> Result<Self, HfError> {
        // Sizes are the same for every length and every 16-bit type.
        let options = HfOptions { kv_dtype: Some(KvDtype::Bf16), context: Some(1), ..HfOptions::default() };
        let spec = ModelSpec::from_hf(config, &options)?;
        let sizes = ModelSizes::from_hf(config).map_err(|e| HfError::Json(e.to_string()))?;
        Ok(Self {
            name: Cow::Owned(name.to_owned()),
            layers: runs(&spec),
            parameters: sizes.parameters,
            active_parameters: sizes.active_parameters,
            weight_bits: sizes.weight_bits,
            query_elements: sizes.query_elements,
            context: sizes.context,
            source: Cow::Borrowed("the given config.json"),
        })
    }
}

/// Presets without a file in `configs`. Shapes and contexts are those of the named `config.json`, parameters
/// those of its model card.
const TABLE: &[ModelPreset] = &[
    dense("llama-2-7b", &[gqa(32, 32, 128)], 6.74, 4096, 4096, "meta-llama/Llama-2-7b-hf config.json (MHA)"),
    dense(
        "llama-2-13b",
        &[gqa(40, 40, 128)],
        13.0,
        5120,
        4096,
        "meta-llama/Llama-2-13b-hf config.json (MHA)",
    ),
    dense("llama-2-70b", &[gqa(80, 8, 128)], 69.0, 8192, 4096, "meta-llama/Llama-2-70b-hf config.json"),
    dense("codellama-34b", &[gqa(48, 8, 128)], 33.7, 8192, 16384, "codellama/CodeLlama-34b-hf config.json"),
    dense("llama-3-8b", &[gqa(32, 8, 128)], 8.03, 4096, 8192, "meta-llama/Meta-Llama-3-8B config.json"),
    dense("llama-3-70b", &[gqa(80, 8, 128)], 70.6, 8192, 8192, "meta-llama/Meta-Llama-3-70B config.json"),
    dense("qwen2-7b", &[gqa(28, 4, 128)], 7.62, 3584, 131_072, "Qwen/Qwen2-7B config.json"),
    dense("qwen2-72b", &[gqa(80, 8, 128)], 72.7, 8192, 131_072, "Qwen/Qwen2-72B config.json"),
    dense("bloom-176b", &[gqa(70, 112, 128)], 176.2, 14336, 2048, "bigscience/bloom config.json (MHA)"),
    dense("kvasir-tiny", &[gqa(8, 2, 64)], 0.00603, 256, 1024, "assets/kvasir-tiny/README.md"),
];

macro_rules! configs {
    ($($name:literal),* $(,)?) => {
        /// Published configurations, by preset. `_source` in each gives its origin.
        const CONFIGS: &[(&str, &str)] = &[$(($name, include_str!(concat!("../../configs/", $name, ".json")))),*];
    };
}

configs!(
    "deepseek-r1",
    "deepseek-v3",
    "deepseek-v3.1",
    "devstral-small-2",
    "falcon-7b",
    "gemma-2-9b",
    "gemma-3-12b",
    "glm-4-9b",
    "glm-4.5-air",
    "gpt-neox-20b",
    "gpt-oss-120b",
    "gpt-oss-20b",
    "kimi-k2",
    "llama-3.1-405b",
    "llama-3.1-70b",
    "llama-3.1-8b",
    "llama-4-maverick",
    "llama-4-scout",
    "minimax-m2.5",
    "mistral-7b",
    "mistral-7b-v0.1",
    "mixtral-8x22b",
    "mixtral-8x7b",
    "olmo-2-7b",
    "olmo-3.1-32b",
    "phi-3.5-vision",
    "phi-4",
    "qwen2.5-7b",
    "qwen3-235b-a22b",
    "qwen3-30b-a3b",
    "qwen3-32b",
    "qwen3-8b",
    "smollm3-3b",
);

static PRESETS: LazyLock<Vec<ModelPreset>> = LazyLock::new(|| {
    let parsed = CONFIGS.iter().map(|(name, text)| {
        let mut preset = ModelPreset::from_config(name, text).expect("a test reads every configuration");
        let json: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
        preset.source = json["_source"].as_str().unwrap_or_default().to_owned().into();
        preset
    });
    let mut all: Vec<_> = TABLE.iter().cloned().chain(parsed).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
});

/// The known models, by name.
pub fn presets() -> &'static [ModelPreset] {
    &PRESETS
}

/// The preset with this name.
pub fn preset(name: &str) -> Option<&'static ModelPreset> {
    presets().iter().find(|preset| preset.name == name)
}

/// The data about a GPU that the arithmetic needs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Gpu {
    /// Its name.
    pub name: &'static str,
    /// Memory, bytes.
    pub memory: Rate,
    /// Peak dense 16-bit FLOP per second.
    pub flops: Rate,
    /// Dollars per hour.
    pub hour: Rate,
}

const fn card(name: &'static str, gigabytes: f64, teraflops: f64, hour: f64) -> Gpu {
    Gpu {
        name,
        memory: Rate::published(gigabytes * 1e9),
        flops: Rate::published(teraflops * 1e12),
        hour: Rate::assumed(hour),
    }
}

/// Memory and peaks are those of one GPU in the makers' data sheets, dense bf16 (A40: fp16): for NVIDIA, HGX
/// B200 and B300, GB200 NVL72 and RTX PRO 6000 Blackwell; for AMD, MI300X and MI355X. Prices are rounded.
pub static GPUS: &[Gpu] = &[
    card("b300", 288.0, 2250.0, 6.0),
    card("gb200", 186.0, 2500.0, 6.0),
    card("b200", 180.0, 2250.0, 5.0),
    card("h200", 141.0, 989.0, 3.5),
    card("h100", 80.0, 989.0, 3.0),
    card("a100", 80.0, 312.0, 1.8),
    card("l40s", 48.0, 362.0, 1.2),
    card("a40", 48.0, 149.7, 0.6),
    card("rtx-pro-6000", 96.0, 503.8, 1.8),
    card("mi355x", 288.0, 2516.6, 4.0),
    card("mi300x", 192.0, 1307.4, 2.5),
];

/// The GPU with this name.
pub fn gpu(name: &str) -> Option<&'static Gpu> {
    GPUS.iter().find(|gpu| gpu.name == name)
}
