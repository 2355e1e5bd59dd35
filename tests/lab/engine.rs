//! Two engine processes over one Kvasir: one reuses the other's computed KV, bit for bit.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use kvasir_tests::command::{Bench, Served, exit, json as parse, prose};

use crate::{bench, dump, kvasir, serve};

/// Tokens of the shared context: two chunks and a tail.
const CONTEXT: usize = 700;
/// How long a store in the background may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running `kvasir-lab engine serve`.
struct EngineProcess {
    child: Child,
    address: String,
}

impl EngineProcess {
    fn start(bench: &Bench, flags: &str) -> Self {
        let line = format!("engine serve --listen 127.0.0.1:0 {flags}");
        let mut child = bench.command(bench.binary(), &line).stderr(Stdio::piped()).spawn().expect("starts");
        let mut said = Vec::new();
        let mut log = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
        let address = log.by_ref().find_map(|line| {
            said.push(line.clone());
            line.strip_prefix("engine ready at http://").map(str::to_owned)
        });
        // Somebody has to read what it says later, or it would wait for a reader.
        std::thread::spawn(move || log.for_each(drop));
        Self { child, address: address.unwrap_or_else(|| panic!("the engine is not ready: {said:?}")) }
    }

    fn post(&self, body: &Value) -> String {
        let mut connection = TcpStream::connect(&self.address).expect("it listens");
        let body = body.to_string();
        let head = "POST /v1/completions HTTP/1.1\r\nhost: engine\r\nconnection: close\r\n";
        write!(connection, "{head}content-length: {}\r\n\r\n{body}", body.len()).expect("it reads");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("it answers");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer
    }

    fn complete(&self, prompt: &[u32]) -> Value {
        let asked = json!({
            "prompt": prompt, "max_tokens": 24, "temperature": 0, "kvasir": { "kv_digest": true },
        });
        let answer = self.post(&asked);
        parse(answer.split_once("\r\n\r\n").expect("a body").1)
    }
}

impl Drop for EngineProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn number(answer: &Value, pointer: &str) -> f64 {
    answer.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {pointer} in {answer}"))
}

