use serde_json::json;

use super::*;
use crate::{KvLayout, RopeScaling};

fn base() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 8192, "rope_theta": 500_000.0, "torch_dtype": "bfloat16"
    })
}

fn with(changes: &Value) -> Value {
    let mut config = base();
    for (name, value) in changes.as_object().expect("an object") {
        config[name] = value.clone();
    }
    config
}

fn read(config: &Value, options: &HfOptions) -> Result<ModelSpec, HfError> {
    ModelSpec::from_hf(&config.to_string(), options)
}

fn spec(changes: &Value) -> ModelSpec {
    read(&with(changes), &HfOptions::default()).unwrap_or_else(|e| panic!("{changes}: {e}"))
}

#[test]
fn both_spellings_are_one_model() {
    let llama3 = json!({
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 2048,
        "rope_type": "llama3"
    });
    let old = spec(&json!({"rope_scaling": llama3}));
    let mut parameters = llama3;
    parameters["rope_theta"] = json!(500_000.0);
    let new = spec(&json!({
        "rope_parameters": parameters, "rope_theta": null, "torch_dtype": null, "dtype": "bfloat16"
    }));
    assert_eq!(old.model_id(), new.model_id());
    assert!(matches!(old.ropes[0].formula.as_ref().unwrap().scaling, Some(RopeScaling::Llama3 { .. })));
    assert_ne!(old.model_id(), spec(&json!({})).model_id());
}

#[test]
fn options_say_what_a_configuration_does_not() {
    let options = HfOptions {
        weights: "w".into(),
        revision: "r".into(),
        adapter: Some("a".into()),
        kv_dtype: Some(KvDtype::Fp8E4m3),
        pairing: Some(Pairing::Interleaved),
        context: None,
    };
    let spec = read(&base(), &options).expect("known");
    assert_eq!(
        (spec.weights.as_str(), spec.revision.as_str(), spec.adapter.as_deref()),
        ("w", "r", Some("a"))
    );
    assert_eq!((spec.kv_dtype, spec.ropes[0].pairing), (KvDtype::Fp8E4m3, Pairing::Interleaved));
}

