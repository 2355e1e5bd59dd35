//! 1, 2, 4 replicas, each in a network namespace with a separate link, over one S3 server.

use std::{net::SocketAddr, path::PathBuf, process::Command, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use kvasir_plot::{Bar, Bars, Guide, Page, Place, number};
use kvasir_tests::{
    process::{Process, Start},
    s3::S3Server,
};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::{
    arguments::CommonArguments,
    cluster,
    process::{
        ChildProcess,
        usage::{self, Machine},
    },
    report,
    traffic::{
        arrivals::Arrivals,
        objects::{ContextShape, Pool},
        open_loop::{self, Callers, RequestFn},
        record::{Failure, Recorder, Summary},
        tenant::{Tenant, http_client},
    },
};

/// 1, 2, 4 replicas in network namespaces over one S3 server. Needs root.
#[derive(Debug, Args)]
pub(crate) struct ScaleArguments {
    #[command(flatten)]
    pub(crate) common: CommonArguments,
    /// How many replicas, in turn.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4")]
    replicas: Vec<usize>,
    /// Bandwidth of each replica's link, in Mb/s: little enough that two cores can fill all of them.
    #[arg(long, default_value_t = 400)]
    link_mbps: u64,
    /// Objects that are read.
    #[arg(long, default_value_t = 64)]
    objects: usize,
    /// Bytes of each.
    #[arg(long, default_value_t = 1_000_000)]
    bytes: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
}

/// So many replicas.
#[derive(Debug, Serialize, Deserialize)]
struct ReplicaCount {
    replicas: usize,
    /// A closed loop over objects that are hot, each on the replica that rendezvous hashing prefers.
    mb_per_s: f64,
    times_one: f64,
    /// Objects stored through one replica and immediately requested from each other one: how many were not
    /// found.
    cold_lookups: u64,
    cold_lookups_missed: u64,
    /// Requests to the store per second without load, by all replicas together: the cost of the journal.
    idle_store_requests_per_s: f64,
    /// An open loop at half of that, with a replica killed in the middle; none for a single one.
    with_a_replica_lost: Option<ReplicaLoss>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ReplicaLoss {
    killed_at_s: f64,
    /// As clients see it: they try the next replica if one does not respond.
    summary: Summary,
    acknowledged: u64,
    not_found_afterwards: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Scaling {
    what: String,
    machine: Machine,
    link_mbps: u64,
    seed: u64,
    pub(crate) skipped: Option<String>,
    rows: Vec<ReplicaCount>,
}

const SEED: u64 = 1;
const PORT: u16 = 7480;

fn ip(arguments: &str) -> Result<()> {
    let output = Command::new("ip").args(arguments.split(' ')).output().context("no `ip` (iproute2)")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`ip {arguments}`: {}", error.trim());
    Ok(())
}

/// A bridge in this namespace, and one namespace per replica behind it. Removed on drop.
struct BridgedNetwork {
    bridge: String,
    names: Vec<String>,
}

impl BridgedNetwork {
    const BRIDGE: [u8; 4] = [10, 232, 77, 254];

    fn make(replicas: usize, link_mbps: u64) -> Result<Self> {
        let id = std::process::id();
        let mut made = Self { bridge: format!("kvb{id}"), names: Vec::new() };
        let bridge = made.bridge.clone();
        ip(&format!("link add {bridge} type bridge"))?;
        ip(&format!("addr add {}/24 dev {bridge}", std::net::Ipv4Addr::from(Self::BRIDGE)))?;
        ip(&format!("link set {bridge} up"))?;
        for nth in 0..replicas {
            let name = format!("kvr{id}-{nth}");
            made.names.push(name.clone());
            ip(&format!("netns add {name}"))?;
            ip(&format!("link add kv{id}-{nth} type veth peer name wire netns {name}"))?;
            ip(&format!("link set kv{id}-{nth} master {bridge}"))?;
            ip(&format!("link set kv{id}-{nth} up"))?;
            ip(&format!("-n {name} addr add {}/24 dev wire", Self::address(nth).ip()))?;
            ip(&format!("-n {name} link set wire up"))?;
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!(
                "netns exec {name} tc qdisc replace dev wire root tbf rate {link_mbps}mbit burst 256kb latency 100ms"
            ))?;
        }
        Ok(made)
    }

    fn address(nth: usize) -> SocketAddr {
        let [a, b, c, _] = Self::BRIDGE;
        SocketAddr::from(([a, b, c, nth as u8 + 1], PORT))
    }
}

impl Drop for BridgedNetwork {
    fn drop(&mut self) {
        for name in &self.names {
            // May not exist if creating it failed.
            let _ = ip(&format!("netns del {name}"));
        }
        let _ = ip(&format!("link del {}", self.bridge));
    }
}

/// Replicas that run.
struct ReplicaGroup {
    processes: Vec<Option<Process>>,
    tenant: Arc<Tenant>,
    shape: ContextShape,
    _server: ChildProcess,
    _directory: TempDir,
}

async fn group(arguments: &ScaleArguments, network: &BridgedNetwork) -> Result<ReplicaGroup> {
    let directory = TempDir::new()?;
    let s3 = SocketAddr::from((BridgedNetwork::BRIDGE, PORT));
    let server = cluster::s3_server(s3).await?;
    let store = S3Server::config_at(s3, "scale");
    let mut processes = Vec::new();
    for (nth, name) in network.names.iter().enumerate() {
        let cache: PathBuf = directory.path().join(name);
        let program = std::path::absolute(&arguments.common.kvasir)?;
        ensure!(program.exists(), "{} does not exist", program.display());
        let program = program.to_string_lossy().into_owned();
        let mut start = Start::new(&program, &store, &cache);
        start.under = ["ip", "netns", "exec", name.as_str()].map(str::to_owned).into();
        start.listen = BridgedNetwork::address(nth).to_string();
        start.flags = vec!["--server.allow_unauthenticated=true".into(), "--hot.memory=256MiB".into()];
        start.flags.extend(arguments.common.settings.iter().map(|setting| format!("--{setting}")));
        let process = start.start().await;
        process.ready().await;
        processes.push(Some(process));
    }
    let urls = (0..processes.len()).map(|nth| format!("http://{}", BridgedNetwork::address(nth))).collect();
    let tenant = Tenant::register(Pool::new(SEED), http_client()?, urls, None).await?;
    let shape = ContextShape { chunks: 1, tokens: 1536, bytes: arguments.bytes };
    Ok(ReplicaGroup { processes, tenant: Arc::new(tenant), shape, _server: server, _directory: directory })
}

fn failed(failure: Failure) -> anyhow::Error {
    anyhow::anyhow!(failure.cause)
}

impl ReplicaGroup {
    async fn fill(&self, objects: usize) -> Result<()> {
        for id in 0..objects as u64 {
            self.store(id).await?;
            let known = self.tenant.known(1.0).context("one was stored")?;
            self.tenant.read(&known, None, None).await.map_err(failed)?;
        }
        Ok(())
    }

    async fn store(&self, id: u64) -> Result<()> {
        let tenant = &self.tenant;
        for (known, object) in tenant.pool.context(tenant.model_id, tenant.root, id, self.shape)? {
            tenant.store(known, object.into()).await.map_err(failed)?;
        }
        Ok(())
    }

    /// New chunks, requested from every replica right after their acknowledgement.
    async fn cold_lookups(&self) -> Result<(u64, u64)> {
        let (mut asked, mut missed) = (0, 0);
        for id in 0..20u64 {
            self.store(1 << 32 | id).await?;
            let known = self.tenant.known(1.0).context("one was stored")?;
            for replica in 0..self.processes.len() {
                asked += 1;
                missed += u64::from(self.tenant.lookup(replica, &known, false).await.is_err());
            }
        }
        Ok((asked, missed))
    }

    /// Requests to the store so far, of all replicas.
    async fn store_requests(&self) -> f64 {
        let mut sum = 0.0;
        for process in self.processes.iter().flatten() {
            let metrics = process.metrics().await;
            let lines = metrics.lines().filter(|line| line.starts_with("kvasir_store_requests_total"));
            sum += lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>();
        }
        sum
    }

    fn reads(&self) -> RequestFn {
        let tenant = Arc::clone(&self.tenant);
        Arc::new(move |number| {
            let tenant = Arc::clone(&tenant);
            Box::pin(async move {
                let share = (number as f64 * 0.618_033_988).fract();
                let known = tenant.known(share).ok_or_else(|| Failure::new("nothing is stored"))?;
                tenant.read(&known, None, None).await
            })
        })
    }

    async fn lose_one(&mut self, rate: f64, seconds: f64) -> ReplicaLoss {
        let recorder = Arc::new(Recorder::default());
        let callers = Callers {
            request: self.reads(),
            due: Arrivals::Poisson(rate).moments(seconds, SEED, 0.0),
            at_once: 64,
            patience: Duration::from_secs(30),
            recorder: Arc::clone(&recorder),
        };
        let begun = Instant::now();
        let running = tokio::spawn(callers.run(begun));
        tokio::time::sleep(Duration::from_secs_f64(seconds / 2.0)).await;
        let killed_at_s = begun.elapsed().as_secs_f64();
        if let Some(process) = self.processes[0].take() {
            process.kill();
        }
        // A panic of a caller shows as requests that are missing.
        let _ = running.await;
        let mut not_found_afterwards = 0;
        let count = self.tenant.count();
        for i in 0..count {
            let Some(known) = self.tenant.known(i as f64 / count as f64) else { continue };
            let last = self.processes.len() - 1;
            not_found_afterwards += u64::from(self.tenant.lookup(last, &known, true).await.is_err());
        }
        ReplicaLoss {
            killed_at_s,
            summary: recorder.summary(),
            acknowledged: count as u64,
            not_found_afterwards,
        }
    }
}

async fn row(arguments: &ScaleArguments, replicas: usize, one: Option<f64>) -> Result<ReplicaCount> {
    let network = BridgedNetwork::make(replicas, arguments.link_mbps)?;
    let mut group = group(arguments, &network).await?;
    group.fill(arguments.objects).await?;
    let request = group.reads();
    let at_once = 4 * replicas;
    open_loop::peak(&request, at_once, 2.0).await;
    let (rate, failures) = open_loop::peak(&request, at_once, arguments.seconds).await;
    ensure!(failures.is_empty(), "reads fail: {:?}", failures.first());
    let mb_per_s = rate * arguments.bytes as f64 / 1e6;
    let (cold_lookups, cold_lookups_missed) = group.cold_lookups().await?;
    let (before, begun) = (group.store_requests().await, Instant::now());
    tokio::time::sleep(Duration::from_secs_f64(arguments.seconds)).await;
    let idle = (group.store_requests().await - before) / begun.elapsed().as_secs_f64();
    let with_a_replica_lost =
        if replicas > 1 { Some(group.lose_one(rate / 2.0, arguments.seconds).await) } else { None };
    Ok(ReplicaCount {
        replicas,
        mb_per_s,
        times_one: one.map_or(1.0, |one| mb_per_s / one),
        cold_lookups,
        cold_lookups_missed,
        idle_store_requests_per_s: idle,
        with_a_replica_lost,
    })
}

/// Measures all sizes; if namespaces cannot be created, the result says why.
pub(crate) async fn scale(arguments: &ScaleArguments) -> Result<Scaling> {
    let mut scaling = Scaling {
        what:
            "replicas in network namespaces with a shaped link each, over one S3 server; objects that are hot"
                .into(),
        machine: usage::machine(),
        link_mbps: arguments.link_mbps,
        seed: SEED,
        skipped: BridgedNetwork::make(1, arguments.link_mbps).err().map(|error| format!("{error:#}")),
        rows: Vec::new(),
    };
    if scaling.skipped.is_none() {
        for &replicas in &arguments.replicas {
            let one = scaling.rows.first().map(|row| row.mb_per_s);
            scaling.rows.push(Box::pin(row(arguments, replicas, one)).await?);
        }
    }
    Ok(scaling)
}

impl Scaling {
    /// The table, as text.
    pub(crate) fn lines(&self) -> String {
        if let Some(reason) = &self.skipped {
            return format!("SKIPPED: {reason}");
        }
        let mut text = format!("links of {} Mb/s\n", self.link_mbps);
        for row in &self.rows {
            text += &format!(
                "{} replicas: {:.1} MB/s, {:.2} times one; {} of {} lookups of objects just stored by another replica missed; {:.1} store requests/s when idle\n",
                row.replicas,
                row.mb_per_s,
                row.times_one,
                row.cold_lookups_missed,
                row.cold_lookups,
                row.idle_store_requests_per_s
            );
            if let Some(lost) = &row.with_a_replica_lost {
                let s = &lost.summary;
                text += &format!(
                    "  one killed at {:.1} s: {} of {} reads failed, {} went to another replica, {} wrong; {} of {} objects not found afterwards; p99 {:.1} ms\n",
                    lost.killed_at_s,
                    s.failed,
                    s.requests,
                    s.tried_again,
                    s.wrong,
                    lost.not_found_afterwards,
                    lost.acknowledged,
                    s.latency_ms["p99"]
                );
            }
        }
        text.trim_end().to_owned()
    }

    /// The page of the measurement.
    pub(crate) fn page(&self) -> String {
        let mut page = Page::new("Scale-out", &self.what);
        page.paragraph(&report::machine(&self.machine));
        page.paragraph(&format!("Links of {} Mb/s, seed {}.", self.link_mbps, self.seed));
        if let Some(reason) = &self.skipped {
            page.paragraph(&format!("Skipped: {reason}"));
            return page.finish(report::FOOTER);
        }
        let bar = |row: &ReplicaCount| Bar {
            label: format!("{} replicas", row.replicas),
            value: row.mb_per_s,
            text: format!("{} MB/s, {} times one", number(row.mb_per_s), number(row.times_one)),
            ours: true,
        };
        let description = "Bytes per second of hot objects, closed loop".to_owned();
        let bars = self.rows.iter().map(bar).collect();
        page.drawing(&Bars { description: description.clone(), bars, limit: None }.to_svg(), &description);
        let columns = ["replicas", "MB/s", "times one", "lookups missed", "of", "idle store requests/s"];
        let row = |row: &ReplicaCount| {
            vec![
                row.replicas.to_string(),
                number(row.mb_per_s),
                number(row.times_one),
                row.cold_lookups_missed.to_string(),
                row.cold_lookups.to_string(),
                number(row.idle_store_requests_per_s),
            ]
        };
        page.table(&report::table(&columns, self.rows.iter().map(row)));
        let losses = self.rows.iter().filter_map(|row| Some((row, row.with_a_replica_lost.as_ref()?)));
        for (row, loss) in losses {
            page.heading(&format!("One of {} replicas killed", row.replicas));
            page.paragraph(&format!(
                "{} of {} reads failed, {} went to another replica, {} wrong; {} of {} objects not found afterwards.",
                loss.summary.failed,
                loss.summary.requests,
                loss.summary.tried_again,
                loss.summary.wrong,
                loss.not_found_afterwards,
                loss.acknowledged
            ));
            let guides = vec![Guide { at: Place::X(loss.killed_at_s), label: "killed".into() }];
            let loads = [("reads", &loss.summary)];
            page.drawing(&report::p99_plot(&loads, guides).to_svg(), "Slowest per cent of each second.");
        }
        page.finish(report::FOOTER)
    }

    /// Whether nothing was lost, wrong, or not found.
    pub(crate) fn passed(&self) -> bool {
        let lost = |lost: &ReplicaLoss| {
            lost.not_found_afterwards == 0 && lost.summary.wrong == 0 && lost.summary.failed == 0
        };
        self.rows
            .iter()
            .all(|row| row.cold_lookups_missed == 0 && row.with_a_replica_lost.as_ref().is_none_or(lost))
    }
}
