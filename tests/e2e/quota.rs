//! Quotas on stored bytes.

use std::time::{Duration, Instant};

use kvasir_api::{Context, Role, UploadTicket, UsageResponse, routes};
use kvasir_server::NewAccessKey;
use kvasir_store::StoreConfig;
use kvasir_tests::{
    chunks::{self, Chunk},
    s3::{Lacks, S3Server},
    service::expect_problem,
};
use kvasir_types::{ModelId, ModelSpec, ProfileHash, RootHash};
use object_store::{Error, ObjectStoreExt, PutPayload, multipart::MultipartStore, path::Path};
use reqwest::{Method, Response, StatusCode, header};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    direct::announced,
    guarded::{Guarded, token},
    s3_front,
};

/// What the model's spec and the profile may have at most, less than a chunk.
const RECORDS_BYTES_MAX: u64 = 1_000;

async fn put(guarded: &Guarded, token: &str, model_id: &ModelId, chunk: &Chunk) -> Response {
    guarded.send(token, Method::PUT, &routes::chunk(model_id, &chunk.seq_hash), chunk.bytes.clone()).await
}

fn chunk(root: RootHash, n: u64) -> Chunk {
    chunks::chunk(root, &chunks::tokens(n, 256), 0, 256, 4_000)
}

async fn job(guarded: &Guarded, token: &str) {
    let started = guarded.send(token, Method::POST, routes::JOBS, r#"{"kind": "gc"}"#).await;
    let job: Value = started.json().await.expect("its JSON");
    let id = job["job_id"].as_str().expect("an id").parse().expect("a UUID");
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < Duration::from_secs(60), "the pass does not end");
        let job = guarded.send(token, Method::GET, &routes::job(&id), "").await;
        let job: Value = job.json().await.expect("its JSON");
        match job["state"].as_str() {
            Some("running") => tokio::time::sleep(Duration::from_millis(10)).await,
            state => return assert_eq!(state, Some("done"), "{job}"),
        }
    }
}

#[tokio::test]
async fn a_full_tenant_is_told_which_limit_and_gets_room_when_the_collector_has_been() {
    let (a, b, operator) = (token("a", Role::Write), token("b", Role::Write), token("ops", Role::Operator));
    // Two chunks, the profile, the model and the namespace.
    let entries = format!("{}{}{}[tenant.a]\nstored_objects = 5\n", a.entry, b.entry, operator.entry);
    let guarded = Guarded::start_with(&entries, None, |config| {
        config.gc.interval = Duration::ZERO;
        config.gc.policy.grace = Duration::ZERO;
    })
    .await;
    let (model_id, root) = guarded.prepare(&a.token).await;
    let (_, other_root) = guarded.prepare(&b.token).await;
    for n in 0..2 {
        assert_eq!(put(&guarded, &a.token, &model_id, &chunk(root, n)).await.status(), StatusCode::CREATED);
    }
    let refused = put(&guarded, &a.token, &model_id, &chunk(root, 2)).await;
    assert_eq!(refused.status().as_u16(), 507);
    assert_eq!(refused.headers()[header::RETRY_AFTER], "600");
    let problem = expect_problem(refused, "storage_quota").await;
    assert!(
        problem.detail.contains("stored_objects") && problem.detail.contains("5 of the 5 "),
        "{}",
        problem.detail
    );
    // An engine that starts again registers the model that is there; another one has no room.
    let register = async |spec: &ModelSpec| {
        let spec = serde_json::to_vec(spec).expect("serialises");
        guarded.send(&a.token, Method::POST, routes::MODELS, spec).await.status().as_u16()
    };
    let other = ModelSpec { revision: "2".to_owned(), ..chunks::spec() };
    assert_eq!((register(&chunks::spec()).await, register(&other).await), (200, 507));
    for n in 0..4 {
        let stored = put(&guarded, &b.token, &model_id, &chunk(other_root, n)).await;
        assert_eq!(stored.status(), StatusCode::CREATED, "another tenant has room");
    }
    let metrics = guarded.service.metrics().await;
    assert!(metrics.contains("kvasir_quota_throttled_total{limit=\"stored_objects\"} 2"), "{metrics}");
    let usage = guarded.send(&a.token, Method::GET, routes::USAGE, "").await;
    let usage: UsageResponse = usage.json().await.expect("its JSON");
    assert_eq!((usage.objects, usage.profiles, usage.records), (2, 1, 2));
    assert_eq!(usage.stored_objects_max, Some(5));
    // Removed is not gone: its bytes lie there until the collector has been.
    let path = routes::chunk(&model_id, &chunk(root, 0).seq_hash);
    assert_eq!(guarded.send(&a.token, Method::DELETE, &path, "").await.status(), StatusCode::NO_CONTENT);
    assert_eq!(put(&guarded, &a.token, &model_id, &chunk(root, 2)).await.status().as_u16(), 507);
    for _ in 0..2 {
        job(&guarded, &operator.token).await;
    }
    let metrics = guarded.service.metrics().await;
    for counted in ["kvasir_gc_passes_total 2", "kvasir_gc_actions_total{action=\"deleted\"} 1"] {
        assert!(metrics.contains(counted), "a pass that was asked for counts: {counted}\n{metrics}");
    }
    assert_eq!(put(&guarded, &a.token, &model_id, &chunk(root, 2)).await.status(), StatusCode::CREATED);
    guarded.service.stop().await;
}

