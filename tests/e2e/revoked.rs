//! Requests that a credential started end when it is revoked or expires.

use std::{
    pin::pin,
    time::{Duration, Instant, SystemTime},
};

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use bytes::Bytes;
use futures::StreamExt;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use kvasir_api::{ObjectUrl, Role, UploadTicket, routes};
use kvasir_server::{JwtConfig, NewAccessKey};
use kvasir_tests::{
    chunks,
    s3::{Lacks, S3Server},
    service::{Service, expect_problem},
};
use object_store::{path::Path, signer::Signer};
use reqwest::{Method, StatusCode, header};
use tempfile::TempDir;

use crate::{
    direct::announced,
    guarded::{Guarded, token},
    isolation::quiet,
    s3_front,
};

/// What is promised: the files are read every 5 s, and bodies look every second.
pub(crate) const PROMISED: Duration = Duration::from_secs(6);
/// Allowance for two busy cores.
pub(crate) const SLOW_MACHINE: Duration = Duration::from_secs(9);
/// Longest wait for what is not measured.
const PATIENCE: Duration = Duration::from_secs(60);

/// The outcome of what has to end, and when it did.
async fn ended<T>(what: impl Future<Output = T>) -> (T, Instant) {
    let outcome = tokio::time::timeout(PATIENCE, what).await.expect("it ends");
    (outcome, Instant::now())
}

fn assert_soon(what: &str, credential_ended: Instant, ended: Instant) {
    let took = ended.checked_duration_since(credential_ended).expect("not before");
    assert!(took <= PROMISED + SLOW_MACHINE, "{what} ended {took:?} after its credential");
}

/// Sends parts forever.
fn endless() -> reqwest::Body {
    let parts = futures::stream::repeat(()).then(|()| async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Ok::<_, std::io::Error>(Bytes::from(vec![7u8; 1 << 10]))
    });
    reqwest::Body::wrap_stream(parts)
}

#[tokio::test]
async fn open_streams_and_uploads_end_soon_after_their_credential_and_no_others() {
    let server = S3Server::start(Lacks::default()).await;
    let (revoked, kept) = (token("a", Role::Write), token("a", Role::Write));
    let entries = format!("{}{}", revoked.entry, kept.entry);
    let guarded = Guarded::start_with(&entries, Some(server.config("r")), quiet).await;
    let (model_id, root) = guarded.prepare(&kept.token).await;
    let before = server.contents();
    let chunk = chunks::chunk(root, &chunks::tokens(1, 256), 0, 256, 100);
    let path = routes::chunk(&model_id, &chunk.seq_hash);
    let mut events = guarded.send(&revoked.token, Method::GET, routes::EVENTS, "").await.bytes_stream();
    let mut others = guarded.send(&kept.token, Method::GET, routes::EVENTS, "").await.bytes_stream();
    let upload = guarded.send(&revoked.token, Method::PUT, &path, endless());
    let revoke = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        guarded.write_tenants(&kept.entry);
        Instant::now()
    };
    // Keep-alives may come before.
    let told = async { while let Some(Ok(_)) = events.next().await {} };
    let (revoked_at, (answer, upload_ended), ((), events_ended)) =
        tokio::join!(revoke, ended(upload), ended(told));
    expect_problem(answer, "unauthorized").await;
    assert_soon("the upload", revoked_at, upload_ended);
    assert_soon("the stream of events", revoked_at, events_ended);
    server.assert_unchanged(&before, "the upload and the streams");
    let put = guarded.send(&kept.token, Method::PUT, &path, chunk.bytes.clone()).await;
    assert_eq!(put.status(), StatusCode::CREATED, "another credential of the tenant is as good as before");
    let told = async {
        loop {
            let part = others.next().await.expect("not the end").expect("reads");
            if part.starts_with(b"id:") || String::from_utf8_lossy(&part).contains("stored") {
                break;
            }
        }
    };
    tokio::time::timeout(PATIENCE, told).await.expect("its stream of events goes on");
    let metrics = guarded.service.metrics().await;
    assert!(metrics.contains("kvasir_auth_refused_total{reason=\"ended\"} 2"), "{metrics}");
    guarded.service.stop().await;
}

