//! Uploads of 16 MB, compared with direct writes of the same bytes to the store.

use std::{sync::Arc, time::Instant};

use anyhow::{Result, ensure};
use kvasir_api::routes;
use kvasir_tests::{chunks, service::Api};
use object_store::{ObjectStore, ObjectStoreExt as _, local::LocalFileSystem, path::Path as StorePath};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{arguments::SpeedArguments, servers, stats};

/// Two levels of six spans: 16 MB in all.
const PIECE_BYTES: usize = 1_398_000;
/// Uploads of one measurement.
const UPLOADS: usize = 4;

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
    let values = runtime.block_on(async {
        let (model_id, root) = remote.prepare("n").await;
        let mut values = Vec::new();
        // The first pair warms up.
        for pair in 0..=common.pairs {
            let objects: Vec<_> = (0..UPLOADS)
                .map(|i| {
                    let tokens = chunks::tokens((pair * UPLOADS + i) as u64, 1536);
                    let chunk = chunks::chunk(root, &tokens, 0, 1536, PIECE_BYTES);
                    let path = routes::chunk(&model_id, &chunk.seq_hash);
                    (path, bytes::Bytes::from(chunk.bytes))
                })
                .collect();
            let bytes: usize = objects.iter().map(|(_, object)| object.len()).sum();
            let start = Instant::now();
            for (path, object) in &objects {
                let put = remote.send(reqwest::Method::PUT, path, object.clone()).await;
                ensure!(put.status().is_success(), "{}", put.status());
            }
            let ours = bytes as f64 / start.elapsed().as_secs_f64() / 1e6;
            let start = Instant::now();
            for (i, (_, object)) in objects.iter().enumerate() {
                direct.put(&StorePath::from(format!("direct/{pair}-{i}")), object.clone().into()).await?;
            }
            let theirs = bytes as f64 / start.elapsed().as_secs_f64() / 1e6;
            if pair > 0 {
                values.push([ours, theirs]);
            }
        }
        Ok::<_, anyhow::Error>(values)
    })?;
    Ok(json!({
        "what": "PUT of 16 MB objects in sequence",
        "machine": stats::machine(),
        "store": common.store,
        "s3_server": common.s3.as_deref().unwrap_or("in-process S3 of the tests, as a process"),
        "kvasir_direct": stats::pairs(["kvasir", "direct"], &values, "MB/s"),
    }))
}
