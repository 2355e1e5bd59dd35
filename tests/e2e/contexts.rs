//! Named contexts over HTTP.

use std::time::{Duration, Instant};

use kvasir_api::{Context, ContextList, ContextVersions, routes};
use kvasir_store::StoreConfig;
use kvasir_tests::{
    chunks,
    s3::{Lacks, S3Server},
    service::{Service, expect_problem},
};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use uuid::Uuid;

async fn send(service: &Service, method: Method, path: &str, body: Value) -> reqwest::Response {
    service.send(method, path, body.to_string()).await
}

async fn create(service: &Service, body: &Value) -> Context {
    let response = send(service, Method::POST, routes::CONTEXTS, body.clone()).await;
    assert_eq!(response.status(), StatusCode::CREATED);
    response.json().await.expect("its JSON")
}

#[tokio::test]
async fn contexts_over_files_and_over_s3() {
    let directory = TempDir::new().expect("a directory");
    let file = format!("file://{}/store", directory.path().display()).parse().expect("a url");
    a_life(StoreConfig::new(file), &directory).await;
    let server = S3Server::start(Lacks::default()).await;
    a_life(server.config("x"), &directory).await;
}

async fn a_life(store: StoreConfig, directory: &TempDir) {
    let service = Service::start(store, &directory.path().join("cache")).await;
    let (model_id, root) = service.prepare("n").await;
    let tokens = chunks::tokens(1, 700);
    let stored = chunks::context(root, &tokens, 256, 50);
    for chunk in &stored {
        service.put(&model_id, chunk).await;
    }
    let ids: Vec<_> = stored.iter().map(|chunk| chunk.seq_hash).collect();
    let body = json!({"model_id": model_id, "namespace": "n", "chunks": ids, "labels": {"app": "chat"}});
    let first = create(&service, &body).await;
    assert_eq!((first.version, first.tokens, first.pinned), (1, 700, false));
    // Chunks that do not follow each other, are not there, or follow another root.
    let refused = async |chunks: Value, namespace: &str, code: &str| {
        let body = json!({"model_id": model_id, "namespace": namespace, "chunks": chunks});
        expect_problem(send(&service, Method::POST, routes::CONTEXTS, body).await, code).await;
    };
    refused(json!([ids[0], ids[2]]), "n", "invalid_context").await;
    refused(json!([ids[1]]), "n", "invalid_context").await;
    refused(json!([]), "n", "invalid_context").await;
    refused(json!([ids[0]]), "other", "invalid_context").await;
    refused(json!([format!("{:064x}", 5)]), "n", "unknown_chunk").await;

    // Versions: immutable, the newest wins.
    let path = routes::context(&first.context_id);
    let response =
        send(&service, Method::PATCH, &path, json!({"labels": {"app": "rag", "x": ""}, "pinned": true}))
            .await;
    let second: Context = response.json().await.expect("its JSON");
    assert_eq!((second.version, second.pinned, second.chunks.len()), (2, true, 3));
    let get = async |query: &str| -> Context {
        service.get(&format!("{path}{query}"), &[]).await.json().await.expect("its JSON")
    };
    assert_eq!((get("").await, get("?version=1").await), (second.clone(), first.clone()));
    expect_problem(service.get(&format!("{path}?version=3"), &[]).await, "unknown_context").await;
    let versions: ContextVersions =
        service.get(&routes::context_versions(&first.context_id), &[]).await.json().await.expect("its JSON");
    assert_eq!(versions.versions, [1, 2]);

    // Lists: in order, page by page, by labels.
    let mut all = vec![second.context_id];
    for i in 0..6 {
        let labels = json!({"app": "chat", "even": (i % 2 == 0).to_string()});
        let body = json!({"model_id": model_id, "namespace": "n", "chunks": ids, "labels": labels});
        all.push(create(&service, &body).await.context_id);
    }
    let list = async |query: &str| -> ContextList {
        service.get(&format!("{}?{query}", routes::CONTEXTS), &[]).await.json().await.expect("its JSON")
    };
    let mut paged = Vec::new();
    let mut after = String::new();
    loop {
        let page = list(&format!("limit=3{after}")).await;
        assert!(page.contexts.len() <= 3);
        paged.extend(page.contexts.iter().map(|context| context.context_id));
        match page.next {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(paged, all);
    let even = list("labels=app=chat,even=true").await;
    assert_eq!(even.contexts.len(), 3);
    assert_eq!(list("labels=app=rag").await.contexts, [second]);

    // A life that ends, and one that is ended.
    let mut short = body.clone();
    short["ttl_s"] = 1.into();
    let short = create(&service, &short).await;
    assert_eq!(short.expires_at_ms, Some(short.created_at_ms + 1_000));
    let gone = routes::context(&short.context_id);
    let begun = Instant::now();
    while service.get(&gone, &[]).await.status() != StatusCode::NOT_FOUND {
        assert!(begun.elapsed() < Duration::from_secs(30), "its life does not end");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(service.send(Method::DELETE, &path, "").await.status(), StatusCode::NO_CONTENT);
    for version in ["", "?version=1"] {
        expect_problem(service.get(&format!("{path}{version}"), &[]).await, "unknown_context").await;
    }
    expect_problem(service.send(Method::DELETE, &path, "").await, "unknown_context").await;
    expect_problem(service.get(&routes::context(&Uuid::nil()), &[]).await, "unknown_context").await;
    assert!(!list("limit=500").await.contexts.iter().any(|context| context.context_id == first.context_id));
    service.stop().await;
}

#[tokio::test]
async fn the_collector_spares_what_is_pinned() {
    let directory = TempDir::new().expect("a directory");
    let file = format!("file://{}/store", directory.path().display()).parse().expect("a url");
    let ttl = |config: &mut kvasir_server::Config| {
        config.gc.policy.ttl = Some(Duration::ZERO);
        config.gc.policy.grace = Duration::ZERO;
    };
    let service = Service::start_with(StoreConfig::new(file), directory.path(), ttl).await;
    let (model_id, root) = service.prepare("n").await;
    let (kept, lost) = (chunks::tokens(1, 256), chunks::tokens(2, 256));
    for tokens in [&kept, &lost] {
        service.put(&model_id, &chunks::chunk(root, tokens, 0, 256, 50)).await;
    }
    let chunk = chunks::chunk(root, &kept, 0, 256, 50).seq_hash;
    let body = json!({"model_id": model_id, "namespace": "n", "chunks": [chunk], "pinned": true});
    let context = create(&service, &body).await;
    let job = service.job(r#"{"kind": "gc"}"#).await;
    assert_eq!((job.counts["pinned"], job.counts["expired"]), (1, 1), "{job:?}");
    assert_eq!(service.lookup_tokens(model_id, &kept).await.matched_tokens, 256);
    assert_eq!(service.lookup_tokens(model_id, &lost).await.matched_tokens, 0);
    // Unpinned, it goes too.
    send(&service, Method::PATCH, &routes::context(&context.context_id), json!({"pinned": false})).await;
    let job = service.job(r#"{"kind": "gc"}"#).await;
    assert_eq!(job.counts["expired"], 1, "{job:?}");
    assert_eq!(service.lookup_tokens(model_id, &kept).await.matched_tokens, 0);
    service.stop().await;
}

/// A context that has as many versions as it may takes no change, and is unpinned and deleted all the same.
#[tokio::test]
async fn a_context_of_the_most_versions_can_be_let_go() {
    let directory = TempDir::new().expect("a directory");
    let url = format!("file://{}/store", directory.path().display()).parse().expect("a url");
    let service = Service::start(StoreConfig::new(url), &directory.path().join("cache")).await;
    let (model_id, root) = service.prepare("n").await;
    let stored = chunks::context(root, &chunks::tokens(1, 256), 256, 50);
    service.put(&model_id, &stored[0]).await;
    let body =
        json!({"model_id": model_id, "namespace": "n", "chunks": [stored[0].seq_hash], "pinned": true});
    let context = create(&service, &body).await;
    let id = context.context_id;
    let versions = directory.path().join(format!("store/2/t/default/x/{id}"));
    let first = std::fs::read(versions.join(format!("{:020}.json", 1))).expect("a record");
    let mut record: Value = serde_json::from_slice(&first).expect("JSON");
    // Records of earlier versions have no checksum.
    record.as_object_mut().expect("an object").remove("crc32c");
    record["version"] = 10_000.into();
    std::fs::write(versions.join(format!("{:020}.json", 10_000)), record.to_string()).expect("writes");

    let path = routes::context(&id);
    for change in [json!({"labels": {"app": "x"}}), json!({"pinned": true})] {
        let problem =
            expect_problem(send(&service, Method::PATCH, &path, change).await, "invalid_context").await;
        assert!(problem.detail.contains("unpin or delete it"), "{}", problem.detail);
    }
    let unpinned = send(&service, Method::PATCH, &path, json!({"pinned": false})).await;
    assert_eq!(unpinned.status(), StatusCode::OK);
    let again = send(&service, Method::PATCH, &path, json!({"pinned": false})).await;
    assert_eq!(again.status(), StatusCode::OK, "nothing is left to change");
    let changed = send(&service, Method::PATCH, &path, json!({"labels": {"app": "x"}})).await;
    expect_problem(changed, "invalid_context").await;
    let deleted = send(&service, Method::DELETE, &path, json!({})).await;
    assert_eq!(deleted.status(), StatusCode::NO_CONTENT);
    expect_problem(service.get(&path, &[]).await, "unknown_context").await;
    service.stop().await;
}
