//! Warm lookups: how many per second, and the slowest latencies as the index grows.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use kvasir_api::{MEDIA_TOKENS, routes};
use kvasir_store::{OpenStore, observe::NoObserver};
use kvasir_tests::{chunks, service::Api};
use kvasir_types::{ModelId, RootHash};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{arguments::SpeedArguments, servers, stats};
use crate::{
    http::{self, DiscardingConnection},
    index_rows::{CHUNK_TOKENS, IndexLocation, SyntheticContext, fill},
    process::{ChildProcess, pause, usage},
};

/// Chunks of a context: 98,304 tokens.
const CHUNKS: usize = 64;
/// Contexts that are requested repeatedly, spread over the whole index.
const ASKED: usize = 256;
/// Contexts that are requested rarely: more of them than any page cache holds.
const ASKED_ANY: usize = 8_192;
/// Of these, the number with generated tokens; the rest has hashes only.
const WITH_TOKENS: usize = 8;

/// Result of a load.
struct Loaded {
    per_second: f64,
    /// Latency of each request, in seconds.
    times: Vec<f64>,
    /// CPU time of the service per request, in microseconds.
    cpu_us: f64,
}

/// Loads a service over concurrent connections.
fn load(service: &ChildProcess, requests: &[Vec<u8>], connections: usize, seconds: f64) -> Result<Loaded> {
    let (address, ended) = (service.address, Arc::new(AtomicBool::new(false)));
    let (start, before) = (Instant::now(), usage::usage_of(&[service.id()]).cpu_s);
    let times = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..connections)
            .map(|nth| {
                let ended = Arc::clone(&ended);
                scope.spawn(move || -> Result<Vec<f64>> {
                    let mut connection = DiscardingConnection::open(address)?;
                    let mut times = Vec::new();
                    let order = requests.iter().cycle().skip(nth * requests.len() / connections);
                    for request in order {
                        if ended.load(Ordering::Relaxed) {
                            break;
                        }
                        let start = Instant::now();
                        let (status, length) = connection.exchange(request)?;
                        ensure!(status == 200 && length > 10_000, "{status}, {length} bytes: not 64 chunks");
                        times.push(start.elapsed().as_secs_f64());
                    }
                    Ok(times)
                })
            })
            .collect();
        pause(Duration::from_secs_f64(seconds));
        ended.store(true, Ordering::Relaxed);
        asking.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<Vec<_>>>()
    })?;
    let times = times.concat();
    let (took, cpu_s) = (start.elapsed().as_secs_f64(), usage::usage_of(&[service.id()]).cpu_s - before);
    let count = times.len() as f64;
    Ok(Loaded { per_second: count / took, times, cpu_us: cpu_s * 1e6 / count })
}

/// Asks for everything once.
fn load_once(address: SocketAddr, requests: &[Vec<u8>]) -> Result<()> {
    let mut connection = DiscardingConnection::open(address)?;
    for request in requests {
        let (status, length) = connection.exchange(request)?;
        ensure!(status == 200 && length > 10_000, "{status}, {length} bytes: not 64 chunks");
    }
    Ok(())
}

/// A context: with generated tokens, or with made-up hashes.
fn context_of(root: RootHash, number: usize) -> SyntheticContext {
    match number {
        0..WITH_TOKENS => SyntheticContext::of_tokens(root, &tokens_of(number)),
        _ => SyntheticContext::made_up(root, number, CHUNKS),
    }
}

fn tokens_of(context: usize) -> Vec<u32> {
    chunks::tokens(context as u64 + 1_000, CHUNKS * CHUNK_TOKENS)
}

pub(crate) fn measure(
    runtime: &Runtime,
    common: &SpeedArguments,
    counts: &[usize],
    connections: usize,
) -> Result<Value> {
    let mut results = Vec::new();
    for &count in counts {
        results.push(one(runtime, common, count, connections)?);
    }
    Ok(json!({
        "what": "lookups of 64 chunks = 98,304 tokens, warm index",
        "machine": usage::machine(),
        "connections": connections,
        "results": results,
    }))
}

