//! The demo as a new user runs it. No test looks at its times: they are this machine's.

use crate::{empty_bench, exit};

#[test]
fn the_demo_runs_the_whole_path() {
    let bench = empty_bench();
    // A generous budget: in an unoptimised build on a busy machine, decoding alone takes longer than the default.
    let text = bench.ok("demo --json --out report --slo-ms 60000 --link-mbps 200");
    let outcome: serde_json::Value = serde_json::from_str(&text).expect("one JSON document on stdout");
    let number =
        |pointer: &str| outcome.pointer(pointer).and_then(serde_json::Value::as_f64).unwrap_or(f64::NAN);
    assert!(number("/tokens") >= 3.0 * 256.0, "at least three chunks");
    let levels = outcome["levels"].as_array().expect("levels");
    let sizes: Vec<_> = levels.iter().filter_map(|l| l["bytes"].as_u64()).collect();
    assert!(levels.len() >= 2 && sizes.is_sorted(), "{sizes:?}");
    assert_eq!(
        outcome["bytes_stored"].as_u64(),
        sizes.last().copied(),
        "the finest level is the whole object"
    );
    assert!(number("/bytes_8bit") < number("/bytes_raw") && number("/bytes_stored") < number("/bytes_8bit"));
    assert!(number("/top1_agreement") > 0.5 && number("/perplexity/full") > 1.0);
    for key in ["kvasir", "recompute", "raw", "int8"] {
        assert!(number(&format!("/ttft_ms/{key}")) > 0.0, "{key}");
    }
    let html = String::from_utf8(bench.read("report/report.html")).expect("text");
    assert!(html.contains("<svg") && !html.contains("http"), "plots, and nothing from outside");
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&bench.read("report/demo.json")).expect("JSON"),
        outcome
    );
}

#[test]
fn bad_series_and_folders_are_refused_before_anything_runs() {
    let bench = empty_bench();
    bench.write(
        "bad.jsonl",
        "{\"unit\":\"Mbps\",\"dt\":1,\"bw\":[1,2]}\nnonsense\n{\"unit\":\"furlongs\",\"dt\":1,\"bw\":[1]}\n",
    );
    bench.run("demo --trace bad.jsonl").fails(exit::DATA, &["line 2", "line 3"]);
    bench.run("demo --trace none.jsonl").fails(exit::NO_INPUT, &["none.jsonl"]);
    bench.run("demo --link-mbps 0").fails(exit::USAGE, &["above 0"]);
    bench.write("file", "");
    bench.run("demo --out file").fails(exit::NO_OUTPUT, &["--out"]);
}
