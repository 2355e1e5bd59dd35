//! Public configurations (`configs`): bytes per token by each model's arithmetic or its authors' word, parameters by its
//! card, and rope frequencies as `transformers` has them.

use std::f64::consts::TAU;

use kvasir_model::config::ModelSizes;
use kvasir_types::{
    KvDtype, KvLayout, LayerKv, ModelSpec,
    hf::{HfError, HfOptions},
};
use serde_json::Value;

/// `name, bytes per token in 16 bits, parameters and those of one token in 10⁹` (0: not checked, not a published shape).
#[rustfmt::skip]
const MODELS: &[(&str, usize, f64, f64)] = &[
    // arXiv 2505.09343, table 1: 70.272 kB a token of DeepSeek-V3, 516.096 of Llama-3.1-405B.
    ("deepseek-r1", 70_272, 671.0, 37.0),
    ("deepseek-v3", 70_272, 671.0, 37.0),
    ("deepseek-v3.1", 70_272, 671.0, 37.0),
    ("llama-3.1-405b", 516_096, 405.9, 405.9),
    ("deepseek-v2", 32 * 576 * 2, 0.0, 0.0),
    ("kimi-k2", 61 * 576 * 2, 1026.0, 32.0),
    ("llama-3.1-8b", 32 * 8 * 128 * 4, 8.03, 8.03),
    ("llama-3.1-70b", 80 * 8 * 128 * 4, 70.6, 70.6),
    ("llama-4-scout", 48 * 8 * 128 * 4, 109.0, 17.0),
    ("llama-4-maverick", 48 * 8 * 128 * 4, 400.0, 17.0),
    ("mistral-7b", 32 * 8 * 128 * 4, 7.25, 7.25),
    ("mistral-7b-v0.1", 32 * 8 * 128 * 4, 7.24, 7.24),
    ("devstral-small-2", 40 * 8 * 128 * 4, 24.0, 24.0),
    ("mixtral-8x7b", 32 * 8 * 128 * 4, 46.7, 12.9),
    ("mixtral-8x22b", 56 * 8 * 128 * 4, 141.0, 39.0),
    ("qwen2.5-7b", 28 * 4 * 128 * 4, 7.61, 7.61),
    ("qwen3-8b", 36 * 8 * 128 * 4, 8.2, 8.2),
    ("qwen3-32b", 64 * 8 * 128 * 4, 32.8, 32.8),
    ("qwen3-30b-a3b", 48 * 4 * 128 * 4, 30.5, 3.3),
    ("qwen3-235b-a22b", 94 * 4 * 128 * 4, 235.0, 22.0),
    ("gemma-2-9b", 42 * 8 * 256 * 4, 9.24, 9.24),
    ("gemma-3-12b", 48 * 8 * 256 * 4, 11.8, 11.8),
    ("gpt-oss-20b", 24 * 8 * 64 * 4, 20.9, 3.6),
    ("gpt-oss-120b", 36 * 8 * 64 * 4, 116.8, 5.1),
    ("phi-4", 40 * 10 * 128 * 4, 14.7, 14.7),
    ("phi-3.5-vision", 32 * 32 * 96 * 4, 3.8, 3.8),
    ("olmo-2-7b", 32 * 32 * 128 * 4, 0.0, 0.0),
    ("olmo-3.1-32b", 64 * 8 * 128 * 4, 32.2, 32.2),
    ("falcon-7b", 32 * 64 * 4, 7.2, 7.2),
    ("gpt-neox-20b", 44 * 6144 * 4, 20.6, 20.6),
    ("glm-4-9b", 40 * 2 * 128 * 4, 9.4, 9.4),
    ("glm-4.5-air", 46 * 8 * 128 * 4, 106.0, 12.0),
    ("minimax-m2.5", 62 * 8 * 128 * 4, 229.0, 10.0),
    ("smollm3-3b", 36 * 4 * 128 * 4, 3.08, 3.08),
];

fn text(name: &str) -> String {
    let path = format!("{}/configs/{name}.json", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn spec(name: &str, context: Option<u64>) -> Result<ModelSpec, HfError> {
    let kv_dtype = Some(KvDtype::Bf16);
    ModelSpec::from_hf(&text(name), &HfOptions { context, kv_dtype, ..HfOptions::default() })
}

#[test]
fn bytes_a_token_are_those_of_each_model() {
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/configs")).unwrap().count();
    assert_eq!(files, MODELS.len(), "every file is in the table");
    for (name, bytes, ..) in MODELS {
        let spec = spec(name, Some(1)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(spec.bytes_per_token(), *bytes, "{name}");
        let json = serde_json::to_string(&spec).unwrap();
        let back: ModelSpec = serde_json::from_str(&json).unwrap();
        assert_eq!(back.model_id(), spec.model_id(), "{name}");
        assert!(!json.contains("freqs"), "{name}: {json}");
    }
}

#[test]
fn parameters_are_those_of_each_card() {
    for (name, _, parameters, active) in MODELS.iter().filter(|m| m.2 > 0.0) {
        let sizes = ModelSizes::from_hf(&text(name)).unwrap();
        let near = (sizes.parameters / parameters - 1.0).abs() < 0.05;
        assert!(near, "{name}: {} of {parameters}", sizes.parameters);
        // Cards round what a token passes through to whole 10⁹, and some leave embeddings out.
        let near = (sizes.active_parameters / active - 1.0).abs() < 0.2;
        assert!(near, "{name}: {} of {active}", sizes.active_parameters);
    }
}

/// `tests/models/run --golden` writes the file. f32 has 24 bits, and `torch` loses two or three of them.
#[test]
fn frequencies_are_those_of_transformers() {
    let golden: Value = serde_json::from_str(include_str!("transformers.json")).unwrap();
    let (mut worst, mut phase, mut ropes) = (0f64, 0f64, 0);
    for (case, kinds) in golden["ropes"].as_object().unwrap() {
        let (name, context) =
            case.split_once('@').map_or((case.as_str(), None), |(n, c)| (n, c.parse().ok()));
        let spec = spec(name, context).unwrap_or_else(|e| panic!("{name}: {e}"));
        for (kind, rope) in kinds.as_object().unwrap() {
            let of_kind = |layer: &&LayerKv| {
                let slides = matches!(layer.layout, KvLayout::SlidingWindow { .. });
                layer.rope.is_some() && (kind == "all" || slides == (kind == "sliding_attention"))
            };
            let layer = spec.layers.iter().find(of_kind).unwrap();
            let ours = &spec.ropes[usize::from(layer.rope.unwrap())];
            let factor = rope["attention_factor"].as_f64().unwrap();
            assert!((f64::from(ours.attention_factor) - factor).abs() < 1e-6, "{case} {kind}: {factor}");
            let theirs = rope["inv_freq"].as_array().unwrap();
            assert_eq!(theirs.len(), ours.freqs.len(), "{case} {kind}");
            ropes += 1;
            for (pair, (theirs, ours)) in theirs.iter().zip(&ours.freqs).enumerate() {
                let (theirs, ours) = (theirs.as_f64().unwrap(), *ours as f64 / 2f64.powi(64) * TAU);
                let off = (theirs / ours - 1.0).abs();
                assert!(off < 1e-6, "{case} {kind} pair {pair}: {theirs} {ours}");
                worst = worst.max(off);
                phase = phase.max((theirs - ours).abs() * 131_071.0);
            }
        }
    }
    println!("{ropes} ropes: at most {worst:.1e} off, {phase:.1e} radians at position 131,071");
    assert!(ropes >= MODELS.len() && phase < 0.05);
}