/// A client that sends all of a body before it reads the answer would see a broken connection instead.
#[tokio::test]
async fn a_full_tenant_is_told_so_after_a_long_body() {
    const BYTES: usize = 32 << 20;
    let a = token("a", Role::Write);
    let guarded = Guarded::start(&format!("{}[tenant.a]\nstored_bytes = 10000\n", a.entry)).await;
    let (model_id, root) = guarded.prepare(&a.token).await;
    let of_chunk = routes::chunk(&model_id, &chunk(root, 0).seq_hash);
    let of_profile = routes::profile(&model_id, &ProfileHash::of(b"long"));
    for path in [of_chunk.as_str(), of_profile.as_str(), "/v1/namespaces/n/objects/long"] {
        let mut stream = TcpStream::connect(guarded.service.address).await.expect("connects");
        let head = format!(
            "PUT {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-length: {BYTES}\r\n\
             connection: close\r\n\r\n",
            a.token
        );
        stream.write_all(head.as_bytes()).await.expect("sends");
        stream.write_all(&vec![7; BYTES]).await.expect("all of it is taken");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answers");
        assert!(answer.starts_with("HTTP/1.1 507") && answer.contains("storage_quota"), "{path}: {answer}");
    }
    guarded.service.stop().await;
}

#[tokio::test]
async fn writers_at_once_do_not_go_beyond_the_bytes_together() {
    let a = token("a", Role::Write);
    let bytes = chunk([0; 32].into(), 0).bytes.len() as u64;
    let limit = 5 * bytes + RECORDS_BYTES_MAX;
    let guarded = Guarded::start(&format!("{}[tenant.a]\nstored_bytes = {limit}\n", a.entry)).await;
    let (model_id, root) = guarded.prepare(&a.token).await;
    let all: Vec<Chunk> = (0..16).map(|n| chunk(root, n)).collect();
    let puts = all.iter().map(|chunk| put(&guarded, &a.token, &model_id, chunk));
    let answers = futures::future::join_all(puts).await;
    let stored = answers.iter().filter(|answer| answer.status() == StatusCode::CREATED).count();
    assert!(answers.iter().all(|answer| [201, 507].contains(&answer.status().as_u16())));
    let usage = guarded.send(&a.token, Method::GET, routes::USAGE, "").await;
    let usage: UsageResponse = usage.json().await.expect("its JSON");
    let used = usage.bytes + usage.profile_bytes + usage.other_bytes;
    assert!(used <= limit && usage.objects == stored as u64, "{usage:?}");
    assert!(stored >= 1);
    // Afterwards there is room for exactly as many as fit.
    let mut more = 0;
    for chunk in &all {
        more += u64::from(put(&guarded, &a.token, &model_id, chunk).await.status() == StatusCode::CREATED);
    }
    assert_eq!(stored as u64 + more, 5);
    // Without a length nothing can be kept for it.
    let stream = futures::stream::iter([Ok::<_, std::io::Error>(all[0].bytes.clone())]);
    let path = routes::chunk(&model_id, &all[0].seq_hash);
    let chunked = guarded.send(&a.token, Method::PUT, &path, reqwest::Body::wrap_stream(stream)).await;
    expect_problem(chunked, "bad_request").await;
    guarded.service.stop().await;
}

