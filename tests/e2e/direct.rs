//! The direct path: presigned uploads and reads against a real S3 protocol, and the behaviour without it.

use std::time::{Duration, Instant};

use kvasir_api::{
    LookupRequest, LookupResponse, ObjectUrl, StoredChunk, UploadRequest, UploadTicket, Via, routes,
};
use kvasir_store::StoreConfig;
use kvasir_tests::{
    chunks::{self, Chunk},
    s3::{Lacks, S3Server},
    service::{Service, expect_problem},
};
use kvasir_types::{ModelId, ObjectDigest};
use reqwest::{Method, Response, StatusCode};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

pub(crate) fn announced(model_id: ModelId, chunk: &Chunk) -> UploadRequest {
    UploadRequest {
        model_id,
        seq_hash: chunk.seq_hash,
        object_digest: chunk.object_digest,
        bytes: chunk.bytes.len() as u64,
        sha256: ObjectDigest::from(<[u8; 32]>::from(Sha256::digest(&chunk.bytes))).to_string(),
    }
}

async fn announce(service: &Service, request: &UploadRequest) -> UploadTicket {
    let response =
        service.send(Method::POST, routes::UPLOADS, serde_json::to_vec(request).expect("JSON")).await;
    assert_eq!(response.status(), StatusCode::CREATED);
    response.json().await.expect("its JSON")
}

async fn put(service: &Service, ticket: &UploadTicket, body: &[u8]) -> Response {
    let mut request = service.http.put(&ticket.url).body(body.to_vec());
    for (name, value) in &ticket.headers {
        request = request.header(name, value);
    }
    request.send().await.expect("an answer")
}

async fn commit(service: &Service, ticket: &UploadTicket) -> Response {
    service.send(Method::POST, &routes::upload_commit(&ticket.upload_id), "").await
}

async fn lookup(service: &Service, model_id: ModelId, tokens: &[u32], direct: bool) -> LookupResponse {
    let (namespace, tokens) = ("n".parse().expect("a name"), Some(tokens.to_vec()));
    service
        .lookup(&LookupRequest {
            model_id,
            namespace,
            tokens,
            block_hashes: None,
            chunk_ids: None,
            fresh: true,
            direct,
        })
        .await
}

async fn served(
    server: &S3Server,
    directory: &TempDir,
    change: impl FnOnce(&mut kvasir_server::Config),
) -> Service {
    Service::start_with(server.config("d"), directory.path(), change).await
}

#[tokio::test]
async fn an_upload_goes_to_the_store_and_comes_back_without_the_service() {
    for lacks in [Lacks::default(), Lacks { checksums: true, ..Lacks::default() }] {
        let directory = TempDir::new().expect("a directory");
        let server = S3Server::start(lacks).await;
        let service = served(&server, &directory, |_| {}).await;
        let config: kvasir_api::ConfigResponse =
            service.get(routes::CONFIG, &[]).await.json().await.expect("its JSON");
        assert_eq!((config.store.direct, config.store.checksums), (true, !lacks.checksums));
        assert_eq!(server.keys("/probe/"), Vec::<String>::new(), "probes leave nothing");
        let (model_id, root) = service.prepare("n").await;
        let tokens = chunks::tokens(1, 1_000);
        let chunk = chunks::chunk(root, &tokens, 0, 1_000, 30_000);
        let ticket = announce(&service, &announced(model_id, &chunk)).await;
        expect_problem(commit(&service, &ticket).await, "unknown_upload").await;
        assert!(put(&service, &ticket, &chunk.bytes).await.status().is_success());
        // Nothing is visible before the commit.
        assert_eq!(lookup(&service, model_id, &tokens, true).await.matched_tokens, 0);
        let response = commit(&service, &ticket).await;
        assert_eq!(response.status(), StatusCode::CREATED);
        let stored: StoredChunk = response.json().await.expect("its JSON");
        assert_eq!((stored.object_digest, stored.bytes), (chunk.object_digest, chunk.bytes.len() as u64));
        assert_eq!(commit(&service, &ticket).await.status(), StatusCode::OK, "a commit may be sent again");
        assert_eq!(server.keys("/u/"), Vec::<String>::new(), "the staging object is gone");

        let found = lookup(&service, model_id, &tokens, true).await;
        assert_eq!(found.matched_tokens, 1_000);
        let Via::Direct { url, expires_in_s } = &found.chunks[0].via else {
            panic!("{:?}", found.chunks[0].via)
        };
        assert_eq!(*expires_in_s, 300);
        let ranged = service.http.get(url).header("range", "bytes=100-4999").send().await.expect("an answer");
        assert_eq!(ranged.status(), StatusCode::PARTIAL_CONTENT);
        assert_eq!(ranged.bytes().await.expect("reads"), chunk.bytes[100..5_000]);
        let by_proxy = lookup(&service, model_id, &tokens, false).await;
        assert_eq!(by_proxy.chunks[0].via, Via::Proxy, "only on request");
        service.stop().await;
    }
}

