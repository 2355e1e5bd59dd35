//! Runs a scenario: starts the processes, stores what is to be there, lets requests arrive and faults happen, and reads all
//! that was acknowledged once more.

use std::{
    collections::BTreeMap,
    sync::{Arc, RwLock},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kvasir_api::{NamespaceRequest, NamespaceResponse, routes};
use kvasir_tests::chunks;
use kvasir_types::ProfileHash;
use reqwest::Method;
use tokio::{task::JoinSet, time::Instant};

use crate::{
    Common, RunArguments,
    arrivals::{self, Arrivals},
    calls::Tenant,
    drive::{self, Callers},
    faults,
    objects::{Pool, Shape},
    outcome::{self, Outcome, Sample, Truth},
    proc,
    record::Recorder,
    remote::Site,
    replay::Replay,
    requests, rows,
    scenario::{LoadSpec, Scenario},
    truth,
    world::World,
};

/// Uploads at once before a run.
const PREPARED_AT_ONCE: usize = 4;
/// Seconds of the closed loop that finds the peak, and of the one that warms up before it.
const PEAK_SECONDS: f64 = 4.0;
/// Between two looks at the processes.
const SAMPLE_PAUSE: Duration = Duration::from_secs(1);

/// Runs it and gives its outcome; a scenario that something is missing for is skipped, and says why.
pub(crate) async fn run(arguments: &RunArguments, scenario: &Scenario) -> Result<Outcome> {
    let (common, smoke) = (&arguments.common, arguments.smoke);
    let machine = proc::machine();
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
        gates: Vec::new(),
        loads: BTreeMap::new(),
        truth: Truth::default(),
        faults: Vec::new(),
        traces: Vec::new(),
        samples: Vec::new(),
        specification: scenario.clone(),
    };
    let running = arguments.remote.site()?;
    if let Some(reason) = running.as_ref().and_then(|site| site.lacks(scenario)) {
        outcome.skipped = Some(reason);
        return Ok(outcome);
    }
    let mut world = match &running {
        Some(_) => None,
        None => match Box::pin(World::start(common, &scenario.service, jumps)).await {
            Ok(world) => Some(world),
            Err(error) if scenario.service.disk_mib > 0 || jumps => {
                outcome.skipped = Some(format!("{error:#}"));
                return Ok(outcome);
            }
            Err(error) => return Err(error),
        },
    };
    outcome.store = match &world {
        Some(world) => world.store_name.clone(),
        None => "that of a running service, whose processes and settings are not seen".into(),
    };
    let site = running.or_else(|| world.as_ref().map(World::site)).context("a service")?;
    let tenants = Box::pin(prepare(&site, scenario)).await?;
    if let Some(world) = world.as_mut().filter(|_| scenario.data.rows > 0) {
        world.kill(0);
        rows::insert(world, &tenants[0], scenario.data.rows)?;
        world.start_replica(0).await?;
    }
    let (callers, replays) =
        Box::pin(callers(common, scenario, &site, &tenants, &mut outcome.figures)).await?;
    let recorders: BTreeMap<String, Arc<Recorder>> =
        callers.iter().map(|(name, callers)| (name.clone(), Arc::clone(&callers.recorder))).collect();
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    callers.into_iter().for_each(|(_, callers)| _ = tasks.spawn(callers.run(begun)));
    let mut samples = Vec::new();
    outcome.faults = {
        let ids = world.as_ref().map(World::ids).unwrap_or_default();
        let replicas = world.iter().flat_map(|world| &world.replicas);
        let caches: Vec<_> = replicas.map(|replica| replica.cache.clone()).collect();
        let watching = watch(&ids, &caches, begun, &mut samples);
        let happening = async {
            let happened = match &mut world {
                Some(world) => faults::happen(&scenario.fault, world, begun).await,
                None => Ok(Vec::new()),
            };
            while tasks.join_next().await.is_some() {}
            happened
        };
        tokio::select! { happened = happening => happened?, () = watching => unreachable!("it watches for ever") }
    };
    outcome.truth = Box::pin(truth::of(&tenants)).await;
    for replay in &replays {
        replay.check(&mut outcome.truth).await;
    }
    outcome.loads = recorders.iter().map(|(name, recorder)| (name.clone(), recorder.summary())).collect();
    let figures =
        outcome::figures(&outcome.loads, &outcome.truth, &outcome.faults, &samples, scenario.seconds);
    outcome.figures.extend(figures);
    for replay in replays {
        outcome.figures.extend(replay.figures());
        outcome.traces.push(replay.facts);
    }
    let mut bounds = [scenario.gates.clone(), scenario.slo.clone()];
    if world.is_none() {
        outcome.figures.retain(|name, _| !name.starts_with("service."));
        bounds.iter_mut().for_each(|bounds| bounds.retain(|name, _| !name.starts_with("service.")));
    }
    outcome.gates = outcome::gates(&outcome.figures, &bounds, smoke);
    outcome.samples = samples;
    Ok(outcome)
}

