//! The requests of each kind of client.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use kvasir_api::{Job, JobKind, JobRequest, JobState, routes};
use kvasir_tests::faulty::Dice;
use reqwest::Method;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, lookup_host},
};

use super::spec::{LoadSpec, Op, Popularity, Scenario, TenantSelection};
use crate::{
    arguments::CommonArguments,
    cluster::endpoints::Endpoints,
    index_rows,
    replay::{Replay, TraceWindow},
    traffic::{
        arrivals::{Arrivals, uniform},
        objects::ContextShape,
        open_loop::RequestFn,
        record::{Completion, Failure},
        tenant::Tenant,
    },
};

/// Requests, and their times if a trace gives them.
pub(crate) struct LoadRequests {
    pub(crate) request: RequestFn,
    pub(crate) due: Option<Vec<Duration>>,
    pub(crate) replay: Option<Replay>,
}

/// Source addresses of connections: each has separate ports, so that closed ones need not time out first.
const SOURCES: u64 = 200;
/// First number of objects stored during a run, apart from the data.
const STORED_FROM: u64 = 1 << 32;
/// The requests of a load.
pub(crate) async fn of_load(
    common: &CommonArguments,
    scenario: &Scenario,
    load: &LoadSpec,
    endpoints: &Endpoints,
    tenants: &[Arc<Tenant>],
    seed: u64,
) -> Result<LoadRequests> {
    let chosen: Arc<[Arc<Tenant>]> = match load.tenants {
        TenantSelection::All => tenants.into(),
        TenantSelection::First => tenants[..1].into(),
        TenantSelection::Others => tenants[1..].into(),
    };
    let load = Arc::new(load.clone());
    let request: RequestFn = match load.op {
        Op::Prompt => return prompts(common, scenario, &load, endpoints, seed).await,
        Op::Lookup if scenario.data.rows > 0 => row_lookups(load, chosen, seed, scenario.data.rows),
        Op::Read | Op::Lookup => reads(load, chosen, seed, scenario.data.objects),
        Op::Store => stores(load, chosen, seed),
        Op::Connect => connections(load, chosen, seed),
        Op::Gc => jobs(chosen, JobKind::Gc),
        Op::Scrub => jobs(chosen, JobKind::Scrub),
    };
    Ok(LoadRequests { request, due: None, replay: None })
}

