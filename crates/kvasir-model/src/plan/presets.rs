//! Well-known models and GPUs, each with where its numbers stand.

use std::borrow::Cow;

use kvasir_types::{KvLayout, ModelSpec};
use serde::Serialize;

use super::Rate;

/// A run of equal layers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LayerRun {
    /// Layers.
    pub count: u32,
    /// Their cache.
    pub layout: KvLayout,
}

/// What the arithmetic needs to know of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelPreset {
    /// Name to ask for.
    pub name: Cow<'static, str>,
    /// Layers by kind; the order among kinds does not matter to sizes.
    pub layers: Cow<'static, [LayerRun]>,
    /// Parameters that a token passes through, in units of 10⁹.
    pub active_parameters: f64,
    /// Query heads × elements of a head, for the attention's FLOP.
    pub query_elements: u64,
    /// Longest context in tokens.
    pub context: u64,
    /// Where these numbers stand.
    pub source: Cow<'static, str>,
}

const fn gqa(count: u32, kv_heads: u32, head_dim: u32) -> LayerRun {
    LayerRun { count, layout: KvLayout::Gqa { kv_heads, head_dim } }
}

const fn window(count: u32, kv_heads: u32, head_dim: u32, window: u32) -> LayerRun {
    LayerRun { count, layout: KvLayout::SlidingWindow { kv_heads, head_dim, window } }
}

const fn mla(count: u32, latent: u32, rope_dims: u32) -> LayerRun {
    LayerRun { count, layout: KvLayout::Mla { latent, rope_dims } }
}

const fn model(
    name: &'static str,
    layers: &'static [LayerRun],
    active_parameters: f64,
    query_elements: u64,
    context: u64,
    source: &'static str,
) -> ModelPreset {
    ModelPreset {
        name: Cow::Borrowed(name),
        layers: Cow::Borrowed(layers),
        active_parameters,
        query_elements,
        context,
        source: Cow::Borrowed(source),
    }
}

impl ModelPreset {
    /// A model that is no preset, from its spec. Query heads are not in a spec; as many elements as the widest
    /// plane of KV has are counted, which understates the attention's FLOP of a GQA model a little.
    pub fn from_spec(spec: &ModelSpec, active_parameters: f64, context: u64) -> Self {
        let layers = spec.layers.iter().map(|layer| LayerRun { count: 1, layout: layer.layout });
        let widest =
            spec.layers.iter().flat_map(|layer| layer.layout.planes()).map(|(heads, dim)| heads * dim);
        Self {
            name: Cow::Owned(spec.weights.clone()),
            layers: layers.collect(),
            active_parameters,
            query_elements: widest.max().unwrap_or(0) as u64,
            context,
            source: Cow::Borrowed("the given model spec"),
        }
    }
}

/// The presets, by family. Shapes and contexts are those of the named `config.json`, parameters of its card.
pub static PRESETS: &[ModelPreset] = &[
    model("llama-2-7b", &[gqa(32, 32, 128)], 6.74, 4096, 4096, "meta-llama/Llama-2-7b-hf config.json (MHA)"),
    model(
        "llama-2-13b",
        &[gqa(40, 40, 128)],
        13.0,
        5120,
        4096,
        "meta-llama/Llama-2-13b-hf config.json (MHA)",
    ),
    model("llama-2-70b", &[gqa(80, 8, 128)], 69.0, 8192, 4096, "meta-llama/Llama-2-70b-hf config.json"),
    model("codellama-34b", &[gqa(48, 8, 128)], 33.7, 8192, 16384, "codellama/CodeLlama-34b-hf config.json"),
    model("llama-3-8b", &[gqa(32, 8, 128)], 8.03, 4096, 8192, "meta-llama/Meta-Llama-3-8B config.json"),
    model("llama-3-70b", &[gqa(80, 8, 128)], 70.6, 8192, 8192, "meta-llama/Meta-Llama-3-70B config.json"),
    model("llama-3.1-8b", &[gqa(32, 8, 128)], 8.03, 4096, 131_072, "meta-llama/Llama-3.1-8B config.json"),
    model("llama-3.1-70b", &[gqa(80, 8, 128)], 70.6, 8192, 131_072, "meta-llama/Llama-3.1-70B config.json"),
    model(
        "llama-3.1-405b",
        &[gqa(126, 8, 128)],
        405.9,
        16384,
        131_072,
        "meta-llama/Llama-3.1-405B config.json",
    ),
    model("mistral-7b", &[gqa(32, 8, 128)], 7.24, 4096, 32768, "mistralai/Mistral-7B-v0.3 config.json"),
    model(
        "mistral-7b-v0.1",
        &[window(32, 8, 128, 4096)],
        7.24,
        4096,
        32768,
        "mistralai/Mistral-7B-v0.1 config.json (sliding window 4096)",
    ),
    model(
        "mixtral-8x7b",
        &[gqa(32, 8, 128)],
        12.9,
        4096,
        32768,
        "mistralai/Mixtral-8x7B-v0.1 config.json; active parameters: arXiv 2401.04088",
    ),
    model("qwen2-7b", &[gqa(28, 4, 128)], 7.62, 3584, 131_072, "Qwen/Qwen2-7B config.json"),
    model("qwen2-72b", &[gqa(80, 8, 128)], 72.7, 8192, 131_072, "Qwen/Qwen2-72B config.json"),
    model(
        "gemma-2-9b",
        &[gqa(21, 8, 256), window(21, 8, 256, 4096)],
        9.24,
        4096,
        8192,
        "google/gemma-2-9b config.json (every other layer: sliding window 4096)",
    ),
    model("falcon-7b", &[gqa(32, 1, 64)], 7.22, 4544, 2048, "tiiuae/falcon-7b config.json (MQA)"),
    model("bloom-176b", &[gqa(70, 112, 128)], 176.2, 14336, 2048, "bigscience/bloom config.json (MHA)"),
    model(
        "deepseek-v3",
        &[mla(61, 512, 64)],
        37.0,
        // Scores run over 128 + 64 elements, values over 128: (192 + 128) / 2 × 128 heads.
        20480,
        163_840,
        "deepseek-ai/DeepSeek-V3 config.json (MLA); active parameters: arXiv 2412.19437",
    ),
    model("kvasir-tiny", &[gqa(8, 2, 64)], 0.00603, 256, 1024, "assets/kvasir-tiny/README.md"),
];

/// The preset of a name.
pub fn preset(name: &str) -> Option<&'static ModelPreset> {
    PRESETS.iter().find(|preset| preset.name == name)
}

/// A GPU as the arithmetic sees it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Gpu {
    /// Name to ask for.
    pub name: &'static str,
    /// Peak dense 16-bit FLOP a second.
    pub flops: Rate,
    /// Dollars an hour.
    pub hour: Rate,
}

/// Peaks are the makers' dense bf16 (A40: fp16) figures; prices are round figures of mid-2025 clouds.
pub static GPUS: &[Gpu] = &[
    Gpu { name: "h200", flops: Rate::published(989e12), hour: Rate::assumed(3.5) },
    Gpu { name: "h100", flops: Rate::published(989e12), hour: Rate::assumed(3.0) },
    Gpu { name: "a100", flops: Rate::published(312e12), hour: Rate::assumed(1.8) },
    Gpu { name: "l40s", flops: Rate::published(362e12), hour: Rate::assumed(1.2) },
    Gpu { name: "a40", flops: Rate::published(149.7e12), hour: Rate::assumed(0.6) },
];

/// The GPU of a name.
pub fn gpu(name: &str) -> Option<&'static Gpu> {
    GPUS.iter().find(|gpu| gpu.name == name)
}
