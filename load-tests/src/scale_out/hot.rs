//! Hot reads, and what they survive.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    SEED, ScaleArguments,
    clients::{KnownChunk, ReplicaClients, Spreading},
    group::ReplicaGroup,
    network::BridgedNetwork,
    prompts::Prompt,
};
use crate::{
    process::usage::usage_of,
    traffic::{
        arrivals::Arrivals,
        open_loop::{self, RequestFn},
        record::{Completion, Failure, Recorder, Summary},
    },
};

/// Memory of all replicas together, as a multiple of the bytes of all objects: room for what the busiest keeps.
const MEMORY: f64 = 2.0;
/// Reads under way per replica: with few, chance leaves links idle, since a closed loop waits for the replica with most.
const AT_ONCE: usize = 16;
/// Objects that are being stored at the same time.
const STORED_AT_ONCE: usize = 8;
/// Objects of the cold lookups.
const COLD: u64 = 20;
/// From the last request to the beginning of what counts as without load: more than the 60 s after which replicas without requests
/// read the journal.
const QUIET_AFTER: Duration = Duration::from_secs(75);
/// How long that is counted: two such reads.
const QUIET: Duration = Duration::from_secs(120);

/// One number of replicas.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HotReads {
    pub(super) replicas: usize,
    /// A closed loop of GETs of objects that are hot.
    pub(super) mb_per_s: f64,
    /// CPU seconds per second and core, of the replicas and of the clients.
    pub(super) cpu_of_replicas: f64,
    pub(super) cpu_of_clients: f64,
    /// Bytes of all objects per byte in all hot tiers.
    #[serde(deserialize_with = "crate::report::finite_or_nan")]
    pub(super) unique: f64,
    /// Objects stored through one replica and immediately requested from each other one: how many were not
    /// found.
    pub(super) cold_lookups: u64,
    pub(super) cold_lookups_missed: u64,
    /// Requests to the store per second without load, by all replicas together: the cost of the journal.
    pub(super) idle_store_requests_per_s: f64,
    /// An open loop at half of that, with a replica killed in the middle; none for a single one.
    pub(super) with_a_replica_lost: Option<ReplicaLoss>,
}

