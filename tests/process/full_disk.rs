//! A disk that is full: nothing torn becomes visible, nothing acknowledged is lost, and service goes on when there is room.

use std::process::Command;

use kvasir_api::routes;
use kvasir_storage::store::StoreConfig;
use kvasir_tests::{chunks, process::Start};
use reqwest::{Method, StatusCode};
use tempfile::TempDir;

use crate::SERVER;

/// Becomes its arguments behind the first, in a mount namespace with a small file system at the first.
const SMALL_DISK: &str = "mount -t tmpfs -o size=24m tmpfs \"$0\" && exec \"$@\"";

#[tokio::test]
async fn a_store_and_a_spool_on_a_full_disk() {
    let allowed = Command::new("unshare").args(["--user", "--map-root-user", "--mount", "true"]).status();
    if !allowed.is_ok_and(|status| status.success()) {
        println!("SKIPPED: unshare may not make a mount namespace here, no disk is full");
        return;
    }
    let directory = TempDir::new().expect("a directory");
    let disk = directory.path().display().to_string();
    let store = StoreConfig::new(format!("file://{disk}/store").parse().expect("a url"));
    let cache = directory.path().join("cache");
    let flags = ["--gc.interval=100ms", "--gc.grace=0s", "--journal.interval=0s"];
    let mut start = Start::new(SERVER, &store, &cache).flags(&flags);
    let under = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", SMALL_DISK, &disk];
    start.under = under.map(str::to_owned).to_vec();
    let process = start.start().await;
    process.ready().await;
    let (model_id, root) = process.prepare("n").await;
    let make = |seed| {
        let tokens = chunks::tokens(seed, 256);
        let chunk = chunks::chunk(root, &tokens, 0, 256, 1_000_000);
        (tokens, chunk)
    };
    let (mut kept, mut refused) = (Vec::new(), 0);
    for seed in 0..20 {
        let (tokens, chunk) = make(seed);
        let response = process.put(&model_id, &chunk).await;
        match response.status() {
            StatusCode::CREATED => kept.push((tokens, chunk)),
            status => {
                assert_eq!(
                    status,
                    StatusCode::SERVICE_UNAVAILABLE,
                    "{}",
                    response.text().await.expect("text")
                );
                refused += 1;
                assert_eq!(process.lookup_tokens(model_id, &tokens).await.matched_tokens, 0, "torn");
            }
        }
    }
    assert!(kept.len() >= 3 && refused >= 3, "{} kept, {refused} refused", kept.len());
    for (tokens, chunk) in &kept {
        assert_eq!(process.lookup_tokens(model_id, tokens).await.matched_tokens, 256);
        let path = routes::chunk_object(&model_id, &chunk.seq_hash, &chunk.object_digest);
        let response = process.get(&path, &[]).await;
        assert!(response.bytes().await.expect("reads") == chunk.bytes, "wrong");
    }
    // Room is made by removing: a tombstone of a few bytes must fit, and the collector does the rest.
    let count = kept.len();
    for (_, chunk) in kept.drain(..count / 2) {
        let path = routes::chunk(&model_id, &chunk.seq_hash);
        let begun = std::time::Instant::now();
        while process.send(Method::DELETE, &path, "").await.status() != StatusCode::NO_CONTENT {
            assert!(begun.elapsed().as_secs() < 30, "{}", process.log());
        }
    }
    let (_, chunk) = make(100);
    let begun = std::time::Instant::now();
    while process.put(&model_id, &chunk).await.status() != StatusCode::CREATED {
        assert!(begun.elapsed().as_secs() < 30, "no room again: {}", process.log());
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    for (tokens, _) in &kept {
        assert_eq!(process.lookup_tokens(model_id, tokens).await.matched_tokens, 256);
    }
    println!("full disk: {count} kept, {refused} refused, then room again; 0 lost, 0 torn");
}