/// The link is too slow for a second part of the download within the time of the test.
#[tokio::test]
async fn a_download_that_waits_for_the_link_ends_with_its_credential() {
    let (revoked, kept) = (token("a", Role::Write), token("a", Role::Write));
    let entries = format!("{}{}", revoked.entry, kept.entry);
    let slow = |config: &mut kvasir_server::Config| config.server.egress_bytes_per_second = 1_024;
    let guarded = Guarded::start_with(&entries, None, slow).await;
    let path = "/v1/namespaces/n/objects/large";
    let put = guarded.send(&kept.token, Method::PUT, path, vec![7u8; LARGE / 8]).await;
    assert!(put.status().is_success());
    let mut answer = guarded.send(&revoked.token, Method::GET, path, "").await;
    let mut bytes = answer.chunk().await.expect("reads").expect("a first part").len();
    guarded.write_tenants(&kept.entry);
    let revoked_at = Instant::now();
    let rest = async {
        while let Ok(Some(part)) = answer.chunk().await {
            bytes += part.len();
        }
    };
    let ((), download_ended) = ended(rest).await;
    assert_soon("the download", revoked_at, download_ended);
    assert!(bytes < LARGE / 8, "what was not sent by then is not sent");
    guarded.service.stop().await;
}

#[tokio::test]
async fn a_changed_file_that_cannot_be_used_is_a_metric_until_it_can() {
    let kept = token("a", Role::Write);
    let guarded = Guarded::start(&kept.entry).await;
    // At the start it would be fatal.
    for (entries, value) in [(&*kept.entry, 0), ("[[token]]\nname = 1", 1), (&*kept.entry, 0)] {
        guarded.write_tenants(entries);
        let line = format!("kvasir_files_rejected{{setting=\"auth.tenants_file\"}} {value}\n");
        let told = async {
            while !guarded.service.metrics().await.contains(&line) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(PATIENCE, told).await.expect("it is told");
        assert_eq!(guarded.send(&kept.token, Method::GET, routes::USAGE, "").await.status(), StatusCode::OK);
    }
    guarded.service.stop().await;
}

/// Bytes of a body that takes longer than any of these tests.
const LARGE: usize = 32 << 20;
/// How much longer than its `exp` a web token is good: clocks differ.
const LEEWAY: Duration = Duration::from_secs(30);

#[tokio::test]
async fn what_a_web_token_began_ends_when_it_expires() {
    let directory = TempDir::new().expect("a directory");
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&aws_lc_rs::rand::SystemRandom::new()).expect("a key");
    let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).expect("parses");
    let x = BASE64_URL_SAFE_NO_PAD.encode(pair.public_key());
    let jwks_file = directory.path().join("jwks.json");
    let jwk = serde_json::json!({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": "k", "x": x});
    std::fs::write(&jwks_file, serde_json::json!({ "keys": [jwk] }).to_string()).expect("writes");
    let guarded = Guarded::start_with("", None, |config| {
        let (issuer, audience) = ("issuer".to_owned(), "kvasir".to_owned());
        let (tenant_claim, role_claim) = ("tenant".to_owned(), "role".to_owned());
        config.auth.jwt = Some(JwtConfig { jwks_file, issuer, audience, tenant_claim, role_claim });
    })
    .await;
    let good_for = |time: Duration| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        let exp = (now + time - LEEWAY).as_secs();
        let claims =
            serde_json::json!({"iss": "issuer", "aud": "kvasir", "exp": exp, "tenant": "a", "role": "write"});
        let header = Header { kid: Some("k".to_owned()), ..Header::new(Algorithm::EdDSA) };
        jsonwebtoken::encode(&header, &claims, &EncodingKey::from_ed_der(pkcs8.as_ref())).expect("signs")
    };
    let (short, long) = (good_for(Duration::from_secs(5)), good_for(Duration::from_secs(3_600)));
    let url = format!("http://{}/v1/namespaces/n/objects/endless", guarded.service.address);
    let upload = guarded.service.http.put(url).bearer_auth(&short).body(endless());
    let upload = upload.header(header::CONTENT_LENGTH, LARGE).send();
    let begun = Instant::now();
    let events = guarded.send(&short, Method::GET, routes::EVENTS, "").await;
    assert_eq!(events.status(), StatusCode::OK, "it is good for a while");
    let mut events = events.bytes_stream();
    let others = guarded.send(&long, Method::GET, routes::EVENTS, "").await.bytes_stream();
    let told = async { while let Some(Ok(_)) = events.next().await {} };
    let ((answer, upload_ended), ((), events_ended)) = tokio::join!(ended(upload), ended(told));
    expect_problem(answer.expect("an answer"), "unauthorized").await;
    // At the earliest: its `exp` is in whole seconds.
    let expired_at = begun + Duration::from_secs(3);
    assert_soon("the upload", expired_at, upload_ended);
    assert_soon("the stream of events", expired_at, events_ended);
    expect_problem(guarded.send(&short, Method::GET, routes::USAGE, "").await, "unauthorized").await;
    let mut others = pin!(others);
    let ends = async { while let Some(Ok(_)) = others.next().await {} };
    let goes_on = tokio::time::timeout(Duration::from_secs(2), ends).await;
    assert!(goes_on.is_err(), "the stream of a token that is good goes on");
    guarded.service.stop().await;
}

