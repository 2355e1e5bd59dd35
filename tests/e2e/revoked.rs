//! What a revoked or expired credential had begun ends with it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use kvasir_api::{Role, routes};
use kvasir_tests::{chunks, service::expect_problem};
use reqwest::{Method, StatusCode};

use crate::guarded::{Guarded, token};

/// The reload interval, the look at bodies, and time for two busy cores.
const SOON: Duration = Duration::from_secs(30);

/// Sends parts for ever.
fn endless() -> reqwest::Body {
    let parts = futures::stream::repeat(()).then(|()| async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Ok::<_, std::io::Error>(Bytes::from(vec![7u8; 1 << 10]))
    });
    reqwest::Body::wrap_stream(parts)
}

#[tokio::test]
async fn open_streams_and_uploads_end_soon_after_their_credential_and_no_others() {
    let (revoked, kept) = (token("a", Role::Write), token("a", Role::Write));
    let guarded = Guarded::start(&format!("{}{}", revoked.entry, kept.entry)).await;
    let (model_id, root) = guarded.prepare(&kept.token).await;
    let chunk = chunks::chunk(root, &chunks::tokens(1, 256), 0, 256, 100);
    let path = routes::chunk(&model_id, &chunk.seq_hash);
    let mut events = guarded.send(&revoked.token, Method::GET, routes::EVENTS, "").await.bytes_stream();
    let mut others = guarded.send(&kept.token, Method::GET, routes::EVENTS, "").await.bytes_stream();
    let upload = guarded.send(&revoked.token, Method::PUT, &path, endless());
    let revoke = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        guarded.write_tenants(&kept.entry);
    };
    let begun = Instant::now();
    let ((), answer) = tokio::join!(revoke, tokio::time::timeout(SOON, upload));
    expect_problem(answer.expect("the upload ends"), "unauthorized").await;
    // Keep-alives may come before.
    let ended = async { while let Some(Ok(_)) = events.next().await {} };
    tokio::time::timeout(SOON, ended).await.expect("the stream of events ends");
    println!("ended within {:?}", begun.elapsed());
    assert!(begun.elapsed() > Duration::from_secs(2), "not before");
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
    tokio::time::timeout(SOON, told).await.expect("its stream of events goes on");
    let metrics = guarded.service.metrics().await;
    assert!(metrics.contains("kvasir_auth_refused_total{reason=\"ended\"} 2"), "{metrics}");
    guarded.service.stop().await;
}