#[test]
fn quantised_weights_leave_the_cache_as_it_is() {
    let quantised = spec(&json!({"quantization_config": {"quant_method": "fp8"}}));
    assert_eq!(quantised.model_id(), spec(&json!({})).model_id());
    let cache = with(&json!({"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}));
    let error = read(&cache, &HfOptions::default()).expect_err("which type is cached is not said");
    assert!(error.to_string().starts_with("quantization_config.kv_cache_scheme: "), "{error}");
}

#[test]
fn layers_are_as_their_architecture_has_them() {
    let windows = |changes: Value| -> Vec<u32> {
        let window = |layer: &crate::LayerKv| match layer.layout {
            KvLayout::SlidingWindow { window, .. } => window,
            _ => 0,
        };
        spec(&changes).layers.iter().map(window).collect()
    };
    let w = |kind: &str| json!({"model_type": kind, "sliding_window": 64, "head_dim": 64});
    assert_eq!(windows(w("mistral")), [64; 4]);
    assert_eq!(windows(w("gemma2")), [64, 0, 64, 0]);
    assert_eq!(windows(w("qwen2")), [0; 4], "use_sliding_window is not set");
    let upper = json!({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": true, "max_window_layers": 3});
    assert_eq!(windows(upper), [0, 0, 0, 64]);
    let mut listed = w("qwen2");
    listed["layer_types"] =
        json!(["sliding_attention", "full_attention", "full_attention", "full_attention"]);
    assert_eq!(windows(listed), [64, 0, 0, 0]);
    let llama_4 = json!({"model_type": "llama4_text", "attention_chunk_size": 128});
    assert_eq!(windows(llama_4.clone()), [128, 128, 128, 0]);
    let rotated: Vec<_> = spec(&llama_4).layers.iter().map(|l| l.rope).collect();
    assert_eq!(rotated, [Some(0), Some(0), Some(0), None]);
}

#[test]
fn frequencies_that_depend_on_the_length_need_it() {
    let dynamic = with(&json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}}));
    let error = read(&dynamic, &HfOptions::default()).expect_err("lengths differ");
    assert!(error.to_string().starts_with("rope_scaling.factor: 2.0: frequencies differ"), "{error}");
    let of = |context| {
        read(&dynamic, &HfOptions { context: Some(context), ..HfOptions::default() }).expect("said")
    };
    assert_eq!(
        of(8192).model_id(),
        spec(&json!({})).model_id(),
        "up to the original length nothing is scaled"
    );
    assert!(of(16_384).ropes[0].freqs[1] < of(8192).ropes[0].freqs[1]);
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    let yarn = |more: (&str, Value)| {
        let mut scaling = json!({"rope_type": "yarn", "factor": 4.0});
        scaling[more.0] = more.1;
        json!({"rope_scaling": scaling})
    };
    for (changes, names) in [
        (json!({"model_type": "mamba"}), "model_type: \"mamba\": not supported; supported are llama, "),
        (json!({"model_type": null}), "model_type: missing"),
        (json!({"torch_dtype": "int4"}), "torch_dtype: \"int4\""),
        (json!({"torch_dtype": null}), "dtype: missing"),
        (json!({"num_hidden_layers": 0}), "num_hidden_layers: 0"),
        (json!({"num_hidden_layers": 4_000_000_000u32}), "num_hidden_layers: 4000000000: at most 256"),
        (json!({"num_key_value_heads": 3}), "num_key_value_heads: 3: must divide"),
        (json!({"num_attention_heads": -1}), "num_attention_heads: -1"),
        (json!({"hidden_size": 255}), "hidden_size: 255"),
        (json!({"sliding_window": 64}), "sliding_window: 64"),
        (json!({"layer_types": ["full_attention"]}), "layer_types: "),
        (
            json!({"layer_types": ["linear_attention", "full_attention", "full_attention", "full_attention"]}),
            "`linear_attention`",
        ),
        (json!({"num_kv_shared_layers": 2}), "num_kv_shared_layers: 2"),
        (json!({"no_rope_layers": [1, 1, 1, 0]}), "no_rope_layers: "),
        (json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor: 0.5"),
        (json!({"model_type": "phi", "partial_rotary_factor": 0.05}), "partial_rotary_factor: 0.05"),
        (json!({"rope_theta": 0.5}), "rope_theta: 0.5: theta must be above 1"),
        (json!({"rope_scaling": {"type": "mrope", "mrope_section": [1]}}), "rope_scaling.type: \"mrope\""),
        (
            json!({"rope_scaling": {"type": "default", "mrope_section": [1]}}),
            "rope_scaling.mrope_section: [1]",
        ),
        (json!({"rope_scaling": {"type": "linear"}}), "rope_scaling.factor: missing"),
        (
            json!({"rope_scaling": {"type": "linear", "factor": 0}}),
            "rope_scaling.factor: 0: scaling gives pair 0",
        ),
        (
            json!({"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}}),
            "rope_scaling.short_factor: [1.0]: must have 32 entries",
        ),
        (json!({"head_dim": 4096, "num_attention_heads": 2}), "head_dim: 4096: rotary_dims must be"),
        (yarn(("alpha", json!(1))), "rope_scaling.alpha: 1: not supported in a rope of type yarn"),
        (yarn(("truncate", json!("no"))), "rope_scaling.truncate: \"no\""),
        (json!({"rope_parameters": {"sliding_attention": {}}}), "rope_parameters.full_attention: missing"),
        (
            json!({"model_type": "qwen2_moe", "use_sliding_window": true, "sliding_window": 9}),
            "use_sliding_window: true",
        ),
        (
            json!({"model_type": "gemma2", "head_dim": 64, "sliding_window": 9, "sliding_window_pattern": 0}),
            "sliding_window_pattern: 0",
        ),
    ] {
        let error = read(&with(&changes), &HfOptions::default()).expect_err(names);
        assert!(error.to_string().contains(names), "{changes}: {error}");
    }
    let unknown = json!({"model_type": "gemma3n", "text_config": {"model_type": "gemma3n_text"}});
    assert!(read(&unknown, &HfOptions::default()).expect_err("unknown").to_string().contains("gemma3n"));
    for text in ["", "[]", "7", "{"] {
        assert!(matches!(ModelSpec::from_hf(text, &HfOptions::default()), Err(HfError::Json(_))), "{text}");
    }
}

#[test]
fn the_document_names_what_is_known() {
    let document = include_str!("../../../MODEL-SPEC.md");
    let known =
        document.split_once("Known are `model_type` ").expect("a list").1.split_once(". ").expect("an end").0;
    let mut listed: Vec<_> =
        known.split([',', ' ', '\n']).filter(|word| !["", "and"].contains(word)).collect();
    let names = architecture::names();
    let mut names: Vec<_> = names.split(", ").collect();
    listed.sort_unstable();
    names.sort_unstable();
    assert_eq!(listed, names);
}

/// Whatever stands in a field, the answer is a spec or an error.
#[test]
fn no_configuration_makes_it_panic() {
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1, "mscale_all_dim": 1});
    let llama3 = json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4});
    let longrope = json!({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]});
    let values: Vec<Value> = serde_json::from_str(
        r#"[null, true, "x", [], {}, [1], 0, -1, 1, 2, 1e-300, 0.5, 1e300, 4294967295, 18446744073709551615]"#,
    )
    .expect("JSON");
    let options = HfOptions { context: Some(1 << 40), ..HfOptions::default() };
    for kind in ["llama", "gemma3_text", "phi", "minimax_m2", "falcon", "deepseek_v3", "llama4_text"] {
        for scaling in [&json!({"rope_type": "dynamic", "factor": 2}), &yarn, &llama3, &longrope] {
            let whole = with(&json!({
                "model_type": kind, "rope_scaling": scaling, "kv_lora_rank": 32, "qk_rope_head_dim": 4, "head_dim": 4,
                "rotary_dim": 2, "sliding_window": 9, "original_max_position_embeddings": 4096
            }));
            for value in &values {
                for field in whole.as_object().expect("an object").keys() {
                    let mut config = whole.clone();
                    config[field] = value.clone();
                    drop(read(&config, &options));
                }
                for field in scaling.as_object().expect("an object").keys() {
                    let mut config = whole.clone();
                    config["rope_scaling"][field] = value.clone();
                    drop(read(&config, &options));
                }
            }
        }
    }
}
