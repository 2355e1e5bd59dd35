//! Runs a scenario: starts the processes, stores the initial data, generates requests and faults, and reads
//! everything acknowledged once more.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Args;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::{task::JoinSet, time::Instant};

use super::{
    durability, inject,
    outcome::{self, Durability, Outcome, Sample},
    remote::{self, RemoteArguments},
    requests,
    spec::{LoadSpec, Scenario},
};
use crate::{
    arguments::CommonArguments,
    cluster::{Cluster, endpoints::Endpoints},
    index_rows::{self, IndexLocation},
    process::usage,
    replay::Replay,
    traffic::{
        arrivals::{self, Arrivals},
        objects::{ContextShape, Pool},
        open_loop::{self, Callers, RequestFn},
        record::Recorder,
        tenant::{Tenant, http_client},
    },
};

/// Arguments of `kvasir-load run`.
#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    #[command(flatten)]
    pub(crate) common: CommonArguments,
    #[command(flatten)]
    remote: RemoteArguments,
    /// Files of scenarios, or folders of them.
    #[arg(required = true)]
    pub(crate) scenarios: Vec<PathBuf>,
    /// Run the size for CI: seconds for each scenario, without thresholds on times.
    #[arg(long)]
    pub(crate) smoke: bool,
    /// Seconds during which requests arrive, instead of the scenario's value: for soak tests.
    #[arg(long)]
    pub(crate) seconds: Option<f64>,
    /// Seed of all that is random, instead of the scenario's.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
}

/// Page cache of the index while it is filled.
const INDEX_MEMORY: u64 = 64 << 20;

/// Concurrent uploads before a run.
const PREPARED_AT_ONCE: usize = 4;
/// Seconds of the closed loop that finds the peak, and of the one that warms up before it.
const PEAK_SECONDS: f64 = 4.0;
/// Pause between two samples of the processes.
const SAMPLE_PAUSE: Duration = Duration::from_secs(1);

