//! The service beside others, in one run: the same bytes, the same two cores, the same client, every byte compared.

mod client;
mod servers;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use self::{
    client::{Measured, measure},
    servers::Target,
};
use crate::{
    Common,
    objects::{Known, Pool, Shape},
    proc::{self, Machine},
};

/// The service beside nginx, MinIO and Redis: throughput, latency, CPU and memory for values of 4 to 32 MB.
#[derive(Debug, Args)]
pub(crate) struct PeersArguments {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Bytes of a value, in MB.
    #[arg(long, value_delimiter = ',', default_value = "4,8,16,32")]
    sizes: Vec<usize>,
    /// Values of each size.
    #[arg(long, default_value_t = 8)]
    values: usize,
    /// Connections that ask at once, each for the next when it has one.
    #[arg(long, default_value_t = 2)]
    connections: usize,
    /// Seconds of one measurement.
    #[arg(long, default_value_t = 1.5)]
    seconds: f64,
    /// Measurements of each; the servers take turns, and medians count.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The nginx binary.
    #[arg(long, default_value = "/usr/sbin/nginx")]
    pub(crate) nginx: PathBuf,
    /// The MinIO binary; by default the one that `tests/servers/minio install` builds.
    #[arg(long)]
    pub(crate) minio: Option<PathBuf>,
    /// The redis-server binary; `load-tests/peers/redis FOLDER` unpacks one.
    #[arg(long, default_value = "redis-server")]
    pub(crate) redis: PathBuf,
}

/// One server at one size: medians over the rounds.
#[derive(Debug, Clone, Serialize)]
struct Row {
    server: String,
    megabytes: usize,
    gb_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// CPU seconds of the server's processes, children included, per 10^9 bytes served.
    cpu_s_per_gb: f64,
    /// And the other way round: what one core of the server could serve.
    gb_per_cpu_s: f64,
    resident_mib: f64,
    rounds: Vec<Measured>,
}