#[test]
fn two_engines_share_one_kvasir_bit_for_bit() {
    let bench = bench();
    dump(&bench, &prose(7, 900), CONTEXT);
    let prompt = kvasir_dump::parse_dump(&bench.read("kv.safetensors")).expect("a dump").tokens;
    kvasir(&bench, "profile train --kv kv.safetensors --recipe exact-only -o exact.kvp").succeeds();
    // Without memory for chunks: what its store loses is lost.
    let service = Served::start_with(&bench, &bench.sibling("kvasir"), "--hot.memory 0 --hot.disk 0");
    let shared = format!("--kvasir {} --profile exact.kvp --level 0", service.url);

    let without = EngineProcess::start(&bench, "").complete(&prompt);
    assert_eq!(number(&without, "/kvasir/prefix/computed_tokens"), CONTEXT as f64);

    let first = EngineProcess::start(&bench, &shared);
    let computed = first.complete(&prompt);
    assert_eq!(number(&computed, "/kvasir/prefix/loaded_tokens"), 0.0, "nobody has stored it yet");
    assert!(number(&computed, "/kvasir/ttft/lookup_ms") > 0.0, "it asked");

    let second = EngineProcess::start(&bench, &shared);
    let begun = Instant::now();
    // The store runs in the background: until it is done the other engine is asked something else and then again.
    let loaded = loop {
        let lookup = format!("context lookup --url {} --kv kv.safetensors --json", service.url);
        let looked = kvasir(&bench, &lookup);
        if looked.output.status.success() && parse(&looked.stdout())["matched_tokens"].as_u64() >= Some(688) {
            break second.complete(&prompt);
        }
        assert!(begun.elapsed() < PATIENCE, "the store does not end: {}", looked.stderr());
    };
    assert_eq!(number(&loaded, "/kvasir/prefix/loaded_tokens"), 688.0, "whole blocks: {loaded}");
    // The rest of the prompt begins on the first layers of what is loaded, unless these happen to be decoded last: the
    // profile has two groups of layers, which run side by side.
    let layer_wise = |answer: &Value| answer["kvasir"]["prefix"]["layer_wise"] == true;
    let mut answers = vec![computed, loaded];
    while !layer_wise(&answers[answers.len() - 1]) && answers.len() < 30 {
        answers.push(EngineProcess::start(&bench, &format!("{shared} --no-store")).complete(&prompt));
    }
    let loaded = &answers[answers.len() - 1];
    assert!(layer_wise(loaded), "never in {} loads: {loaded}", answers.len() - 1);
    assert!(number(loaded, "/kvasir/prefix/computed_tokens") <= 16.0);
    assert!(
        number(loaded, "/kvasir/ttft/fetch_ms") > 0.0 && number(loaded, "/kvasir/prefix/loaded_bytes") > 0.0
    );
    for answer in &answers {
        assert_eq!(answer["choices"], without["choices"], "the text is the same as without Kvasir");
        assert_eq!(
            answer["kvasir"]["kv_digest"], without["kvasir"]["kv_digest"],
            "and so is every bit of the KV"
        );
    }

    // What goes on from there: memory and Kvasir together, streamed.
    let more: Vec<u32> = prompt.iter().copied().chain(prompt[..40].iter().copied()).collect();
    let stream = second.post(&json!({
        "prompt": more, "max_tokens": 4, "temperature": 0, "stream": true, "stream_options": { "include_usage": true },
    }));
    let usage = stream.lines().rev().find_map(|line| line.strip_prefix("data: {")).expect("events");
    let usage = parse(&format!("{{{usage}"));
    assert_eq!(number(&usage, "/usage/prompt_tokens"), (CONTEXT + 40) as f64);
    assert!(number(&usage, "/kvasir/prefix/memory_tokens") >= 688.0, "{usage}");
    assert!(stream.trim_end().contains("data: [DONE]"));

    // A chunk that the index promises is gone: it is computed, the others are loaded all the same.
    let lost = largest_object(&bench.path("store"));
    std::fs::remove_file(lost).expect("it was there");
    let third = EngineProcess::start(
        &bench,
        &format!("--kvasir {} --profile exact.kvp --level 0 --no-store", service.url),
    );
    let mended = third.complete(&prompt);
    assert_eq!(
        number(&mended, "/kvasir/prefix/loaded_tokens"),
        688.0 - 256.0,
        "one whole chunk less: {mended}"
    );
    let levels = mended["kvasir"]["prefix"]["levels"].as_array().expect("a level a chunk").clone();
    assert_eq!(levels.iter().filter(|level| level.is_null()).count(), 1, "{mended}");
    assert_eq!(mended["kvasir"]["prefix"]["layer_wise"], false, "not over a prefix with a hole");
    assert_eq!(mended["choices"], without["choices"]);
    assert_eq!(mended["kvasir"]["kv_digest"], without["kvasir"]["kv_digest"]);
}

/// The largest chunk object under a folder.
fn largest_object(folder: &std::path::Path) -> std::path::PathBuf {
    let (mut folders, mut largest) = (vec![folder.to_owned()], None);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")) {
            let (path, about) = (entry.path(), entry.metadata().expect("it is there"));
            if about.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "kvc") {
                largest = largest.max(Some((about.len(), path)));
            }
        }
    }
    largest.expect("chunks were stored").1
}

#[test]
fn a_request_that_a_stop_sequence_ends_is_stored_like_others() {
    let bench = bench();
    dump(&bench, &prose(9, 400), 300);
    let prompt = kvasir_dump::parse_dump(&bench.read("kv.safetensors")).expect("a dump").tokens;
    let whole = EngineProcess::start(&bench, "").complete(&prompt);
    let text = whole["choices"][0]["text"].as_str().expect("a text");
    let stop: String = text.chars().skip(text.chars().count() / 2).take(4).collect();
    let service = serve(&bench);
    let engine = EngineProcess::start(&bench, &format!("--kvasir {}", service.url));
    let answer = engine.post(&json!({
        "prompt": prompt, "max_tokens": 600, "temperature": 0, "stop": stop, "kvasir": { "kv_digest": true },
    }));
    let answer = parse(answer.split_once("\r\n\r\n").expect("a body").1);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["choices"][0]["text"].as_str(), text.split(&stop).next());
    assert!(number(&answer, "/kvasir/ttft/total_ms") > 0.0);
    assert_eq!(number(&answer, "/kvasir/prefix/computed_tokens"), 300.0);
    assert_eq!(answer["kvasir"]["kv_digest"], whole["kvasir"]["kv_digest"]);
    let begun = Instant::now();
    let lookup = format!("context lookup --url {} --kv kv.safetensors", service.url);
    while !kvasir(&bench, &lookup).output.status.success() {
        assert!(begun.elapsed() < PATIENCE, "it is never stored");
    }
}

