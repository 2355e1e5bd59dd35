//! A scenario: stored data, clients and their requests, faults, and bounds.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use super::fault::FaultSpec;
use crate::{replay::trace::TraceSpec, traffic::arrivals::Arrivals};

/// One file of `scenarios/`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    /// Short name; that of the result files.
    pub(crate) name: String,
    /// Its purpose, in a sentence or two.
    pub(crate) about: String,
    /// How long requests arrive.
    pub(crate) seconds: f64,
    /// Seed of everything random.
    #[serde(default = "one")]
    pub(crate) seed: u64,
    /// The service.
    #[serde(default)]
    pub(crate) service: ServiceSpec,
    /// The data stored before requests arrive.
    #[serde(default)]
    pub(crate) data: DataSpec,
    /// The clients.
    pub(crate) load: Vec<LoadSpec>,
    /// The faults.
    #[serde(default)]
    pub(crate) fault: Vec<FaultSpec>,
    /// Bounds at any size, by the name of a figure.
    #[serde(default)]
    pub(crate) gates: BTreeMap<String, Bound>,
    /// Bounds at full size: times, which are not meaningful on a busy machine.
    #[serde(default)]
    pub(crate) slo: BTreeMap<String, Bound>,
    /// The size for CI.
    pub(crate) smoke: SmokeSpec,
}

/// The processes.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ServiceSpec {
    /// How many replicas.
    pub(crate) replicas: usize,
    /// `file`, or `s3`: the server that `tests/servers/run` started, else the tests' own.
    pub(crate) store: String,
    /// Settings, as `section.key=value`.
    pub(crate) settings: Vec<String>,
    /// Tenants with separate tokens; 0: the service requires no credentials.
    pub(crate) tenants: usize,
    /// Lines of `[tenant.t0]`: quotas of the first one.
    pub(crate) quota: Vec<String>,
    /// The link to the store if it is s3: every request waits this many milliseconds, ...
    pub(crate) link_delay_ms: f64,
    /// ... and all bytes share this many Mb/s; 0: no bound.
    pub(crate) link_mbps: f64,
    /// Size of a separate disk for `cache.directory`, in MiB; 0: the usual disk. Needs root.
    pub(crate) disk_mib: u64,
}

impl Default for ServiceSpec {
    fn default() -> Self {
        Self {
            replicas: 1,
            store: "s3".into(),
            settings: Vec::new(),
            tenants: 0,
            quota: Vec::new(),
            link_delay_ms: 0.0,
            link_mbps: 0.0,
            disk_mib: 0,
        }
    }
}

/// Objects stored at the start, for each tenant.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DataSpec {
    /// Chunk objects.
    pub(crate) objects: usize,
    /// Bytes of each, about.
    pub(crate) bytes: usize,
    /// Chunks of a context.
    pub(crate) chunks: usize,
    /// Tokens per chunk.
    pub(crate) tokens: usize,
    /// Whether everything is read once before requests arrive, so that the hot tier has it.
    pub(crate) warm: bool,
    /// Rows of the hot index for chunks that are not in the store, so that an index can be large.
    pub(crate) rows: usize,
}

impl Default for DataSpec {
    fn default() -> Self {
        Self { objects: 0, bytes: 1 << 20, chunks: 1, tokens: 1536, warm: false, rows: 0 }
    }
}

