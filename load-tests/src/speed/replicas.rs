//! Three replicas over one store: how soon all of them see a removal, and how many requests an idle replica
//! sends to the store.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use kvasir_api::{LookupRequest, routes};
use kvasir_tests::{chunks, service::Api};
use kvasir_types::ModelId;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::{runtime::Runtime, time::sleep};

use super::{arguments::SpeedArguments, servers, stats};
use crate::process::usage;

const REPLICAS: usize = 3;
const TOKENS: usize = 1_024;
/// Pause between two checks of a replica.
const PAUSE: Duration = Duration::from_millis(10);
/// How long a replica may take to learn of a change.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a replica's lookup matches all tokens, or none, and returns how long that took.
async fn learns(replica: &Api, model_id: ModelId, tokens: &[u32], offered: bool) -> Result<f64> {
    let request = LookupRequest {
        model_id,
        namespace: "n".parse()?,
        tokens: Some(tokens.to_vec()),
        block_hashes: None,
        chunk_ids: None,
        // As a client that has no recent state.
        fresh: false,
        direct: false,
    };
    let begun = Instant::now();
    let wanted = if offered { tokens.len() as u64 } else { 0 };
    while replica.lookup(&request).await.matched_tokens != wanted {
        ensure!(begun.elapsed() < PATIENCE, "a replica does not learn of a change");
        sleep(PAUSE).await;
    }
    Ok(begun.elapsed().as_secs_f64())
}

/// Seconds from each removal's 204 until no replica offers the chunk.
async fn removals(replicas: &[Api], count: usize) -> Result<Vec<f64>> {
    let mut prepared = None;
    for replica in replicas {
        prepared = Some(replica.prepare("n").await);
    }
    let (model_id, root) = prepared.expect("there are replicas");
    let mut seconds = Vec::new();
    for n in 0..count {
        let tokens = chunks::tokens(n as u64, TOKENS);
        let chunk = chunks::chunk(root, &tokens, 0, TOKENS, 1_000);
        let put = replicas[n % REPLICAS].put(&model_id, &chunk).await;
        ensure!(put.status().is_success(), "{}", put.status());
        for replica in replicas {
            learns(replica, model_id, &tokens, true).await?;
        }
        let remover = &replicas[(n + 1) % REPLICAS];
        let removed = remover.send(Method::DELETE, &routes::chunk(&model_id, &chunk.seq_hash), "").await;
        ensure!(removed.status() == 204, "{}", removed.status());
        let seen = replicas.iter().map(|replica| learns(replica, model_id, &tokens, false));
        let seen = futures::future::try_join_all(seen).await?;
        seconds.push(seen.into_iter().fold(0.0, f64::max));
    }
    Ok(seconds)
}

/// Requests of each replica to the store so far.
async fn store_requests(replicas: &[Api]) -> Vec<f64> {
    let mut all = Vec::new();
    for replica in replicas {
        let metrics = replica.metrics().await;
        let lines = metrics.lines().filter(|line| line.starts_with("kvasir_store_requests_total"));
        all.push(lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum());
    }
    all
}

pub(crate) fn measure(
    runtime: &Runtime,
    common: &SpeedArguments,
    count: usize,
    quiet_seconds: f64,
) -> Result<Value> {
    let directory = tempfile::tempdir()?;
    let store = servers::store(common, directory.path())?;
    let folders = (0..REPLICAS).map(|n| directory.path().join(format!("replica-{n}")));
    let services: Vec<_> =
        folders.map(|folder| servers::kvasir(common, &store.config, &folder)).collect::<Result<_>>()?;
    let replicas: Vec<_> = services.iter().map(|service| Api::at(service.address)).collect();
    runtime.block_on(async {
        let seen = removals(&replicas, count).await?;
        // Requests become fewer once nothing has changed for a while.
        sleep(Duration::from_secs_f64(quiet_seconds / 5.0)).await;
        let before = store_requests(&replicas).await;
        let begun = Instant::now();
        sleep(Duration::from_secs_f64(quiet_seconds)).await;
        let elapsed = begun.elapsed().as_secs_f64();
        let after = store_requests(&replicas).await;
        let quiet: Vec<f64> = before.iter().zip(&after).map(|(b, a)| (a - b) / elapsed).collect();
        Ok(json!({
            "what": "three replicas over one store: seconds from a removal's 204 until no replica offers the chunk; store requests of an idle replica",
            "machine": usage::machine(),
            "store": common.store,
            "removal_seen_s": { "median": stats::median(&seen), "max": stats::quantile(&seen, 1.0) },
            "quiet_seconds": elapsed,
            "store_requests_per_second_and_replica": stats::quantile(&quiet, 1.0),
            "raw": { "removal_seen_s": seen, "store_requests_per_second": quiet },
        }))
    })
}
