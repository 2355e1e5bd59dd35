//! The hot tier of the real service.

use kvasir_api::{HEADER_REQUEST_TYPE, HEADER_TURN, LookupRequest, routes};
use kvasir_client::rest::{Client, ClientConfig, RequestClass};
use kvasir_store::StoreConfig;
use kvasir_tests::{
    chunks::{self, Chunk},
    service::{Service, expect_problem},
};
use kvasir_types::{Medium, ModelId};
use reqwest::{Method, StatusCode};
use tempfile::TempDir;

fn file_store(directory: &TempDir) -> StoreConfig {
    StoreConfig::new(format!("file://{}/store", directory.path().display()).parse().expect("a url"))
}

fn path(model_id: &ModelId, chunk: &Chunk) -> String {
    routes::chunk_object(model_id, &chunk.seq_hash, &chunk.object_digest)
}

/// The value of a metric, all of its labels summed that contain `label`.
pub(crate) async fn metric(service: &Service, name: &str, label: &str) -> u64 {
    let text = service.metrics().await;
    let lines = text.lines().filter(|line| line.starts_with(name) && line.contains(label));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_equal_reads_make_one_store_request() {
    let directory = TempDir::new().expect("a directory");
    let writer = Service::start(file_store(&directory), &directory.path().join("a")).await;
    let (model_id, root) = writer.prepare("n").await;
    let chunk = chunks::chunk(root, &chunks::tokens(1, 1536), 0, 1536, 20_000);
    writer.put(&model_id, &chunk).await;
    writer.stop().await;

    // Another replica: nothing of it in memory.
    let quiet = |config: &mut kvasir_server::Config| {
        config.journal.interval = std::time::Duration::ZERO;
        config.gc.interval = std::time::Duration::ZERO;
    };
    let service = Service::start_with(file_store(&directory), &directory.path().join("b"), quiet).await;
    let found = service.lookup_tokens(model_id, &chunks::tokens(1, 1536)).await;
    assert_eq!((found.matched_tokens, found.chunks[0].medium), (1536, Medium::Object));
    let gets = metric(&service, "kvasir_store_requests_total", "op=\"get\"").await;
    let path = path(&model_id, &chunk);
    // The head of an object is read once before its ranges, so that they can be checked.
    assert_eq!(service.get(&path, &[("range", "bytes=0-9")]).await.status(), StatusCode::PARTIAL_CONTENT);
    let after_one = metric(&service, "kvasir_store_requests_total", "op=\"get\"").await;
    let refinement = format!("bytes={}-", found.chunks[0].level_bytes[0]);
    let reads = (0..1_000).map(|_| async {
        let response = service.get(&path, &[("range", &refinement)]).await;
        response.bytes().await.expect("reads")
    });
    for bytes in futures::future::join_all(reads).await {
        assert!(bytes == chunk.bytes[found.chunks[0].level_bytes[0] as usize..]);
    }
    let gets_after = metric(&service, "kvasir_store_requests_total", "op=\"get\"").await;
    assert_eq!(gets_after, after_one + 1, "one request for 1,000 readers");
    assert!(after_one <= gets + 2);
    assert_eq!(service.lookup_tokens(model_id, &chunks::tokens(1, 1536)).await.chunks[0].medium, Medium::Cpu);
    service.stop().await;
}

#[tokio::test]
async fn writes_are_hits_restarts_are_warm_and_removals_are_gone() {
    let directory = TempDir::new().expect("a directory");
    let small = |config: &mut kvasir_server::Config| {
        config.hot.memory_bytes = 200_000;
        // Over a directory there is no disk unless it is asked for.
        config.hot.disk_bytes = Some(1 << 30);
    };
    let service = Service::start_with(file_store(&directory), directory.path(), small).await;
    let (model_id, root) = service.prepare("n").await;
    let tokens = chunks::tokens(1, 8 * 1536);
    let context = chunks::context(root, &tokens, 1536, 10_000);
    for chunk in &context {
        assert_eq!(service.put(&model_id, chunk).await.status(), StatusCode::CREATED);
    }
    // Bases of 60 KB each in 200 KB of memory: some are there, the others on disk, none in the store alone.
    let mut media = Vec::new();
    for _ in 0..200 {
        let found = service.lookup_tokens(model_id, &tokens).await;
        media = found.chunks.iter().map(|chunk| chunk.medium).collect();
        if !media.contains(&Medium::Object) {
            break;
        }
        // What has just been evicted may still be on its way to disk, or did not get there: reading brings it back.
        for chunk in &found.chunks {
            let path = routes::chunk_object(&model_id, &chunk.seq_hash, &chunk.object_digest);
            let response = service.get(&format!("{path}?level=0"), &[]).await;
            response.bytes().await.expect("reads");
        }
    }
    assert!(media.contains(&Medium::Cpu) && media.contains(&Medium::Disk), "{media:?}");
    let departures = metric(&service, "kvasir_hot_evictions_total", "medium=\"cpu\"").await;
    assert!(departures > 0);
    service.stop().await;

    // The memory is gone, the disk is not.
    let service = Service::start_with(file_store(&directory), directory.path(), small).await;
    let found = service.lookup_tokens(model_id, &tokens).await;
    let on_disk = found.chunks.iter().filter(|chunk| chunk.medium == Medium::Disk).count();
    assert!(on_disk >= 4, "{:?}", found.chunks.iter().map(|chunk| chunk.medium).collect::<Vec<_>>());
    for (chunk, found) in context.iter().zip(&found.chunks) {
        let bytes = service.get(&path(&model_id, chunk), &[]).await.bytes().await.expect("reads");
        assert!(bytes == chunk.bytes, "{:?}", found.medium);
    }
    assert!(metric(&service, "kvasir_hot_served_frames_total", "medium=\"disk\"").await >= 4);

    let deleted = service.send(Method::DELETE, &routes::chunk(&model_id, &context[0].seq_hash), "").await;
    assert_eq!(deleted.status(), StatusCode::NO_CONTENT);
    assert_eq!(service.lookup_tokens(model_id, &tokens).await.matched_tokens, 0);
    assert!(metric(&service, "kvasir_hot_evictions_total", "reason=\"removed\"").await >= 1);
    service.stop().await;
}

#[tokio::test]
async fn classes_come_from_headers_and_chunks_are_read_ahead() {
    let directory = TempDir::new().expect("a directory");
    let writer = Service::start(file_store(&directory), &directory.path().join("a")).await;
    let (model_id, root) = writer.prepare("n").await;
    let tokens = chunks::tokens(3, 6 * 1536);
    let context = chunks::context(root, &tokens, 1536, 5_000);
    for chunk in &context {
        writer.put(&model_id, chunk).await;
    }
    writer.stop().await;
    let service = Service::start(file_store(&directory), &directory.path().join("b")).await;
    let request = LookupRequest {
        model_id,
        namespace: "n".parse().expect("a name"),
        tokens: Some(tokens.clone()),
        block_hashes: None,
        chunk_ids: None,
        fresh: true,
        direct: false,
    };
    let lookup = |kind: &'static str, turn: &'static str| {
        let url = format!("http://{}{}", service.address, routes::LOOKUP);
        let json = serde_json::to_vec(&request).expect("serialises");
        service.http.post(url).header(HEADER_REQUEST_TYPE, kind).header(HEADER_TURN, turn).body(json).send()
    };
    expect_problem(lookup("no name", "1").await.expect("an answer"), "bad_request").await;
    expect_problem(lookup("file", "0").await.expect("an answer"), "bad_request").await;
    // The class as the client library says it.
    let base = format!("http://{}", service.address).parse().expect("a url");
    let client = Client::new(base, ClientConfig::default()).expect("a client");
    let asking = client.for_request(RequestClass::of("file".parse().expect("a name")).in_turn(5));
    assert_eq!(asking.lookup(&request).await.expect("an answer").chunks.len(), 6);
    let read = service.get(&format!("{}?level=0", path(&model_id, &context[0])), &[]).await;
    read.bytes().await.expect("reads");
    // The bases of the two chunks behind it come by themselves; which takes a moment.
    let mut media = Vec::new();
    for _ in 0..500 {
        let found = service.lookup_tokens(model_id, &tokens).await;
        media = found.chunks.iter().map(|chunk| chunk.medium).collect();
        if media.iter().filter(|medium| **medium == Medium::Cpu).count() == 3 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(media[..3], [Medium::Cpu; 3]);
    assert_eq!(media[3..], [Medium::Object; 3]);
    let text = service.metrics().await;
    let line = "kvasir_hot_served_frames_total{medium=\"object\",turn=\"4-7\",type=\"file\"} 1";
    assert!(text.contains(line), "{text}");
    service.stop().await;
}