/// What one server came to beside another: medians of the rounds' quotients.
#[derive(Debug, Clone, Serialize)]
struct Quotient {
    of: String,
    to: String,
    megabytes: usize,
    gb_per_cpu_s: f64,
    gb_per_s: f64,
    wanted: f64,
    held: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct Comparison {
    what: &'static str,
    machine: Machine,
    seed: u64,
    connections: usize,
    seconds: f64,
    rows: Vec<Row>,
    quotients: Vec<Quotient>,
    skipped: BTreeMap<String, String>,
}

const SEED: u64 = 1;
/// What the service has to reach beside each, in bytes per CPU second.
const WANTED: [(&str, f64); 2] = [("nginx", 0.8), ("redis", 1.0)];

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Measures all of them.
pub(crate) async fn compare(arguments: &PeersArguments) -> Result<Comparison> {
    let machine = proc::machine();
    let pool = Pool::new(SEED);
    let (mut rows, mut quotients, mut skipped) = (Vec::new(), Vec::new(), BTreeMap::new());
    for &megabytes in &arguments.sizes {
        let shape = Shape { chunks: 1, tokens: 1536, bytes: megabytes * 1_000_000 };
        let targets = servers::all(arguments, &pool, shape, arguments.values, &mut skipped).await?;
        let mut rounds: Vec<Vec<Measured>> = vec![Vec::new(); targets.len()];
        for round in 0..=arguments.rounds {
            for (target, measured) in targets.iter().zip(&mut rounds) {
                let one = one(target, &pool, arguments).await?;
                // The first warms caches, connections and the processor.
                if round > 0 {
                    measured.push(one);
                }
            }
        }
        for (of, to, wanted) in WANTED.iter().map(|(to, wanted)| ("kvasir", *to, *wanted)) {
            let at = |name: &str| targets.iter().position(|target| target.name == name);
            if let (Some(a), Some(b)) = (at(of), at(to)) {
                quotients.push(quotient((of, &rounds[a]), (to, &rounds[b]), megabytes, wanted));
            }
        }
        rows.extend(targets.iter().zip(rounds).map(|(target, rounds)| row(&target.name, megabytes, rounds)));
    }
    Ok(Comparison {
        what: "GET of whole values, closed loop, every byte compared by the client",
        machine,
        seed: SEED,
        connections: arguments.connections,
        seconds: arguments.seconds,
        rows,
        quotients,
        skipped,
    })
}

async fn one(target: &Target, pool: &std::sync::Arc<Pool>, arguments: &PeersArguments) -> Result<Measured> {
    let values: Vec<(Vec<u8>, Known)> =
        target.requests.iter().cloned().zip(target.values.iter().cloned()).collect();
    let seconds = Duration::from_secs_f64(arguments.seconds);
    let (protocol, address, id) = (target.protocol, target.address, target.id);
    let (pool, connections) = (std::sync::Arc::clone(pool), arguments.connections);
    tokio::task::spawn_blocking(move || measure(&pool, address, protocol, &values, id, connections, seconds))
        .await?
}

fn row(server: &str, megabytes: usize, rounds: Vec<Measured>) -> Row {
    let of = |value: fn(&Measured) -> f64| median(rounds.iter().map(value));
    Row {
        server: server.to_owned(),
        megabytes,
        gb_per_s: of(|m| m.gb_per_s),
        p50_ms: of(|m| m.p50_ms),
        p99_ms: of(|m| m.p99_ms),
        cpu_s_per_gb: of(|m| m.cpu_s_per_gb),
        gb_per_cpu_s: of(|m| m.cpu_s_per_gb.recip()),
        resident_mib: of(|m| m.resident_mib),
        rounds,
    }
}

fn quotient(of: (&str, &[Measured]), to: (&str, &[Measured]), megabytes: usize, wanted: f64) -> Quotient {
    let pairs = || of.1.iter().zip(to.1);
    let gb_per_cpu_s = median(pairs().map(|(a, b)| b.cpu_s_per_gb / a.cpu_s_per_gb));
    Quotient {
        of: of.0.to_owned(),
        to: to.0.to_owned(),
        megabytes,
        gb_per_cpu_s,
        gb_per_s: median(pairs().map(|(a, b)| a.gb_per_s / b.gb_per_s)),
        wanted,
        held: gb_per_cpu_s >= wanted,
    }
}

impl Comparison {
    /// The table, as text.
    pub(crate) fn lines(&self) -> String {
        let mut text = format!(
            "{:<8} {:>4} {:>8} {:>8} {:>8} {:>10} {:>8}\n",
            "server", "MB", "GB/s", "p50 ms", "p99 ms", "CPU s/GB", "RSS MiB"
        );
        for row in &self.rows {
            text += &format!(
                "{:<8} {:>4} {:>8.2} {:>8.2} {:>8.2} {:>10.3} {:>8.0}\n",
                row.server,
                row.megabytes,
                row.gb_per_s,
                row.p50_ms,
                row.p99_ms,
                row.cpu_s_per_gb,
                row.resident_mib
            );
        }
        for q in &self.quotients {
            let mark = if q.held { "ok  " } else { "FAIL" };
            text += &format!(
                "{mark} {} / {} at {} MB: {:.2} in GB per CPU second (wanted {}), {:.2} in GB/s\n",
                q.of, q.to, q.megabytes, q.gb_per_cpu_s, q.wanted, q.gb_per_s
            );
        }
        for (name, reason) in &self.skipped {
            text += &format!("SKIPPED {name}: {reason}\n");
        }
        text.trim_end().to_owned()
    }

    /// The table, as a page.
    pub(crate) fn html(&self) -> String {
        let machine = serde_json::to_string(&self.machine).unwrap_or_default();
        let body = format!(
            "<p>{}</p><p>{}</p><pre>{}</pre>",
            self.what,
            crate::svg::escape(&machine),
            crate::svg::escape(&self.lines())
        );
        crate::report::page("Peers", &body)
    }

    /// Whether every target held.
    pub(crate) fn passed(&self) -> bool {
        self.quotients.iter().all(|quotient| quotient.held)
    }
}