#[tokio::test]
async fn bodies_over_s3_end_soon_after_their_access_key_is_revoked() {
    let directory = TempDir::new().expect("a directory");
    let server = S3Server::start(Lacks::default()).await;
    let file = directory.path().join("tenants.toml");
    let key = |name: &str| NewAccessKey::generate(name, &"a".parse().expect("a name"), Role::Write);
    let (revoked, replaced, kept) = (key("revoked"), key("replaced"), key("kept"));
    let successor = replaced.entry.replace(&replaced.secret, &key("replaced").secret);
    let entries = [&revoked.entry, &replaced.entry, &kept.entry].map(String::as_str).concat();
    std::fs::write(&file, entries).expect("writes");
    let service = Service::start_with(server.config("s"), directory.path(), |config| {
        quiet(config);
        config.server.s3_listen = Some(([127, 0, 0, 1], 0).into());
        config.auth.tenants_file = Some(file.clone());
    })
    .await;
    let address = service.s3().expect("it listens");
    let url = async |key: &NewAccessKey, method: Method, name: &str| {
        let client = s3_front::client(address, &key.id, &key.secret);
        client.signed_url(method, &Path::from(name), Duration::from_secs(600)).await.expect("signs")
    };
    let large = Bytes::from(vec![7; LARGE]);
    let put = service.http.put(url(&kept, Method::PUT, "large").await).body(large.clone()).send().await;
    assert_eq!(put.expect("an answer").status(), StatusCode::OK);
    let before = server.contents();

    let mut answers = Vec::new();
    for key in [&revoked, &replaced, &kept] {
        let answer = service.http.get(url(key, Method::GET, "large").await).send().await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::OK);
        answers.push(answer);
    }
    let upload = service.http.put(url(&revoked, Method::PUT, "endless").await).body(endless());
    let upload = upload.header(header::CONTENT_LENGTH, LARGE).send();
    let revoke = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        std::fs::write(&file, format!("{}{successor}", kept.entry)).expect("writes");
        Instant::now()
    };
    let (revoked_at, (answer, upload_ended)) = tokio::join!(revoke, ended(upload));
    let answer = answer.expect("an answer");
    assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    let text = answer.text().await.expect("text");
    assert!(text.contains("<Code>AccessDenied</Code>") && text.contains("no longer valid"), "{text}");
    server.assert_unchanged(&before, "the upload");
    assert_soon("the upload", revoked_at, upload_ended);
    let [of_revoked, of_replaced, whole] = answers.try_into().expect("three");
    let bytes = async |mut answer: reqwest::Response| {
        let mut bytes = 0;
        while let Ok(Some(part)) = answer.chunk().await {
            bytes += part.len();
        }
        bytes
    };
    for (what, cut) in [("a download", of_revoked), ("one by a secret that was replaced", of_replaced)] {
        let (cut, download_ended) = ended(bytes(cut)).await;
        assert_soon(what, revoked_at, download_ended);
        assert!(cut < LARGE, "{what}: what was not sent by then is not sent");
    }
    assert_eq!(bytes(whole).await, LARGE, "another key's download goes on");
    for key in [&revoked, &replaced] {
        let refused = service.http.get(url(key, Method::GET, "large").await).send().await;
        assert_eq!(refused.expect("an answer").status(), StatusCode::FORBIDDEN);
    }
    service.stop().await;
}

