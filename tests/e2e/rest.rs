//! Store, find, read, restart.

use std::sync::Arc;

use kvasir_api::{ConfigResponse, LookupRequest, ProfileList, StoredChunk, routes};
use kvasir_storage::{Storage, index::Index};
use kvasir_store::{StoreConfig, observe::NoObserver};
use kvasir_tests::{
    chunks,
    s3::{Lacks, S3Server},
    service::{Service, expect_problem},
};
use kvasir_types::{Medium, ModelSpec, ProfileHash, TokenChain};
use reqwest::{Method, StatusCode};
use tempfile::TempDir;

fn file_store(directory: &TempDir) -> StoreConfig {
    StoreConfig::new(format!("file://{}/store", directory.path().display()).parse().expect("a url"))
}

#[tokio::test]
async fn a_bucket_of_the_former_layout_is_refused() {
    let directory = TempDir::new().expect("a directory");
    let server = S3Server::start(Lacks::default()).await;
    server.overwrite("pre/fix/1/t/default/salt", vec![1; 64]);
    let mut config = kvasir_server::Config::embedded(directory.path()).expect("a path");
    config.server.listen = ([127, 0, 0, 1], 0).into();
    config.store = server.config("pre/fix");
    let listeners = kvasir_server::listen(&config).await.expect("a free port");
    let run = kvasir_server::run(config, listeners, std::future::pending());
    let ended = tokio::time::timeout(std::time::Duration::from_secs(20), run).await;
    let refusal = ended.expect("it ends").expect_err("refused").to_string();
    assert!(refusal.contains("pre/fix/1") && refusal.contains("another prefix"), "{refusal}");
}

#[tokio::test]
async fn store_find_read_restart_over_files() {
    let directory = TempDir::new().expect("a directory");
    store_find_read_restart(file_store(&directory), &directory).await;
}

#[tokio::test]
async fn store_find_read_restart_over_s3() {
    let directory = TempDir::new().expect("a directory");
    let server = S3Server::start(Lacks::default()).await;
    store_find_read_restart(server.config("pre/fix"), &directory).await;
}

async fn store_find_read_restart(store: StoreConfig, directory: &TempDir) {
    let service = Service::start(store.clone(), &directory.path().join("a")).await;
    let (model_id, root) = service.prepare("n").await;
    let tokens = chunks::tokens(1, 3_500);
    let context = chunks::context(root, &tokens, 1536, 20_000);
    for chunk in &context {
        let response = service.put(&model_id, chunk).await;
        assert_eq!(response.status(), StatusCode::CREATED);
        let stored: StoredChunk = response.json().await.expect("its JSON");
        assert_eq!((stored.object_digest, stored.created), (chunk.object_digest, true));
        assert_eq!(service.put(&model_id, chunk).await.status(), StatusCode::OK);
    }
    // By tokens, by hashes, and in part.
    let found = service.lookup_tokens(model_id, &tokens).await;
    assert_eq!(found.matched_tokens, 3_500);
    let digests: Vec<_> = found.chunks.iter().map(|c| c.object_digest).collect();
    assert_eq!(digests, context.iter().map(|c| c.object_digest).collect::<Vec<_>>());
    let hashes = LookupRequest {
        model_id,
        namespace: "n".parse().expect("a name"),
        tokens: None,
        block_hashes: Some(TokenChain::new(root, &tokens).blocks().to_vec()),
        chunk_ids: None,
        fresh: false,
        direct: false,
    };
    assert_eq!(service.lookup(&hashes).await, found);
    let part = service.lookup_tokens(model_id, &tokens[..2_007]).await;
    assert_eq!(part.matched_tokens, 2_000);
    assert_eq!(part.chunks[1].matched_tokens, 2_000 - 1536);
    // Another namespace sees nothing of it.
    let elsewhere = LookupRequest { namespace: "other".parse().expect("a name"), ..hashes.clone() };
    assert_eq!(service.lookup(&elsewhere).await.matched_tokens, 0);
    service.stop().await;
    // A wiped index: another replica over the same store.
    let service = Service::start(store, &directory.path().join("b")).await;
    assert!(service.metrics().await.contains("kvasir_index_rows 0\n"));
    let again = service.lookup(&LookupRequest { fresh: true, ..hashes }).await;
    // The same, but for where the bases are: what was written through a replica is in its memory.
    assert!(found.chunks.iter().all(|chunk| chunk.medium == Medium::Cpu));
    let mut cold = found;
    cold.chunks.iter_mut().for_each(|chunk| chunk.medium = Medium::Object);
    assert_eq!(again, cold);
    for (chunk, found) in context.iter().zip(&again.chunks) {
        let path = routes::chunk_object(&model_id, &found.seq_hash, &found.object_digest);
        let bytes = service.get(&path, &[]).await.bytes().await.expect("reads");
        assert_eq!(bytes, chunk.bytes);
        let level = service.get(&format!("{path}?level=0"), &[]).await;
        assert_eq!(level.content_length(), Some(found.level_bytes[0]));
        assert_eq!(level.bytes().await.expect("reads"), chunk.bytes[..found.level_bytes[0] as usize]);
    }
    assert!(service.metrics().await.contains("kvasir_index_rows 3\n"));
    service.stop().await;
}