/// Runs it and returns its result; a scenario that needs something missing is skipped, with the reason.
pub(crate) async fn run(arguments: &RunArguments, scenario: &Scenario) -> Result<Outcome> {
    let (common, smoke) = (&arguments.common, arguments.smoke);
    let machine = usage::machine();
    let jumps = scenario.fault.iter().any(|fault| fault.what.jumps());
    let mut outcome = Outcome {
        scenario: scenario.name.clone(),
        about: scenario.about.clone(),
        smoke,
        machine,
        seed: scenario.seed,
        store: String::new(),
        seconds: scenario.seconds,
        skipped: None,
        figures: BTreeMap::new(),
        thresholds: Vec::new(),
        loads: BTreeMap::new(),
        durability: Durability::default(),
        faults: Vec::new(),
        traces: Vec::new(),
        samples: Vec::new(),
        specification: scenario.clone(),
    };
    let running = arguments.remote.endpoints()?;
    if let Some(reason) = running.as_ref().and_then(|running| remote::unsupported_reason(running, scenario)) {
        outcome.skipped = Some(reason);
        return Ok(outcome);
    }
    let mut cluster = match &running {
        Some(_) => None,
        None => match Box::pin(Cluster::start(common, &scenario.service, jumps)).await {
            Ok(cluster) => Some(cluster),
            Err(error) if scenario.service.disk_mib > 0 || jumps => {
                outcome.skipped = Some(format!("{error:#}"));
                return Ok(outcome);
            }
            Err(error) => return Err(error),
        },
    };
    outcome.store = match &cluster {
        Some(cluster) => cluster.store_name.clone(),
        None => "that of a running service, whose processes and settings are unknown".into(),
    };
    let endpoints = running.or_else(|| cluster.as_ref().map(Cluster::endpoints)).context("a service")?;
    let tenants = Box::pin(prepare(&endpoints, scenario)).await?;
    if let Some(cluster) = cluster.as_mut().filter(|_| scenario.data.rows > 0) {
        cluster.kill(0);
        insert_index_rows(cluster, &tenants[0], scenario.data.rows)?;
        cluster.start_replica(0).await?;
    }
    let (callers, replays) =
        Box::pin(callers(common, scenario, &endpoints, &tenants, &mut outcome.figures)).await?;
    let recorders: BTreeMap<String, Arc<Recorder>> =
        callers.iter().map(|(name, callers)| (name.clone(), Arc::clone(&callers.recorder))).collect();
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    callers.into_iter().for_each(|(_, callers)| _ = tasks.spawn(callers.run(begun)));
    let mut samples = Vec::new();
    outcome.faults = {
        let ids = cluster.as_ref().map(Cluster::ids).unwrap_or_default();
        let replicas = cluster.iter().flat_map(|cluster| &cluster.replicas);
        let caches: Vec<_> = replicas.map(|replica| replica.cache.clone()).collect();
        let watching = watch(&ids, &caches, begun, &mut samples);
        let injecting = async {
            let injected = match &mut cluster {
                Some(cluster) => inject::inject(&scenario.fault, cluster, begun).await,
                None => Ok(Vec::new()),
            };
            while tasks.join_next().await.is_some() {}
            injected
        };
        tokio::select! { injected = injecting => injected?, () = watching => unreachable!("it watches for ever") }
    };
    outcome.durability = Box::pin(durability::check(&tenants)).await;
    for replay in &replays {
        replay.check(&mut outcome.durability).await;
    }
    outcome.loads = recorders.iter().map(|(name, recorder)| (name.clone(), recorder.summary())).collect();
    let figures =
        outcome::figures(&outcome.loads, &outcome.durability, &outcome.faults, &samples, scenario.seconds);
    outcome.figures.extend(figures);
    for replay in replays {
        outcome.figures.extend(replay.figures());
        outcome.traces.push(replay.facts);
    }
    let mut bounds = [scenario.gates.clone(), scenario.slo.clone()];
    if cluster.is_none() {
        outcome.figures.retain(|name, _| !name.starts_with("service."));
        bounds.iter_mut().for_each(|bounds| bounds.retain(|name, _| !name.starts_with("service.")));
    }
    outcome.thresholds = outcome::thresholds(&outcome.figures, &bounds, smoke);
    outcome.samples = samples;
    Ok(outcome)
}

/// Fills the index of the first replica, which is not running, with whole contexts until there are `rows` rows.
fn insert_index_rows(cluster: &Cluster, tenant: &Tenant, rows: usize) -> Result<()> {
    let location = IndexLocation {
        cache: &cluster.replicas[0].cache,
        store_identity: cluster.store_identity()?,
        memory_bytes: INDEX_MEMORY,
        model_id: tenant.model_id,
    };
    let contexts = rows.div_ceil(index_rows::CONTEXT_CHUNKS);
    index_rows::fill(location, (0..contexts).map(|context| index_rows::context(tenant.root, context)))
}

/// Samples the processes forever. A replica that restarts during a run is another process and is not sampled.
async fn watch(ids: &[u32], caches: &[PathBuf], begun: Instant, samples: &mut Vec<Sample>) {
    let mut ticks = tokio::time::interval(SAMPLE_PAUSE);
    loop {
        ticks.tick().await;
        let usage = usage::usage_of(ids);
        let cache: u64 = caches.iter().map(|path| usage::folder_bytes(path)).sum();
        samples.push(Sample {
            at_s: begun.elapsed().as_secs_f64(),
            cpu_s: usage.cpu_s,
            resident_mib: usage.resident_mib,
            fds: usage.fds,
            cache_mib: cache as f64 / f64::from(1 << 20),
        });
    }
}

