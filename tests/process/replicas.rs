//! Three replicas over one server: each finds data that another acknowledged. Replicas are killed and added,
//! disks are wiped, and clocks are wrong by minutes.

use std::{collections::BTreeSet, path::Path, process::Command, time::Duration};

use kvasir_api::routes;
use kvasir_store::StoreConfig;
use kvasir_tests::{
    chunks,
    process::{Process, Start},
    s3::S3Server,
    servers::RealServer,
    service::{Api, lookup_request},
};
use kvasir_types::ModelId;
use tempfile::TempDir;

use crate::SERVER;

/// As in the flags below.
const NEGATIVE_TTL: Duration = Duration::from_secs(1);

/// A library that shifts the time of a process. `None` if there is no C compiler.
fn skewing_library(directory: &Path) -> Option<String> {
    let (source, library) = (directory.join("skew.c"), directory.join("skew.so"));
    std::fs::write(&source, include_str!("skew.c")).expect("writes");
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).status();
    built.is_ok_and(|status| status.success()).then(|| library.display().to_string())
}

struct Group<'a> {
    store: &'a StoreConfig,
    directory: TempDir,
    skew: Option<String>,
    started: usize,
}

impl Group<'_> {
    async fn start(&mut self, name: &str, minutes: i64, negative_ttl: &str) -> Process {
        self.started += 1;
        let cache = self.directory.path().join(name);
        let negative_ttl = format!("--lookup.negative_ttl={negative_ttl}");
        // Were ages by a replica's clock, those that run ahead would collect everything at once.
        let flags = [
            "--gc.interval=100ms",
            "--gc.grace=0s",
            // URLs must not outlive what they name.
            "--direct.enabled=false",
            "--gc.ttl=5m",
            "--journal.interval=200ms",
            &negative_ttl,
        ];
        let mut start = Start::new(SERVER, self.store, &cache).flags(&flags);
        if let Some(library) = &self.skew {
            start = start.env("LD_PRELOAD", library).env("SKEW_SECONDS", &(minutes * 60).to_string());
        }
        let process = start.start().await;
        process.ready().await;
        process
    }
}

async fn matched(api: &Api, model_id: ModelId, tokens: &[u32]) -> u64 {
    // Not fresh: as a client asks that knows of nothing.
    api.lookup(&lookup_request(model_id, "n", tokens, false)).await.matched_tokens
}

/// The time of a replica, to the minute.
async fn minute(api: &Api) -> String {
    let answer = api.get(routes::LIVEZ, &[]).await;
    let date = answer.headers()["date"].to_str().expect("text");
    date[.."Tue, 01 Dec 2026 12:00".len()].to_owned()
}

async fn three_replicas(name: &str, store: &StoreConfig) {
    let directory = TempDir::new().expect("a directory");
    let skew = skewing_library(directory.path());
    if skew.is_none() {
        println!("SKIPPED: no C compiler, clocks are not skewed");
    }
    let mut group = Group { store, directory, skew, started: 0 };
    let a = group.start("a", 0, "1s").await;
    let b = group.start("b", 7, "1s").await;
    let c = group.start("c", -7, "0s").await;
    let (model_id, root) = a.prepare("n").await;
    assert_eq!(b.prepare("n").await, (model_id, root));
    assert_eq!(c.prepare("n").await, (model_id, root));
    let mut all = Vec::new();
    let mut replicas = [a, b, c];
    if group.skew.is_some() {
        let mut minutes = BTreeSet::new();
        for replica in &replicas {
            minutes.insert(minute(replica).await);
        }
        assert_eq!(minutes.len(), replicas.len(), "the library shifts no clock: {minutes:?}");
    }
    for round in 0..6u64 {
        let tokens = chunks::tokens(round, 1_700);
        for replica in &replicas {
            assert_eq!(matched(replica, model_id, &tokens).await, 0, "a miss that is remembered");
        }
        let writer = &replicas[round as usize % 3];
        for chunk in chunks::context(root, &tokens, 1_536, 200) {
            assert!(writer.put(&model_id, &chunk).await.status().is_success());
        }
        // Who remembers no misses finds it at once, whole chunks from the store alone.
        assert_eq!(matched(&replicas[2], model_id, &tokens).await, 1_700, "{name}");
        tokio::time::sleep(NEGATIVE_TTL).await;
        all.push(tokens);
        for replica in &replicas {
            for tokens in &all {
                assert_eq!(matched(replica, model_id, tokens).await, 1_700, "{name}: round {round}");
            }
        }
        // One is killed. Its successor gets its disk, or an empty one.
        let at = (round as usize + 1) % 2;
        let (folder, minutes) = ([["a", "a2"], ["b", "b2"]][at][(round % 2) as usize], [7, -7][at]);
        let successor = group.start(&format!("{folder}-new"), minutes, "1s").await;
        std::mem::replace(&mut replicas[at], successor).kill();
        for tokens in &all {
            assert_eq!(matched(&replicas[at], model_id, tokens).await, 1_700, "{name}: a successor");
        }
    }
    // Matches inside of chunks of others come by the journal.
    let mut other = all[5].clone();
    other[1_000] ^= 1;
    let begun = std::time::Instant::now();
    for replica in &replicas {
        while matched(replica, model_id, &other).await != 992 {
            assert!(begun.elapsed() < Duration::from_secs(30), "{name}: the journal brings nothing");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    let passes: f64 = {
        let mut sum = 0.0;
        for replica in &replicas {
            let metrics = replica.metrics().await;
            let line = metrics.lines().find_map(|l| l.strip_prefix("kvasir_gc_passes_total "));
            sum += line.and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0);
        }
        sum
    };
    println!(
        "{name}: {} replicas, {} contexts, {passes} passes of the last collectors; all found",
        group.started,
        all.len()
    );
    assert!(passes > 0.0, "no replica with a wrong clock collected");
}

#[tokio::test]
async fn over_s3() {
    let server = S3Server::start(Default::default()).await;
    three_replicas("in-process S3", &server.config("replicas")).await;
}

#[tokio::test]
async fn over_real_servers() {
    for server in RealServer::all() {
        let store = server.config(&format!("replicas-{}", std::process::id()));
        three_replicas(&server.name, &store).await;
    }
}
