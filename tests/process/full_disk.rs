//! A full disk: nothing torn becomes visible, nothing acknowledged is lost, and service resumes when there is
//! space.

use std::{path::Path, process::Command};

use kvasir_api::routes;
use kvasir_store::StoreConfig;
use kvasir_tests::{
    chunks,
    process::{Process, Start},
};
use reqwest::{Method, StatusCode};
use tempfile::TempDir;

use crate::{SERVER, file_store};

/// Runs its arguments after the first, in a mount namespace with a small file system at the first.
const SMALL_DISK: &str = "mount -t tmpfs -o size=24m tmpfs \"$0\" && PREPARE && exec \"$@\"";

/// A server with 24 MB of disk under `small`. `None` if this user may not create such a disk.
async fn on_a_small_disk(small: &Path, store: &StoreConfig, cache: &Path) -> Option<Process> {
    on_a_prepared_disk("true", small, store, cache, &[]).await
}

/// As [`on_a_small_disk`], after a shell command on it, and with further flags.
async fn on_a_prepared_disk(
    prepare: &str,
    small: &Path,
    store: &StoreConfig,
    cache: &Path,
    further: &[&str],
) -> Option<Process> {
    std::fs::create_dir_all(small).expect("writable");
    let probe = ["--user", "--map-root-user", "--mount", "sh", "-c", "mount -t tmpfs tmpfs \"$0\""];
    let allowed = Command::new("unshare").args(probe).arg(small).status();
    if !allowed.is_ok_and(|status| status.success()) {
        println!("SKIPPED: unshare may not make a mount namespace, or mount in it, here; no disk is full");
        return None;
    }
    let flags = ["--gc.interval=100ms", "--gc.grace=0s", "--direct.enabled=false", "--journal.interval=0s"];
    let mut start = Start::new(SERVER, store, cache).flags(&flags).flags(further);
    let small = small.display().to_string();
    let script = SMALL_DISK.replace("PREPARE", prepare);
    let under = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", &script, &small];
    start.under = under.map(str::to_owned).to_vec();
    let process = start.start().await;
    process.ready().await;
    Some(process)
}

#[tokio::test]
async fn a_full_cache_directory() {
    let directory = TempDir::new().expect("a directory");
    let small = directory.path().join("small");
    let store = file_store(directory.path());
    let Some(process) = on_a_small_disk(&small, &store, &small.join("cache")).await else { return };
    let (model_id, root) = process.prepare("n").await;
    let tokens = chunks::tokens(1, 256);
    // Does not fit into the spool: refused as something that may be tried again, and nothing of it is left.
    for _ in 0..3 {
        let large = chunks::chunk(root, &tokens, 0, 256, 15_000_000);
        let response = process.put(&model_id, &large).await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(process.lookup_tokens(model_id, &tokens).await.matched_tokens, 0);
    }
    for seed in 2..6 {
        let tokens = chunks::tokens(seed, 256);
        let chunk = chunks::chunk(root, &tokens, 0, 256, 2_000_000);
        assert_eq!(process.put(&model_id, &chunk).await.status(), StatusCode::CREATED, "{}", process.log());
        assert_eq!(process.lookup_tokens(model_id, &tokens).await.matched_tokens, 256);
    }
}

/// The cache is only a cache: the service starts without it, logs this, and serves.
#[tokio::test]
async fn a_cache_directory_that_is_full_or_read_only_at_start() {
    // Without memory each frame of the hot tier is for the disk. A full one has the tier's folders, and takes no frame.
    let hot = ["--hot.memory=0", "--hot.disk=1GiB"];
    let prepared = [
        ("full", "{ head -c 30000000 /dev/zero >\"$0/fill\" 2>/dev/null; true; }", 0),
        ("read-only", "mount -o remount,ro \"$0\"", 1),
    ];
    for (what, prepare, without_hot_tier) in prepared {
        let directory = TempDir::new().expect("a directory");
        let small = directory.path().join("small");
        let store = file_store(directory.path());
        let started = on_a_prepared_disk(prepare, &small, &store, &small.join("cache"), &hot).await;
        let Some(process) = started else { return };
        let (model_id, root) = process.prepare("n").await;
        let tokens = chunks::tokens(1, 256);
        let chunk = chunks::chunk(root, &tokens, 0, 256, 100_000);
        assert_eq!(
            process.put(&model_id, &chunk).await.status(),
            StatusCode::CREATED,
            "{what}: {}",
            process.log()
        );
        assert_eq!(process.lookup_tokens(model_id, &tokens).await.matched_tokens, 256, "{what}");
        let path = routes::chunk_object(&model_id, &chunk.seq_hash, &chunk.object_digest);
        for _ in 0..3 {
            assert!(process.get(&path, &[]).await.bytes().await.expect("reads") == chunk.bytes, "{what}");
        }
        let metrics = process.metrics().await;
        for (part, expected) in [("index", 1), ("hot_tier", without_hot_tier)] {
            let line = format!("kvasir_cache_unusable{{part=\"{part}\"}} {expected}\n");
            assert!(metrics.contains(&line), "{what}: {metrics}");
        }
        process.says("check cache.directory").await;
        process.says("hot.directory").await;
    }
}

#[tokio::test]
async fn a_full_store() {
    let directory = TempDir::new().expect("a directory");
    let small = directory.path().join("small");
    let store = file_store(&small);
    let Some(process) = on_a_small_disk(&small, &store, &directory.path().join("cache")).await else {
        return;
    };
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
