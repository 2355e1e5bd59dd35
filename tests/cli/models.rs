//! Tests `kvasir model spec` and `kvasir plan`: from a Hugging Face config.json to the arithmetic.

use crate::{empty_bench, exit};

const QWEN3: &str = include_str!("../../crates/kvasir-model/configs/qwen3-8b.json");
const PHI: &str = include_str!("../../crates/kvasir-model/configs/phi-3.5-vision.json");

#[test]
fn a_config_gives_a_spec_and_a_plan() {
    let bench = empty_bench();
    bench.write("config.json", QWEN3);
    let printed = bench.ok("model spec --config . --weights Qwen/Qwen3-8B --revision abc --adapter lora");
    let spec: kvasir_types::ModelSpec = serde_json::from_str(&printed).expect("a spec");
    assert_eq!((spec.weights.as_str(), spec.adapter.as_deref()), ("Qwen/Qwen3-8B", Some("lora")));
    assert_eq!(spec.bytes_per_token(), 147_456);
    bench.write("spec.json", &printed);
    bench.ok("plan --model spec.json --parameters 8.2 --bandwidth 3gbit");
    let text = bench.ok("plan --config config.json --bandwidth 400MB/s,10gbit --slo 1s");
    assert!(text.contains("KV per token 147.5 kB fp16") && text.contains("over 3.2 gbit/s"), "{text}");
    let raw = bench.ok("model spec --config . --weights Qwen/Qwen3-8B --revision abc --adapter lora --freqs");
    let raw: kvasir_types::ModelSpec = serde_json::from_str(&raw).expect("a spec");
    assert_eq!(raw.model_id(), spec.model_id());
}

#[test]
fn a_folder_of_the_hub_cache_names_weights_and_revision() {
    let bench = empty_bench();
    let folder = "models--Qwen--Qwen3-8B/snapshots/0123abcd";
    std::fs::create_dir_all(bench.path(folder)).expect("creates");
    bench.write(&format!("{folder}/config.json"), QWEN3);
    let spec: kvasir_types::ModelSpec =
        serde_json::from_str(&bench.ok(&format!("model spec --config {folder}"))).expect("a spec");
    assert_eq!((spec.weights.as_str(), spec.revision.as_str()), ("Qwen/Qwen3-8B", "0123abcd"));
}

#[test]
fn what_is_missing_is_said() {
    let bench = empty_bench();
    bench.write("config.json", PHI);
    let spec = "model spec --config config.json --weights w";
    bench.run(spec).fails(exit::USAGE, &["revision", "--revision"]);
    let lengths = ["rope_scaling.type", "4096 tokens", "--context"];
    bench.run(&format!("{spec} --revision r")).fails(exit::DATA, &lengths);
    bench.ok(&format!("{spec} --revision r --context 131072"));
    bench.write("other.json", r#"{"model_type": "mamba"}"#);
    bench.run("plan --config other.json").fails(exit::DATA, &["model_type: \"mamba\"", "llama"]);
    bench.run("plan --model llama-3.1-8b --slo 1").fails(exit::USAGE, &["a time needs a unit", "250ms, 1s"]);
    bench
        .run("plan --model llama-3.1-8b --bandwidth 3")
        .fails(exit::USAGE, &["a bandwidth needs a unit", "3gbit"]);
    bench.run("plan --model config.json").fails(exit::DATA, &["not a model spec", "--config"]);
}

#[test]
fn wrong_usage_of_plan_is_status_2() {
    let bench = empty_bench();
    bench.write("config.json", QWEN3);
    bench.write("spec.json", bench.ok("model spec --config config.json --weights w --revision r"));
    for (arguments, needle) in [
        ("--model nope", "neither a known model nor a file"),
        ("--model llama-3.1-8b --gpu nope", "no known GPU"),
        ("--model llama-3.1-8b --gpus 0", "--gpus"),
        ("--model llama-3.1-8b --tokens 0", "--tokens"),
        ("--model llama-3.1-8b --parameters nan", "above 0"),
        ("--model spec.json", "add --parameters"),
    ] {
        bench.run(&format!("plan {arguments}")).fails(exit::USAGE, &[needle]);
    }
}

#[test]
fn weights_that_do_not_fit_are_said() {
    let bench = empty_bench();
    let plan = |gpus| bench.ok(&format!("plan --model deepseek-v3 --gpu h200 --gpus {gpus}"));
    assert!(plan(1).contains("need 5 h200s of 141.0 GB each, not 1"), "{}", plan(1));
    assert!(!plan(8).contains("does not fit"));
    let long = bench.ok("plan --model qwen3-8b --tokens 50000");
    assert!(long.contains("longest context has 40960 tokens"), "{long}");
    for name in ["b300", "mi355x", "gpt-oss-120b", "kimi-k2", "kvasir-tiny"] {
        assert!(bench.ok("plan --list").contains(name), "{name}");
    }
}
