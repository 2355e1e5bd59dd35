//! Tests whole-process behaviour through the library's entry points: a configuration from text, a signal.

use kvasir_server::{Layers, RunError, listen, run};
use kvasir_tests::service::{Service, expect_problem};
use tempfile::TempDir;

#[tokio::test]
async fn a_store_that_does_not_answer_leaves_the_service_alive_and_not_ready() {
    let directory = TempDir::new().expect("a directory");
    // Bound and not listened at: nobody answers, and no server of another test gets the port.
    let closed = tokio::net::TcpSocket::new_v4().expect("a socket");
    closed.bind(([127, 0, 0, 1], 0).into()).expect("a port");
    let free = closed.local_addr().expect("bound");
    let mut store = kvasir_tests::s3::S3Server::start(Default::default()).await.config("p");
    store.endpoint = Some(format!("http://{free}"));
    store.retries_max = 0;
    let service = Service::start(store, directory.path()).await;
    assert_eq!(service.get("/livez", &[]).await.status(), 200);
    let response = service.get("/readyz", &[]).await;
    assert_eq!(response.headers()["retry-after"], "1");
    assert!(expect_problem(response, "store_unavailable").await.retryable);
    expect_problem(service.get("/v1/config", &[]).await, "store_unavailable").await;
    assert!(service.metrics().await.contains("kvasir_ready 0\n"));
    service.stop().await;
}

#[tokio::test]
async fn two_replicas_in_one_cache_directory_and_a_damaged_index() {
    let directory = TempDir::new().expect("a directory");
    let url = format!("file://{}/store", directory.path().display());
    let store = kvasir_store::StoreConfig::new(url.parse().expect("a url"));
    let cache = directory.path().join("same");
    let a = Service::start(store.clone(), &cache).await;
    let b = Service::start(store.clone(), &cache).await;
    let (model_id, root) = a.prepare("n").await;
    let tokens = kvasir_tests::chunks::tokens(9, 2_000);
    for chunk in kvasir_tests::chunks::context(root, &tokens, 1536, 50) {
        a.put(&model_id, &chunk).await;
    }
    assert_eq!(b.lookup_tokens(model_id, &tokens).await.matched_tokens, 2_000);
    a.stop().await;
    b.stop().await;
    // Every file of both databases is cut in half or flipped.
    let mut damaged = 0;
    for slot in std::fs::read_dir(cache.join("cache")).expect("the cache").flatten() {
        for file in std::fs::read_dir(slot.path()).into_iter().flatten().flatten() {
            let mut bytes = std::fs::read(file.path()).unwrap_or_default();
            bytes.truncate(bytes.len() / 2);
            bytes.iter_mut().step_by(97).for_each(|b| *b ^= 0x5a);
            if std::fs::write(file.path(), bytes).is_ok() {
                damaged += 1;
            }
        }
    }
    assert!(damaged >= 2, "{damaged}");
    let c = Service::start(store, &cache).await;
    assert_eq!(c.lookup_tokens(model_id, &tokens).await.matched_tokens, 2_000);
    c.stop().await;
}

#[tokio::test]
async fn an_address_that_is_not_loopback_is_refused() {
    let directory = TempDir::new().expect("a directory");
    let flags = [
        ("store.url", "memory://"),
        ("server.listen", "0.0.0.0:0"),
        ("server.allow_unauthenticated", "true"),
    ];
    let mut config = Layers::default().with_flags(flags).load().expect("allowed");
    config.cache.directory = directory.path().into();
    let listeners = listen(&config).await.expect("a port");
    config.server.allow_unauthenticated = false;
    let refused = run(config, listeners, std::future::ready(())).await;
    assert!(matches!(refused, Err(RunError::Address(_))), "{refused:?}");
}