#[tokio::test]
async fn ranges_levels_and_conditions() {
    let directory = TempDir::new().expect("a directory");
    let service = Service::start(file_store(&directory), directory.path()).await;
    let (model_id, root) = service.prepare("n").await;
    let chunk = chunks::chunk(root, &chunks::tokens(2, 600), 0, 600, 5_000);
    service.put(&model_id, &chunk).await;
    let path = routes::chunk_object(&model_id, &chunk.seq_hash, &chunk.object_digest);
    let size = chunk.bytes.len();
    for (range, expected) in [
        ("bytes=0-99", 0..100),
        (&format!("bytes={}-", size - 5), size - 5..size),
        ("bytes=-7", size - 7..size),
        ("bytes=100-99999999", 100..size),
    ] {
        let response = service.get(&path, &[("range", range)]).await;
        assert_eq!(response.status(), StatusCode::PARTIAL_CONTENT, "{range}");
        let told = format!("bytes {}-{}/{size}", expected.start, expected.end - 1);
        assert_eq!(response.headers()["content-range"], told.as_str());
        assert_eq!(response.bytes().await.expect("reads"), chunk.bytes[expected]);
    }
    for range in [&format!("bytes={size}-"), "bytes=5-1", "bytes=0-1,4-5", "tokens=0-1"] {
        let response = service.get(&path, &[("range", range)]).await;
        expect_problem(response, "range_not_satisfiable").await;
    }
    // Within a level.
    let found = service.lookup_tokens(model_id, &chunks::tokens(2, 600)).await;
    let level = found.chunks[0].level_bytes[0] as usize;
    let response = service.get(&format!("{path}?level=0"), &[("range", "bytes=-3")]).await;
    assert_eq!(
        response.headers()["content-range"],
        format!("bytes {}-{}/{level}", level - 3, level - 1).as_str()
    );
    assert_eq!(response.bytes().await.expect("reads"), chunk.bytes[level - 3..level]);
    expect_problem(service.get(&format!("{path}?level=2"), &[]).await, "unknown_level").await;
    expect_problem(service.get(&format!("{path}?level=x"), &[]).await, "bad_request").await;
    // Conditions.
    let etag = format!("\"{}\"", chunk.object_digest);
    let preferred = routes::chunk(&model_id, &chunk.seq_hash);
    let immutable = "private, max-age=31536000, immutable";
    for (path, cached) in [(&path, immutable), (&preferred, "private, no-cache")] {
        assert_eq!(service.get(path, &[]).await.headers()["cache-control"], cached, "{path}");
        let response = service.get(path, &[("if-none-match", &etag)]).await;
        assert_eq!(response.status(), StatusCode::NOT_MODIFIED);
        assert_eq!(response.headers()["cache-control"], cached, "{path}");
    }
    let response = service.get(&path, &[("range", "bytes=0-0"), ("if-range", "\"other\"")]).await;
    assert_eq!(response.status(), StatusCode::OK);
    // HEAD, of the object, of a level, and of the preferred object.
    for (path, length) in [
        (path.clone(), size),
        (format!("{path}?level=0"), level),
        (routes::chunk(&model_id, &chunk.seq_hash), size),
    ] {
        let response = service.send(Method::HEAD, &path, "").await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-length"], length.to_string().as_str());
        assert!(
            response.headers()["etag"].to_str().expect("text").contains(&chunk.object_digest.to_string())
        );
    }
    let response = service.send(Method::GET, &routes::chunk(&model_id, &chunk.seq_hash), "").await;
    assert_eq!(response.bytes().await.expect("reads"), chunk.bytes);
    service.stop().await;
}

