//! Hot ranged reads of 16 MB.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use futures::TryStreamExt as _;
use kvasir_api::routes;
use kvasir_store::layout::Layout;
use kvasir_tests::{chunks, service::Api};
use object_store::{ObjectStore, path::Path as StorePath, signer::Signer as _};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{arguments::SpeedArguments, servers, stats};
use crate::{
    http::{self, DiscardingConnection},
    process::usage,
};

/// Bytes of a read.
const READ_BYTES: u64 = 16 << 20;
/// Bytes of a piece: two levels of six spans make an object of 17 MB.
const PIECE_BYTES: usize = 1_420_000;

/// Throughput of one connection in MB per second.
fn rate(address: SocketAddr, request: &[u8], seconds: f64) -> Result<f64> {
    let mut connection = DiscardingConnection::open(address)?;
    let (start, mut bytes) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs_f64(seconds) {
        let (status, length) = connection.exchange(request)?;
        ensure!(status == 206 && length == READ_BYTES, "{status}, {length} bytes");
        bytes += length;
    }
    Ok(bytes as f64 / start.elapsed().as_secs_f64() / 1e6)
}

pub(crate) fn measure(runtime: &Runtime, common: &SpeedArguments) -> Result<Value> {
    let directory = tempfile::tempdir()?;
    let store = servers::store(common, directory.path())?;
    let service = servers::kvasir(common, &store.config, directory.path())?;
    let remote = Api::at(service.address);
    let (path, object) = runtime.block_on(async {
        let (model_id, root) = remote.prepare("n").await;
        let chunk = chunks::chunk(root, &chunks::tokens(1, 1536), 0, 1536, PIECE_BYTES);
        let put = remote.put(&model_id, &chunk).await;
        assert!(put.status().is_success(), "{}", put.status());
        (routes::chunk_object(&model_id, &chunk.seq_hash, &chunk.object_digest), chunk.bytes)
    });
    ensure!(object.len() as u64 > READ_BYTES, "the object is smaller than a read");
    let files = directory.path().join("files");
    std::fs::create_dir_all(&files)?;
    std::fs::write(files.join("object"), &object)?;
    let nginx = servers::nginx(&common.nginx, &files)?;
    let (s3, s3_path, _s3_store) = signed(runtime, common, &object)?;
    let range = format!("range: bytes=0-{}", READ_BYTES - 1);
    let ours = http::get(&path, service.address, &[&range]);
    let theirs = http::get("/object", nginx.address, &[&range]);
    let stores = http::get(&s3_path, s3, &[&range]);
    // Warm: page caches, hot tiers, connections of pools.
    rate(service.address, &ours, 0.5)?;
    rate(nginx.address, &theirs, 0.5)?;
    rate(s3, &stores, 0.5)?;
    let (mut beside_nginx, mut beside_s3) = (Vec::new(), Vec::new());
    for _ in 0..common.pairs {
        let seconds = common.seconds;
        beside_nginx.push([rate(service.address, &ours, seconds)?, rate(nginx.address, &theirs, seconds)?]);
        beside_s3.push([rate(service.address, &ours, seconds)?, rate(s3, &stores, seconds)?]);
    }
    Ok(json!({
        "what": "hot ranged GET of 16 MiB, one connection",
        "machine": usage::machine(),
        "store": common.store,
        "s3_server": common.s3.as_deref().unwrap_or("in-process S3 of the tests, as a process"),
        "kvasir_nginx": stats::pairs(["kvasir", "nginx"], &beside_nginx, "MB/s"),
        "kvasir_s3": stats::pairs(["kvasir", "s3"], &beside_s3, "MB/s"),
    }))
}

/// The object in the S3 server, under a presigned URL.
fn signed(
    runtime: &Runtime,
    common: &SpeedArguments,
    object: &[u8],
) -> Result<(SocketAddr, String, servers::StoreUnderTest)> {
    let store = servers::s3_store(common)?;
    let client = servers::s3_client(&store.config)?;
    let path = StorePath::from(format!("{}/speed-object", Layout::new(&StorePath::default()).base()));
    let url = runtime.block_on(async {
        client.put_opts(&path, object.to_vec().into(), Default::default()).await?;
        let read: Vec<_> = client.list(Some(&StorePath::from("1"))).try_collect().await?;
        assert!(!read.is_empty(), "the object was written");
        client.signed_url(Method::GET, &path, Duration::from_secs(3600)).await
    })?;
    let host =
        format!("{}:{}", url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or(80));
    let address = std::net::ToSocketAddrs::to_socket_addrs(&host)?.next();
    let path = format!("{}?{}", url.path(), url.query().unwrap_or_default());
    Ok((address.ok_or_else(|| anyhow::anyhow!("no address of {host}"))?, path, store))
}
