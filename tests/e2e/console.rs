//! The console: its files, and the parts of the API that it uses.

use std::time::{Duration, Instant};

use kvasir_api::{LOAD_TIMELINE_MAX, LOADS_KEPT_MAX, PLAN_BANDWIDTHS_MAX, Role, routes};
use kvasir_tests::chunks;
use kvasir_types::ProfileHash;
use reqwest::{Method, Response, StatusCode, header::HeaderValue, redirect};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    bench::Bench,
    guarded::{Guarded, token},
};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

async fn guarded() -> Guarded {
    Guarded::start(&token("own", Role::Operator).entry).await
}

/// Sends a request unmodified, with any path; HTTP clients would normalise it.
async fn raw(guarded: &Guarded, request: &str) -> String {
    let mut stream = TcpStream::connect(guarded.service.address).await.expect("it listens");
    let request = format!("{request} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("it answers");
    String::from_utf8(answer).expect("text")
}

fn has_policy(answer: &Response) {
    for (name, value) in [
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
    ] {
        assert_eq!(
            answer.headers().get(name).and_then(|held| held.to_str().ok()),
            Some(value),
            "{}",
            answer.url()
        );
    }
}

#[tokio::test]
async fn the_page_needs_no_credential_and_has_nothing_from_elsewhere() {
    let guarded = guarded().await;
    let service = &guarded.service;
    let http = reqwest::Client::builder().redirect(redirect::Policy::none()).build().expect("a client");
    let start =
        http.get(format!("http://{}{}", service.address, routes::CONSOLE)).send().await.expect("an answer");
    assert_eq!(start.status(), StatusCode::PERMANENT_REDIRECT);
    assert_eq!(start.headers()["location"], "/console/");
    has_policy(&start);
    let index = service.get(routes::CONSOLE_FILES, &[]).await;
    assert_eq!(index.status(), StatusCode::OK);
    assert_eq!(index.headers()["content-type"], "text/html; charset=utf-8");
    assert_eq!(index.headers()["cache-control"], "no-cache");
    has_policy(&index);
    let etag = index.headers()["etag"].to_str().expect("text").to_owned();
    let length = index.headers()["content-length"].clone();
    let page = index.text().await.expect("text");
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("<style"), "{page}");
    let parts = page.split(['"', '\'']).filter(|part| part.ends_with(".js") || part.ends_with(".css"));
    for part in parts {
        let path = format!(
            "{}{}",
            routes::CONSOLE_FILES,
            part.trim_start_matches("./").trim_start_matches("/console/")
        );
        let answer = service.get(&path, &[]).await;
        assert_eq!(answer.status(), StatusCode::OK, "{part}");
        has_policy(&answer);
    }
    let unchanged = service.get(routes::CONSOLE_FILES, &[("if-none-match", &etag)]).await;
    assert_eq!(unchanged.status(), StatusCode::NOT_MODIFIED);
    assert_eq!(unchanged.headers()["etag"], etag);
    has_policy(&unchanged);
    assert!(unchanged.bytes().await.expect("reads").is_empty());
    let gzip = service.get(routes::CONSOLE_FILES, &[("accept-encoding", "br, gzip")]).await;
    assert_eq!(
        (&gzip.headers()["content-encoding"], &gzip.headers()["vary"]),
        (&HeaderValue::from_static("gzip"), &HeaderValue::from_static("accept-encoding"))
    );
    has_policy(&gzip);
    let compressed = gzip.headers()["etag"].to_str().expect("text").to_owned();
    assert_ne!(compressed, etag, "other bytes");
    assert!(gzip.bytes().await.expect("reads").len() < page.len());
    let both = [("accept-encoding", "gzip"), ("if-none-match", &*compressed)];
    assert_eq!(service.get(routes::CONSOLE_FILES, &both).await.status(), StatusCode::NOT_MODIFIED);
    let head = service.send(Method::HEAD, routes::CONSOLE_FILES, "").await;
    assert_eq!((head.status(), &head.headers()["content-length"]), (StatusCode::OK, &length));
    let post = service.send(Method::POST, routes::CONSOLE_FILES, "x").await;
    assert_eq!(post.status(), StatusCode::METHOD_NOT_ALLOWED);
    // All it shows comes from the API, which asks who calls.
    for path in [routes::SERIES, routes::LOADS, routes::AUDIT, routes::PLAN, routes::MODELS] {
        assert_eq!(service.get(path, &[]).await.status(), StatusCode::UNAUTHORIZED, "{path}");
    }
    guarded.service.stop().await;
}

