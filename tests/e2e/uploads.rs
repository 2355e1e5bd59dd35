//! Uploads that must not be stored.

use bytes::Bytes;
use futures::stream;
use kvasir_api::routes;
use kvasir_store::StoreConfig;
use kvasir_tests::{
    chunks,
    service::{Service, expect_problem},
};
use kvasir_types::{ModelId, TokenChain};
use reqwest::{Body, Method};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn invalid_bodies_store_nothing() {
    let directory = TempDir::new().expect("a directory");
    let store =
        StoreConfig::new(format!("file://{}/store", directory.path().display()).parse().expect("a url"));
    let limit = 400_000;
    let service =
        Service::start_with(store, directory.path(), |config| config.storage.chunk_bytes_max = limit).await;
    let (model_id, root) = service.prepare("n").await;
    let tokens = chunks::tokens(5, 600);
    let good = chunks::chunk(root, &tokens, 0, 600, 9_000);
    let path = routes::chunk(&model_id, &good.seq_hash);
    let put = async |path: &str, body: Body| service.send(Method::PUT, path, body).await;
    let bytes = |bytes: &[u8]| Body::from(bytes.to_vec());

    expect_problem(put(&path, bytes(&good.bytes[..5_000])).await, "invalid_chunk").await;
    expect_problem(put(&path, bytes(b"")).await, "invalid_chunk").await;
    for at in [0, 100, 300, good.bytes.len() / 2, good.bytes.len() - 1] {
        let mut flipped = good.bytes.clone();
        flipped[at] ^= 0x40;
        expect_problem(put(&path, bytes(&flipped)).await, "invalid_chunk").await;
    }
    let elsewhere = TokenChain::new(root, &chunks::tokens(6, 16)).blocks()[0];
    expect_problem(put(&routes::chunk(&model_id, &elsewhere), bytes(&good.bytes)).await, "chunk_mismatch")
        .await;
    let unknown = ModelId::from([3; 32]);
    expect_problem(put(&routes::chunk(&unknown, &good.seq_hash), bytes(&good.bytes)).await, "unknown_model")
        .await;
    // Too large: by its declared length, and without one.
    let large = chunks::chunk(root, &tokens, 0, 600, 90_000);
    let large_path = routes::chunk(&model_id, &large.seq_hash);
    expect_problem(put(&large_path, bytes(&large.bytes)).await, "body_too_large").await;
    let parts: Vec<_> =
        large.bytes.chunks(10_000).map(|c| Ok::<_, std::io::Error>(Bytes::copy_from_slice(c))).collect();
    expect_problem(put(&large_path, Body::wrap_stream(stream::iter(parts))).await, "body_too_large").await;
    // A client that goes away in the middle.
    let mut socket = tokio::net::TcpStream::connect(service.address).await.expect("connects");
    let head =
        format!("PUT {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", good.bytes.len());
    socket.write_all(head.as_bytes()).await.expect("sends");
    socket.write_all(&good.bytes[..good.bytes.len() - 1]).await.expect("sends");
    socket.shutdown().await.expect("half-closes");
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/1.1 2"), "{}", String::from_utf8_lossy(&answer));

    assert_eq!(service.lookup_tokens(model_id, &tokens).await.matched_tokens, 0);
    let stored = walk(&directory.path().join("store"));
    assert!(stored.iter().all(|file| !file.ends_with(".kvc")), "{stored:?}");
    assert_eq!(walk(&directory.path().join("cache/spool")), Vec::<String>::new());
    assert_eq!(service.put(&model_id, &good).await.status(), 201);
    service.stop().await;
}

fn walk(directory: &std::path::Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let nested = entries.flatten().map(|entry| {
        let path = entry.path();
        if path.is_dir() { walk(&path) } else { vec![path.display().to_string()] }
    });
    nested.flatten().collect()
}