impl HotReads {
    /// Times the throughput of one replica, if that was measured.
    pub(super) fn times_one(&self, all: &[Self]) -> Option<f64> {
        let one = all.iter().find(|row| row.replicas == 1)?;
        Some(self.mb_per_s / one.mb_per_s)
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ReplicaLoss {
    pub(super) killed_at_s: f64,
    /// As clients see it.
    pub(super) summary: Summary,
    pub(super) acknowledged: u64,
    pub(super) not_found_afterwards: u64,
}

/// Which of `count` a request with this number is for: an order without pattern.
fn nth(number: u64, count: usize) -> usize {
    ((number as f64 * 0.618_033_988).fract() * count as f64) as usize
}

/// Reads the chunks, without looking them up.
fn gets(chunks: Arc<[KnownChunk]>) -> RequestFn {
    Arc::new(move |number| {
        let chunks = Arc::clone(&chunks);
        Box::pin(async move {
            let chunk = &chunks[nth(number, chunks.len())];
            let again = chunk.read().await? as u32;
            Ok(Completion { bytes: chunk.length(), again, ..Completion::default() })
        })
    })
}

/// Looks the prompts up and reads them.
fn reads(clients: &Arc<ReplicaClients>, prompts: &Arc<[Prompt]>) -> RequestFn {
    let (clients, prompts) = (Arc::clone(clients), Arc::clone(prompts));
    Arc::new(move |number| {
        let (clients, prompts) = (Arc::clone(&clients), Arc::clone(&prompts));
        Box::pin(async move {
            let found = clients.load(&prompts[nth(number, prompts.len())]).await?;
            if found.stored < found.chunks {
                return Err(Failure::new("not found"));
            }
            Ok(Completion { bytes: found.bytes, again: found.again as u32, ..Completion::default() })
        })
    })
}

fn failed(failure: Failure) -> anyhow::Error {
    anyhow::anyhow!(failure.cause)
}

async fn lose_one(group: &mut ReplicaGroup, prompts: &Arc<[Prompt]>, rate: f64, seconds: f64) -> ReplicaLoss {
    let recorder = Arc::new(Recorder::default());
    let load = open_loop::Callers {
        request: reads(&group.clients, prompts),
        due: Arrivals::Poisson(rate).moments(seconds, SEED, 0.0),
        at_once: 64,
        patience: Duration::from_secs(30),
        recorder: Arc::clone(&recorder),
    };
    let begun = Instant::now();
    let running = tokio::spawn(load.run(begun));
    tokio::time::sleep(Duration::from_secs_f64(seconds / 2.0)).await;
    let killed_at_s = begun.elapsed().as_secs_f64();
    // Not the first: the clients were given its address, as they are given that of a load balancer.
    let last = group.replicas() - 1;
    group.kill(last);
    // A panic of a caller shows as requests that are missing.
    let _ = running.await;
    let mut not_found_afterwards = 0;
    for prompt in &**prompts {
        not_found_afterwards += u64::from(!group.clients.is_found_by(0, prompt, true).await);
    }
    ReplicaLoss {
        killed_at_s,
        summary: recorder.summary(),
        acknowledged: prompts.len() as u64,
        not_found_afterwards,
    }
}

pub(super) async fn measure(arguments: &ScaleArguments, replicas: usize) -> Result<HotReads> {
    let network = BridgedNetwork::new(replicas, arguments.link_mbps)?;
    let memory = (arguments.objects * arguments.bytes) as f64 * MEMORY / replicas as f64;
    let mut group = ReplicaGroup::start(arguments, network, Spreading::Routes, memory as u64, 0).await?;
    let clients = Arc::clone(&group.clients);
    let prompts: Arc<[Prompt]> = (0..arguments.objects as u64).map(|part| clients.prompt(&[part])).collect();
    let storing = prompts.iter().map(|prompt| clients.store_known(prompt, arguments.bytes));
    let chunks: Vec<KnownChunk> =
        stream::iter(storing).buffered(STORED_AT_ONCE).try_collect().await.map_err(failed)?;
    let stored: u64 = chunks.iter().map(KnownChunk::length).sum();
    let request = gets(chunks.into());
    let at_once = AT_ONCE * replicas;
    open_loop::peak(&request, at_once, 2.0).await;
    let ids = group.ids();
    let cpu = || (usage_of(&ids).cpu_s, usage_of(&[std::process::id()]).cpu_s);
    let (before, begun) = (cpu(), Instant::now());
    let (rate, failures) = open_loop::peak(&request, at_once, arguments.seconds).await;
    let (after, took) = (cpu(), begun.elapsed().as_secs_f64());
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    ensure!(failures.is_empty(), "reads fail: {:?}", failures.first());
    let mb_per_s = rate * stored as f64 / prompts.len() as f64 / 1e6;
    let hot: f64 = group.metric("kvasir_hot_bytes", &["\"cpu\""]).await.into_iter().sum();
    let mut missed = 0;
    for part in 0..COLD {
        let prompt = clients.prompt(&[1 << 32 | part]);
        clients.store(&prompt, 0, arguments.bytes).await.map_err(failed)?;
        for nth in 0..replicas {
            missed += u64::from(!clients.is_found_by(nth, &prompt, false).await);
        }
    }
    let requests = async || group.metric("kvasir_store_requests_total", &[]).await.into_iter().sum::<f64>();
    tokio::time::sleep(QUIET_AFTER).await;
    let (asked, begun) = (requests().await, Instant::now());
    tokio::time::sleep(QUIET).await;
    let idle_store_requests_per_s = (requests().await - asked) / begun.elapsed().as_secs_f64();
    let with_a_replica_lost = match replicas {
        1 => None,
        _ => Some(lose_one(&mut group, &prompts, rate / 2.0, arguments.seconds).await),
    };
    Ok(HotReads {
        replicas,
        mb_per_s,
        cpu_of_replicas: (after.0 - before.0) / took / cores,
        cpu_of_clients: (after.1 - before.1) / took / cores,
        unique: stored as f64 / hot,
        cold_lookups: COLD * replicas as u64,
        cold_lookups_missed: missed,
        idle_store_requests_per_s,
        with_a_replica_lost,
    })
}