/// The tenant of request `number`, and a place in its objects.
fn place(load: &LoadSpec, tenants: &[Arc<Tenant>], seed: u64, number: u64) -> (Arc<Tenant>, f64) {
    let tenant = Arc::clone(&tenants[number as usize % tenants.len()]);
    let mut dice = Dice::new(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let count = tenant.count().max(1) as f64;
    let share = match load.popularity {
        Popularity::Uniform => uniform(&mut dice),
        // The continuous cousin of Zipf's law with exponent 1.
        Popularity::Zipf => (count.powf(uniform(&mut dice)) - 1.0) / count,
        Popularity::Once => (number / tenants.len() as u64) as f64 % count / count,
    };
    (tenant, share)
}

fn reads(load: Arc<LoadSpec>, tenants: Arc<[Arc<Tenant>]>, seed: u64, data: usize) -> RequestFn {
    Arc::new(move |number| {
        let (load, tenants) = (Arc::clone(&load), Arc::clone(&tenants));
        Box::pin(async move {
            let (tenant, share) = place(&load, &tenants, seed, number);
            let known = tenant
                .known_of(share, if load.of_data { data } else { tenant.count() })
                .ok_or_else(|| Failure::new("nothing is stored"))?;
            if load.op == Op::Lookup {
                return tenant.lookup_anywhere(number as usize, &known).await;
            }
            tenant.read(&known, load.range_bytes, load.reads_bytes_per_second).await
        })
    })
}

fn row_lookups(load: Arc<LoadSpec>, tenants: Arc<[Arc<Tenant>]>, seed: u64, rows: usize) -> RequestFn {
    let contexts = rows.div_ceil(index_rows::CONTEXT_CHUNKS) as f64;
    Arc::new(move |number| {
        let (load, tenants) = (Arc::clone(&load), Arc::clone(&tenants));
        Box::pin(async move {
            let (_, share) = place(&load, &tenants, seed, number);
            tenants[0].lookup_rows(0, (contexts * share) as usize).await
        })
    })
}

fn stores(load: Arc<LoadSpec>, tenants: Arc<[Arc<Tenant>]>, seed: u64) -> RequestFn {
    // The numbers of a peak's closed loop and of the following run must not overlap.
    let next = Arc::new(AtomicU64::new(STORED_FROM | (seed & 0xff) << 48));
    Arc::new(move |number| {
        let (load, tenants, next) = (Arc::clone(&load), Arc::clone(&tenants), Arc::clone(&next));
        Box::pin(async move {
            let tenant = Arc::clone(&tenants[number as usize % tenants.len()]);
            let id = next.fetch_add(1, Ordering::Relaxed);
            let shape = ContextShape { chunks: 1, tokens: load.tokens, bytes: load.bytes };
            let (pool, model_id, root) = (Arc::clone(&tenant.pool), tenant.model_id, tenant.root);
            let made = tokio::task::spawn_blocking(move || pool.context(model_id, root, id, shape)).await;
            let made =
                made.map_err(|e| Failure::new(e.to_string()))?.map_err(|e| Failure::new(e.to_string()))?;
            let (known, object) =
                made.into_iter().next().ok_or_else(|| Failure::new("no object was generated"))?;
            tenant.store(known, object.into()).await
        })
    })
}

fn connections(load: Arc<LoadSpec>, tenants: Arc<[Arc<Tenant>]>, seed: u64) -> RequestFn {
    Arc::new(move |number| {
        let (load, tenants) = (Arc::clone(&load), Arc::clone(&tenants));
        Box::pin(async move {
            let (tenant, share) = place(&load, &tenants, seed, number);
            let known = tenant.known(share).ok_or_else(|| Failure::new("nothing is stored"))?;
            let path = routes::chunk_object(&tenant.model_id, &known.seq_hash, &known.object_digest);
            let broken = |error: std::io::Error| Failure::new(format!("{:?}", error.kind()));
            let url = &tenant.replicas[number as usize % tenant.replicas.len()];
            let host = url.trim_start_matches("http://");
            let address = lookup_host(host).await.map_err(broken)?.find(SocketAddr::is_ipv4);
            let address = address.ok_or_else(|| Failure::new("no address was resolved"))?;
            let socket = TcpSocket::new_v4().map_err(broken)?;
            if address.ip().is_loopback() {
                let source = Ipv4Addr::new(127, 0, 1, (number % SOURCES) as u8 + 1);
                socket.bind(SocketAddr::from((source, 0))).map_err(broken)?;
            }
            let mut stream = socket.connect(address).await.map_err(broken)?;
            let bytes = load.range_bytes.unwrap_or(4_096).min(known.bytes);
            let credential = tenant.token.as_ref().map(|token| format!("authorization: Bearer {token}\r\n"));
            let credential = credential.unwrap_or_default();
            let text = format!(
                "GET {path} HTTP/1.1\r\nhost: {host}\r\n{credential}range: bytes=0-{}\r\n\r\n",
                bytes - 1
            );
            stream.write_all(text.as_bytes()).await.map_err(broken)?;
            let body = answer(&mut stream, bytes as usize).await?;
            if !known.is(&tenant.pool, 0, &body) {
                return Err(Failure::wrong("wrong bytes"));
            }
            let held = Duration::from_secs_f64(load.hold_seconds);
            tokio::time::sleep(held).await;
            Ok(Completion { bytes, held, ..Completion::default() })
        })
    })
}

/// The body of a 206 with this many bytes.
async fn answer(stream: &mut tokio::net::TcpStream, bytes: usize) -> Result<Vec<u8>, Failure> {
    let mut read = Vec::new();
    loop {
        if let Some(at) = read.windows(4).position(|w| w == b"\r\n\r\n") {
            if !read.starts_with(b"HTTP/1.1 206") {
                return Err(Failure::new(String::from_utf8_lossy(&read[..read.len().min(12)])));
            }
            if read.len() - at - 4 >= bytes {
                return Ok(read.split_off(at + 4));
            }
        }
        let more = stream.read_buf(&mut read).await.map_err(|e| Failure::new(format!("{:?}", e.kind())))?;
        if more == 0 {
            return Err(Failure::new("closed early"));
        }
    }
}

fn jobs(tenants: Arc<[Arc<Tenant>]>, kind: JobKind) -> RequestFn {
    Arc::new(move |_| {
        let tenant = Arc::clone(&tenants[0]);
        Box::pin(async move {
            let broken = |error: reqwest::Error| Failure::new(error.to_string());
            let body = serde_json::to_vec(&JobRequest::new(kind));
            let body = body.map_err(|e| Failure::new(e.to_string()))?;
            let started = tenant.request(0, Method::POST, routes::JOBS).body(body).send().await;
            let started = started.and_then(reqwest::Response::error_for_status).map_err(broken)?;
            let mut job: Job = started.json().await.map_err(broken)?;
            while job.state == JobState::Running {
                tokio::time::sleep(Duration::from_millis(50)).await;
                let asked = tenant.request(0, Method::GET, &routes::job(&job.job_id)).send().await;
                job = asked.map_err(broken)?.json().await.map_err(broken)?;
            }
            match job.error {
                None => Ok(Completion::default()),
                Some(error) => Err(Failure::new(error)),
            }
        })
    })
}

async fn prompts(
    common: &CommonArguments,
    scenario: &Scenario,
    load: &LoadSpec,
    endpoints: &Endpoints,
    seed: u64,
) -> Result<LoadRequests> {
    let spec = load.trace.as_ref().context("a replay needs a trace")?;
    let speed = if let Arrivals::Trace { speed } = load.arrivals { speed } else { 1.0 };
    let file: Option<&PathBuf> =
        common.traces.iter().find(|(name, _)| *name == load.name).map(|(_, path)| path);
    let window = TraceWindow { seconds: scenario.seconds, speed, seed };
    let replay = Replay::of(&load.name, spec, file, window, endpoints).await?;
    let (due, replayed) = (replay.due(), replay.clone());
    let request: RequestFn = Arc::new(move |number| {
        let replay = replay.clone();
        Box::pin(async move { replay.prompt(number).await })
    });
    Ok(LoadRequests { request, due: Some(due), replay: Some(replayed) })
}
