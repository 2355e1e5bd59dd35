//! Produces every reason that `explain` can give.

use std::{collections::BTreeSet, time::Duration};

use kvasir_api::{Cause, ExplainObjectsResponse, ExplainResponse, MissReason, routes};
use kvasir_store::StoreConfig;
use kvasir_tests::{
    chunks,
    s3::{Lacks, S3Server},
    service::Service,
};
use kvasir_types::{Medium, ModelId, ModelSpec, ObjectKey, Reuse, RootHash};
use reqwest::{Method, StatusCode};
use serde_json::json;
use tempfile::TempDir;

struct Bench {
    service: Service,
    seen: BTreeSet<MissReason>,
}

impl Bench {
    async fn ask(&mut self, model_id: ModelId, namespace: &str, tokens: &[u32], reason: MissReason) -> Cause {
        self.ask_as(json!({"model_id": model_id, "namespace": namespace, "tokens": tokens}), reason).await
    }

    /// The first cause, which must be for this reason.
    async fn ask_as(&mut self, request: serde_json::Value, reason: MissReason) -> Cause {
        let response = self.service.send(Method::POST, routes::EXPLAIN, request.to_string()).await;
        assert_eq!(response.status(), StatusCode::OK);
        let answer: ExplainResponse = response.json().await.expect("its JSON");
        let first = answer.causes.into_iter().next().expect("never empty");
        assert_eq!(first.reason, reason, "{}", first.detail);
        assert!(first.detail.len() > 20, "says what to do: {}", first.detail);
        self.seen.insert(reason);
        first
    }

    async fn register(&self, spec: &ModelSpec) -> ModelId {
        let json = serde_json::to_vec(spec).expect("JSON");
        assert!(self.service.send(Method::POST, routes::MODELS, json).await.status().is_success());
        spec.model_id()
    }
}