#[tokio::test]
async fn expired_urls_are_refused_and_renewed() {
    let directory = TempDir::new().expect("a directory");
    let server = S3Server::start(Lacks::default()).await;
    let short = |config: &mut kvasir_server::Config| config.storage.direct.url_ttl = Duration::from_secs(1);
    let service = served(&server, &directory, short).await;
    let (model_id, root) = service.prepare("n").await;
    let chunk = chunks::chunk(root, &chunks::tokens(2, 256), 0, 256, 100);
    service.put(&model_id, &chunk).await;
    let path = routes::object_url(&model_id, &chunk.seq_hash, &chunk.object_digest);
    let ask = async || service.get(&path, &[]).await.json::<ObjectUrl>().await.expect("its JSON");
    let old = ask().await;
    // The condition of this test is that the time is over.
    let begun = Instant::now();
    while service.http.get(&old.url).send().await.expect("an answer").status() != StatusCode::FORBIDDEN {
        assert!(begun.elapsed() < Duration::from_secs(30), "the URL does not expire");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let new = service.http.get(ask().await.url).send().await.expect("an answer");
    assert_eq!(new.bytes().await.expect("reads"), chunk.bytes);
    let gone = routes::object_url(&model_id, &chunk.seq_hash, &[9; 32].into());
    expect_problem(service.get(&gone, &[]).await, "unknown_chunk").await;
    service.stop().await;
}

#[tokio::test]
async fn what_is_not_what_was_announced_is_never_visible() {
    for checksums in [true, false] {
        let directory = TempDir::new().expect("a directory");
        let server = S3Server::start(Lacks { checksums: !checksums, ..Lacks::default() }).await;
        let service = served(&server, &directory, |_| {}).await;
        let (model_id, root) = service.prepare("n").await;
        let tokens = chunks::tokens(3, 512);
        let chunk = chunks::chunk(root, &tokens, 0, 512, 2_000);
        // Other bytes of the same length: the store refuses them, or the service does when it reads them.
        let ticket = announce(&service, &announced(model_id, &chunk)).await;
        let mut other = chunk.bytes.clone();
        *other.last_mut().expect("bytes") ^= 1;
        let answer = put(&service, &ticket, &other).await.status();
        assert_eq!(answer.is_success(), !checksums);
        let refused = expect_problem(
            commit(&service, &ticket).await,
            if checksums { "unknown_upload" } else { "invalid_chunk" },
        );
        refused.await;
        // Another length.
        let ticket = announce(&service, &announced(model_id, &chunk)).await;
        let answer = put(&service, &ticket, &chunk.bytes[..2_000]).await.status();
        assert_eq!(answer.is_success(), !checksums);
        let code = if checksums { "unknown_upload" } else { "upload_mismatch" };
        expect_problem(commit(&service, &ticket).await, code).await;
        // Without the signed header, or under another checksum, the URL is worth nothing.
        let ticket = announce(&service, &announced(model_id, &chunk)).await;
        let bare = service.http.put(&ticket.url).body(chunk.bytes.clone()).send().await.expect("an answer");
        assert!(!bare.status().is_success());
        // No chunk at all, announced rightly.
        let junk = Chunk {
            bytes: vec![7; 5_000],
            object_digest: ObjectDigest::of(&[7; 5_000]),
            seq_hash: chunk.seq_hash,
        };
        let ticket = announce(&service, &announced(model_id, &junk)).await;
        assert!(put(&service, &ticket, &junk.bytes).await.status().is_success());
        expect_problem(commit(&service, &ticket).await, "invalid_chunk").await;
        // Another chunk's object.
        let elsewhere = Chunk { seq_hash: [4; 32].into(), ..chunk.clone() };
        let ticket = announce(&service, &announced(model_id, &elsewhere)).await;
        assert!(put(&service, &ticket, &elsewhere.bytes).await.status().is_success());
        expect_problem(commit(&service, &ticket).await, "chunk_mismatch").await;
        assert_eq!(lookup(&service, model_id, &tokens, false).await.matched_tokens, 0);
        assert_eq!(server.keys(".kvc"), Vec::<String>::new());
        assert_eq!(server.keys("/u/"), Vec::<String>::new(), "refused uploads are deleted at once");
        service.stop().await;
    }
}

#[tokio::test]
async fn announcements_are_checked() {
    let directory = TempDir::new().expect("a directory");
    let server = S3Server::start(Lacks::default()).await;
    let service = served(&server, &directory, |config| config.storage.chunk_bytes_max = 100_000).await;
    let (model_id, root) = service.prepare("n").await;
    let chunk = chunks::chunk(root, &chunks::tokens(5, 64), 0, 64, 10);
    let good = announced(model_id, &chunk);
    let refuse = async |request: UploadRequest, code: &str| {
        let body = serde_json::to_vec(&request).expect("JSON");
        expect_problem(service.send(Method::POST, routes::UPLOADS, body).await, code).await;
    };
    refuse(UploadRequest { model_id: [1; 32].into(), ..good.clone() }, "unknown_model").await;
    refuse(UploadRequest { bytes: 100_001, ..good.clone() }, "body_too_large").await;
    refuse(UploadRequest { bytes: 0, ..good.clone() }, "upload_mismatch").await;
    refuse(UploadRequest { sha256: "abc".to_owned(), ..good.clone() }, "upload_mismatch").await;
    // An object that is being deleted: its name is not to be had, the service finds it another one.
    service.put(&model_id, &chunk).await;
    let path = routes::chunk_object(&model_id, &chunk.seq_hash, &chunk.object_digest);
    assert_eq!(service.send(Method::DELETE, &path, "").await.status(), StatusCode::NO_CONTENT);
    refuse(good, "direct_unavailable").await;
    service.stop().await;
}

#[tokio::test]
async fn uploads_that_nobody_commits_are_collected() {
    let directory = TempDir::new().expect("a directory");
    let server = S3Server::start(Lacks::default()).await;
    let service =
        served(&server, &directory, |config| config.storage.direct.upload_ttl = Duration::ZERO).await;
    let (model_id, root) = service.prepare("n").await;
    let chunk = chunks::chunk(root, &chunks::tokens(6, 256), 0, 256, 100);
    let ticket = announce(&service, &announced(model_id, &chunk)).await;
    assert!(put(&service, &ticket, &chunk.bytes).await.status().is_success());
    assert_eq!(server.keys("/u/").len(), 1);
    // The collector's clock is the store's, to the second.
    let mut deleted = 0;
    for _ in 0..30 {
        deleted += service.job(r#"{"kind": "gc"}"#).await.counts["uploads_deleted"];
        if deleted > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(deleted, 1);
    assert_eq!(server.keys("/u/"), Vec::<String>::new());
    expect_problem(commit(&service, &ticket).await, "unknown_upload").await;
    service.stop().await;
}

#[tokio::test]
async fn stores_without_presigning_say_so_and_are_read_through_the_service() {
    let directory = TempDir::new().expect("a directory");
    let store =
        StoreConfig::new(format!("file://{}/store", directory.path().display()).parse().expect("a url"));
    let service = Service::start(store, directory.path()).await;
    let config: kvasir_api::ConfigResponse =
        service.get(routes::CONFIG, &[]).await.json().await.expect("its JSON");
    assert!(!config.store.direct);
    let (model_id, root) = service.prepare("n").await;
    let tokens = chunks::tokens(7, 300);
    let chunk = chunks::chunk(root, &tokens, 0, 300, 100);
    let body = serde_json::to_vec(&announced(model_id, &chunk)).expect("JSON");
    expect_problem(service.send(Method::POST, routes::UPLOADS, body).await, "direct_unavailable").await;
    service.put(&model_id, &chunk).await;
    let found = lookup(&service, model_id, &tokens, true).await;
    assert_eq!((found.matched_tokens, &found.chunks[0].via), (300, &Via::Proxy));
    let url = routes::object_url(&model_id, &chunk.seq_hash, &chunk.object_digest);
    expect_problem(service.get(&url, &[]).await, "direct_unavailable").await;
    service.stop().await;
}

/// For a store that does not compare checksums, the commit reads the whole upload. If that fails, the upload
/// is still usable.
#[tokio::test]
async fn a_store_that_fails_during_a_commit_costs_no_upload() {
    let directory = TempDir::new().expect("a directory");
    let server = S3Server::start(Lacks { checksums: true, ..Lacks::default() }).await;
    let service = served(&server, &directory, |_| {}).await;
    let (model_id, root) = service.prepare("n").await;
    let chunk = chunks::chunk(root, &chunks::tokens(11, 512), 0, 512, 2_000);
    let ticket = announce(&service, &announced(model_id, &chunk)).await;
    assert!(put(&service, &ticket, &chunk.bytes).await.status().is_success());
    server.break_reads_of("/u/");
    expect_problem(commit(&service, &ticket).await, "store_unavailable").await;
    server.break_reads_of("");
    assert_eq!(commit(&service, &ticket).await.status(), StatusCode::CREATED);
    service.stop().await;
}

/// An object of the same chunk with other bytes, of another length or of the same, announced under the stored one's name.
#[tokio::test]
async fn a_commit_never_replaces_a_stored_object() {
    let directory = TempDir::new().expect("a directory");
    let server = S3Server::start(Lacks::default()).await;
    let service = served(&server, &directory, |_| {}).await;
    let (model_id, root) = service.prepare("n").await;
    let tokens = chunks::tokens(9, 512);
    let chunk = chunks::chunk(root, &tokens, 0, 512, 2_000);
    service.put(&model_id, &chunk).await;
    for forged in
        [chunks::chunk(root, &tokens, 0, 512, 1_000), chunks::variant(root, &tokens, 0, 512, 2_000, 8)]
    {
        let forged = Chunk { object_digest: chunk.object_digest, ..forged };
        let ticket = announce(&service, &announced(model_id, &forged)).await;
        assert!(put(&service, &ticket, &forged.bytes).await.status().is_success());
        expect_problem(commit(&service, &ticket).await, "direct_unavailable").await;
        assert_eq!(server.keys("/u/"), Vec::<String>::new(), "refused uploads are deleted at once");
        let other = served(&server, &TempDir::new().expect("a directory"), |_| {}).await;
        let path = routes::chunk_object(&model_id, &chunk.seq_hash, &chunk.object_digest);
        let read = other.get(&path, &[]).await.bytes().await.expect("reads");
        assert!(read == chunk.bytes, "what was stored stays");
        other.stop().await;
    }
    // The same bytes are the same object.
    let ticket = announce(&service, &announced(model_id, &chunk)).await;
    assert!(put(&service, &ticket, &chunk.bytes).await.status().is_success());
    assert_eq!(commit(&service, &ticket).await.status(), StatusCode::OK);
    service.stop().await;
}

/// Its head is what it was, and nothing has noticed the rest.
#[tokio::test]
async fn a_commit_writes_a_damaged_object_again() {
    let directory = TempDir::new().expect("a directory");
    let server = S3Server::start(Lacks::default()).await;
    let service = served(&server, &directory, |_| {}).await;
    let (model_id, root) = service.prepare("n").await;
    let chunk = chunks::chunk(root, &chunks::tokens(12, 512), 0, 512, 2_000);
    service.put(&model_id, &chunk).await;
    let stored = server.keys(&chunk.object_digest.to_string()).remove(0);
    let mut damaged = chunk.bytes.clone();
    *damaged.last_mut().expect("bytes") ^= 1;
    server.overwrite(&stored, damaged);
    let ticket = announce(&service, &announced(model_id, &chunk)).await;
    assert!(put(&service, &ticket, &chunk.bytes).await.status().is_success());
    assert_eq!(commit(&service, &ticket).await.status(), StatusCode::OK);
    let other = served(&server, &TempDir::new().expect("a directory"), |_| {}).await;
    let path = routes::chunk_object(&model_id, &chunk.seq_hash, &chunk.object_digest);
    let read = other.get(&path, &[]).await.bytes().await.expect("reads");
    assert!(read == chunk.bytes);
    other.stop().await;
    service.stop().await;
}

#[tokio::test]
async fn what_was_removed_is_refused_by_every_route() {
    let directory = TempDir::new().expect("a directory");
    let server = S3Server::start(Lacks::default()).await;
    let service = served(&server, &directory, |_| {}).await;
    let (model_id, root) = service.prepare("n").await;
    let tokens = chunks::tokens(10, 256);
    let chunk = chunks::chunk(root, &tokens, 0, 256, 100);
    service.put(&model_id, &chunk).await;
    let path = routes::chunk(&model_id, &chunk.seq_hash);
    assert_eq!(service.send(Method::DELETE, &path, "").await.status(), StatusCode::NO_CONTENT);
    assert_eq!(lookup(&service, model_id, &tokens, true).await.matched_tokens, 0);
    expect_problem(service.get(&path, &[]).await, "unknown_chunk").await;
    assert_eq!(service.send(Method::HEAD, &path, "").await.status(), StatusCode::NOT_FOUND);
    let url = routes::object_url(&model_id, &chunk.seq_hash, &chunk.object_digest);
    expect_problem(service.get(&url, &[]).await, "unknown_chunk").await;
    let context = serde_json::json!(
        {"model_id": model_id, "namespace": "n", "chunks": [chunk.seq_hash], "pinned": true});
    let refused = service.send(Method::POST, routes::CONTEXTS, context.to_string()).await;
    expect_problem(refused, "unknown_chunk").await;
    let by_digest = routes::chunk_object(&model_id, &chunk.seq_hash, &chunk.object_digest);
    for query in ["", "?level=0", "?tokens=100"] {
        expect_problem(service.get(&format!("{by_digest}{query}"), &[]).await, "unknown_chunk").await;
    }
    assert_eq!(service.send(Method::HEAD, &by_digest, "").await.status(), StatusCode::NOT_FOUND);
    // A copy of it is not current.
    for etag in [format!("\"{}\"", chunk.object_digest), "*".to_owned()] {
        let asked = service.get(&by_digest, &[("if-none-match", etag.as_str())]).await;
        expect_problem(asked, "unknown_chunk").await;
    }
    service.stop().await;
}
