//! A request's trace reaches the store.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use kvasir_tests::{
    chunks,
    s3::{Lacks, S3Server},
    service::Service,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// What clients said, by connection.
type Said = Arc<Mutex<Vec<Vec<u8>>>>;

/// Passes everything on to `upstream` and keeps what clients said.
async fn tap(upstream: SocketAddr) -> (SocketAddr, Said) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let (address, said) = (listener.local_addr().expect("bound"), Said::default());
    let heard = Arc::clone(&said);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let heard = Arc::clone(&heard);
            let nth = {
                let mut heard = heard.lock().expect("not poisoned");
                heard.push(Vec::new());
                heard.len() - 1
            };
            tokio::spawn(async move {
                let server = TcpStream::connect(upstream).await.expect("connects");
                let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                    (client.into_split(), server.into_split());
                tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
                let mut part = vec![0; 64 << 10];
                while let Ok(bytes @ 1..) = from_client.read(&mut part).await {
                    heard.lock().expect("not poisoned")[nth].extend_from_slice(&part[..bytes]);
                    if to_server.write_all(&part[..bytes]).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    (address, said)
}

/// Methods of the store's requests that carry the trace.
fn traced(said: &Said, trace_id: &str) -> Vec<&'static str> {
    let header = format!("traceparent: 00-{trace_id}-");
    let mut methods = Vec::new();
    for connection in said.lock().expect("not poisoned").iter() {
        let text = String::from_utf8_lossy(connection);
        for (at, _) in text.match_indices(&header) {
            let begins = |method: &&str| text[..at].rfind(&format!("{method} /"));
            methods.extend(["GET", "HEAD", "PUT", "POST"].into_iter().max_by_key(begins));
        }
    }
    methods
}

#[tokio::test]
async fn store_requests_carry_the_trace_of_the_request_they_are_made_for() {
    let directory = TempDir::new().expect("a directory");
    let server = S3Server::start(Lacks::default()).await;
    let (address, said) = tap(server.address).await;
    let mut store = server.config("p");
    store.endpoint = Some(format!("http://{address}"));
    let little = |config: &mut kvasir_server::Config| config.storage.spool_memory_bytes = 1 << 20;
    let service = Service::start_with(store, directory.path(), little).await;
    let (model_id, root) = service.prepare("n").await;
    // Too large for memory, so it goes in parts, which are sent by tasks of their own.
    let chunk = chunks::chunk(root, &chunks::tokens(1, 512), 0, 512, 2_600_000);
    let path = kvasir_api::routes::chunk(&model_id, &chunk.seq_hash);
    let trace = |n: u32| format!("{n:032x}");
    let put = service.http.put(format!("http://{}{path}", service.address)).body(chunk.bytes.clone());
    let put = put.header("traceparent", format!("00-{}-00f067aa0ba902b7-01", trace(1)));
    assert_eq!(put.send().await.expect("an answer").status(), 201);
    let methods = traced(&said, &trace(1));
    assert!(methods.iter().filter(|m| **m == "PUT").count() >= 2, "parts: {methods:?}");
    assert_eq!(methods.iter().filter(|m| **m == "POST").count(), 2, "begin and completion: {methods:?}");
    let traceparent = format!("00-{}-00f067aa0ba902b7-01", trace(2));
    let got = service.get(&path, &[("traceparent", &traceparent)]).await;
    assert!(got.bytes().await.expect("reads") == chunk.bytes);
    assert!(traced(&said, &trace(2)).contains(&"GET"));
    // A malformed one is no trace; the request goes on under one of our own.
    let got = service.get(&path, &[("traceparent", "00-zz-1-01")]).await;
    assert_eq!(got.status(), 200);
    assert!(traced(&said, "zz").is_empty());
    service.stop().await;
}