#[tokio::test]
async fn models_profiles_and_the_capability_probe() {
    let directory = TempDir::new().expect("a directory");
    let service = Service::start(file_store(&directory), directory.path()).await;
    let (model_id, root) = service.prepare("n").await;
    assert_eq!(service.prepare("n").await, (model_id, root), "all of it is idempotent");
    assert_ne!(service.prepare("m").await.1, root);
    let spec: ModelSpec = service.get(&routes::model(&model_id), &[]).await.json().await.expect("a spec");
    assert_eq!(spec, chunks::spec());
    let hash = ProfileHash::of(chunks::PROFILE);
    let list: ProfileList =
        service.get(&routes::profiles(&model_id), &[]).await.json().await.expect("a list");
    assert_eq!(list.profiles[0].profile_hash, hash);
    assert_eq!(list.profiles[0].bytes, chunks::PROFILE.len() as u64);
    let profile = service.get(&routes::profile(&model_id, &hash), &[]).await;
    assert_eq!(profile.bytes().await.expect("reads"), chunks::PROFILE);
    let config: ConfigResponse = service.get(routes::CONFIG, &[]).await.json().await.expect("a config");
    assert_eq!((config.store.kind.as_str(), config.store.conditional_create), ("file", true));
    let (major, minor) = kvasir_storage::FORMAT_VERSION;
    assert_eq!(config.format_versions, [format!("{major}.{minor}")]);
    service.stop().await;
}

#[tokio::test]
async fn errors_are_problems_that_say_what_to_do() {
    let directory = TempDir::new().expect("a directory");
    let service = Service::start(file_store(&directory), directory.path()).await;
    let (model_id, _) = service.prepare("n").await;
    let (nowhere, hash) = ([7; 32].into(), [8; 32].into());
    let send =
        async |method: Method, path: &str, body: &str| service.send(method, path, body.to_owned()).await;
    expect_problem(send(Method::GET, "/v1/nothing", "").await, "unknown_route").await;
    expect_problem(send(Method::GET, "/", "").await, "unknown_route").await;
    let refused = send(Method::DELETE, routes::MODELS, "").await;
    assert!(refused.headers().contains_key("allow"));
    expect_problem(refused, "method_not_allowed").await;
    expect_problem(send(Method::POST, routes::MODELS, "{").await, "bad_request").await;
    expect_problem(send(Method::GET, &routes::model(&nowhere), "").await, "unknown_model").await;
    expect_problem(send(Method::GET, "/v1/models/xyz", "").await, "bad_request").await;
    expect_problem(
        send(Method::GET, &routes::profile(&model_id, &[1; 32].into()), "").await,
        "unknown_profile",
    )
    .await;
    expect_problem(
        send(Method::PUT, &routes::profile(&model_id, &[1; 32].into()), "x").await,
        "invalid_profile",
    )
    .await;
    expect_problem(send(Method::GET, &routes::chunk(&model_id, &hash), "").await, "unknown_chunk").await;
    let object = routes::chunk_object(&model_id, &hash, &[2; 32].into());
    for (method, path) in [(Method::GET, object.clone()), (Method::GET, format!("{object}?level=1"))] {
        expect_problem(send(method, &path, "").await, "unknown_chunk").await;
    }
    let mut spec = chunks::spec();
    spec.layers.clear();
    let json = serde_json::to_string(&spec).expect("serialises");
    expect_problem(send(Method::POST, routes::MODELS, &json).await, "invalid_model_spec").await;
    let lookup = |rest: &str| format!("{{\"model_id\":\"{model_id}\",\"namespace\":\"n\"{rest}}}");
    for bad in [lookup(""), lookup(",\"tokens\":[1],\"block_hashes\":[]"), lookup(",\"tokns\":[1]")] {
        expect_problem(send(Method::POST, routes::LOOKUP, &bad).await, "bad_request").await;
    }
    let unknown = format!(
        "{{\"model_id\":\"{nowhere}\",\"namespace\":\"n\",\"tokens\":[1]}}",
        nowhere = kvasir_types::ModelId::from([7; 32])
    );
    expect_problem(send(Method::POST, routes::LOOKUP, &unknown).await, "unknown_model").await;
    // Ids of requests: taken over when harmless, made up otherwise.
    let response = service.get(routes::LIVEZ, &[("x-request-id", "abc-1")]).await;
    assert_eq!(response.headers()["x-request-id"], "abc-1");
    let response = service.get(routes::LIVEZ, &[("x-request-id", "a b")]).await;
    assert_eq!(response.headers()["x-request-id"].len(), 36);
    let metrics = service.metrics().await;
    assert!(metrics.contains("route=\"unknown\""), "{metrics}");
    assert!(!metrics.contains("/v1/nothing"), "labels are bounded");
    service.stop().await;
}

