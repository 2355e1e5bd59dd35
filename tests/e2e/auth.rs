//! Credentials, roles, tenants and TLS, on the running service.

use std::{path::PathBuf, time::Duration};

use kvasir_api::{Role, routes};
use kvasir_client::rest::{BearerToken, Client, ClientConfig};
use kvasir_server::TlsConfig;
use kvasir_store::StoreConfig;
use kvasir_tests::{
    chunks,
    service::{Service, expect_problem},
};
use reqwest::{Method, StatusCode, header};
use tempfile::TempDir;

use crate::{
    guarded::{Guarded, token},
    revoked::{PROMISED, SLOW_MACHINE},
};

#[tokio::test]
async fn without_a_credential_only_probes_answer() {
    let known = token("a", Role::Admin);
    let guarded = Guarded::start(&known.entry).await;
    for path in [routes::LIVEZ, routes::READYZ, routes::METRICS] {
        assert_eq!(guarded.service.get(path, &[]).await.status(), StatusCode::OK, "{path}");
    }
    let answer = guarded.service.get(routes::CONFIG, &[]).await;
    assert_eq!(answer.headers()[header::WWW_AUTHENTICATE], "Bearer realm=\"kvasir\"");
    expect_problem(answer, "unauthorized").await;
    for wrong in ["kv_guess", "", "x y"] {
        let answer = guarded.send(wrong, Method::GET, routes::CONFIG, "").await;
        expect_problem(answer, "unauthorized").await;
    }
    assert_eq!(guarded.send(&known.token, Method::GET, routes::CONFIG, "").await.status(), StatusCode::OK);
    let metrics = guarded.service.metrics().await;
    assert!(metrics.contains("kvasir_auth_refused_total{reason=\"missing\"}"), "{metrics}");
}