/// Two replicas exceed a limit only by the bytes that they accept between two batches of the journal.
#[tokio::test]
async fn replicas_overshoot_by_no_more_than_the_lag_lets_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let store: StoreConfig =
        StoreConfig::new(format!("file://{}/store", directory.path().display()).parse().expect("a url"));
    let a = token("a", Role::Write);
    let bytes = chunk([0; 32].into(), 0).bytes.len() as u64;
    // So many that two replicas that did not count each other's bytes would store more than the bound.
    let limit = 80 * bytes;
    let entries = format!("{}[tenant.a]\nstored_bytes = {limit}\n", a.entry);
    let mut replicas = Vec::new();
    for _ in 0..2 {
        let quick = |config: &mut kvasir_server::Config| config.journal.interval = Duration::from_millis(100);
        replicas.push(Guarded::start_with(&entries, Some(store.clone()), quick).await);
    }
    let (model_id, root) = replicas[0].prepare(&a.token).await;
    // Both write at a steady pace until both refuse.
    let pause = Duration::from_millis(25);
    let write = async |replica: usize| {
        let (mut stored, mut n) = (0, replica as u64);
        loop {
            let answer = put(&replicas[replica], &a.token, &model_id, &chunk(root, n)).await;
            if answer.status() != StatusCode::CREATED {
                return (stored, answer.status().as_u16());
            }
            (stored, n) = (stored + bytes, n + 2);
            assert!(stored <= limit, "one replica alone stores {stored} of {limit}");
            tokio::time::sleep(pause).await;
        }
    };
    let begun = Instant::now();
    let (first, second) = tokio::join!(write(0), write(1));
    assert_eq!((first.1, second.1), (507, 507));
    let rate = (first.0 + second.0) as f64 / begun.elapsed().as_secs_f64() / 2.0;
    // Each has heard of the other's after at most two pauses that vary by an eighth, on a machine that may be busy.
    let lag = 0.1 * 2.0 * 1.125 + 0.5;
    let (stored, bound) = (first.0 + second.0, limit as f64 + 2.0 * lag * rate);
    assert!(bound < 1.9 * limit as f64, "too quick to tell: {bound} of {limit}");
    assert!((stored as f64) <= bound, "{stored} stored, {limit} allowed, {bound} with the lag");
    assert!(stored + bytes > limit - 100, "nobody is refused early: {stored} of {limit}");
    for replica in replicas {
        replica.service.stop().await;
    }
}

/// An upload announced on one replica needs space on another replica that commits it.
#[tokio::test]
async fn a_direct_upload_needs_room_where_it_is_committed() {
    let server = S3Server::start(Lacks::default()).await;
    let a = token("a", Role::Write);
    let bytes = chunk([0; 32].into(), 0).bytes.len() as u64;
    let entries = format!("{}[tenant.a]\nstored_bytes = {}\n", a.entry, 3 * bytes + bytes / 2);
    let mut replicas = Vec::new();
    for _ in 0..2 {
        replicas.push(Guarded::start_with(&entries, Some(server.config("d")), |_| {}).await);
    }
    let (near, far) = (&replicas[0], &replicas[1]);
    let (model_id, root) = near.prepare(&a.token).await;
    let send = async |n: u64| {
        let chunk = chunk(root, n);
        let request = serde_json::to_vec(&announced(model_id, &chunk)).expect("JSON");
        let ticket = near.send(&a.token, Method::POST, routes::UPLOADS, request).await;
        let ticket: UploadTicket = ticket.json().await.expect("its JSON");
        let mut upload = near.service.http.put(&ticket.url).body(chunk.bytes.clone());
        for (name, value) in &ticket.headers {
            upload = upload.header(name, value);
        }
        assert!(upload.send().await.expect("an answer").status().is_success());
        routes::upload_commit(&ticket.upload_id)
    };
    let (first, second) = (send(0).await, send(1).await);
    let done = near.send(&a.token, Method::POST, &second, "").await;
    assert_eq!(done.status(), StatusCode::CREATED, "where it was announced its room is kept");
    let again = near.send(&a.token, Method::POST, &second, "").await;
    assert_eq!(again.status(), StatusCode::OK, "a commit may be sent again");
    // The other replica fills the tenant's room with its own.
    let mut n = 2;
    while put(far, &a.token, &model_id, &chunk(root, n)).await.status() == StatusCode::CREATED {
        n += 1;
        assert!(n <= 5, "three fit at most");
    }
    let refused = far.send(&a.token, Method::POST, &first, "").await;
    assert_eq!(refused.status().as_u16(), 507);
    expect_problem(refused, "storage_quota").await;
    for replica in replicas {
        replica.service.stop().await;
    }
}

