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
use kvasir_types::TokenChain;
use tempfile::TempDir;
use tokio::runtime::Runtime;

const OBJECT_BYTES: usize = 1 << 20;
const CHUNKS: usize = 64;
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
fn cost(service: &Service, requests: &[Vec<u8>], status: &str) -> (u64, u64) {
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

/// A request for all blocks of a stored prompt of [`CHUNKS`] chunks.
async fn lookup_request(service: &Service) -> Vec<u8> {
    let (model_id, root) = service.prepare("n").await;
    let tokens = chunks::tokens(1, CHUNKS * 256);
    for chunk in chunks::context(root, &tokens, 256, 100) {
        assert!(service.put(&model_id, &chunk).await.status().is_success());
    }
    let chain = TokenChain::new(root, &tokens);
    let body: Vec<u8> = chain.blocks().iter().flat_map(|hash| *hash.as_bytes()).collect();
    let line = format!("POST {}?model_id={model_id}&namespace=n", routes::LOOKUP);
    request(&line, &format!("content-type: {MEDIA_BLOCKS}\r\n"), &body)
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
    let lookups = vec![runtime.block_on(lookup_request(&service)); REQUESTS];

    // A third more than was measured. A lookup has 1,024 block hashes; its bytes are the request, read twice, and rows.
    for (what, requests, status, calls_max, bytes_max) in [
        ("PUT", &puts, "HTTP/1.1 201", 650, 2 * OBJECT_BYTES as u64),
        ("GET", &gets, "HTTP/1.1 200", 170, 40_000),
        ("lookup", &lookups, "HTTP/1.1 200", 300, 480_000),
    ] {
        let (calls, bytes) = cost(&service, requests, status);
        assert!(calls <= calls_max && bytes <= bytes_max, "{what}: {calls} calls, {bytes} bytes");
    }
    runtime.block_on(service.stop());
}
