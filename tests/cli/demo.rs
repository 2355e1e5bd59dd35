//! The demo as a new user runs it. No test checks its times, because they depend on the machine.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Command, Stdio},
};

use crate::{browser::Browser, empty_bench, exit};

#[test]
fn the_demo_runs_the_whole_path_and_shows_it_in_the_console() {
    let bench = empty_bench();
    let line = "demo --json --open --out report";
    let browser = Browser::there(&bench);
    let mut demo = bench.command(bench.binary(), line);
    browser.is_used_by(&mut demo);
    let mut demo = demo.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    let mut notes = BufReader::new(demo.stderr.take().expect("piped")).lines().map_while(Result::ok);
    let address = |note: String| note.split_once("console: http://").map(|(_, rest)| rest.to_owned());
    let console = notes.find_map(address).expect("it says where the console is");
    let host = console.split('/').next().expect("an address");
    assert!(get(host, "/console/").contains("<title>"), "the page");
    // How many is a matter of time: on a slow machine part of them is computed.
    assert!(get(host, "/v1/loads").contains("\"loaded_tokens\":"), "the load that the page replays");
    assert_eq!(browser.opened(), format!("http://{host}/console/#/loads"));
    // A service that has the demo's chunks already, as after `demo --url` once.
    bench.ok(&format!("demo --url http://{host} --out again"));
    let id = demo.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().expect("kill is there").success());
    let ended = demo.wait_with_output().expect("it ends");
    assert!(ended.status.success(), "{:?}", ended.status);
    let text = String::from_utf8(ended.stdout).expect("text");
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
    assert!(number("/top1_agreement") > 0.99 && number("/perplexity/full") > 1.0);
    assert_eq!(outcome["same_text"], true, "whatever was loaded is transparent, the rest was computed");
    for key in ["kvasir", "recompute", "raw", "int8"] {
        assert!(number(&format!("/ttft_ms/{key}")) > 0.0, "{key}");
    }
    let html = String::from_utf8(bench.read("report/report.html")).expect("text");
    assert!(html.contains("<svg") && !html.contains("http"), "plots, and nothing from outside");
    assert!(html.contains("The first token came after"), "the sentence");
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&bench.read("report/demo.json")).expect("JSON"),
        outcome
    );
}

fn get(host: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(host).expect("the service listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    answer
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
