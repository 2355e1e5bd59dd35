//! The disk of a replica: what lies there is for its user alone, and it serves without one.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    time::Duration,
};

use kvasir_api::routes;
use kvasir_server::Config;
use kvasir_store::StoreConfig;
use kvasir_tests::{chunks, service::Service};
use kvasir_types::Medium;
use reqwest::StatusCode;
use tempfile::TempDir;

/// A service whose hot tier has a disk.
async fn start(directory: &TempDir, change: impl FnOnce(&mut Config)) -> Service {
    let store =
        StoreConfig::new(format!("file://{}/store", directory.path().display()).parse().expect("a url"));
    let service = Service::start_with(store, directory.path(), |config| {
        config.hot.disk_bytes = Some(1 << 30);
        change(config);
    });
    service.await
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("is there").permissions().mode() & 0o777
}

/// Files and folders below a folder, each with its mode.
fn walk(folder: &Path, found: &mut Vec<(String, u32)>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        found.push((path.display().to_string(), mode(&path)));
        if path.is_dir() {
            walk(&path, found);
        }
    }
}

#[tokio::test]
async fn no_other_user_may_read_what_a_replica_has_on_its_disk() {
    let directory = TempDir::new().expect("a directory");
    let cache = directory.path().join("cache");
    // Made by somebody who did not think of other users.
    fs::create_dir_all(cache.join("spool")).expect("makes");
    for open in [&cache, &cache.join("spool")] {
        fs::set_permissions(open, Permissions::from_mode(0o755)).expect("changes");
    }
    // Every upload waits in a file, and every frame of the hot tier goes to the disk.
    let service = start(&directory, |config| {
        config.storage.spool_memory_bytes = 0;
        config.hot.memory_bytes = 0;
    });
    let service = service.await;
    let (model_id, root) = service.prepare("n").await;
    let tokens = chunks::tokens(1, 256);
    let chunk = chunks::chunk(root, &tokens, 0, 256, 100_000);
    assert_eq!(service.put(&model_id, &chunk).await.status(), StatusCode::CREATED);
    let path = routes::chunk_object(&model_id, &chunk.seq_hash, &chunk.object_digest);
    let mut media = Vec::new();
    for _ in 0..500 {
        assert!(service.get(&path, &[]).await.bytes().await.expect("reads") == chunk.bytes);
        let found = service.lookup_tokens(model_id, &tokens).await;
        media = found.chunks.iter().map(|chunk| chunk.medium).collect();
        if media == [Medium::Disk] {
            break;
        }
        // Frames reach the disk behind the answers.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(media, [Medium::Disk]);
    service.stop().await;
    assert_eq!(mode(&cache), 0o700);
    let mut found = Vec::new();
    walk(&cache, &mut found);
    for of in ["/spool", "/hot-0.sled/db", "/hot/default/"] {
        assert!(found.iter().any(|(path, _)| path.contains(of)), "nothing is in {of}: {found:?}");
    }
    found.retain(|(path, mode)| *mode != if Path::new(path).is_dir() { 0o700 } else { 0o600 });
    assert!(found.is_empty(), "{found:?}");
}

#[tokio::test]
async fn a_replica_whose_disk_is_unusable_serves_from_memory_and_the_store() {
    let directory = TempDir::new().expect("a directory");
    // Where the cache directory should be is a file: not even root can make anything in it.
    fs::write(directory.path().join("cache"), b"").expect("writes");
    let service = start(&directory, |_| {}).await;
    assert_eq!(service.get(routes::READYZ, &[]).await.status(), StatusCode::OK);
    let (model_id, root) = service.prepare("n").await;
    let tokens = chunks::tokens(1, 256);
    let chunk = chunks::chunk(root, &tokens, 0, 256, 10_000);
    assert_eq!(service.put(&model_id, &chunk).await.status(), StatusCode::CREATED);
    let path = routes::chunk_object(&model_id, &chunk.seq_hash, &chunk.object_digest);
    assert!(service.get(&path, &[]).await.bytes().await.expect("reads") == chunk.bytes);
    let found = service.lookup_tokens(model_id, &tokens).await;
    assert_eq!((found.matched_tokens, found.chunks[0].medium), (256, Medium::Cpu));
    let metrics = service.metrics().await;
    for part in ["index", "hot_tier"] {
        let line = format!("kvasir_cache_unusable{{part=\"{part}\"}} 1\n");
        assert!(metrics.contains(&line), "{metrics}");
    }
    service.stop().await;
    // All that it knew is gone with the process, but for the store.
    let service = start(&directory, |_| {}).await;
    let found = service.lookup_tokens(model_id, &tokens).await;
    assert_eq!((found.matched_tokens, found.chunks[0].medium), (256, Medium::Object));
    assert!(service.get(&path, &[]).await.bytes().await.expect("reads") == chunk.bytes);
    service.stop().await;
}
