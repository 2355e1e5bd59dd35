//! A store that ignores conditional creates is reported in the log, in a metric and in the capability probe,
//! and works.

use kvasir_api::{ConfigResponse, routes};
use kvasir_tests::{
    chunks,
    process::Start,
    s3::{Conditions, Lacks, S3Server},
};
use tempfile::TempDir;

use crate::SERVER;

#[tokio::test]
async fn a_store_that_ignores_conditional_creates_is_named_and_works() {
    named_and_working(Conditions::Ignored).await;
}

#[tokio::test]
async fn a_store_that_refuses_conditional_creates_is_named_and_works() {
    named_and_working(Conditions::Refused).await;
}

async fn named_and_working(conditional_writes: Conditions) {
    let server = S3Server::start(Lacks { conditional_writes, ..Lacks::default() }).await;
    let (store, directory) = (server.config("careless"), TempDir::new().expect("a directory"));
    let a = Start::new(SERVER, &store, &directory.path().join("a")).start().await;
    let b = Start::new(SERVER, &store, &directory.path().join("b")).start().await;
    for replica in [&a, &b] {
        replica.ready().await;
        let config: ConfigResponse =
            replica.get(routes::CONFIG, &[]).await.json().await.expect("a configuration");
        assert!(!config.store.conditional_create);
        assert!(replica.metrics().await.contains("kvasir_store_conditional_create 0\n"));
        replica.says("the store has no conditional creates").await;
    }
    // Two replicas meet the tenant for the first time in the same moment, and agree.
    let ((model_id, root), other) = tokio::join!(a.prepare("n"), b.prepare("n"));
    assert_eq!((model_id, root), other);
    let tokens = chunks::tokens(1, 300);
    let chunk = chunks::chunk(root, &tokens, 0, 300, 50);
    assert!(a.put(&model_id, &chunk).await.status().is_success());
    assert_eq!(b.lookup_tokens(model_id, &tokens).await.matched_tokens, 300);
    // Storing twice, removing and collecting rest on no condition.
    assert_eq!(b.put(&model_id, &chunk).await.status(), 200);
    let path = routes::chunk(&model_id, &chunk.seq_hash);
    assert_eq!(a.send(reqwest::Method::DELETE, &path, "").await.status(), 204);
    assert_eq!(a.lookup_tokens(model_id, &tokens).await.matched_tokens, 0);
    assert!(b.put(&model_id, &chunk).await.status().is_success());
    assert_eq!(b.lookup_tokens(model_id, &tokens).await.matched_tokens, 300);
}
