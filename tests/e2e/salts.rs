//! Rotation of a namespace's salt, with several replicas.

use std::time::{Duration, Instant};

use kvasir_api::{LookupRequest, NamespaceRequest, NamespaceResponse, NamespaceRotation, routes};
use kvasir_store::StoreConfig;
use kvasir_tests::{
    chunks,
    service::{Service, expect_problem},
};
use kvasir_types::{ModelId, RootHash};
use reqwest::{Method, StatusCode};
use tempfile::TempDir;

async fn replica(directory: &TempDir, name: &str) -> Service {
    let store =
        StoreConfig::new(format!("file://{}/store", directory.path().display()).parse().expect("a url"));
    Service::start_with(store, &directory.path().join(name), |config| {
        config.storage.salt_rotations_fresh = Duration::from_millis(50);
        config.gc.policy.grace = Duration::ZERO;
        config.gc.interval = Duration::ZERO;
    })
    .await
}

async fn root(service: &Service, namespace: &str, model_id: ModelId) -> RootHash {
    let request = NamespaceRequest { namespace: namespace.parse().expect("a name"), model_id };
    let json = serde_json::to_vec(&request).expect("serialises");
    let answer = service.send(Method::POST, routes::NAMESPACES, json).await;
    let NamespaceResponse { root } = answer.json().await.expect("its JSON");
    root
}

async fn rotate(service: &Service, model_id: ModelId, keep_s: u64) -> RootHash {
    let request =
        NamespaceRotation { namespace: "n".parse().expect("a name"), model_id, keep_s: Some(keep_s) };
    let json = serde_json::to_vec(&request).expect("serialises");
    let answer = service.send(Method::POST, routes::NAMESPACE_ROTATION, json).await;
    assert_eq!(answer.status(), StatusCode::OK);
    let NamespaceResponse { root } = answer.json().await.expect("its JSON");
    root
}

/// Asks until the answer is the wanted one, for a few seconds.
async fn until<T: PartialEq + std::fmt::Debug>(wanted: T, ask: impl AsyncFn() -> T) {
    let begun = Instant::now();
    loop {
        let found = ask().await;
        if found == wanted {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{found:?}, not {wanted:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Tokens matched by hashes that begin at `root`, as a client sends them that has kept it.
async fn by_hashes(service: &Service, model_id: ModelId, root: RootHash, tokens: &[u32]) -> u64 {
    let blocks = kvasir_types::TokenChain::new(root, tokens).blocks().to_vec();
    let request = LookupRequest {
        model_id,
        namespace: "n".parse().expect("a name"),
        tokens: None,
        block_hashes: Some(blocks),
        chunk_ids: None,
        fresh: true,
        direct: false,
    };
    service.lookup(&request).await.matched_tokens
}

#[tokio::test]
async fn old_generations_are_found_until_they_expire_on_every_replica() {
    let directory = TempDir::new().expect("a directory");
    let (a, b) = (replica(&directory, "a").await, replica(&directory, "b").await);
    let (model_id, first) = a.prepare("n").await;
    let tokens = chunks::tokens(3, 600);
    for chunk in chunks::context(first, &tokens, 256, 50) {
        assert_eq!(a.put(&model_id, &chunk).await.status(), StatusCode::CREATED);
    }
    assert_eq!(root(&b, "n", model_id).await, first);
    let other = root(&b, "other", model_id).await;

    // Both replicas come to the new root; what is there is found by tokens, and by who kept the old root.
    let second = rotate(&a, model_id, 3_600).await;
    assert_ne!(first, second);
    until(second, async || root(&b, "n", model_id).await).await;
    assert_eq!(root(&b, "other", model_id).await, other, "of another namespace");
    for service in [&a, &b] {
        assert_eq!(service.lookup_tokens(model_id, &tokens).await.matched_tokens, 600);
        assert_eq!(by_hashes(service, model_id, first, &tokens).await, 600);
        assert_eq!(by_hashes(service, model_id, second, &tokens).await, 0);
    }
    // What is written now is under the new salt alone, and no name is shared.
    let again = chunks::context(second, &tokens, 256, 50);
    for chunk in &again {
        assert_eq!(b.put(&model_id, chunk).await.status(), StatusCode::CREATED);
    }
    assert_eq!(by_hashes(&a, model_id, second, &tokens).await, 600);

    // Another rotation that keeps nothing: all earlier salts are over.
    let third = rotate(&b, model_id, 0).await;
    until((third, 0), async || {
        (root(&a, "n", model_id).await, by_hashes(&a, model_id, second, &tokens).await)
    })
    .await;
    assert_eq!(a.lookup_tokens(model_id, &tokens).await.matched_tokens, 0);
    assert_eq!(by_hashes(&a, model_id, first, &tokens).await, 0);
    let before = a.job(r#"{"kind": "gc"}"#).await;
    assert_eq!(before.counts["expired"], 6, "what both led to: {before:?}");
    let after = a.job(r#"{"kind": "gc"}"#).await;
    assert_eq!((after.counts["expired"], after.counts["deleted"]), (0, 6), "{after:?}");
    for chunk in &again {
        let path = routes::chunk(&model_id, &chunk.seq_hash);
        expect_problem(a.get(&path, &[]).await, "unknown_chunk").await;
    }
    let salts = std::fs::read_dir(directory.path().join("store/2/t/default/g/n")).expect("lists").count();
    assert_eq!(salts, 1, "the expired ones are gone, the newest one stays");
    a.stop().await;
    b.stop().await;
}

#[tokio::test]
async fn a_namespace_is_not_kept_longer_than_anybody_may_wish() {
    let directory = TempDir::new().expect("a directory");
    let service = replica(&directory, "a").await;
    let (model_id, _) = service.prepare("n").await;
    let request =
        format!(r#"{{"namespace": "n", "model_id": "{model_id}", "keep_s": 18446744073709551615}}"#);
    expect_problem(service.send(Method::POST, routes::NAMESPACE_ROTATION, request).await, "bad_request")
        .await;
    service.stop().await;
}
