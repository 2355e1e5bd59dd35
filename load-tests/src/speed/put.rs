//! Uploads of 16 MB, compared with direct writes of the same bytes to the store.

use std::{net::SocketAddr, sync::Arc, time::Instant};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use kvasir_api::{HEADER_OBJECT_DIGEST, MEDIA_CHUNK, routes};
use kvasir_replay::link::{BandwidthSeries, LinkOptions, ShapedLink};
use kvasir_store::StoreConfig;
use kvasir_tests::{chunks, service::Api};
use kvasir_types::{ModelId, ObjectDigest, RootHash};
use object_store::{ObjectStore, ObjectStoreExt as _, local::LocalFileSystem, path::Path as StorePath};
use reqwest::{Body, StatusCode, header};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{arguments::SpeedArguments, servers, stats};
use crate::process::usage;

/// Two levels of six spans: 16 MB in all.
const PIECE_BYTES: usize = 1_398_000;
/// Uploads of one measurement.
const UPLOADS: usize = 4;
/// Bandwidth of the link, in Mb/s, and the name of a direct writer behind one.
const LINK_MBPS: f64 = 1_000.0;
pub(super) const DIRECT_OVER_LINK: &str = "direct, both over 1 Gb/s";

/// Sends an object as the client does: its length and its digest before its bytes.
pub(super) async fn put(
    service: &Api,
    path: &str,
    (bytes, digest): (usize, ObjectDigest),
    body: impl Into<Body>,
) -> Result<StatusCode> {
    let request = service.http.put(format!("http://{}{path}", service.address));
    let request = request.header(header::CONTENT_TYPE, MEDIA_CHUNK).header(header::CONTENT_LENGTH, bytes);
    let answer = request.header(HEADER_OBJECT_DIGEST, digest.to_string()).body(body).send().await?;
    let status = answer.status();
    answer.bytes().await?;
    Ok(status)
}

/// MB per second of the service and of a direct writer, in turn. Chunks are numbered from `first` on.
async fn rates(
    (pairs, first): (usize, usize),
    (service, direct): (&Api, &dyn ObjectStore),
    (model_id, root): (&ModelId, RootHash),
) -> Result<Vec<[f64; 2]>> {
    let mut values = Vec::new();
    // The first pair warms up.
    for pair in 0..=pairs {
        let numbers = (first + pair * UPLOADS)..(first + (pair + 1) * UPLOADS);
        let made = numbers.map(|number| {
            let tokens = chunks::tokens(number as u64, 1536);
            let chunk = chunks::chunk(root, &tokens, 0, 1536, PIECE_BYTES);
            let direct = StorePath::from(format!("direct/{number}"));
            (routes::chunk(model_id, &chunk.seq_hash), direct, Bytes::from(chunk.bytes))
        });
        let made: Vec<_> = made.collect();
        let megabytes = made.iter().map(|(.., object)| object.len() as f64 / 1e6).sum::<f64>();
        let start = Instant::now();
        for (path, _, object) in &made {
            // Part of what a client does.
            let digest = ObjectDigest::of(object);
            let status = put(service, path, (object.len(), digest), object.clone()).await?;
            ensure!(status.is_success(), "{status}");
        }
        let ours = megabytes / start.elapsed().as_secs_f64();
        let start = Instant::now();
        for (_, path, object) in &made {
            direct.put(path, object.clone().into()).await?;
        }
        let theirs = megabytes / start.elapsed().as_secs_f64();
        if pair > 0 {
            values.push([ours, theirs]);
        }
    }
    Ok(values)
}

/// As [`rates`], with a link before the service and one before the store; `None` if the store is not at an address.
async fn rates_over_link(
    numbers: (usize, usize),
    service: &Api,
    store: &StoreConfig,
    names: (&ModelId, RootHash),
) -> Result<Option<Vec<[f64; 2]>>> {
    let address = store.endpoint.as_deref().and_then(|url| url.strip_prefix("http://"));
    let Some(address) = address.and_then(|address| address.parse::<SocketAddr>().ok()) else {
        return Ok(None);
    };
    let series = BandwidthSeries::constant(LINK_MBPS).context("a bandwidth")?;
    let link = LinkOptions { up: Some(series.clone()), ..LinkOptions::down(series) };
    let to_service = ShapedLink::start(service.address, link.clone()).await?;
    let to_store = ShapedLink::start(address, link).await?;
    let endpoint = Some(format!("http://{}", to_store.address()));
    let direct = servers::s3_client(&StoreConfig { endpoint, ..store.clone() })?;
    Ok(Some(rates(numbers, (&Api::at(to_service.address()), &direct), names).await?))
}

pub(crate) fn measure(runtime: &Runtime, common: &SpeedArguments) -> Result<Value> {
    let directory = tempfile::tempdir()?;
    let store = servers::store(common, directory.path())?;
    let service = servers::kvasir(common, &store.config, directory.path())?;
    let direct: Arc<dyn ObjectStore> = if common.store == "s3" {
        Arc::new(servers::s3_client(&store.config)?)
    } else {
        let path = directory.path().join("direct");
        std::fs::create_dir_all(&path)?;
        Arc::new(LocalFileSystem::new_with_prefix(path)?.with_fsync(true))
    };
    let remote = Api::at(service.address);
    let (values, over_link) = runtime.block_on(async {
        let (model_id, root) = remote.prepare("n").await;
        let (pairs, names) = (common.pairs, (&model_id, root));
        let values = rates((pairs, 0), (&remote, &*direct), names).await?;
        let first = (pairs + 1) * UPLOADS;
        anyhow::Ok((values, rates_over_link((pairs, first), &remote, &store.config, names).await?))
    })?;
    let mut result = json!({
        "what": "PUT of 16 MB objects in sequence, digest first",
        "machine": usage::machine(),
        "store": common.store,
        "s3_server": common.s3.as_deref().unwrap_or("in-process S3 of the tests, as a process"),
        "kvasir_direct": stats::pairs(["kvasir", "direct"], &values, "MB/s"),
    });
    if let Some(values) = over_link {
        result["kvasir_direct_over_link"] = stats::pairs(["kvasir", DIRECT_OVER_LINK], &values, "MB/s");
    }
    Ok(result)
}
