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
    assert_eq!(windows(json!({"model_type": "mistral"})), [4096; 4]);
    assert_eq!(windows(json!({"model_type": "mistral", "sliding_window": null})), [0; 4]);
    assert_eq!(windows(w("gemma2")), [64, 0, 64, 0]);
    assert_eq!(windows(w("qwen2")), [0; 4], "use_sliding_window is not set");
    let upper = json!({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": true, "max_window_layers": 3});
    assert_eq!(windows(upper.clone()), [0, 0, 0, 64]);
    let mut absent = upper;
    absent.as_object_mut().expect("an object").remove("sliding_window");
    assert_eq!(windows(absent), [0, 0, 0, 4096]);
    let mut listed = w("qwen2");
    listed["layer_types"] =
        json!(["sliding_attention", "full_attention", "full_attention", "full_attention"]);
    assert_eq!(windows(listed), [64, 0, 0, 0]);
    let llama_4 = json!({"model_type": "llama4_text", "attention_chunk_size": 128});
    assert_eq!(windows(llama_4.clone()), [128, 128, 128, 0]);
    assert_eq!(windows(json!({"model_type": "llama4_text", "attention_chunk_size": null})), [0; 4]);
    let rotated: Vec<_> = spec(&llama_4).layers.iter().map(|l| l.rope).collect();
    assert_eq!(rotated, [Some(0), Some(0), Some(0), None]);
}

/// Key/value heads and elements of a head are those that `transformers` 5.24 has for 64 heads over 4,096
/// elements.
#[test]
fn absent_sizes_are_those_of_their_architecture() {
    let shape = |config: &Value| {
        let spec = read(config, &HfOptions::default()).unwrap_or_else(|e| panic!("{config}: {e}"));
        spec.layers[3].layout.planes()[0]
    };
    let windowed = ["gemma2", "gemma3_text", "gpt_oss", "olmo3"];
    let described = ["gpt_oss", "ministral3"];
    for (kind, heads, head_dim) in [
        ("llama", 64, 64),
        ("llama4_text", 8, 128),
        ("mistral", 8, 64),
        ("ministral3", 8, 128),
        ("mixtral", 8, 64),
        ("qwen2", 32, 64),
        ("qwen2_moe", 16, 64),
        ("qwen3", 32, 128),
        ("qwen3_moe", 4, 64),
        ("gemma", 16, 256),
        ("gemma2", 4, 256),
        ("gemma3_text", 4, 256),
        ("gpt_oss", 8, 64),
        ("phi", 64, 64),
        ("phi3", 64, 64),
        ("olmo", 64, 64),
        ("olmo2", 64, 64),
        ("olmo3", 64, 64),
        ("smollm3", 4, 64),
        ("gpt_neox", 64, 64),
        ("glm", 2, 128),
        ("glm4", 2, 128),
        ("glm4_moe", 8, 64),
        ("minimax_m2", 8, 128),
    ] {
        let mut config = with(&json!({
            "model_type": kind, "hidden_size": 4096, "num_attention_heads": 64, "num_key_value_heads": null
        }));
        if windowed.contains(&kind) {
            config["sliding_window"] = 64.into();
        }
        if described.contains(&kind) {
            config["rope_parameters"] = json!({"rope_type": "default"});
        }
        assert_eq!(shape(&config), (64, head_dim), "{kind}: null is one for each head");
        config.as_object_mut().expect("an object").remove("num_key_value_heads");
        assert_eq!(shape(&config), (heads, head_dim), "{kind}");
    }
}

#[test]
fn absent_bases_are_those_of_their_architecture() {
    let bases = |changes: Value| -> Vec<f64> {
        let theta = |rope: &crate::Rope| rope.formula.as_ref().expect("a formula").theta;
        spec(&changes).ropes.iter().map(theta).collect()
    };
    let of =
        |kind: &str, theta: Value| json!({"model_type": kind, "sliding_window": 64, "rope_theta": theta});
    assert_eq!(bases(of("olmo3", Value::Null)), [5e5]);
    assert_eq!(bases(of("olmo3", json!(1e6))), [1e6, 5e5], "`rope_theta` is not that of sliding layers");
    let mut ministral = of("ministral3", Value::Null);
    ministral["rope_parameters"] = json!({"rope_type": "default"});
    assert_eq!(bases(ministral), [1e4]);
}

/// Phi-3's class has an original length of its own, before that of the rope.
#[test]
fn an_absent_original_length_is_that_of_phi_3() {
    let (short, long) = (vec![1.0; 32], vec![2.0; 32]);
    let config = with(&json!({
        "model_type": "phi3", "rope_scaling": {
            "type": "longrope", "short_factor": short, "long_factor": long, "original_max_position_embeddings": 2048
        }
    }));
    let of = |context| {
        read(&config, &HfOptions { context: Some(context), ..HfOptions::default() }).expect("known")
    };
    let plain = spec(&json!({})).ropes[0].freqs[1];
    assert_eq!((of(4096).ropes[0].freqs[1], of(4097).ropes[0].freqs[1]), (plain, plain / 2));
}

#[test]
fn two_descriptions_of_a_rope_are_refused() {
    let linear = |factor: f64| json!({"rope_type": "linear", "factor": factor, "rope_theta": 500_000.0});
    let both =
        |scaling: Value, parameters: Value| json!({"rope_scaling": scaling, "rope_parameters": parameters});
    let error = read(&with(&both(linear(4.0), linear(8.0))), &HfOptions::default()).expect_err("which?");
    let text = error.to_string();
    assert!(text.starts_with("rope_scaling: {") && text.contains("`rope_parameters` differs"), "{text}");
    let one = spec(&json!({"rope_scaling": linear(8.0)}));
    for said in
        [both(linear(8.0), linear(8.0)), both(linear(8.0), Value::Null), both(Value::Null, linear(8.0))]
    {
        assert_eq!(spec(&said).model_id(), one.model_id(), "{said}");
    }
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
        (
            json!({"model_type": "qwen2", "dual_chunk_attention_config": {"chunk_size": 262_144}}),
            "dual_chunk_attention_config: {\"chunk_size\":262144}",
        ),
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
        (
            json!({"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1e39]}, "head_dim": 2}),
            "rope_scaling.long_factor: [1e",
        ),
        (json!({"head_dim": 4096, "num_attention_heads": 2}), "head_dim: 4096: rotary_dims must be"),
        (yarn(("alpha", json!(1))), "rope_scaling.alpha: 1: not supported in a rope of type yarn"),
        (yarn(("truncate", json!("no"))), "rope_scaling.truncate: \"no\""),
        (json!({"rope_parameters": {"sliding_attention": {}}}), "rope_parameters.full_attention: missing"),
        (
            json!({"model_type": "gemma3_text", "sliding_window": 9, "rope_parameters": {"rope_type": "linear", "factor": 8.0}}),
            "rope_parameters.sliding_attention: missing",
        ),
        (json!({"model_type": "gpt_oss", "sliding_window": 9}), "rope_parameters: missing: required"),
        (json!({"model_type": "ministral3"}), "rope_parameters: missing: required"),
        (
            json!({"model_type": "qwen2_moe", "use_sliding_window": true, "sliding_window": null}),
            "use_sliding_window: true",
        ),
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