fn one(runtime: &Runtime, common: &SpeedArguments, count: usize, connections: usize) -> Result<Value> {
    let directory = tempfile::tempdir()?;
    let store = servers::file_store(directory.path())?;
    let prepare = |remote: &Api| runtime.block_on(remote.prepare("n"));
    let (model_id, root): (ModelId, RootHash) = {
        let service = servers::kvasir(common, &store.config, directory.path())?;
        prepare(&Api::at(service.address))
    };
    // The index alone: a lookup that it can answer sends no request to the store.
    let contexts = (count / CHUNKS).max(1);
    {
        let open = OpenStore::open(&store.config, Arc::new(NoObserver))?;
        let location = IndexLocation {
            cache: &directory.path().join("cache"),
            store_identity: open.identity(),
            memory_bytes: kvasir_storage::limits::INDEX_CACHE_BYTES,
            model_id,
        };
        fill(location, (0..contexts).map(|number| context_of(root, number)))?;
    }
    let service = servers::kvasir(common, &store.config, directory.path())?;
    prepare(&Api::at(service.address));
    let asking = |asked: usize| -> Vec<Vec<u8>> {
        let asked = asked.min(contexts);
        // In no order that a page would hold together.
        let order = (0..asked).map(|i| (i * 7_919 % asked) * contexts / asked);
        let request = |context| {
            let ids = context_of(root, context).chunk_ids();
            let body = json!({ "model_id": model_id, "namespace": "n", "chunk_ids": ids }).to_string();
            http::post(routes::LOOKUP, service.address, "application/json", body.as_bytes())
        };
        order.map(request).collect()
    };
    let (by_ids, by_any_ids) = (asking(ASKED), asking(ASKED_ANY));
    let by_tokens: Vec<_> = (0..WITH_TOKENS.min(contexts))
        .map(|context| {
            let body: Vec<u8> = tokens_of(context).iter().flat_map(|t| t.to_le_bytes()).collect();
            let path = format!("{}?model_id={model_id}&namespace=n", routes::LOOKUP);
            http::post(&path, service.address, MEDIA_TOKENS, &body)
        })
        .collect();
    load(&service, &by_ids, connections, 1.0)?;
    // Each of them once, as after a while in service.
    load_once(service.address, &by_any_ids)?;
    let (mut rates, mut cpu_us) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    let mut p99 = Vec::new();
    for _ in 0..common.pairs {
        let Loaded { per_second, times, cpu_us: of_ids } =
            load(&service, &by_ids, connections, common.seconds)?;
        rates[0].push(per_second);
        cpu_us[0].push(of_ids);
        // Latency of one caller at a time: of several on two cores, it is the time spent waiting for a core.
        let alone = load(&service, &by_ids, 1, common.seconds)?.times;
        let any = load(&service, &by_any_ids, 1, common.seconds)?.times;
        p99.push([&alone, &any, &times].map(|times| stats::quantile(times, 0.99) * 1e3));
        let tokens = load(&service, &by_tokens, connections, common.seconds)?;
        rates[1].push(tokens.per_second);
        cpu_us[1].push(tokens.cpu_us);
    }
    let of = |i: usize| p99.iter().map(|pair| pair[i]).collect::<Vec<f64>>();
    Ok(json!({
        "chunks": count,
        "by_64_ids_per_second": stats::median(&rates[0]),
        "by_98304_tokens_per_second": stats::median(&rates[1]),
        "cpu_us_by_64_ids": stats::median(&cpu_us[0]),
        "cpu_us_by_98304_tokens": stats::median(&cpu_us[1]),
        "p99_ms_one_caller": stats::median(&of(0)),
        "p99_ms_one_caller_any_context": stats::median(&of(1)),
        "p99_ms_all_callers": stats::median(&of(2)),
        "resident_mib": usage::resident_bytes(service.id())? >> 20,
        "index_bytes_a_chunk": usage::folder_bytes(&directory.path().join("cache")) / count as u64,
        "raw": { "by_ids": rates[0], "by_tokens": rates[1], "cpu_us": cpu_us, "p99_ms": p99 },
    }))
}