#[tokio::test]
async fn roles_allow_what_they_say() {
    let (reader, writer) = (token("a", Role::Read), token("a", Role::Write));
    let guarded = Guarded::start(&format!("{}{}", reader.entry, writer.entry)).await;
    // A reader brings no model of its own, but may say which one it has.
    let spec = serde_json::to_vec(&chunks::spec()).expect("serialises");
    let answer = guarded.send(&reader.token, Method::POST, routes::MODELS, spec.clone()).await;
    expect_problem(answer, "unknown_model").await;
    let (model_id, root) = guarded.prepare(&writer.token).await;
    let answer = guarded.send(&reader.token, Method::POST, routes::MODELS, spec).await;
    assert_eq!(answer.status(), StatusCode::OK);
    let context = chunks::context(root, &chunks::tokens(1, 300), 1536, 2_000);
    let path = routes::chunk(&model_id, &context[0].seq_hash);
    let refused = guarded.send(&reader.token, Method::PUT, &path, context[0].bytes.clone()).await;
    expect_problem(refused, "forbidden").await;
    let stored = guarded.send(&writer.token, Method::PUT, &path, context[0].bytes.clone()).await;
    assert_eq!(stored.status(), StatusCode::CREATED);
    assert_eq!(guarded.send(&reader.token, Method::GET, &path, "").await.status(), StatusCode::OK);
    expect_problem(guarded.send(&reader.token, Method::DELETE, &path, "").await, "forbidden").await;
    assert_eq!(guarded.send(&writer.token, Method::DELETE, &path, "").await.status(), StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn another_tenant_s_ids_are_as_good_as_none() {
    let (a, b) = (token("a", Role::Write), token("b", Role::Admin));
    let guarded = Guarded::start(&format!("{}{}", a.entry, b.entry)).await;
    let (model_id, root) = guarded.prepare(&a.token).await;
    let (_, foreign_root) = guarded.prepare(&b.token).await;
    assert_ne!(root, foreign_root, "chains of two tenants never meet");
    let context = chunks::context(root, &chunks::tokens(1, 300), 1536, 2_000);
    let chunk = &context[0];
    let path = routes::chunk(&model_id, &chunk.seq_hash);
    let stored = guarded.send(&a.token, Method::PUT, &path, chunk.bytes.clone()).await;
    assert_eq!(stored.status(), StatusCode::CREATED);
    let random = routes::chunk(&model_id, &[7; 32].into());
    let object = |seq: &str| format!("{seq}/{}", chunk.object_digest);
    for (method, known, unknown) in [
        (Method::GET, path.clone(), random.clone()),
        (Method::GET, object(&path), object(&random)),
        (Method::DELETE, object(&path), object(&random)),
    ] {
        let foreign = guarded.send(&b.token, method.clone(), &known, "").await;
        let nothing = guarded.send(&b.token, method.clone(), &unknown, "").await;
        assert_eq!(foreign.status(), nothing.status(), "{method} {known}");
        let (foreign, nothing) = (foreign.text().await.expect("text"), nothing.text().await.expect("text"));
        let seq = chunk.seq_hash.to_string();
        assert_eq!(foreign.replace(&seq, &"07".repeat(32)), nothing, "{method} {known}");
    }
    assert_eq!(
        guarded.send(&a.token, Method::GET, &path, "").await.status(),
        StatusCode::OK,
        "b deleted nothing"
    );
}

#[tokio::test]
async fn over_its_quota_a_tenant_waits_and_others_do_not() {
    let (a, b) = (token("a", Role::Read), token("b", Role::Read));
    let quota = "[tenant.a]\nrequests_per_second = 2\n";
    let guarded = Guarded::start(&format!("{}{}{quota}", a.entry, b.entry)).await;
    let mut last = None;
    for _ in 0..8 {
        last = Some(guarded.send(&a.token, Method::GET, routes::CONFIG, "").await);
        assert_eq!(guarded.send(&b.token, Method::GET, routes::CONFIG, "").await.status(), StatusCode::OK);
        if last.as_ref().is_some_and(|answer| answer.status() != StatusCode::OK) {
            break;
        }
    }
    let answer = last.expect("asked");
    assert!(answer.headers().contains_key(header::RETRY_AFTER));
    let problem = expect_problem(answer, "throttled").await;
    assert!(problem.detail.contains("requests_per_second"), "{}", problem.detail);
    let text = guarded.service.metrics().await;
    assert!(text.contains("kvasir_quota_throttled_total{limit=\"requests_per_second\"} 1"), "{text}");
}

/// A certificate for 127.0.0.1 with a separate CA, as PEM files.
struct Certificates {
    ca: String,
    certificate: PathBuf,
    key: PathBuf,
}

fn certificates(directory: &TempDir, name: &str) -> Certificates {
    let ca_key = rcgen::KeyPair::generate().expect("a key");
    let mut ca = rcgen::CertificateParams::new(Vec::new()).expect("parameters");
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_certificate = ca.self_signed(&ca_key).expect("signs");
    let issuer = rcgen::Issuer::new(ca, ca_key);
    let key = rcgen::KeyPair::generate().expect("a key");
    let leaf = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("parameters");
    let leaf = leaf.signed_by(&key, &issuer).expect("signs");
    let write = |what: &str, text: String| {
        let path = directory.path().join(format!("{name}.{what}"));
        std::fs::write(&path, text).expect("writes");
        path
    };
    Certificates {
        ca: ca_certificate.pem(),
        certificate: write("crt", leaf.pem()),
        key: write("key", key.serialize_pem()),
    }
}

#[tokio::test]
async fn tls_with_a_private_ca_and_a_token() {
    let directory = TempDir::new().expect("a directory");
    let certificates = certificates(&directory, "server");
    let known = token("a", Role::Read);
    let tenants = directory.path().join("tenants.toml");
    std::fs::write(&tenants, &known.entry).expect("writes");
    let store =
        StoreConfig::new(format!("file://{}/store", directory.path().display()).parse().expect("a url"));
    let service = Service::start_with(store, &directory.path().join("cache"), |config| {
        config.auth.tenants_file = Some(tenants);
        let (certificate_file, key_file) = (certificates.certificate.clone(), certificates.key.clone());
        config.tls = Some(TlsConfig { certificate_file, key_file, client_ca_file: None });
    })
    .await;
    let base: url::Url = format!("https://{}", service.address).parse().expect("a url");
    let trusting = ClientConfig {
        token: Some(BearerToken::new(&known.token).expect("a token")),
        ca_certificates: Some(certificates.ca.into_bytes()),
        ..ClientConfig::default()
    };
    let client = Client::new(base.clone(), trusting.clone()).expect("a client");
    assert_eq!(client.config().await.expect("an answer").block_tokens, 16);
    let nobody = Client::new(base.clone(), ClientConfig { token: None, ..trusting }).expect("a client");
    assert!(nobody.config().await.is_err());
    let distrusting = Client::new(
        base,
        ClientConfig { connect_timeout: Duration::from_secs(2), ..ClientConfig::default() },
    );
    assert!(distrusting.expect("a client").config().await.is_err(), "the CA is nobody's");
    let plain = reqwest::get(format!("http://{}/livez", service.address)).await;
    assert!(plain.is_err(), "plain HTTP is not spoken");
    service.stop().await;
}

/// A client, with a certificate if given.
fn mutual_tls(server_ca: &str, identity: Option<&Certificates>) -> reqwest::Client {
    let mut builder = reqwest::Client::builder()
        .add_root_certificate(reqwest::Certificate::from_pem(server_ca.as_bytes()).expect("a CA"));
    if let Some(identity) = identity {
        let read = |path: &PathBuf| std::fs::read(path).expect("reads");
        let pem = [read(&identity.key), read(&identity.certificate)].concat();
        builder = builder.identity(reqwest::Identity::from_pem(&pem).expect("an identity"));
    }
    builder.build().expect("a client")
}

#[tokio::test]
async fn connections_end_when_the_ca_of_their_client_is_removed_and_no_others() {
    let directory = TempDir::new().expect("a directory");
    let (kept, removed) = (certificates(&directory, "kept"), certificates(&directory, "removed"));
    let ca_file = directory.path().join("ca.crt");
    std::fs::write(&ca_file, format!("{}{}", kept.ca, removed.ca)).expect("writes");
    let store =
        StoreConfig::new(format!("file://{}/store", directory.path().display()).parse().expect("a url"));
    let service = Service::start_with(store, &directory.path().join("cache"), |config| {
        let (certificate_file, key_file) = (kept.certificate.clone(), kept.key.clone());
        let client_ca_file = Some(ca_file.clone());
        config.tls = Some(TlsConfig { certificate_file, key_file, client_ca_file });
    })
    .await;
    let clients = [&kept, &removed].map(|identity| mutual_tls(&kept.ca, Some(identity)));
    let events = async |of: usize| {
        clients[of].get(format!("https://{}{}", service.address, routes::EVENTS)).send().await
    };
    let (mut of_kept, mut of_removed) = (events(0).await.expect("reads"), events(1).await.expect("reads"));
    assert_eq!([of_kept.status(), of_removed.status()], [StatusCode::OK; 2]);
    std::fs::write(&ca_file, &kept.ca).expect("writes");
    // Keep-alives may come before.
    let ends = async { while let Ok(Some(_)) = of_removed.chunk().await {} };
    tokio::time::timeout(PROMISED + SLOW_MACHINE, ends).await.expect("its stream of events ends");
    let goes_on = async { while let Ok(Some(_)) = of_kept.chunk().await {} };
    assert!(tokio::time::timeout(Duration::from_secs(2), goes_on).await.is_err(), "the other one does not");
    assert!(events(1).await.is_err() && events(0).await.is_ok());
    service.stop().await;
}

#[tokio::test]
async fn clients_without_a_certificate_are_refused_where_a_client_ca_is_set() {
    let directory = TempDir::new().expect("a directory");
    let (server, other) = (certificates(&directory, "server"), certificates(&directory, "other"));
    let ca_file = directory.path().join("ca.crt");
    std::fs::write(&ca_file, &server.ca).expect("writes");
    let store =
        StoreConfig::new(format!("file://{}/store", directory.path().display()).parse().expect("a url"));
    let service = Service::start_with(store, &directory.path().join("cache"), |config| {
        let (certificate_file, key_file) = (server.certificate.clone(), server.key.clone());
        config.tls = Some(TlsConfig { certificate_file, key_file, client_ca_file: Some(ca_file) });
    })
    .await;
    let answer = async |identity: Option<&Certificates>| {
        mutual_tls(&server.ca, identity).get(format!("https://{}/livez", service.address)).send().await
    };
    assert!(answer(Some(&server)).await.is_ok());
    assert!(answer(None).await.is_err());
    assert!(answer(Some(&other)).await.is_err());
}

#[tokio::test]
async fn chunks_of_a_tenant_with_a_key_are_sealed_in_the_store_and_open_for_it_alone() {
    let directory = TempDir::new().expect("a directory");
    let keys_file = directory.path().join("keys.toml");
    let key = |id: &str, digit: &str| {
        format!("[[key]]\ntenant = \"default\"\nid = \"{id}\"\nkey = \"{}\"\n", digit.repeat(64))
    };
    std::fs::write(&keys_file, key("one", "1")).expect("writes");
    let store =
        StoreConfig::new(format!("file://{}/store", directory.path().display()).parse().expect("a url"));
    let start = async |cache: &str| {
        let keys_file = keys_file.clone();
        Service::start_with(store.clone(), &directory.path().join(cache), |config| {
            config.keys_file = Some(keys_file);
            // Every upload waits in a file, and every frame of the hot tier goes to the disk.
            config.storage.spool_memory_bytes = 0;
            config.hot.memory_bytes = 0;
            config.hot.disk_bytes = Some(1 << 30);
        })
        .await
    };
    let service = start("a").await;
    let (model_id, root) = service.prepare("n").await;
    let context = chunks::context(root, &chunks::tokens(1, 3_500), 1536, 60_000);
    for chunk in &context {
        assert_eq!(service.put(&model_id, chunk).await.status(), StatusCode::CREATED);
    }
    let read = async |service: &Service| {
        for chunk in &context {
            let path = routes::chunk_object(&model_id, &chunk.seq_hash, &chunk.object_digest);
            assert_eq!(service.get(&path, &[]).await.bytes().await.expect("reads"), chunk.bytes);
            let part = service.get(&path, &[("range", "bytes=20000-50000")]).await;
            assert_eq!(part.bytes().await.expect("reads"), chunk.bytes[20_000..=50_000]);
        }
    };
    read(&service).await;
    read(&service).await;
    let served = service.metrics().await;
    let from_disk =
        served.lines().find(|line| line.starts_with("kvasir_hot_bytes{") && line.contains("disk"));
    assert!(from_disk.is_some_and(|line| !line.ends_with(" 0")), "the hot tier holds them: {served}");
    service.stop().await;
    // Nothing under the whole directory has the bytes of a chunk: not the store, and not the hot tier.
    let piece = &context[0].bytes[10_000..10_032];
    let (mut files, mut sealed_frames) = (vec![directory.path().to_owned()], 0);
    while let Some(path) = files.pop() {
        if path.is_dir() {
            files.extend(
                std::fs::read_dir(&path).expect("lists").map(|entry| entry.expect("an entry").path()),
            );
        } else {
            let bytes = std::fs::read(&path).expect("reads");
            sealed_frames += usize::from(path.to_string_lossy().ends_with("-sealed"));
            assert!(
                !bytes.windows(piece.len()).any(|window| window == piece),
                "{} has it open",
                path.display()
            );
        }
    }
    assert!(sealed_frames > 0, "the hot tier kept them on disk, sealed");
    // A new wrapping key, another replica without an index; then without the old key.
    for (cache, text) in [("b", key("one", "1") + &key("two", "2")), ("c", key("two", "2"))] {
        std::fs::write(&keys_file, text).expect("writes");
        let service = start(cache).await;
        service.prepare("n").await;
        let found = service.lookup_tokens(model_id, &chunks::tokens(1, 3_500)).await;
        assert_eq!(found.matched_tokens, 3_500);
        read(&service).await;
        service.stop().await;
    }
}