/// Registers the model for every tenant and stores the data.
async fn prepare(endpoints: &Endpoints, scenario: &Scenario) -> Result<Vec<Arc<Tenant>>> {
    let pool = Pool::new(scenario.seed);
    let http = http_client()?;
    let tokens: Vec<Option<String>> = match endpoints.tokens.as_slice() {
        [] => vec![None],
        tokens => tokens.iter().take(scenario.service.tenants.max(1)).cloned().map(Some).collect(),
    };
    let mut tenants = Vec::new();
    for (nth, token) in tokens.into_iter().enumerate() {
        let urls = endpoints.urls.clone();
        let tenant = Tenant::register(Arc::clone(&pool), http.clone(), urls, token).await?;
        let data = scenario.data;
        let shape = ContextShape { chunks: data.chunks.max(1), tokens: data.tokens, bytes: data.bytes };
        let contexts = data.objects.div_ceil(shape.chunks);
        let (root, model_id) = (tenant.root, tenant.model_id);
        stream::iter(0..contexts)
            .map(|context| {
                let (pool, tenant) = (Arc::clone(&pool), &tenant);
                let id = (nth as u64) << 40 | (context * shape.chunks) as u64;
                async move {
                    for (known, object) in pool.context(model_id, root, id, shape)? {
                        let stored = tenant.store(known.clone(), object.into()).await;
                        stored.map_err(|failure| anyhow!("storing the data: {}", failure.cause))?;
                        if data.warm {
                            let read = tenant.read(&known, None, None).await;
                            read.map_err(|failure| anyhow!("reading the data: {}", failure.cause))?;
                        }
                    }
                    anyhow::Ok(())
                }
            })
            .buffer_unordered(PREPARED_AT_ONCE)
            .try_collect::<()>()
            .await?;
        tenants.push(Arc::new(tenant));
    }
    Ok(tenants)
}

/// All clients, with their requests and times.
async fn callers(
    common: &CommonArguments,
    scenario: &Scenario,
    endpoints: &Endpoints,
    tenants: &[Arc<Tenant>],
    figures: &mut BTreeMap<String, f64>,
) -> Result<(Vec<(String, Callers)>, Vec<Replay>)> {
    let (mut all, mut replays) = (Vec::new(), Vec::new());
    for (nth, load) in scenario.load.iter().enumerate() {
        let seed = scenario.seed.wrapping_mul(1_000).wrapping_add(nth as u64);
        let made = requests::of_load(common, scenario, load, endpoints, tenants, seed).await?;
        let mut peak = 0.0;
        if let Arrivals::ShareOfPeak(_) | Arrivals::EvenShareOfPeak(_) = load.arrivals {
            open_loop::peak(&made.request, load.at_once, PEAK_SECONDS.min(scenario.seconds) / 2.0).await;
            let (rate, failures) =
                open_loop::peak(&made.request, load.at_once, PEAK_SECONDS.min(scenario.seconds)).await;
            ensure!(failures.is_empty(), "{}: {:?} while looking for the peak", load.name, failures.first());
            figures.insert(format!("{}.peak_per_s", load.name), rate);
            peak = rate;
        }
        let due = match made.due {
            Some(due) => due,
            None => load.arrivals.moments(scenario.seconds - load.from_second, seed, peak),
        };
        if peak > 0.0 {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let (p50, p99) = arrivals::ideal(&due, cores, peak);
            figures.insert(format!("{}.ideal_p99_over_p50", load.name), p99 / p50);
        }
        replays.extend(made.replay);
        all.push((load.name.clone(), caller(load, made.request, due)));
    }
    Ok((all, replays))
}

fn caller(load: &LoadSpec, request: RequestFn, due: Vec<Duration>) -> Callers {
    let from = Duration::from_secs_f64(load.from_second);
    Callers {
        request,
        due: due.into_iter().map(|due| due + from).collect(),
        at_once: load.at_once,
        patience: Duration::from_secs_f64(load.patience_seconds),
        recorder: Arc::new(Recorder::default()),
    }
}