#[tokio::test]
async fn raw_tokens_and_empty_lookups() {
    let directory = TempDir::new().expect("a directory");
    let service = Service::start(file_store(&directory), directory.path()).await;
    let (model_id, root) = service.prepare("n").await;
    let tokens = chunks::tokens(3, 100);
    service.put(&model_id, &chunks::chunk(root, &tokens, 0, 100, 10)).await;
    let raw: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
    let url = format!("http://{}{}?model_id={model_id}&namespace=n", service.address, routes::LOOKUP);
    let send = async |body: Vec<u8>| {
        let request = service.http.post(&url).header("content-type", kvasir_api::MEDIA_TOKENS).body(body);
        request.send().await.expect("an answer")
    };
    let found: kvasir_api::LookupResponse = send(raw.clone()).await.json().await.expect("its JSON");
    assert_eq!(found.matched_tokens, 100);
    expect_problem(send(raw[1..].to_vec()).await, "bad_request").await;
    let none: kvasir_api::LookupResponse = send(Vec::new()).await.json().await.expect("its JSON");
    assert_eq!((none.matched_tokens, none.chunks.len()), (0, 0));
    // Block hashes, as bytes: the same answer.
    let chain = TokenChain::new(root, &tokens);
    let hashes: Vec<u8> = chain.blocks().iter().flat_map(|block| *block.as_bytes()).collect();
    let send = async |body: Vec<u8>| {
        let request = service.http.post(&url).header("content-type", kvasir_api::MEDIA_BLOCKS).body(body);
        request.send().await.expect("an answer")
    };
    let by_hashes: kvasir_api::LookupResponse = send(hashes.clone()).await.json().await.expect("its JSON");
    assert_eq!(by_hashes, found);
    expect_problem(send(hashes[1..].to_vec()).await, "bad_request").await;
    service.stop().await;
}

#[tokio::test]
async fn deleted_chunks_are_hidden_and_a_rebuilt_index_finds_the_rest() {
    let directory = TempDir::new().expect("a directory");
    let service = Service::start(file_store(&directory), directory.path()).await;
    let (model_id, root) = service.prepare("n").await;
    let tokens = chunks::tokens(7, 2_500);
    let context = chunks::context(root, &tokens, 1536, 100);
    for chunk in &context {
        service.put(&model_id, chunk).await;
    }
    let path = routes::chunk(&model_id, &context[1].seq_hash);
    assert_eq!(service.send(Method::DELETE, &path, "").await.status(), StatusCode::NO_CONTENT);
    assert_eq!(service.lookup_tokens(model_id, &tokens).await.matched_tokens, 1536);
    let unknown = routes::chunk(&model_id, &[5; 32].into());
    expect_problem(service.send(Method::DELETE, &unknown, "").await, "unknown_chunk").await;
    // The same bytes again: stored, under another name.
    let stored: StoredChunk = service.put(&model_id, &context[1]).await.json().await.expect("its JSON");
    assert_ne!(stored.object_digest, context[1].object_digest);
    assert_eq!(service.lookup_tokens(model_id, &tokens).await.matched_tokens, 2_500);
    service.stop().await;
    // Another replica, its index rebuilt beforehand: matches inside chunks at once.
    let cache = directory.path().join("other");
    let mut config = kvasir_server::Config::embedded(&cache).expect("a path");
    config.store = file_store(&directory);
    let store = kvasir_server::open_store(&config, Arc::new(NoObserver)).expect("opens");
    let index = Index::sled(config.cache.directory.clone(), store.identity(), 1 << 20).expect("opens");
    let abilities = store.probe().await.expect("answers");
    let storage = Storage::new(store, abilities, index, config.storage.clone(), None);
    let done = storage.lifecycle().rebuild_index(|_| {}).await.expect("rebuilds");
    assert_eq!((done.failed, done.indexed), (0, 2), "what has a tombstone is not indexed");
    drop(storage);
    let service = Service::start(file_store(&directory), &cache).await;
    assert_eq!(service.lookup_tokens(model_id, &tokens[..2_000]).await.matched_tokens, 2_000);
    service.stop().await;
}

#[tokio::test]
async fn h2_and_draining() {
    let directory = TempDir::new().expect("a directory");
    let mut service = Service::start(file_store(&directory), directory.path()).await;
    service.http = reqwest::Client::builder().http2_prior_knowledge().build().expect("a client");
    let (model_id, root) = service.prepare("n").await;
    let chunk = chunks::chunk(root, &chunks::tokens(4, 1536), 0, 1536, 300_000);
    let response = service.put(&model_id, &chunk).await;
    assert_eq!((response.version(), response.status()), (reqwest::Version::HTTP_2, StatusCode::CREATED));
    let path = routes::chunk_object(&model_id, &chunk.seq_hash, &chunk.object_digest);
    let response = service.get(&path, &[]).await;
    // A shutdown while the body is under way: it comes whole, and then the service ends.
    service.begin_stop();
    assert!(response.bytes().await.expect("reads") == chunk.bytes);
    service.stop().await;
}
