//! Commands for operators of a running service: context, admin, selftest, completions.

use std::fs;

use kvasir_client::rest::{Client, ClientConfig};
use kvasir_tests::command::Served;
use tokio::runtime::Runtime;

use crate::{dump, empty_bench, exit, json, prose, serve};

#[test]
fn what_became_of_a_request_of_an_engine_on_this_host() {
    let bench = empty_bench();
    let folder = bench.path("engines");
    fs::create_dir(&folder).expect("created");
    let line = |request: &str, ended_at_ms: u64, reason: &str| {
        let counts = r#""prompt_tokens":600,"in_vllm_tokens":0,"planned_tokens":576,"saved_tokens":600"#;
        format!(
            "{{\"request\":\"{request}\",\"ended_at_ms\":{ended_at_ms},{counts},\"stored_tokens\":null,\"reason\":\"{reason}\",\"detail\":\"why\"}}\n"
        )
    };
    fs::write(folder.join("requests-b.jsonl"), line("cmpl-7-9f0a", 2, "loaded") + "{\"request\":\"cmpl-7-")
        .expect("written");
    fs::write(folder.join("requests-a.old"), line("cmpl-7-1b2c", 1, "miss") + &line("cmpl-70-1", 3, "miss"))
        .expect("written");
    let text = bench.ok("context explain --request cmpl-7 --folder engines");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines[1], lines[4]), ("miss: why", "loaded: why"), "{text}");
    assert!(lines[2].contains("found in Kvasir: not known; planned to load: 576"), "{text}");
    assert_eq!(
        json(&bench.ok("context explain --request cmpl-70 --folder engines --json"))[0]["ended_at_ms"],
        3
    );
    bench
        .run("context explain --request cmpl-8 --folder engines")
        .fails(exit::NOTHING, &["has a record of request cmpl-8"]);
    bench.run("context explain --folder engines").fails(exit::USAGE, &[]);
}

#[test]
fn a_service_is_looked_after() {
    let bench = empty_bench();
    dump(&bench, &prose(1, 500), 300, "kv.safetensors");
    let service = serve(&bench);
    let url = &service.url;

    // The first to ask registers the model.
    bench.run(&format!("context lookup --url {url} --kv kv.safetensors"));
    let miss = json(&bench.ok(&format!("context explain --url {url} --kv kv.safetensors --json")));
    assert_eq!(miss["causes"][0]["reason"], "never_stored");
    bench
        .run(&format!("context create --url {url} --kv kv.safetensors"))
        .fails(exit::NOTHING, &["no whole chunk"]);
    bench.ok(&format!("context put --url {url} --kv kv.safetensors --chunk-tokens 256"));
    let text = bench.ok(&format!("context explain --url {url} --kv kv.safetensors"));
    assert!(text.starts_with("300 of 300 tokens match\nstored: "), "{text}");
    let elsewhere = bench.ok(&format!("context explain --url {url} --namespace other --kv kv.safetensors"));
    assert!(
        elsewhere.contains("other_namespace: 300 of these tokens are stored in namespace default"),
        "{elsewhere}"
    );
    let miss = json(&bench.ok(&format!("context explain --url {url} --key a --key a/b --json")));
    assert_eq!((&miss["keys"], &miss["key"]), (&2.into(), &"a".into()));
    let text = bench.ok(&format!("context explain --url {url} --key a"));
    assert!(text.starts_with("0 of 1 keys have objects; the next one is a\nnever_stored: "), "{text}");
    let both = bench.run(&format!("context explain --url {url} --key a --kv kv.safetensors"));
    both.fails(exit::USAGE, &[]);

    let create = format!("context create --url {url} --kv kv.safetensors --label app=chat --pin --json");
    let context = json(&bench.ok(&create));
    assert_eq!((&context["tokens"], &context["pinned"]), (&300.into(), &true.into()));
    let id = context["context_id"].as_str().expect("an id");
    let changed = json(&bench.ok(&format!("context update --url {url} {id} --unpin --label app=rag --json")));
    assert_eq!((&changed["version"], &changed["pinned"]), (&2.into(), &false.into()));
    assert_eq!(bench.ok(&format!("context list --url {url} {id} --versions")), "1\n2\n");
    assert_eq!(json(&bench.ok(&format!("context list --url {url} {id} --version 1 --json"))), context);
    let listed = json(&bench.ok(&format!("context list --url {url} --label app=rag --json")));
    assert_eq!(listed.as_array().map(Vec::len), Some(1));
    bench.ok(&format!("context delete --url {url} {id}"));
    bench.run(&format!("context list --url {url} {id}")).fails(exit::DATA, &["does not exist"]);

    let usage = json(&bench.ok(&format!("admin usage --url {url} --json")));
    assert_eq!((&usage["objects"], &usage["context_versions"]), (&2.into(), &3.into()));
    let table = bench.ok(&format!("admin usage --url {url}"));
    assert!(table.lines().any(|line| line.starts_with("chunks ")), "{table}");

    let job = json(&bench.ok(&format!("admin gc --url {url} --dry-run --json")));
    assert_eq!((&job["state"], &job["counts"]["objects"]), (&"done".into(), &2.into()));
    let job = json(&bench.ok(&format!("admin scrub --url {url} --json")));
    assert_eq!((&job["counts"]["objects"], &job["counts"]["quarantined"]), (&2.into(), &0.into()));

    let test = json(&bench.ok(&format!("selftest --url {url} --json")));
    assert!(test["gone_ms"].is_number() && test["bytes"].as_u64() > Some(0), "{test}");
    let kept = json(&bench.ok(&format!("selftest --url {url} --keep --json")));
    assert!(kept["get_ms"].is_number() && kept["delete_ms"].is_null(), "{kept}");
    bench
        .run("selftest --url http://127.0.0.1:1 --patience 0")
        .fails(exit::UNAVAILABLE, &["http://127.0.0.1:1"]);

    let view = json(&bench.ok(&format!("admin top --url {url} --interval-ms 100 --count 1 --json")));
    assert_eq!((&view["ready"], view["hit_ratio"].is_number()), (&true.into(), true), "{view}");
    let view = bench.ok(&format!("admin top --url {url} --interval-ms 100 --count 1"));
    assert!(view.contains("requests/s") && view.contains("SLO"), "{view}");

    // The event of a removal, asked for from the beginning of what this replica knows.
    let after = format!("admin events --url {url} --after 1-00000000-0 --count 1 --json");
    let event = json(&bench.ok(&after));
    assert_eq!((&event["event_type"], &event["reason"]), (&"cleared".into(), &"resumed_too_late".into()));
}

