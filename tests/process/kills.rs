//! kill -9 at random moments of uploads, collections and compactions.

use std::{path::Path, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use kvasir_store::StoreConfig;
use kvasir_tests::{
    faulty::Dice,
    process::{Process, Start},
    s3::S3Server,
    servers::RealServer,
};
use tempfile::TempDir;

use crate::{
    SERVER, file_store,
    load::{Book, Client},
    wanted,
};

/// Kills over each store.
const KILLS: u64 = 10;
const CLIENTS: u64 = 4;
/// Continuous background work: passes of the collector and journal batches.
const BUSY: [&str; 9] = [
    // Large uploads go in parts.
    "--upload.memory=1MiB",
    "--gc.interval=50ms",
    "--gc.grace=0s",
    // URLs must not outlive what they name.
    "--direct.enabled=false",
    "--gc.tombstone_retention=1h",
    "--gc.actions_per_second=0",
    "--journal.interval=20ms",
    "--journal.retention=1s",
    "--store.requests_max=32",
];

async fn start(store: &StoreConfig, cache: &Path) -> Process {
    let process = Start::new(SERVER, store, cache).flags(&BUSY).start().await;
    process.ready().await;
    process
}

async fn killed_at_random(name: &str, store: &StoreConfig, kills: u64) {
    let directory = TempDir::new().expect("a directory");
    let book = Arc::new(Book::default());
    let mut dice = Dice::new(kills);
    let first = start(store, &directory.path().join("0")).await;
    let (model_id, root) = first.prepare("n").await;
    drop(first);
    let mut cache = 0;
    for kill in 0..kills {
        // A disk survives some of the kills.
        cache += usize::from(dice.chance(300));
        let process = start(store, &directory.path().join(cache.to_string())).await;
        book.verify(&process, &model_id, 12).await;
        let clients: Vec<_> = (0..CLIENTS)
            .map(|n| Client {
                api: process.api().clone(),
                model_id,
                root,
                book: &book,
                dice: Dice::new(kill * 100 + n),
                ends: true,
                requests: usize::MAX,
            })
            .collect();
        let moment = Duration::from_micros(dice.below(600_000) as u64);
        let killer = async {
            tokio::time::sleep(moment).await;
            process.kill();
        };
        let work = stream::iter(clients).for_each_concurrent(None, Client::run);
        tokio::join!(work, killer);
    }
    let last = start(store, &directory.path().join("last")).await;
    book.verify(&last, &model_id, usize::MAX).await;
    let metrics = last.metrics().await;
    let answered = book.answered.lock().expect("not poisoned").clone();
    println!("{name}: {kills} kills, {} chunks kept, 0 lost, 0 wrong; {answered:?}", book.len());
    assert!(answered.get("stored").is_some_and(|n| *n >= kills), "{answered:?}");
    assert!(metrics.contains("kvasir_ready 1\n"), "{metrics}");
    if let Ok(path) = store.url.to_file_path() {
        // The work that was to be cut took place.
        assert!(path.join("2/gc/epoch").read_dir().is_ok_and(|mut d| d.next().is_some()), "no pass");
        assert!(path.join("2/j").exists(), "no journal");
    }
}

#[tokio::test]
async fn over_files() {
    let directory = TempDir::new().expect("a directory");
    killed_at_random("files", &file_store(directory.path()), wanted("KVASIR_TEST_KILLS", KILLS)).await;
}

#[tokio::test]
async fn over_s3() {
    let server = S3Server::start(Default::default()).await;
    killed_at_random("in-process S3", &server.config("kills"), wanted("KVASIR_TEST_KILLS", KILLS)).await;
}

#[tokio::test]
async fn over_real_servers() {
    for server in RealServer::all() {
        let store = server.config(&format!("kills-{}", std::process::id()));
        killed_at_random(&server.name, &store, wanted("KVASIR_TEST_KILLS", KILLS)).await;
    }
}
