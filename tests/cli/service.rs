//! Commands that talk to a service: serve, store, lookup, fetch, rebuild-index.

use std::{
    io::{BufRead as _, BufReader},
    net::TcpListener,
    process::{Child, Stdio},
};

use crate::{Bench, command, exit, prose};

/// A running `kvasir serve`.
pub(crate) struct Served {
    child: Child,
    pub(crate) url: String,
}

impl Served {
    pub(crate) fn start(bench: &Bench) -> Self {
        Self::start_with(bench, "")
    }

    /// With more flags.
    pub(crate) fn start_with(bench: &Bench, flags: &str) -> Self {
        // Taken and given back: the service binds it at once; another test would have to be as quick.
        let port =
            TcpListener::bind(("127.0.0.1", 0)).and_then(|l| l.local_addr()).expect("a free port").port();
        let store = bench.path("store");
        let data = bench.path("data");
        std::fs::create_dir_all(&store).expect("a folder");
        let line = format!(
            "serve --listen 127.0.0.1:{port} --store.url file://{} --cache.directory {} {flags}",
            store.display(),
            data.display()
        );
        let mut child = command(&bench.path(""), &line).stderr(Stdio::piped()).spawn().expect("starts");
        let log = child.stderr.take().expect("piped");
        let ready = BufReader::new(log).lines().map_while(Result::ok).any(|line| line.contains("ready"));
        assert!(ready, "the service ends without being ready");
        Self { child, url: format!("http://127.0.0.1:{port}") }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn a_context_is_stored_found_and_fetched() {
    let bench = Bench::new();
    bench.write("text.txt", prose(1, 700));
    bench.ok("kv --text text.txt --tokens 600 -o kv.safetensors");
    bench.ok("kv --text text.txt --tokens 700 -o longer.safetensors");
    let service = Served::start(&bench);
    let url = &service.url;

    bench
        .run(&format!("lookup --url {url} --kv kv.safetensors"))
        .fails(exit::NOTHING, &["nothing is stored"]);
    let stored = json(&bench.ok(&format!("store --url {url} --kv kv.safetensors --chunk-tokens 256 --json")));
    assert_eq!(stored["chunks"].as_array().expect("chunks").len(), 3);
    let again = json(&bench.ok(&format!("store --url {url} --kv kv.safetensors --chunk-tokens 256 --json")));
    assert_eq!(again["bytes"], 0, "what is there is not sent again");

    let found = json(&bench.ok(&format!("lookup --url {url} --kv longer.safetensors --json")));
    assert_eq!(found["matched_tokens"], 592, "the longest prefix, in whole blocks of 16");
    let other = bench.run(&format!("lookup --url {url} --namespace other --kv kv.safetensors"));
    other.fails(exit::NOTHING, &["nothing is stored"]);

    let whole = json(&bench.ok(&format!("fetch --url {url} --kv kv.safetensors -o back.safetensors --json")));
    let base = json(
        &bench.ok(&format!("fetch --url {url} --kv kv.safetensors --level 0 -o base.safetensors --json")),
    );
    assert!(base["bytes"].as_u64() < whole["bytes"].as_u64(), "a lower level is fewer bytes");
    let dump = |name: &str| kvasir_model::dump::parse_dump(&bench.read(name)).expect("a dump");
    assert_eq!(dump("back.safetensors").tokens, dump("kv.safetensors").tokens);
    bench
        .run(&format!("fetch --url {url} --kv kv.safetensors --level 99 -o x.safetensors"))
        .fails(exit::DATA, &["level 99 does not exist"]);
}

#[test]
fn the_index_can_be_lost_and_rebuilt() {
    let bench = Bench::new();
    bench.write("text.txt", prose(2, 400));
    bench.ok("kv --text text.txt --tokens 300 -o kv.safetensors");
    let service = Served::start(&bench);
    bench.ok(&format!("store --url {} --kv kv.safetensors", service.url));
    drop(service);
    std::fs::remove_dir_all(bench.path("data")).expect("the index is only a cache");
    let settings = format!(
        "--store.url file://{} --cache.directory {}",
        bench.path("store").display(),
        bench.path("data").display()
    );
    let run = bench.run(&format!("rebuild-index {settings}"));
    assert!(run.stderr().contains("1 indexed"), "{}", run.stderr());
    run.succeeds();
    let service = Served::start(&bench);
    let found = json(&bench.ok(&format!("lookup --url {} --kv kv.safetensors --json", service.url)));
    assert_eq!(found["matched_tokens"], 300);
}

#[test]
fn every_mistake_of_a_configuration_is_listed_at_once() {
    let bench = Bench::new();
    bench
        .write("bad.toml", "[server]\nlisten = \"nowhere\"\nlisten_addr = 1\n[sotre]\nurl = \"file:///x\"\n");
    let run =
        bench.run_with("serve --config bad.toml --server.drain_grace soon", &[("KVASIR_STORE_URLL", "x")]);
    run.fails(
        exit::CONFIG,
        &["listen", "listen_addr", "sotre", "drain_grace", "KVASIR_STORE_URLL", "store.url"],
    );
}

#[test]
fn a_service_that_is_not_there_is_said_to_be_so() {
    let bench = Bench::new();
    bench.write("text.txt", prose(3, 40));
    bench
        .run("lookup --url http://127.0.0.1:1 --text text.txt")
        .fails(exit::UNAVAILABLE, &["Check that the service runs"]);
    bench.run("lookup --url ftp://x --text text.txt").fails(exit::CONFIG, &["http://host:port"]);
    bench.run("lookup --text text.txt --kv kv.safetensors").fails(exit::USAGE, &["cannot be used with"]);
}