#[tokio::test]
async fn no_path_leads_out_of_the_pages_files() {
    let guarded = guarded().await;
    for path in [
        "/console/../v1/config",
        "/console/%2e%2e/%2e%2e/etc/passwd",
        "/console/..%2f..%2f..%2fetc%2fpasswd",
        "/console//etc/passwd",
        "/console/vendor/../index.html",
        "/console/./index.html",
        "/console/vendor",
        "/console/vendor/LICENSE.preact",
        "/console/index.html%00.js",
        "/console/index.html/",
    ] {
        for method in ["GET", "HEAD"] {
            let answer = raw(&guarded, &format!("{method} {path}")).await;
            assert!(answer.starts_with("HTTP/1.1 404 "), "{path}: {answer}");
            assert!(!answer.contains("root:") && answer.contains(POLICY), "{path}: {answer}");
        }
    }
    assert!(raw(&guarded, "GET /console/index.html").await.starts_with("HTTP/1.1 200 "));
    guarded.service.stop().await;
}

const READER: (&str, Role) = ("own", Role::Read);
const WRITER: (&str, Role) = ("own", Role::Write);
const ADMIN: (&str, Role) = ("own", Role::Admin);
const OPERATOR: (&str, Role) = ("own", Role::Operator);

#[tokio::test]
async fn the_last_hour_is_for_operators_and_is_read_point_by_point() {
    let bench = Bench::start().await;
    assert_eq!(bench.status(ADMIN, routes::SERIES).await, 403);
    let begun = Instant::now();
    let lookup = json!({"model_id": bench.model, "namespace": "n", "tokens": [1, 2, 3]});
    let series = loop {
        let answer = bench.answer(READER, Method::POST, routes::LOOKUP, &lookup).await;
        assert_eq!(answer.status(), StatusCode::OK);
        let series = bench.json(OPERATOR, routes::SERIES).await;
        if series["times_ms"].as_array().is_some_and(|times| times.len() == 2) {
            break series;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "no point came: {series}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let values = |name: &str, label: &str| {
        let all = series["series"].as_array().expect("series");
        let found = all.iter().find(|series| {
            series["name"] == name
                && series["labels"].as_object().expect("labels").values().any(|value| value == label)
        });
        found.unwrap_or_else(|| panic!("{name} {label} in {series}"))["values"].clone()
    };
    assert_eq!(series["step_s"], 10);
    assert!(values("requests", "lookup")[1].as_f64().is_some_and(|rate| rate > 0.5), "{series}");
    assert!(values("lookup_tokens", "asked")[1].as_f64().is_some_and(|rate| rate > 1.5), "{series}");
    assert_eq!(values("lookup_tokens", "matched")[1], 0.0);
    let first = series["times_ms"][0].as_u64().expect("a time");
    let later = bench.json(OPERATOR, &format!("{}?after_ms={first}", routes::SERIES)).await;
    assert!(later["times_ms"].as_array().is_some_and(|times| times[0] == series["times_ms"][1]), "{later}");
    assert_eq!(later["started_at_ms"], series["started_at_ms"]);
    assert_eq!(bench.status(OPERATOR, &format!("{}?after_ms=-1", routes::SERIES)).await, 400);
    assert_eq!(bench.status(OPERATOR, &format!("{}?tenant=other", routes::SERIES)).await, 400);
    bench.guarded.service.stop().await;
}

#[tokio::test]
async fn reported_loads_are_kept_for_their_tenant_alone() {
    let bench = Bench::start().await;
    let chunk =
        |n: usize| json!({"first_token": 16 * n, "tokens": 16, "bytes": 9, "level": 1, "ready_ms": n});
    let report = |elapsed_ms: u64, chunks: usize| {
        json!({"slo_ms": 100, "elapsed_ms": elapsed_ms, "loaded_tokens": 16, "recomputed_tokens": 0,
            "bytes_by_level": {"1": 9, "200": 9},
            "timeline": {"chunks": (0..chunks).map(chunk).collect::<Vec<_>>(), "bandwidth": []}})
    };
    let send = async |who, report: Value| {
        bench.answer(who, Method::POST, routes::LOADS, &report).await.status().as_u16()
    };
    for elapsed_ms in [100, 101, 7] {
        assert_eq!(send(READER, report(elapsed_ms, LOAD_TIMELINE_MAX)).await, 204);
    }
    assert_eq!(send(READER, report(1, LOAD_TIMELINE_MAX + 1)).await, 400, "a timeline has a limit");
    let mut large = report(1, 1);
    large["saved_gpu_ms"] = u64::MAX.into();
    assert_eq!(send(READER, large).await, 400, "it would overflow the sum for all");
    let mut unknown = report(1, 1);
    unknown["timeline"]["chunks"][0]["html"] = "<script>".into();
    assert_eq!(send(READER, unknown).await, 400);
    let elapsed = async |who, query: &str| {
        let list = bench.json(who, &format!("{}{query}", routes::LOADS)).await;
        let loads = list["loads"].as_array().expect("loads").clone();
        loads.iter().map(|load| load["elapsed_ms"].as_u64().expect("a time")).collect::<Vec<_>>()
    };
    assert_eq!(elapsed(READER, "").await, [7, 101, 100]);
    assert_eq!(elapsed(READER, "?missed=true").await, [101]);
    assert_eq!(elapsed(READER, "?limit=1").await, [7]);
    for nobody in [("other", Role::Read), ("other", Role::Operator)] {
        assert!(elapsed(nobody, "").await.is_empty(), "another tenant's loads");
    }
    let list = bench.json(READER, routes::LOADS).await;
    let newest = &list["loads"][0];
    assert_eq!((&newest["missed"], &newest["bytes_by_level"]), (&json!(false), &json!({"1": 9})));
    assert_eq!(newest["timeline"]["chunks"].as_array().map(Vec::len), Some(LOAD_TIMELINE_MAX));
    for n in 0..LOADS_KEPT_MAX as u64 + 3 {
        assert_eq!(send(WRITER, report(n, 1)).await, 204);
    }
    let kept = elapsed(READER, "?limit=1000").await;
    assert_eq!((kept.len(), kept[0]), (LOADS_KEPT_MAX, LOADS_KEPT_MAX as u64 + 2));
    assert_eq!(bench.status(READER, &format!("{}?limit=-1", routes::LOADS)).await, 400);
    bench.guarded.service.stop().await;
}

#[tokio::test]
async fn the_status_of_a_chunk_is_for_its_tenant_and_ends_with_it() {
    let mut bench = Bench::start().await;
    let (ids, _) = bench.seed("put_chunk").await;
    let path = routes::object_status(&bench.model, &ids.seq_hash, &ids.object);
    let status = bench.json(READER, &path).await;
    assert!(status["stored_at_ms"].as_u64().is_some_and(|at| at > 1_700_000_000_000), "{status}");
    assert_eq!(
        status.as_object().map(|fields| fields.len()),
        Some(1),
        "no capacity and no time to live: {status}"
    );
    assert_eq!(bench.status(("other", Role::Operator), &path).await, 404);
    let chunk = routes::chunk(&bench.model, &ids.seq_hash);
    assert_eq!(bench.answer(WRITER, Method::DELETE, &chunk, &Value::Null).await.status(), 204);
    assert_eq!(bench.status(READER, &path).await, 404, "removed, although its bytes stay for the grace");
    bench.guarded.service.stop().await;
}

#[tokio::test]
async fn changes_are_audited_and_each_tenant_sees_its_own() {
    let mut bench = Bench::start().await;
    let (ids, _) = bench.seed("get_context").await;
    let context = routes::context(&ids.context);
    let pin = json!({"pinned": true});
    assert_eq!(bench.answer(WRITER, Method::PATCH, &context, &pin).await.status(), 200);
    assert_eq!(bench.answer(READER, Method::DELETE, &context, &Value::Null).await.status(), 403);
    let chunk = routes::chunk(&bench.model, &ids.seq_hash);
    assert_eq!(bench.answer(WRITER, Method::DELETE, &chunk, &Value::Null).await.status(), 204);
    let job = json!({"kind": "gc", "dry_run": true});
    assert_eq!(bench.answer(("other", Role::Operator), Method::POST, routes::JOBS, &job).await.status(), 202);
    let calls = async |who, query: &str| {
        let list = bench.json(who, &format!("{}{query}", routes::AUDIT)).await;
        let calls = list["calls"].as_array().expect("calls").clone();
        let line = |call: &Value| {
            let text = |name: &str| call[name].as_str().expect("text").to_owned();
            format!(
                "{} {} {} {} {}",
                text("tenant"),
                text("role"),
                text("method"),
                text("path"),
                call["status"]
            )
        };
        calls.iter().map(line).collect::<Vec<_>>()
    };
    let own = [
        format!("own write DELETE {chunk} 204"),
        format!("own read DELETE {context} 403"),
        format!("own write PATCH {context} 200"),
        format!("own write POST {} 201", routes::CONTEXTS),
    ];
    let others = [format!("other operator POST {} 202", routes::JOBS)];
    assert_eq!(calls(ADMIN, "").await, own);
    assert_eq!(calls(ADMIN, "?tenant=own&limit=1").await, own[..1]);
    assert_eq!(calls(("other", Role::Admin), "").await, others);
    assert_eq!(bench.status(ADMIN, &format!("{}?tenant=other", routes::AUDIT)).await, 403);
    assert_eq!(bench.status(WRITER, routes::AUDIT).await, 403);
    assert_eq!(calls(OPERATOR, "").await, [&others[..], &own[..]].concat());
    assert_eq!(calls(OPERATOR, "?tenant=other").await, others);
    assert_eq!(bench.status(OPERATOR, &format!("{}?tenant=../x", routes::AUDIT)).await, 400);
    bench.guarded.service.stop().await;
}

/// A profile file's head with three levels, the finest exact.
fn profile(model: &[u8; 32]) -> Vec<u8> {
    let mut bytes = b"KVSRPROF".to_vec();
    bytes.extend(4u16.to_le_bytes());
    bytes.extend([3, 4, 1, 0, 0, 0]);
    bytes.extend(0u64.to_le_bytes());
    bytes.extend(model);
    for text in ["starter", "<script>alert(1)</script>"] {
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
    }
    bytes.extend([1536u64, 0].map(u64::to_le_bytes).concat());
    for level in [[0.02, 0.5, 0.125], [-1.0, 2.0, 0.25], [-1.0, 9.0, 0.0]] {
        bytes.extend(level.map(f32::to_le_bytes).concat());
    }
    bytes
}

#[tokio::test]
async fn plans_are_made_of_presets_and_of_registered_models() {
    let bench = Bench::start().await;
    let post = async |who, request: Value| bench.answer(who, Method::POST, routes::PLAN, &request).await;
    let options = bench.json(READER, routes::PLAN).await;
    assert!(
        options["models"].as_array().is_some_and(|models| models.iter().any(|m| m["name"] == "llama-3.1-8b"))
    );
    let asked = json!({"model": "llama-3.1-8b", "tokens": 8192, "bandwidths": [3e9, 1e6], "slo_s": 0.25});
    let plan: Value = post(READER, asked).await.json().await.expect("its JSON");
    // 32 layers, 8 heads of 128 elements, keys and values, two bytes each.
    assert_eq!(
        (&plan["bytes_per_token"]["fp16"], &plan["bytes"]["fp16"]),
        (&json!(131_072), &json!(1 << 30))
    );
    assert_eq!((&plan["links"][0]["fits"], &plan["links"][1]["fits"]), (&json!(1), &Value::Null), "{plan}");
    for wrong in [
        json!({}),
        json!({"model": "no such"}),
        json!({"model": "llama-3.1-8b", "model_id": bench.model}),
        json!({"model_id": bench.model}),
        json!({"model": "llama-3.1-8b", "tokens": 0}),
        json!({"model": "llama-3.1-8b", "tokens": u64::MAX}),
        json!({"model": "llama-3.1-8b", "gpus": 0}),
        json!({"model": "llama-3.1-8b", "gpu": "abacus"}),
        json!({"model": "llama-3.1-8b", "slo_s": -1.0}),
        json!({"model": "llama-3.1-8b", "parameters": 1e300}),
        json!({"model": "llama-3.1-8b", "bandwidths": [0.0]}),
        json!({"model": "llama-3.1-8b", "bandwidths": vec![1e9; PLAN_BANDWIDTHS_MAX + 1]}),
        json!({"model": "llama-3.1-8b", "profile_hash": ProfileHash::of(chunks::PROFILE)}),
        json!({"model_id": bench.model, "parameters": 1.0, "profile_hash": ProfileHash::of(chunks::PROFILE)}),
    ] {
        assert_eq!(post(READER, wrong.clone()).await.status(), 400, "{wrong}");
    }
    let bytes = profile(bench.model.as_bytes());
    let hash = ProfileHash::of(&bytes);
    let path = routes::profile(&bench.model, &hash);
    assert_eq!(bench.guarded.send(&bench.tokens[&WRITER], Method::PUT, &path, bytes).await.status(), 201);
    let levels = bench.json(READER, &format!("{path}/levels")).await;
    assert_eq!(
        (&levels["made"], &levels["note"]),
        (&json!("first_save"), &json!("<script>alert(1)</script>"))
    );
    assert_eq!(
        levels["levels"],
        json!([{"level": 0, "bits_per_element": 0.5, "nmse": 0.125, "kl": 0.02},
            {"level": 1, "bits_per_element": 2.0, "nmse": 0.25, "quality": "transparent"},
            {"level": 2, "bits_per_element": 9.0, "nmse": 0.0, "quality": "exact"}])
    );
    let request = json!({"model_id": bench.model, "parameters": 1.0, "profile_hash": hash});
    let plan: Value = post(READER, request.clone()).await.json().await.expect("its JSON");
    assert_eq!(plan["levels"][1]["bits_per_element"], json!({"value": 2.0, "source": "measured"}));
    // Another tenant has neither the model nor the profile.
    let other = ("other", Role::Operator);
    assert_eq!(post(other, request).await.status(), 404);
    assert_eq!(bench.status(other, &format!("{path}/levels")).await, 404);
    assert_eq!(bench.json(other, routes::MODELS).await, json!({"models": []}));
    let models = bench.json(READER, routes::MODELS).await;
    assert_eq!(models["models"][0]["model_id"], json!(bench.model));
    assert_eq!(models["models"][0]["model_name"], json!(chunks::spec().weights));
    bench.guarded.service.stop().await;
}

#[tokio::test]
async fn contexts_are_found_by_a_part_of_a_label_and_the_start_of_an_id() {
    let mut bench = Bench::start().await;
    let mut ids = Vec::new();
    for label in ["Support chat", "<script>alert(1)</script>"] {
        let (seeded, _) = bench.seed("put_chunk").await;
        let request = json!({"model_id": bench.model, "namespace": "n", "chunks": [seeded.seq_hash], "labels": {"title": label}});
        let made = bench.answer(WRITER, Method::POST, routes::CONTEXTS, &request).await;
        let made: Value = made.json().await.expect("its JSON");
        ids.push(made["context_id"].as_str().expect("an id").to_owned());
    }
    let found = async |who, query: &str| {
        let list = bench.json(who, &format!("{}?{query}", routes::CONTEXTS)).await;
        let contexts = list["contexts"].as_array().expect("contexts").clone();
        contexts
            .iter()
            .map(|context| context["context_id"].as_str().expect("an id").to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(found(READER, "search=SUPPORT").await, ids[..1]);
    assert_eq!(found(READER, "search=%3Cscript%3E").await, ids[1..]);
    assert_eq!(found(READER, "search=titl").await, ids);
    assert_eq!(found(READER, &format!("search={}", &ids[1][..36])).await, ids[1..]);
    assert_eq!(found(READER, "search=").await, ids);
    assert!(found(READER, "search=nothing").await.is_empty());
    assert!(found(READER, "search=support&labels=title=other").await.is_empty());
    assert!(found(("other", Role::Operator), "search=titl").await.is_empty());
    let long = format!("{}?search={}", routes::CONTEXTS, "x".repeat(257));
    assert_eq!(bench.status(READER, &long).await, 400);
    bench.guarded.service.stop().await;
}
