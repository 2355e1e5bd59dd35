//! Jobs that an operator starts, follows and cancels.

use std::time::{Duration, Instant};

use kvasir_api::{Role, routes};
use kvasir_store::StoreConfig;
use kvasir_tests::{chunks, service::Service};
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::bench::Bench;

const OPERATOR: (&str, Role) = ("own", Role::Operator);
const ADMIN: (&str, Role) = ("own", Role::Admin);

#[tokio::test]
async fn a_job_is_cancelled_between_two_objects() {
    let mut bench = Bench::start().await;
    for _ in 0..3 {
        bench.seed("put_chunk").await;
    }
    let slow = json!({"kind": "scrub", "bytes_per_second": 1});
    let job: Value =
        bench.answer(OPERATOR, Method::POST, routes::JOBS, &slow).await.json().await.expect("its JSON");
    let path = routes::job(&job["job_id"].as_str().expect("an id").parse().expect("a UUID"));
    let cancel = format!("{path}/cancel");
    let begun = Instant::now();
    while bench.json(OPERATOR, &path).await["counts"]["objects"] != 1 {
        assert!(begun.elapsed() < Duration::from_secs(30), "it does not say how far it is");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(bench.answer(ADMIN, Method::POST, &cancel, &Value::Null).await.status(), 403);
    assert_eq!(bench.json(OPERATOR, &path).await["state"], "running");
    assert_eq!(bench.answer(OPERATOR, Method::POST, &cancel, &Value::Null).await.status(), 202);
    let ended = loop {
        let job = bench.json(OPERATOR, &path).await;
        if job["state"] != "running" {
            break job;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "it goes on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!((&ended["state"], &ended["counts"]["objects"]), (&json!("cancelled"), &json!(1)), "{ended}");
    // It is over: nothing changes, and another one may run.
    let again: Value =
        bench.answer(OPERATOR, Method::POST, &cancel, &Value::Null).await.json().await.expect("its JSON");
    assert_eq!(again, ended);
    let dry = json!({"kind": "scrub", "dry_run": true});
    assert_eq!(bench.answer(OPERATOR, Method::POST, routes::JOBS, &dry).await.status(), 202);
    let unknown = format!("{}/cancel", routes::job(&uuid::Uuid::now_v7()));
    assert_eq!(bench.answer(OPERATOR, Method::POST, &unknown, &Value::Null).await.status(), 404);
    bench.guarded.service.stop().await;
}

#[tokio::test]
async fn an_index_is_rebuilt_by_a_job_and_jobs_refuse_what_their_kind_does_not_have() {
    let mut bench = Bench::start().await;
    bench.seed("put_chunk").await;
    let ended = async |request: Value| {
        let job = bench.answer(OPERATOR, Method::POST, routes::JOBS, &request).await;
        assert_eq!(job.status(), 202, "{request}");
        let job: Value = job.json().await.expect("its JSON");
        let path = routes::job(&job["job_id"].as_str().expect("an id").parse().expect("a UUID"));
        let begun = Instant::now();
        loop {
            let job = bench.json(OPERATOR, &path).await;
            if job["state"] != "running" {
                return job;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{job}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let rebuilt = ended(json!({"kind": "rebuild_index"})).await;
    assert_eq!((&rebuilt["state"], &rebuilt["counts"]["failed"]), (&json!("done"), &json!(0)), "{rebuilt}");
    assert!(rebuilt["counts"]["indexed"].as_u64() >= Some(1), "{rebuilt}");
    // Nothing of a tenant without a key is removed.
    let sealed = ended(json!({"kind": "seal", "tenant": OPERATOR.0})).await;
    assert_eq!((&sealed["state"], &sealed["tenant"]), (&json!("failed"), &json!(OPERATOR.0)), "{sealed}");
    assert!(sealed["error"].as_str().is_some_and(|error| error.contains("has no key here")), "{sealed}");
    for refused in [
        json!({"kind": "seal"}),
        json!({"kind": "seal", "tenant": OPERATOR.0, "dry_run": true}),
        json!({"kind": "rebuild_index", "dry_run": true}),
        json!({"kind": "gc", "tenant": OPERATOR.0}),
    ] {
        let answer = bench.answer(OPERATOR, Method::POST, routes::JOBS, &refused).await;
        assert_eq!(answer.status(), 400, "{refused}");
    }
    bench.guarded.service.stop().await;
}

#[tokio::test]
async fn a_tenant_that_got_a_key_is_sealed_by_a_job() {
    let directory = TempDir::new().expect("a directory");
    let (keys_file, cache) = (directory.path().join("keys.toml"), directory.path().join("cache"));
    let key = format!("[[key]]\ntenant = \"default\"\nid = \"one\"\nkey = \"{}\"\n", "1".repeat(64));
    std::fs::write(&keys_file, key).expect("writes");
    let url = format!("file://{}/store", directory.path().display()).parse().expect("a URL");
    let store = StoreConfig::new(url);
    let plain = Service::start_with(store.clone(), &cache, |_| {}).await;
    let (model_id, root) = plain.prepare("n").await;
    let tokens = chunks::tokens(1, 512);
    assert_eq!(plain.put(&model_id, &chunks::chunk(root, &tokens, 0, 512, 100)).await.status(), 201);
    plain.stop().await;
    let sealed = Service::start_with(store, &cache, |config| config.keys_file = Some(keys_file)).await;
    let seal = r#"{"kind": "seal", "tenant": "default"}"#;
    let job = sealed.job(seal).await;
    assert_eq!((job.counts["salts"], job.counts["objects"]), (1, 1), "{job:?}");
    let again = sealed.job(seal).await;
    assert_eq!((again.counts["salts"], again.counts["objects"]), (0, 0), "{again:?}");
    let (_, new_root) = sealed.prepare("n").await;
    assert_ne!(new_root, root, "whoever read the bucket before cannot name what is stored from now on");
    sealed.stop().await;
}