/// Parts count until they are deleted, so the object that is made of them needs room beside them.
#[tokio::test]
async fn an_object_of_parts_needs_room_beside_its_parts() {
    let server = S3Server::start(Lacks::default()).await;
    let a = token("a", Role::Write);
    let key = NewAccessKey::generate("s3", &"a".parse().expect("a name"), Role::Write);
    let entries = format!("{}{}[tenant.a]\nstored_bytes = 1500\n", a.entry, key.entry);
    let guarded = Guarded::start_with(&entries, Some(server.config("s")), |config| {
        config.server.s3_listen = Some(([127, 0, 0, 1], 0).into());
    })
    .await;
    let store = s3_front::client(guarded.service.s3().expect("it listens"), &key.id, &key.secret);
    let path = Path::from("large");
    let id = store.create_multipart(&path).await.expect("begins");
    let bytes = PutPayload::from(vec![7u8; 1_000]);
    let part = store.put_part(&path, &id, 0, bytes).await.expect("there is room for the part");
    let refused = store.complete_multipart(&path, &id, vec![part]).await.expect_err("no room for both");
    let refused = format!("{refused:?}");
    assert!(refused.contains("status: 507") && refused.contains("<Code>QuotaExceeded</Code>"), "{refused}");
    assert!(matches!(store.get(&path).await, Err(Error::NotFound { .. })), "nothing is visible");
    let usage = guarded.send(&a.token, Method::GET, routes::USAGE, "").await;
    let usage: UsageResponse = usage.json().await.expect("its JSON");
    assert_eq!((usage.objects, usage.waiting_uploads, usage.other_bytes), (0, 1, 1_000));
    // The part waits for its object until its client gives up.
    assert_eq!(server.keys("/u/").len(), 1);
    store.abort_multipart(&path, &id).await.expect("needs no room");
    assert_eq!(server.keys("/u/"), Vec::<String>::new());
    guarded.service.stop().await;
}

/// Each change of a context stores a version. A full tenant can still let go of it.
#[tokio::test]
async fn a_full_tenant_changes_no_context_but_unpins_and_deletes_it() {
    let a = token("a", Role::Write);
    // The model, the namespace, the profile, a chunk, and the first version.
    let guarded = Guarded::start(&format!("{}[tenant.a]\nstored_objects = 5\n", a.entry)).await;
    let (model_id, root) = guarded.prepare(&a.token).await;
    let chunk = chunk(root, 0);
    assert_eq!(put(&guarded, &a.token, &model_id, &chunk).await.status(), StatusCode::CREATED);
    let ids = [chunk.seq_hash];
    let new = json!({"model_id": model_id, "namespace": "n", "chunks": ids, "pinned": true}).to_string();
    let created = guarded.send(&a.token, Method::POST, routes::CONTEXTS, new).await;
    assert_eq!(created.status(), StatusCode::CREATED);
    let context: Context = created.json().await.expect("its JSON");
    let path = routes::context(&context.context_id);
    let change =
        async |change: &Value| guarded.send(&a.token, Method::PATCH, &path, change.to_string()).await;
    for more in [
        json!({"labels": {"app": "x"}}),
        json!({"chunks": ids}),
        json!({"ttl_s": 600}),
        json!({"pinned": true}),
        json!({"pinned": false, "labels": {"app": "x"}}),
        json!({"pinned": false, "chunks": ids}),
    ] {
        let refused = change(&more).await;
        assert_eq!(refused.status().as_u16(), 507, "{more}");
        expect_problem(refused, "storage_quota").await;
    }
    let newest = guarded.send(&a.token, Method::GET, &path, "").await;
    assert_eq!(newest.json::<Context>().await.expect("its JSON"), context);
    let unpinned = change(&json!({"pinned": false})).await;
    assert_eq!(unpinned.status(), StatusCode::OK);
    assert!(!unpinned.json::<Context>().await.expect("its JSON").pinned);
    let deleted = guarded.send(&a.token, Method::DELETE, &path, "").await;
    assert_eq!(deleted.status(), StatusCode::NO_CONTENT);
    guarded.service.stop().await;
}