/// Looks at the processes for ever. A replica that is started anew during a run is another process and not seen here.
async fn watch(ids: &[u32], caches: &[std::path::PathBuf], begun: Instant, samples: &mut Vec<Sample>) {
    let mut ticks = tokio::time::interval(SAMPLE_PAUSE);
    loop {
        ticks.tick().await;
        let usage = proc::usage_of(ids);
        let cache: u64 = caches.iter().map(|path| proc::folder_bytes(path)).sum();
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
async fn prepare(site: &Site, scenario: &Scenario) -> Result<Vec<Arc<Tenant>>> {
    let pool = Pool::new(scenario.seed);
    let http = requests::http_client()?;
    let tokens: Vec<Option<String>> = match site.tokens.as_slice() {
        [] => vec![None],
        tokens => tokens.iter().take(scenario.service.tenants.max(1)).cloned().map(Some).collect(),
    };
    let mut tenants = Vec::new();
    for (nth, token) in tokens.into_iter().enumerate() {
        let tenant = tenant(Arc::clone(&pool), http.clone(), site.urls.clone(), token).await?;
        let data = scenario.data;
        let shape = Shape { chunks: data.chunks.max(1), tokens: data.tokens, bytes: data.bytes };
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

/// A tenant with the synthetic model and its profile.
pub(crate) async fn tenant(
    pool: Arc<Pool>,
    http: reqwest::Client,
    replicas: Vec<String>,
    token: Option<String>,
) -> Result<Tenant> {
    let spec = chunks::spec();
    let model_id = spec.model_id();
    let root = kvasir_types::RootHash::from([0; 32]);
    let mut tenant = Tenant { pool, http, replicas, token, model_id, root, book: RwLock::default() };
    let json = |value: serde_json::Result<Vec<u8>>| value.context("serialises");
    let send = async |method: Method, path: &str, body: Vec<u8>| {
        let response = tenant.request(0, method, path).body(body).send().await?;
        ensure!(response.status().is_success(), "{path}: {}", response.status());
        anyhow::Ok(response)
    };
    send(Method::POST, routes::MODELS, json(serde_json::to_vec(&spec))?).await?;
    let profile = routes::profile(&model_id, &ProfileHash::of(chunks::PROFILE));
    send(Method::PUT, &profile, chunks::PROFILE.to_vec()).await?;
    let request = NamespaceRequest { namespace: "n".parse()?, model_id };
    let answer = send(Method::POST, routes::NAMESPACES, json(serde_json::to_vec(&request))?).await?;
    let NamespaceResponse { root } = answer.json().await?;
    tenant.root = root;
    Ok(tenant)
}

/// Everyone who asks, with what they ask for and when.
async fn callers(
    common: &Common,
    scenario: &Scenario,
    site: &Site,
    tenants: &[Arc<Tenant>],
    figures: &mut BTreeMap<String, f64>,
) -> Result<(Vec<(String, Callers)>, Vec<Replay>)> {
    let (mut all, mut replays) = (Vec::new(), Vec::new());
    for (nth, load) in scenario.load.iter().enumerate() {
        let seed = scenario.seed.wrapping_mul(1_000).wrapping_add(nth as u64);
        let made = requests::of(common, scenario, load, site, tenants, seed).await?;
        let mut peak = 0.0;
        if let Arrivals::ShareOfPeak(_) | Arrivals::EvenShareOfPeak(_) = load.arrivals {
            drive::peak(&made.request, load.at_once, PEAK_SECONDS.min(scenario.seconds) / 2.0).await;
            let (rate, failures) =
                drive::peak(&made.request, load.at_once, PEAK_SECONDS.min(scenario.seconds)).await;
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

fn caller(load: &LoadSpec, request: drive::Request, due: Vec<Duration>) -> Callers {
    let from = Duration::from_secs_f64(load.from_second);
    Callers {
        request,
        due: due.into_iter().map(|due| due + from).collect(),
        at_once: load.at_once,
        patience: Duration::from_secs_f64(load.patience_seconds),
        recorder: Arc::new(Recorder::default()),
    }
}
