//! The index's files are hurt while requests run, and between two runs: answers stay right.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kvasir_store::StoreConfig;
use kvasir_tests::{chunks, service::Service};
use tempfile::TempDir;

/// Ways to hurt a database.
#[derive(Debug, Clone, Copy)]
enum Damage {
    Cut,
    Flip,
    Zero,
    Delete,
}

fn files(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() { files(&entry.path(), found) } else { found.push(entry.path()) }
    }
}

fn hurt(cache: &Path, damage: Damage) -> usize {
    let mut found = Vec::new();
    for slot in std::fs::read_dir(cache).into_iter().flatten().flatten() {
        if slot.file_name().to_string_lossy().ends_with(".sled") {
            files(&slot.path(), &mut found);
        }
    }
    for file in &found {
        let mut bytes = std::fs::read(file).unwrap_or_default();
        match damage {
            Damage::Cut => bytes.truncate(bytes.len() / 3),
            Damage::Flip => bytes.iter_mut().step_by(61).for_each(|b| *b ^= 0x5a),
            Damage::Zero => bytes.iter_mut().skip(512).take(1 << 20).for_each(|b| *b = 0),
            Damage::Delete => {
                let _ = std::fs::remove_file(file);
                continue;
            }
        }
        let _ = std::fs::write(file, bytes);
    }
    found.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_index_is_noticed_and_filled_again_while_requests_run() {
    for damage in [Damage::Cut, Damage::Flip, Damage::Zero, Damage::Delete] {
        let directory = TempDir::new().expect("a directory");
        let url = format!("file://{}/store", directory.path().display());
        let store = StoreConfig::new(url.parse().expect("a url"));
        let small = |config: &mut kvasir_server::Config| config.cache.index_memory_bytes = 1 << 18;
        let service = Arc::new(Service::start_with(store.clone(), directory.path(), small).await);
        let (model_id, root) = service.prepare("n").await;
        let contexts: Vec<_> = (0..12).map(|seed| chunks::tokens(50 + seed, 1_300)).collect();
        for tokens in &contexts {
            for chunk in chunks::context(root, tokens, 256, 20) {
                assert!(service.put(&model_id, &chunk).await.status().is_success());
            }
        }
        let is_hurt = Arc::new(AtomicBool::new(false));
        let asking = {
            let (service, contexts, is_hurt) = (Arc::clone(&service), contexts.clone(), Arc::clone(&is_hurt));
            tokio::spawn(async move {
                // The last round begins after the damage.
                let mut is_last = false;
                while !is_last {
                    is_last = is_hurt.load(Ordering::Relaxed);
                    for tokens in &contexts {
                        let found = service.lookup_tokens(model_id, tokens).await;
                        assert_eq!(found.matched_tokens, 1_300, "{damage:?}, hurt before: {is_last}");
                    }
                }
            })
        };
        tokio::time::sleep(Duration::from_millis(30)).await;
        assert!(hurt(&directory.path().join("cache"), damage) > 0);
        is_hurt.store(true, Ordering::Relaxed);
        // New chunks go on being taken.
        let more = chunks::tokens(99, 600);
        for chunk in chunks::context(root, &more, 256, 20) {
            assert!(service.put(&model_id, &chunk).await.status().is_success(), "{damage:?}");
        }
        asking.await.expect("every answer was right");
        let service = Arc::into_inner(service).expect("nobody asks any more");
        service.stop().await;
        // A database whose files were deleted while it ran may leave none.
        let count = hurt(&directory.path().join("cache"), damage);
        assert!(count > 0 || matches!(damage, Damage::Delete), "{damage:?} between two runs");
        let again = Service::start_with(store, directory.path(), small).await;
        for tokens in contexts.iter().chain([&more]) {
            let found = again.lookup_tokens(model_id, tokens).await.matched_tokens;
            assert_eq!(found, tokens.len() as u64, "{damage:?}, after a restart");
        }
        again.stop().await;
    }
}
