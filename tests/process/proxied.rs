//! An S3 server behind a proxy that resets, stalls, refuses, loses answers, narrows and flips; the real binary in front.

use futures::{StreamExt, stream};
use kvasir_storage::store::StoreConfig;
use kvasir_tests::{
    faulty::Dice,
    process::Start,
    proxy::{FaultProxy, Toxic},
    s3::S3Server,
    servers::RealServer,
};
use tempfile::TempDir;

use crate::{
    SERVER,
    load::{Book, Client},
    wanted,
};

/// Requests to the server that go wrong, of a thousand.
const FAULTS: usize = 150;
const CLIENTS: u64 = 6;
/// Requests of each client.
const REQUESTS: u64 = 40;

async fn behind_a_proxy(name: &str, store: &StoreConfig) {
    let endpoint = store.endpoint.as_deref().expect("a server").trim_start_matches("http://");
    let proxy = FaultProxy::start(endpoint.parse().expect("an address"), 1, 0).await;
    let mut proxied = store.clone();
    proxied.endpoint = Some(format!("http://{}", proxy.address));
    let directory = TempDir::new().expect("a directory");
    let cache = directory.path().join("cache");
    // Impatient, so that stalls do not make the test long.
    let flags = [
        "--store.request_timeout=700ms",
        "--store.retry_timeout=5s",
        "--gc.interval=300ms",
        "--gc.grace=0s",
        "--gc.tombstone_retention=1h",
        "--journal.interval=100ms",
    ];
    let process = Start::new(SERVER, &proxied, &cache).flags(&flags).start().await;
    process.ready().await;
    let (model_id, root) = process.prepare("n").await;
    proxy.set(FAULTS);
    let book = Book::default();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| Client {
            api: process.api().clone(),
            model_id,
            root,
            book: &book,
            dice: Dice::new(n),
            ends: false,
            requests: wanted("KVASIR_TEST_PROXIED", REQUESTS) as usize,
        })
        .collect();
    stream::iter(clients).for_each_concurrent(None, Client::run).await;
    let injected = proxy.injected();
    proxy.set(0);
    // A breaker that opened closes by itself, and everything that was acknowledged is there, byte for byte.
    let fresh = Start::new(SERVER, store, &directory.path().join("other")).start().await;
    book.verify(&fresh, &model_id, usize::MAX).await;
    let metrics = process.metrics().await;
    let events: Vec<_> = metrics.lines().filter(|l| l.starts_with("kvasir_store_events_total")).collect();
    println!(
        "{name} behind a fault proxy: {} chunks kept, 0 lost, 0 wrong; {:?}; toxics {:?}; {events:?}",
        book.len(),
        book.answered.lock().expect("not poisoned"),
        Toxic::ALL.iter().zip(injected).collect::<Vec<_>>()
    );
    assert!(book.len() > 20, "{} chunks", book.len());
    assert!(injected.iter().filter(|n| **n > 0).count() >= 6, "{injected:?}");
    assert!(metrics.contains("event=\"retried\""), "{metrics}");
}

#[tokio::test]
async fn in_process_s3() {
    let server = S3Server::start(Default::default()).await;
    behind_a_proxy("in-process S3", &server.config("proxied")).await;
}

#[tokio::test]
async fn real_servers() {
    for server in RealServer::all() {
        let store = server.config(&format!("proxied-{}", std::process::id()));
        behind_a_proxy(&server.name, &store).await;
    }
}
