//! SIGTERM: running requests are completed within the grace period, no new ones start, and the process exits.

use std::time::{Duration, Instant};

use kvasir_api::routes;
use kvasir_tests::{
    chunks,
    process::{Process, Start},
};
use reqwest::{Method, StatusCode};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{SERVER, file_store};

/// Maximum time of any step before a test fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// Begins an upload and sends half of it.
async fn half_an_upload(address: std::net::SocketAddr, path: &str, bytes: &[u8]) -> TcpStream {
    let mut socket = TcpStream::connect(address).await.expect("connects");
    let length = bytes.len();
    let head = format!("PUT {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n");
    socket.write_all(head.as_bytes()).await.expect("sends");
    socket.write_all(&bytes[..length / 2]).await.expect("sends");
    socket.flush().await.expect("sends");
    socket
}

/// Waits until the service has taken the upload in, beside the request that asks.
async fn upload_arrives(process: &Process) {
    let begun = Instant::now();
    while !process.metrics().await.contains("kvasir_http_requests_in_flight 2\n") {
        assert!(begun.elapsed() < PATIENCE, "the upload is not taken in:\n{}", process.log());
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_upload_under_way_is_finished_and_acknowledged() {
    let directory = TempDir::new().expect("a directory");
    let store = file_store(directory.path());
    let cache = directory.path().join("cache");
    let start = Start::new(SERVER, &store, &cache).flags(&["--server.drain_grace=30s"]);
    let mut process = start.start().await;
    let (model_id, root) = process.prepare("n").await;
    let tokens = chunks::tokens(1, 512);
    let chunk = chunks::chunk(root, &tokens, 0, 512, 300_000);
    let path = routes::chunk(&model_id, &chunk.seq_hash);
    let mut upload = half_an_upload(process.address, &path, &chunk.bytes).await;
    upload_arrives(&process).await;
    process.terminate();
    // The listener closes: nothing new.
    let begun = Instant::now();
    while process.try_send(Method::GET, "/livez", "").await.is_ok_and(|r| r.status() == StatusCode::OK) {
        assert!(begun.elapsed() < PATIENCE, "it still listens:\n{}", process.log());
        tokio::task::yield_now().await;
    }
    upload.write_all(&chunk.bytes[chunk.bytes.len() / 2..]).await.expect("still listens to it");
    let mut answer = Vec::new();
    upload.read_to_end(&mut answer).await.expect("answers");
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}\n{}", process.log());
    assert!(process.wait().await.success(), "{}", process.log());
    let again = Start::new(SERVER, &store, &directory.path().join("other")).start().await;
    assert_eq!(again.lookup_tokens(model_id, &tokens).await.matched_tokens, 512);
}

#[tokio::test]
async fn what_takes_longer_than_the_grace_is_cut_off_and_leaves_nothing() {
    let directory = TempDir::new().expect("a directory");
    let store = file_store(directory.path());
    let cache = directory.path().join("cache");
    let mut process = Start::new(SERVER, &store, &cache).flags(&["--server.drain_grace=300ms"]).start().await;
    let (model_id, root) = process.prepare("n").await;
    let tokens = chunks::tokens(2, 512);
    let chunk = chunks::chunk(root, &tokens, 0, 512, 300_000);
    let path = routes::chunk(&model_id, &chunk.seq_hash);
    let _upload = half_an_upload(process.address, &path, &chunk.bytes).await;
    upload_arrives(&process).await;
    process.terminate();
    // Although the client never sends the rest.
    assert!(process.wait().await.success(), "{}", process.log());
    process.says("cut off at the end of the drain grace period").await;
    let again = Start::new(SERVER, &store, &directory.path().join("other")).start().await;
    assert_eq!(again.lookup_tokens(model_id, &tokens).await.matched_tokens, 0);
}
