//! What a request costs the heap: calls and bytes, of the whole process. One more copy of a body, or an allocation for each of its
//! parts, does not pass.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    io::{Read, Write},
    net::TcpStream,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use kvasir_api::{MEDIA_BLOCKS, routes};
use kvasir_server::Config;
use kvasir_store::StoreConfig;
use kvasir_tests::{chunks, service::Service};
use kvasir_types::{BLOCK_TOKENS, TokenChain};
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Runtime;

const OBJECT_BYTES: usize = 1 << 20;
const CHUNKS: usize = 64;
const CHUNK_TOKENS: usize = 256;
/// Three hashes of a chunk in an answer, in hex.
const CHUNK_ANSWER_BYTES_MIN: usize = 3 * 64;
const REQUESTS: usize = 100;

static CALLS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

struct Counting;

impl Counting {
    fn note(bytes: usize) {
        CALLS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

// SAFETY: everything is the system's; counting touches no memory of callers.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::note(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::note(size);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Sends requests one after the other over one connection, without a heap of its own, and returns calls and bytes for each.
/// All have this status and an answer of at least `answer_bytes_min`.
fn cost(service: &Service, requests: &[Vec<u8>], status: &str, answer_bytes_min: usize) -> (u64, u64) {
    let mut connection = TcpStream::connect(service.address).expect("connects");
    let mut buffer = vec![0; 1 << 16];
    let mut answer = |request: &[u8]| {
        connection.write_all(request).expect("is sent");
        let (mut have, mut left) = (0, None);
        while left != Some(0) {
            let taken = connection.read(&mut buffer[have..]).expect("is received");
            assert!(taken > 0, "the connection was closed");
            left = left.map(|left: usize| left - taken).or_else(|| {
                have += taken;
                let head = buffer[..have].windows(4).position(|end| end == b"\r\n\r\n")?;
                let text = std::str::from_utf8(&buffer[..head]).expect("ASCII");
                assert!(text.starts_with(status), "{text}");
                let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
                let length: usize = length.expect("a length").parse().expect("a number");
                assert!(length >= answer_bytes_min, "{length} bytes");
                let begun = have - (head + 4);
                have = 0;
                Some(length - begun)
            });
        }
    };
    let (warm, counted) = requests.split_at(requests.len() / 5);
    warm.iter().for_each(|request| answer(request));
    let (calls, bytes) = (CALLS.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed));
    counted.iter().for_each(|request| answer(request));
    let count = counted.len() as u64;
    ((CALLS.load(Ordering::Relaxed) - calls) / count, (BYTES.load(Ordering::Relaxed) - bytes) / count)
}

fn request(line: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head =
        format!("{line} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n{headers}\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// Requests for a stored prompt of [`CHUNKS`] chunks: by all of its blocks, and by the ids of its chunks.
async fn lookup_requests(service: &Service) -> [Vec<u8>; 2] {
    let (model_id, root) = service.prepare("n").await;
    let tokens = chunks::tokens(1, CHUNKS * CHUNK_TOKENS);
    for chunk in chunks::context(root, &tokens, CHUNK_TOKENS, 100) {
        assert!(service.put(&model_id, &chunk).await.status().is_success());
    }
    let chain = TokenChain::new(root, &tokens);
    let body: Vec<u8> = chain.blocks().iter().flat_map(|hash| *hash.as_bytes()).collect();
    let line = format!("POST {}?model_id={model_id}&namespace=n", routes::LOOKUP);
    let by_blocks = request(&line, &format!("content-type: {MEDIA_BLOCKS}\r\n"), &body);
    let blocks = CHUNK_TOKENS / BLOCK_TOKENS;
    let ids: Vec<_> = chain.blocks().iter().skip(blocks - 1).step_by(blocks).collect();
    let body = json!({ "model_id": model_id, "namespace": "n", "chunk_ids": ids }).to_string();
    let line = format!("POST {}", routes::LOOKUP);
    [by_blocks, request(&line, "content-type: application/json\r\n", body.as_bytes())]
}

#[test]
fn a_request_allocates_little_and_copies_no_body() {
    let runtime = Runtime::new().expect("threads");
    let directory = TempDir::new().expect("a directory");
    let url = format!("file://{}/store", directory.path().display()).parse().expect("a URL");
    let change = |config: &mut Config| {
        (config.gc.interval, config.journal.interval) = (Duration::ZERO, Duration::ZERO);
    };
    let service =
        runtime.block_on(Service::start_with(StoreConfig::new(url), &directory.path().join("cache"), change));
    let body = chunks::piece(0, 0, OBJECT_BYTES);
    let puts: Vec<_> =
        (0..REQUESTS).map(|n| request(&format!("PUT /v1/namespaces/n/objects/{n}"), "", &body)).collect();
    let gets = vec![request("GET /v1/namespaces/n/objects/0", "", b""); REQUESTS];
    let [by_blocks, by_ids] =
        runtime.block_on(lookup_requests(&service)).map(|request| vec![request; REQUESTS]);

    // About a third more than was measured. A lookup by blocks has 1,024 hashes; its bytes are the request, read twice, and
    // rows. One by ids makes less of everything.
    let found_min = CHUNKS * CHUNK_ANSWER_BYTES_MIN;
    for (what, requests, status, answer_bytes_min, calls_max, bytes_max) in [
        ("PUT", &puts, "HTTP/1.1 201", 0, 620, 2 * OBJECT_BYTES as u64),
        ("GET", &gets, "HTTP/1.1 200", OBJECT_BYTES, 140, 40_000),
        ("lookup by blocks", &by_blocks, "HTTP/1.1 200", found_min, 270, 480_000),
        ("lookup by ids", &by_ids, "HTTP/1.1 200", found_min, 270, 480_000),
    ] {
        let (calls, bytes) = cost(&service, requests, status, answer_bytes_min);
        assert!(calls <= calls_max && bytes <= bytes_max, "{what}: {calls} calls, {bytes} bytes");
    }
    runtime.block_on(service.stop());
}