/// Presigned URLs are signed for the store and outlive the credential, as the threat model says. No new ones
/// are made, and announced uploads are not committed.
#[tokio::test]
async fn no_url_is_signed_and_no_upload_committed_for_a_revoked_credential() {
    let server = S3Server::start(Lacks::default()).await;
    let (revoked, kept) = (token("a", Role::Write), token("a", Role::Write));
    let entries = format!("{}{}", revoked.entry, kept.entry);
    let guarded = Guarded::start_with(&entries, Some(server.config("d")), quiet).await;
    let (model_id, root) = guarded.prepare(&kept.token).await;
    let new = |n| chunks::chunk(root, &chunks::tokens(n, 256), 0, 256, 4_000);
    let (stored, waiting) = (new(1), new(2));
    let path = routes::chunk(&model_id, &stored.seq_hash);
    let put = guarded.send(&kept.token, Method::PUT, &path, stored.bytes.clone()).await;
    assert_eq!(put.status(), StatusCode::CREATED);
    let url_path = routes::object_url(&model_id, &stored.seq_hash, &stored.object_digest);
    let before: ObjectUrl =
        guarded.send(&revoked.token, Method::GET, &url_path, "").await.json().await.expect("its JSON");
    let announcement = serde_json::to_vec(&announced(model_id, &waiting)).expect("JSON");
    let announce = guarded.send(&revoked.token, Method::POST, routes::UPLOADS, announcement.clone()).await;
    let ticket: UploadTicket = announce.json().await.expect("its JSON");
    let mut upload = guarded.service.http.put(&ticket.url).body(waiting.bytes.clone());
    for (name, value) in &ticket.headers {
        upload = upload.header(name, value);
    }
    assert!(upload.send().await.expect("an answer").status().is_success());

    guarded.write_tenants(&kept.entry);
    let revoked_at = Instant::now();
    let signs =
        async || guarded.send(&revoked.token, Method::GET, &url_path, "").await.status() == StatusCode::OK;
    let refused = async {
        while signs().await {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let ((), refused_at) = ended(refused).await;
    assert_soon("the signing of URLs", revoked_at, refused_at);
    let commit = routes::upload_commit(&ticket.upload_id);
    let contents = server.contents();
    for (method, path, body) in [
        (Method::GET, url_path.as_str(), Vec::new()),
        (Method::POST, routes::UPLOADS, announcement),
        (Method::POST, commit.as_str(), Vec::new()),
    ] {
        expect_problem(guarded.send(&revoked.token, method, path, body).await, "unauthorized").await;
        server.assert_unchanged(&contents, path);
    }
    let outlives = guarded.service.http.get(&before.url).send().await.expect("an answer");
    assert_eq!(outlives.bytes().await.expect("reads"), stored.bytes, "by direct.url_ttl");
    let committed = guarded.send(&kept.token, Method::POST, &commit, "").await;
    assert_eq!(committed.status(), StatusCode::CREATED, "the tenant's other credentials may");
    guarded.service.stop().await;
}