/// Model specs and records of namespaces are objects: a full tenant adds none, and keeps the use of those that it has.
#[tokio::test]
async fn a_full_tenant_adds_no_model_and_no_namespace_but_reads_and_removes() {
    let (a, operator) = (token("a", Role::Write), token("ops", Role::Operator));
    let entries = format!("{}{}[tenant.a]\nstored_objects = 7\n", a.entry, operator.entry);
    let guarded = Guarded::start_with(&entries, None, |config| config.gc.interval = Duration::ZERO).await;
    let send = async |method: Method, path: &str, body: &[u8]| {
        guarded.send(&a.token, method, path, body.to_vec()).await
    };
    let open = async |namespace: &str, model_id: ModelId| {
        let request = json!({"namespace": namespace, "model_id": model_id}).to_string();
        send(Method::POST, routes::NAMESPACES, request.as_bytes()).await
    };
    let register = async |spec: &ModelSpec| {
        send(Method::POST, routes::MODELS, &serde_json::to_vec(spec).expect("serialises")).await
    };
    let usage = async || {
        let usage = send(Method::GET, routes::USAGE, b"").await;
        let usage: UsageResponse = usage.json().await.expect("its JSON");
        (usage.objects, usage.profiles, usage.records)
    };
    let refused = async |answer: Response| {
        assert_eq!(answer.status().as_u16(), 507);
        expect_problem(answer, "storage_quota").await;
    };
    // The model, the profile, namespace n, a chunk; an object, and its namespace.
    let (model_id, root) = guarded.prepare(&a.token).await;
    let chunk = chunk(root, 0);
    assert_eq!(put(&guarded, &a.token, &model_id, &chunk).await.status(), StatusCode::CREATED);
    let object = "/v1/namespaces/m/objects/k";
    assert_eq!(send(Method::PUT, object, b"bytes").await.status(), StatusCode::CREATED);
    // One more has room, but not an object in a namespace of its own.
    refused(send(Method::PUT, "/v1/namespaces/o/objects/k", b"bytes").await).await;
    assert_eq!(usage().await, (2, 1, 3), "nothing is left of what was refused");
    assert_eq!(open("x", model_id).await.status(), StatusCode::OK);
    // So the replica counts its own, and so the collector.
    for _ in 0..2 {
        refused(open("y", model_id).await).await;
        refused(register(&ModelSpec { revision: "2".to_owned(), ..chunks::spec() }).await).await;
        let head = json!({"objects": [{"key": "k", "bytes": 5}]}).to_string();
        let batch = [&(head.len() as u32).to_le_bytes()[..], head.as_bytes(), b"bytes"].concat();
        refused(send(Method::POST, "/v1/namespaces/y/objects:write", &batch).await).await;
        for namespace in ["n", "m", "x"] {
            assert_eq!(open(namespace, model_id).await.status(), StatusCode::OK, "{namespace}");
        }
        assert_eq!(register(&chunks::spec()).await.status(), StatusCode::OK);
        assert_eq!(usage().await, (2, 1, 4));
        job(&guarded, &operator.token).await;
    }
    let chunk = routes::chunk(&model_id, &chunk.seq_hash);
    for path in [object, chunk.as_str()] {
        assert_eq!(send(Method::GET, path, b"").await.status(), StatusCode::OK, "{path}");
        assert_eq!(send(Method::DELETE, path, b"").await.status(), StatusCode::NO_CONTENT, "{path}");
    }
    guarded.service.stop().await;
}