#[tokio::test]
async fn every_reason() {
    let directory = TempDir::new().expect("a directory");
    let server = S3Server::start(Lacks::default()).await;
    let config = |config: &mut kvasir_server::Config| {
        config.gc.policy.ttl = Some(Duration::ZERO);
        config.gc.interval = Duration::ZERO;
    };
    let service = Service::start_with(server.config("e"), directory.path(), config).await;
    let (model_id, root) = service.prepare("n").await;
    let mut bench = Bench { service, seen: BTreeSet::new() };
    let context = |seed| chunks::tokens(seed, 256);
    let chunk = |seed| chunks::chunk(root, &context(seed), 0, 256, 50);

    bench.ask(model_id, "n", &context(1), MissReason::NeverStored).await;
    bench.service.put(&model_id, &chunk(1)).await;
    assert_eq!(bench.ask(model_id, "n", &context(1), MissReason::Stored).await.tokens, 256);

    let cause = bench.ask(model_id, "elsewhere", &context(1), MissReason::OtherNamespace).await;
    assert_eq!((cause.namespace.expect("named").as_str(), cause.tokens), ("n", 256));

    // Another model: not registered, with its spec, and in which field it differs.
    let mut spec = chunks::spec();
    spec.revision = "2".to_owned();
    let request = json!({"model_id": spec.model_id(), "spec": spec, "namespace": "n", "tokens": context(1)});
    let cause = bench.ask_as(request, MissReason::OtherModel).await;
    let fields: Vec<_> = cause.differences.iter().map(|d| (&*d.field, &*d.asked, &*d.stored)).collect();
    assert_eq!((fields, cause.model_id), (vec![("revision", "2", "1")], Some(model_id)));

    bench.service.put(&model_id, &chunk(2)).await;
    let path = routes::chunk(&model_id, &chunk(2).seq_hash);
    assert_eq!(bench.service.send(Method::DELETE, &path, "").await.status(), StatusCode::NO_CONTENT);
    let cause = bench.ask(model_id, "n", &context(2), MissReason::Removed).await;
    assert_eq!((cause.by.as_deref(), cause.seq_hash), (Some("request"), Some(chunk(2).seq_hash)));
    assert!(cause.at_ms.is_some_and(|at| at > 1_600_000_000_000), "by the store's clock");

    // Bytes that the store garbled: two looks of a scrub.
    bench.service.put(&model_id, &chunk(3)).await;
    let key = server.keys(&chunk(3).object_digest.to_string()).remove(0);
    let mut garbled = chunk(3).bytes;
    *garbled.last_mut().expect("bytes") ^= 1;
    server.overwrite(&key, garbled);
    let job = bench.service.job(r#"{"kind": "scrub"}"#).await;
    assert_eq!(job.counts["quarantined"], 1, "{job:?}");
    bench.ask(model_id, "n", &context(3), MissReason::Quarantined).await;

    // Sent and not taken.
    let mut broken = chunk(4).bytes;
    *broken.last_mut().expect("bytes") ^= 1;
    let path = routes::chunk(&model_id, &chunk(4).seq_hash);
    assert_eq!(
        bench.service.send(Method::PUT, &path, broken).await.status(),
        StatusCode::UNPROCESSABLE_ENTITY
    );
    let cause = bench.ask(model_id, "n", &context(4), MissReason::NotAdmitted).await;
    assert!(cause.detail.contains("was sent and refused"), "{}", cause.detail);

    // A model that matches only as a whole.
    let whole = ModelSpec { reuse: Reuse::Whole, ..chunks::spec() };
    let whole_id = bench.register(&whole).await;
    bench.ask(whole_id, "fresh", &context(9), MissReason::NeverStored).await;

    // The collector: everything is older than no time at all.
    let job = bench.service.job(r#"{"kind": "gc"}"#).await;
    assert!(job.counts["expired"] >= 1, "{job:?}");
    let cause = bench.ask(model_id, "n", &context(1), MissReason::Expired).await;
    assert_eq!(cause.by.as_deref(), Some("collector"));

    evicted(&mut bench, &server, model_id, root).await;
    let missing: Vec<_> =
        MissReason::ALL.iter().filter(|r| !bench.seen.contains(r) && **r != MissReason::OnlyWhole).collect();
    assert_eq!(missing, Vec::<&MissReason>::new());
    bench.service.stop().await;
}

/// A tombstone as the cold tier's eviction writes it.
async fn evicted(bench: &mut Bench, server: &S3Server, model_id: ModelId, root: RootHash) {
    let tokens = chunks::tokens(6, 256);
    let chunk = chunks::chunk(root, &tokens, 0, 256, 50);
    bench.service.put(&model_id, &chunk).await;
    let key = server.keys(&chunk.object_digest.to_string()).remove(0);
    let tombstone = key.replace("/c/", "/d/").replace(".kvc", "");
    // The replica has to know that it is gone; a request's own reason would stay, so the eviction is written over it.
    let path = routes::chunk(&model_id, &chunk.seq_hash);
    assert_eq!(bench.service.send(Method::DELETE, &path, "").await.status(), StatusCode::NO_CONTENT);
    server.overwrite(&tombstone, "evicted");
    bench.ask(model_id, "n", &tokens, MissReason::Evicted).await;
}

#[tokio::test]
async fn a_cache_that_matches_only_as_a_whole_says_so() {
    let directory = TempDir::new().expect("a directory");
    let file = format!("file://{}/store", directory.path().display()).parse().expect("a url");
    let service = Service::start(StoreConfig::new(file), directory.path()).await;
    let spec = ModelSpec { reuse: Reuse::Whole, ..chunks::spec() };
    let (model_id, root) = service.prepare_model("n", &spec).await;
    let tokens = chunks::tokens(5, 300);
    let chunk = chunks::chunk_of(&spec, root, &tokens, 0, 256, 50);
    assert_eq!(service.put(&model_id, &chunk).await.status(), StatusCode::CREATED);
    let mut bench = Bench { service, seen: BTreeSet::new() };
    assert_eq!(bench.ask(model_id, "n", &tokens, MissReason::OnlyWhole).await.tokens, 256);
    bench.ask(model_id, "n", &tokens[..256], MissReason::Stored).await;
    bench.service.stop().await;
}

/// Memory and store hold only a part of the data: the answers name the evicted objects, and the reason.
#[tokio::test]
async fn evictions_from_memory_and_from_the_store_are_named() {
    let directory = TempDir::new().expect("a directory");
    let file = format!("file://{}/store", directory.path().display()).parse().expect("a url");
    let sample = chunks::chunk(RootHash::from([0; 32]), &chunks::tokens(0, 256), 0, 256, 2_000);
    let bytes = sample.bytes.len() as u64;
    let config = |config: &mut kvasir_server::Config| {
        config.hot.memory_bytes = 2 * bytes;
        config.hot.disk_bytes = Some(0);
        config.gc.policy.capacity_bytes = Some(5 * bytes + bytes / 2);
        config.gc.interval = Duration::ZERO;
    };
    let service = Service::start_with(StoreConfig::new(file), directory.path(), config).await;
    let (model_id, root) = service.prepare("n").await;
    let contexts: Vec<_> = (0..8).map(|seed| chunks::tokens(20 + seed, 256)).collect();
    for tokens in &contexts {
        let chunk = chunks::chunk(root, tokens, 0, 256, 2_000);
        assert_eq!(service.put(&model_id, &chunk).await.status(), StatusCode::CREATED);
        // The store's dates, by which the collector goes, must tell them apart.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let explain = async |tokens: &[u32]| {
        let request = json!({"model_id": model_id, "namespace": "n", "tokens": tokens}).to_string();
        let response = service.send(Method::POST, routes::EXPLAIN, request).await;
        response.json::<ExplainResponse>().await.expect("its JSON")
    };
    let mut from_memory = 0;
    for tokens in &contexts {
        let answer = explain(tokens).await;
        assert_eq!(answer.causes[0].reason, MissReason::Stored);
        for left in &answer.departures {
            assert_eq!((left.medium, left.now_in), (Medium::Cpu, Medium::Object));
            assert!(["capacity", "not_admitted"].contains(&left.reason.as_str()), "{left:?}");
            assert!(left.bytes > 0 && left.idle_ms <= left.age_ms.max(left.idle_ms), "{left:?}");
        }
        from_memory += answer.departures.len();
    }
    assert!(from_memory >= 4, "bases of eight chunks in room for some: {from_memory}");

    let job = service.job(r#"{"kind": "gc"}"#).await;
    assert_eq!(job.counts["evicted"], 3, "{job:?}");
    let mut evicted = 0;
    for tokens in &contexts {
        let answer = explain(tokens).await;
        let cause = &answer.causes[0];
        if answer.matched_tokens == 0 {
            assert_eq!((cause.reason, cause.by.as_deref()), (MissReason::Evicted, Some("collector")));
            assert!(cause.at_ms.is_some() && answer.departures.is_empty());
            evicted += 1;
        }
    }
    assert_eq!(evicted, 3);
    service.stop().await;
}

/// Objects by key have reasons, too.
#[tokio::test]
async fn every_reason_of_a_key_is_told() {
    let directory = TempDir::new().expect("a directory");
    let server = S3Server::start(Lacks::default()).await;
    let config = |config: &mut kvasir_server::Config| {
        config.gc.policy.ttl = Some(Duration::ZERO);
        config.gc.interval = Duration::ZERO;
    };
    let service = Service::start_with(server.config("o"), directory.path(), config).await;
    let path = |namespace: &str, key: &str| format!("/v1/namespaces/{namespace}/objects/{key}");
    let stored =
        [("n", "there"), ("n", "removed"), ("n", "evicted"), ("n", "damaged"), ("other", "elsewhere")];
    for (namespace, key) in stored {
        let stored = service.send(Method::PUT, &path(namespace, key), "bytes").await;
        assert_eq!(stored.status(), StatusCode::CREATED);
    }
    let name_of = async |key: &str| {
        let head = service.send(Method::HEAD, &path("n", key), "").await;
        let etag = head.headers()["etag"].to_str().expect("ASCII");
        server.keys(etag.trim_matches('"')).remove(0)
    };
    let evicted = name_of("evicted").await;
    for key in ["removed", "evicted"] {
        let removed = service.send(Method::DELETE, &path("n", key), "").await;
        assert_eq!(removed.status(), StatusCode::NO_CONTENT);
    }
    // A tombstone as the cold tier's eviction writes it.
    server.overwrite(&evicted.replace("/c/", "/d/").replace(".kvc", ""), "evicted");
    server.overwrite(&name_of("damaged").await, "garbled");
    let job = service.job(r#"{"kind": "scrub"}"#).await;
    assert_eq!(job.counts["quarantined"], 1, "{job:?}");
    let explain = async |keys: &[&str]| {
        let body = json!({ "keys": keys }).to_string();
        let answer = service.send(Method::POST, "/v1/namespaces/n/objects:explain", body).await;
        assert_eq!(answer.status(), StatusCode::OK);
        answer.json::<ExplainObjectsResponse>().await.expect("its JSON")
    };
    for (keys, found, key, reason, word) in [
        (&["there", "there"][..], 2, None, MissReason::Stored, "now"),
        (&[], 0, None, MissReason::Stored, "all"),
        (&["there", "removed", "elsewhere"], 1, Some("removed"), MissReason::Removed, "a request removed it"),
        (&["evicted"], 0, Some("evicted"), MissReason::Evicted, "made room"),
        (&["damaged"], 0, Some("damaged"), MissReason::Quarantined, "were damaged"),
        (&["elsewhere", "there"], 0, Some("elsewhere"), MissReason::OtherNamespace, "namespace other"),
        (&["never"], 0, Some("never"), MissReason::NeverStored, "no trace"),
    ] {
        let answer = explain(keys).await;
        assert_eq!((answer.keys, answer.found), (keys.len(), found), "{answer:?}");
        assert_eq!(answer.key.as_ref().map(ObjectKey::as_str), key, "{answer:?}");
        assert_eq!(answer.causes[0].reason, reason, "{answer:?}");
        assert!(answer.causes[0].detail.contains(word), "{answer:?}");
    }
    // The collector: everything is older than no time at all.
    let job = service.job(r#"{"kind": "gc"}"#).await;
    assert!(job.counts["expired"] >= 1, "{job:?}");
    let cause = explain(&["there"]).await.causes.remove(0);
    assert_eq!((cause.reason, cause.by.as_deref()), (MissReason::Expired, Some("collector")));
    service.stop().await;
}
