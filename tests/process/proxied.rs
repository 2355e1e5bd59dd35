//! The real binary over an S3 server behind a proxy that resets, stalls, refuses, drops answers, throttles
//! and flips bits.

use std::time::Duration;

use futures::{StreamExt, stream};
use kvasir_store::StoreConfig;
use kvasir_tests::{
    chunks,
    faulty::Dice,
    process::{Process, Start},
    proxy::{FaultProxy, Toxic},
    s3::S3Server,
    servers::RealServer,
    service::expect_problem,
};
use kvasir_types::{ModelId, RootHash};
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
        "--upload.memory=1MiB",
        "--store.request_timeout=700ms",
        "--store.retry_timeout=5s",
        "--gc.interval=300ms",
        "--gc.grace=0s",
        // URLs must not outlive what they name.
        "--direct.enabled=false",
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
    outage(&process, &proxy, &model_id, root).await;
    // Everything that was acknowledged is there, byte for byte.
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
    assert!(metrics.contains("event=\"breaker_opened\""), "{metrics}");
    assert!(metrics.contains("event=\"breaker_closed\""), "{metrics}");
}

/// The store is unavailable for a while: the service is alive and ready, rejects writes with a request to
/// retry, and then accepts them again.
async fn outage(process: &Process, proxy: &FaultProxy, model_id: &ModelId, root: RootHash) {
    proxy.away(true);
    let chunk = |seed| chunks::chunk(root, &chunks::tokens(seed, 64), 0, 64, 50);
    let mut refused = 0;
    // Until the breaker opens, and then a little.
    let begun = std::time::Instant::now();
    while refused < 5 {
        assert!(begun.elapsed().as_secs() < 50, "the breaker does not open: {}", process.log());
        let response = process.put(model_id, &chunk(900_001)).await;
        assert_eq!(response.status(), 503, "{}", process.log());
        assert!(response.headers().contains_key("retry-after"));
        expect_problem(response, "store_unavailable").await;
        refused += u64::from(process.metrics().await.contains("event=\"refused_by_breaker\""));
    }
    assert_eq!(process.get("/livez", &[]).await.status(), 200);
    assert_eq!(process.get("/readyz", &[]).await.status(), 200, "other replicas could do no better");
    proxy.away(false);
    let begun = std::time::Instant::now();
    while !process.put(model_id, &chunk(900_002)).await.status().is_success() {
        assert!(begun.elapsed().as_secs() < 50, "the breaker does not close: {}", process.log());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
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