/// One kind of caller.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoadSpec {
    /// Its name in figures.
    pub(crate) name: String,
    /// The kind of request.
    pub(crate) op: Op,
    /// When they arrive.
    pub(crate) arrivals: Arrivals,
    /// Concurrent requests; more wait, and their waiting time counts.
    #[serde(default = "at_once")]
    pub(crate) at_once: usize,
    /// Bytes of a ranged read; whole objects when absent.
    #[serde(default)]
    pub(crate) range_bytes: Option<u64>,
    /// Bytes of a stored object.
    #[serde(default = "mebibyte")]
    pub(crate) bytes: usize,
    /// Tokens of a stored object.
    #[serde(default = "chunk_tokens")]
    pub(crate) tokens: usize,
    /// Which objects: all equally likely, or earlier ones more likely.
    #[serde(default)]
    pub(crate) popularity: Popularity,
    /// Only objects stored before the run, not those stored during it: new objects are not hot yet.
    #[serde(default)]
    pub(crate) of_data: bool,
    /// Bytes per second that a slow reader accepts.
    #[serde(default)]
    pub(crate) reads_bytes_per_second: Option<u64>,
    /// How long a connection is held open after its request.
    #[serde(default)]
    pub(crate) hold_seconds: f64,
    /// Whose requests.
    #[serde(default)]
    pub(crate) tenants: TenantSelection,
    /// Seconds after which a request counts as failed.
    #[serde(default = "patience")]
    pub(crate) patience_seconds: f64,
    /// The trace of a replay.
    #[serde(default)]
    pub(crate) trace: Option<TraceSpec>,
    /// Only starts when the others have run so long.
    #[serde(default)]
    pub(crate) from_second: f64,
}

/// The kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Op {
    /// Reads a chunk object over the chunk API.
    Read,
    /// Stores a new chunk object over the chunk API.
    Store,
    /// Looks a stored context up by its block hashes.
    Lookup,
    /// Opens a connection, reads a little, holds it, closes it.
    Connect,
    /// Runs a garbage collection.
    Gc,
    /// Runs a scrub.
    Scrub,
    /// A prompt of a trace: looks up, loads the stored part, stores the rest; through the client crate.
    Prompt,
}

/// Which objects are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Popularity {
    /// All equally likely.
    #[default]
    Uniform,
    /// By Zipf's law with exponent 1.
    Zipf,
    /// Each once, in order.
    Once,
}

/// Whose requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TenantSelection {
    /// Everyone's in turn.
    #[default]
    All,
    /// The first tenant's.
    First,
    /// Those of all but the first.
    Others,
}

/// The bounds of a figure.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Bound {
    /// At least.
    #[serde(default)]
    pub(crate) min: Option<f64>,
    /// At most.
    #[serde(default)]
    pub(crate) max: Option<f64>,
}

/// The size for CI, relative to the full one.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SmokeSpec {
    /// How long requests arrive; faults move with it.
    pub(crate) seconds: f64,
    /// Factor of all rates.
    #[serde(default = "whole")]
    pub(crate) rate: f64,
    /// Factor of the number of objects and rows.
    #[serde(default = "whole")]
    pub(crate) data: f64,
    /// Factor of objects' bytes.
    #[serde(default = "whole")]
    pub(crate) bytes: f64,
}

fn one() -> u64 {
    1
}
fn whole() -> f64 {
    1.0
}
fn at_once() -> usize {
    64
}
fn mebibyte() -> usize {
    1 << 20
}
fn chunk_tokens() -> usize {
    1536
}
fn patience() -> f64 {
    30.0
}

impl Scenario {
    /// Reads a file.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let read: Self = toml::from_str(&text).with_context(|| format!("in {}", path.display()))?;
        ensure!(read.seconds > 0.0 && !read.load.is_empty(), "{}: no load", path.display());
        Ok(read)
    }

    /// The same at the size for CI.
    pub(crate) fn smaller(mut self) -> Self {
        let SmokeSpec { seconds, rate, data, bytes } = self.smoke;
        let (time, few) =
            (seconds / self.seconds, |n: usize, factor: f64| (n as f64 * factor).ceil() as usize);
        self.seconds = seconds;
        self.data.objects = few(self.data.objects, data);
        self.data.rows = few(self.data.rows, data);
        self.data.bytes = few(self.data.bytes, bytes);
        for load in &mut self.load {
            load.arrivals = load.arrivals.times(rate);
            load.bytes = few(load.bytes, bytes);
            load.range_bytes = load.range_bytes.map(|n| few(n as usize, bytes) as u64);
            load.from_second *= time;
            // CI's machine may be busy for longer than a caller would wait.
            load.patience_seconds = load.patience_seconds.max(120.0);
            load.hold_seconds *= time;
        }
        for fault in &mut self.fault {
            fault.at *= time;
            fault.lasts *= time;
        }
        self.slo.clear();
        self
    }
}