#[test]
fn shells_complete_the_command_line() {
    let bench = empty_bench();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = bench.ok(&format!("completions {shell}"));
        for command in ["explain", "context", "scrub", "top", "store.url"] {
            assert!(script.contains(command), "{command} in {shell}");
        }
    }
}

#[test]
fn selftest_is_an_s3_client_too() {
    let bench = empty_bench();
    let port = std::net::TcpListener::bind(("127.0.0.1", 0))
        .and_then(|l| l.local_addr())
        .expect("a free port")
        .port();
    let _served = Served::start_with(&bench, bench.binary(), &format!("--s3.listen 127.0.0.1:{port}"));
    let line = format!("selftest --s3 http://127.0.0.1:{port} --json");
    let key = |secret| [("AWS_ACCESS_KEY_ID", "anyone"), ("AWS_SECRET_ACCESS_KEY", secret)];
    let test = json(&bench.run_with(&line, &key("anyone")).succeeds());
    assert!(test["list_ms"].is_number() && test["gone_ms"].is_number() && test["bytes"] == 3 << 20, "{test}");
    bench.run_with(&line, &key("another")).fails(exit::UNAVAILABLE, &["SignatureDoesNotMatch"]);
    bench.run(&line).fails(exit::USAGE, &["AWS_ACCESS_KEY_ID", "kvasir token --s3"]);
}

#[test]
fn a_page_that_an_engine_misses_is_explained_by_what_differs() {
    let bench = empty_bench();
    let service = serve(&bench);
    let url = &service.url;
    let engine = format!("lmcache/{}", "0f".repeat(16));
    put(url, "lmcache/identities/0", r#"{"place": [0], "fields": [["dtype", "bf16"], ["ranks", 1]]}"#);
    put(url, &format!("{engine}/identity"), r#"{"place": [0], "fields": [["dtype", "fp8"], ["ranks", 1]]}"#);
    let text = bench.ok(&format!("context explain --url {url} --key {engine}/0/page"));
    assert!(
        text.contains("/page\nother_model: ") && text.contains("\n  dtype: asked fp8, stored bf16\n"),
        "{text}"
    );
}

/// Stores an object, as an engine does.
fn put(url: &str, key: &str, bytes: &'static str) {
    let client = Client::new(url.parse().expect("an address"), ClientConfig::default()).expect("a client");
    let (namespace, key) = ("default".parse().expect("a name"), key.parse().expect("a key"));
    let put = client.put_opaque(&namespace, &key, bytes.into());
    Runtime::new().expect("a runtime").block_on(put).expect("stored");
}