#[test]
fn an_engine_whose_kvasir_is_gone_answers_all_the_same() {
    let bench = bench();
    dump(&bench, &prose(8, 300), 200);
    let prompt = kvasir_dump::parse_dump(&bench.read("kv.safetensors")).expect("a dump").tokens;
    let service = serve(&bench);
    let engine = EngineProcess::start(&bench, &format!("--kvasir {}", service.url));
    drop(service);
    let answer = engine.complete(&prompt);
    assert_eq!(answer["choices"], EngineProcess::start(&bench, "").complete(&prompt)["choices"]);
    bench
        .run("engine serve --listen 127.0.0.1:0 --kvasir http://127.0.0.1:1")
        .fails(exit::UNAVAILABLE, &["--kvasir"]);
    bench.run("engine serve --model nowhere").fails(exit::DATA, &["nowhere"]);
}

#[test]
fn budgets_and_times_are_measured_through_a_service() {
    let bench = bench();
    let report = parse(&bench.ok("bench budgets --quick --json --out budgets"));
    let rows = report["compositions"].as_array().expect("rows");
    let row = |method: &str, coding: &str| {
        let found =
            rows.iter().find(|r| r["method"] == method && r["coding"] == coding && r["squeeze_p"].is_null());
        found.unwrap_or_else(|| panic!("no {method} {coding}")).clone()
    };
    let bytes = |method: &str, coding: &str| row(method, coding)["bytes"].as_f64().expect("a number");
    for method in ["sliding_window", "streaming_llm", "h2o", "scissorhands", "text_dropping"] {
        assert!(bytes(method, "8-bit") < bytes("none", "8-bit"), "{method} drops something");
        assert!(bytes(method, "level 0") < bytes(method, "8-bit"), "{method} is coded");
    }
    assert!(report["squeeze"].as_array().is_some_and(|rows| rows.len() >= 3));
    let html = String::from_utf8(bench.read("budgets/budgets.html")).expect("text");
    assert!(
        html.matches("<svg").count() == 4 && !html.contains("http") && !html.contains("NaN"),
        "whole and alone"
    );
    assert!(bench.read("budgets/budgets.csv").starts_with(b"table,method,"));

    let report = parse(&bench.ok("bench ttft --quick --json --out ttft"));
    let rows = report["links"].as_array().expect("rows");
    for way in ["text", "fp16", "8-bit", "cachegen", "progressive"] {
        let own: Vec<_> = rows.iter().filter(|row| row["way"] == way).collect();
        assert!(
            own.iter().all(|row| number(row, "/ttft/total_ms") > 0.0) && own.len() == 2,
            "{way}: {own:?}"
        );
    }
    assert!(number(&report, "/scaling/bandwidth") > 0.0);
    assert!(String::from_utf8_lossy(&bench.read("ttft/ttft.html")).matches("<svg").count() == 2);
}

#[test]
fn quality_is_measured_as_answers() {
    let bench = bench();
    let codecs =
        "--codecs kvasir,kvasir_names,lmcache,zeros --variants budget,direct,first --chunk-tokens 256";
    let line = format!("bench quality --quick --records 1 {codecs} --json --out first");
    let report = parse(&bench.ok(&line));
    let list = |what: &str| report[what].as_array().expect("a list").clone();
    assert!(list("rows").iter().all(|row| row["domain"] == "records" && row["asked"] == 2), "{report}");
    let zeros = list("rows").into_iter().find(|row| row["codec"] == "zeros").expect("ran");
    assert_eq!(zeros["kl_share"], 1.0);
    let of_worth = |what: &str| list(what).iter().filter(|one| !one["kl_share"].is_null()).count();
    // Three profiles of ours, one of them by names, too, the variant of LMCache, and zeros; one target.
    assert_eq!((of_worth("crossings"), of_worth("verdicts")), (6, 1));
    let named = list("rows").into_iter().filter(|row| row["codec"] == "kvasir_names");
    let errors: Vec<_> = named.map(|row| number(&row, "/error")).collect();
    // The bounds of small, balanced and transparent.
    assert!(errors.len() == 3 && errors.iter().zip([100.0, 10.0, 1.0]).all(|(error, most)| *error <= most));
    let csv = String::from_utf8(bench.read("first/quality.csv")).expect("text");
    assert!(csv.lines().next().is_some_and(|head| head.ends_with(",kl_share,error,quality")), "{csv}");

    let again = parse(&bench.ok("bench quality --quick --rows first/quality.json --json"));
    assert_eq!(again, report, "nothing else is measured");
}
