//! A projection to larger installations: arithmetic over stated assumptions, with a small simulation of the
//! hot tiers, calibrated on measurements from this machine. It is a projection, not a measurement.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    path::{Path, PathBuf},
};

use anyhow::Result;
use clap::Args;
use kvasir_plot::{Page, number};
use kvasir_tests::faulty::Dice;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    process::usage::{self, Machine},
    report,
    traffic::arrivals::uniform,
};

/// A projection to 100 replicas, 1 PB, 10⁹ chunks, 400 Gb/s, from the results of the other commands.
#[derive(Debug, Args)]
pub(crate) struct ProjectArguments {
    /// Folder with peers.json, scale-out.json and namespace-1m.json; missing values are assumed and marked as
    /// such.
    #[arg(long, default_value = "load-tests/results")]
    results: PathBuf,
    /// Folder for projection.json and projection.html.
    #[arg(long, default_value = "target/load")]
    pub(crate) out: PathBuf,
    /// Bytes of a chunk of 1,536 tokens of an 8B model: 33 MB, so that 30 M of them are a petabyte.
    #[arg(long, default_value_t = 33.3e6)]
    chunk_bytes: f64,
    /// Aggregate of reads, in Gb/s.
    #[arg(long, default_value_t = 400.0)]
    gbits: f64,
    /// Share of read bytes that is also written: misses that were computed and stored.
    #[arg(long, default_value_t = 0.2)]
    write_share: f64,
    /// Exponent of the popularity of chunks.
    #[arg(long, default_value_t = 0.9)]
    zipf: f64,
    /// LruTier tier of a replica, in TB.
    #[arg(long, default_value_t = 4.0)]
    hot_tb: f64,
    /// Cores of a replica.
    #[arg(long, default_value_t = 16.0)]
    cores: f64,
    /// Chunks of a lookup.
    #[arg(long, default_value_t = 8.0)]
    lookup_chunks: f64,
    /// `journal.interval`, in seconds: how often a replica reads the journal, and appends to it if it stored
    /// something. In a large cluster less often.
    #[arg(long, default_value_t = 1.0)]
    journal_s: f64,
    /// `journal.retention`, in hours.
    #[arg(long, default_value_t = 1.0)]
    journal_h: f64,
    /// Seconds from a pass of the collector to the next, as `gc.interval`.
    #[arg(long, default_value_t = 600.0)]
    gc_interval_s: f64,
    /// Dollars: a GB and month, 1,000 writes or listings, 1,000 reads, a replica and hour.
    #[arg(long, value_delimiter = ',', default_value = "0.021,0.005,0.0004,1.5")]
    prices: Vec<f64>,
}

/// A measured value, or an assumed one if there is no measurement.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Calibration {
    value: f64,
    measured: bool,
}

/// One size of installation.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct ProjectedSize {
    replicas: f64,
    /// Whether each replica has rows of its own routes alone, and reads removals and counts alone.
    #[serde(default)]
    routes: bool,
    chunks: f64,
    petabytes: f64,
    gbits: f64,
    reads_per_s: f64,
    hit_ratio: f64,
    busiest_over_mean: f64,
    cpu_share: f64,
    store_gets_per_s: f64,
    store_puts_per_s: f64,
    store_gbits: f64,
    journal_listings_per_s: f64,
    journal_reads_per_s: f64,
    index_gb: f64,
    index_gb_of_a_replica: f64,
    rebuild_h: f64,
    gc_pass_h: f64,
    gc_share_h: f64,
    gc_listings: f64,
    gc_usd_month: f64,
    storage_usd_month: f64,
    requests_usd_month: f64,
    replicas_usd_month: f64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Projection {
    what: String,
    machine: Machine,
    calibration: BTreeMap<String, Calibration>,
    assumptions: Vec<String>,
    rows: Vec<ProjectedSize>,
}

/// Keys of one listing, by the S3 API.
const LISTED: f64 = 1_000.0;
/// Bytes of one ranged read of the store by the service.
const RANGE: f64 = 8e6;
const MONTH_S: f64 = 30.4 * 86_400.0;
/// Time to list 1,000 keys of a large bucket in S3 and similar stores, in seconds.
const LISTING_S: f64 = 0.1;
/// As in the service's limits: slices of a folder that are listed at once, and the keys that one should hold.
const LISTED_AT_ONCE: f64 = 16.0;
const SLICE_KEYS: f64 = 850.0;
/// Work units of a model: a replica more does no part of them.
const UNITS: f64 = 16.0;
/// As in the service's limits: members up to which each reads everything, reads of the journal a second beyond that, and the
/// longest interval that results; how often counts are read; pages of a log that are listed rather than its folders.
const ROWS_MEMBERS_MAX: f64 = 8.0;
const READS_PER_S: f64 = 8.0;
const INTERVAL_MAX_S: f64 = 12.5;
const COUNTS_EVERY_S: f64 = 30.0;
const JOURNAL_PAGES_MAX: f64 = 10.0;
/// Number of chunks that represent all chunks in the simulation of hot tiers.
const SIMULATED: usize = 20_000;
const ACCESSES: usize = 200_000;

fn read(results: &Path, name: &str) -> Value {
    let text = std::fs::read_to_string(results.join(format!("{name}.json"))).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

fn calibrate(results: &Path) -> BTreeMap<String, Calibration> {
    let (peers, scale, large) =
        (read(results, "peers"), read(results, "scale-out"), read(results, "namespace-1m"));
    let or = |value: Option<f64>, otherwise: f64| Calibration {
        value: value.unwrap_or(otherwise),
        measured: value.is_some(),
    };
    let row = |row: &&Value| row["server"] == "kvasir" && row["operation"] == "get" && row["megabytes"] == 16;
    let served = peers["rows"].as_array().and_then(|rows| rows.iter().find(row)?["gb_per_cpu_s"].as_f64());
    let rows = large["specification"]["data"]["rows"].as_f64().filter(|rows| *rows > 0.0);
    let cache = large["figures"]["service.cache_mib_max"].as_f64();
    let per_row = rows.zip(cache).map(|(rows, mib)| mib * f64::from(1 << 20) / rows);
    let lookups = large["figures"]["lookups.p50_ms"].as_f64();
    // Requests of an idle replica, as one of four.
    let four = scale["rows"].as_array().and_then(|rows| rows.iter().find(|row| row["replicas"] == 4));
    let idle = four.and_then(|row| row["idle_store_requests_per_s"].as_f64()).map(|all| all / 4.0);
    BTreeMap::from([
        ("gb_per_cpu_s".to_owned(), or(served, 1.5)),
        ("index_bytes_per_chunk".to_owned(), or(per_row, 900.0)),
        ("lookup_ms".to_owned(), or(lookups, 2.0)),
        ("idle_requests_per_s_of_one".to_owned(), or(idle, 0.5)),
    ])
}

/// Popularity ranks by Zipf's law with an exponent, drawn by inversion of its continuous cousin.
fn rank(dice: &mut Dice, exponent: f64) -> usize {
    let (share, count) = (uniform(dice), SIMULATED as f64);
    let at = if (exponent - 1.0).abs() < 1e-6 {
        count.powf(share)
    } else {
        (1.0 + share * (count.powf(1.0 - exponent) - 1.0)).powf(1.0 / (1.0 - exponent))
    };
    (at as usize).saturating_sub(1).min(SIMULATED - 1)
}

/// A hot tier of one replica: least recently used out, as a lower bound of the default policy.
#[derive(Default)]
struct LruTier {
    used: HashMap<usize, u64>,
    order: BTreeMap<u64, usize>,
}

impl LruTier {
    fn access(&mut self, chunk: usize, now: u64, capacity: usize) -> bool {
        let before = self.used.insert(chunk, now);
        if let Some(before) = before {
            self.order.remove(&before);
        }
        self.order.insert(now, chunk);
        while self.used.len() > capacity {
            let Some((_, oldest)) = self.order.pop_first() else { break };
            self.used.remove(&oldest);
        }
        before.is_some()
    }
}

/// Hit ratio, and the busiest replica's share over the mean, of rendezvous hashing over `replicas` whose hot tiers hold `share` of
/// all chunks together.
fn simulate(replicas: usize, share: f64, exponent: f64) -> (f64, f64) {
    let capacity = ((share * SIMULATED as f64) / replicas as f64) as usize;
    let mut tiers: Vec<LruTier> = (0..replicas).map(|_| LruTier::default()).collect();
    let (mut dice, mut hits, mut loads) = (Dice::new(1), 0usize, vec![0usize; replicas]);
    let home = |chunk: usize| {
        let seed = (chunk as u64).wrapping_mul(0x9e37_79b9);
        (0..replicas)
            .max_by_key(|replica| Dice::new(seed + *replica as u64 * 0x85eb_ca6b).number())
            .unwrap_or(0)
    };
    let homes: Vec<usize> = (0..SIMULATED).map(home).collect();
    for now in 0..ACCESSES {
        let chunk = rank(&mut dice, exponent);
        let home = homes[chunk];
        let hit = tiers[home].access(chunk, now as u64, capacity.max(1));
        // The first half warms up.
        if now >= ACCESSES / 2 {
            hits += usize::from(hit);
            loads[home] += 1;
        }
    }
    let counted = (ACCESSES - ACCESSES / 2) as f64;
    let most = loads.iter().max().copied().unwrap_or(0) as f64;
    (hits as f64 / counted, most * replicas as f64 / counted)
}

fn row(
    a: &ProjectArguments,
    of: &BTreeMap<String, Calibration>,
    replicas: f64,
    chunks: f64,
) -> ProjectedSize {
    let measured = |name: &str| of.get(name).map_or(f64::NAN, |m| m.value);
    let bytes_per_s = a.gbits * 1e9 / 8.0;
    let reads_per_s = bytes_per_s / a.chunk_bytes;
    let hot_share = (replicas * a.hot_tb * 1e12 / (chunks * a.chunk_bytes)).min(1.0);
    let (hit_ratio, busiest_over_mean) = simulate(replicas as usize, hot_share, a.zipf);
    let writes_per_s = reads_per_s * a.write_share;
    let routes = replicas > ROWS_MEMBERS_MAX;
    let journal_s =
        if routes { a.journal_s.max((replicas / READS_PER_S).min(INTERVAL_MAX_S)) } else { a.journal_s };
    // Each replica that stored something appends one batch per interval.
    let batches_per_s = writes_per_s.min(replicas / journal_s);
    let (journal_listings_per_s, journal_reads_per_s) = if routes {
        // Removals and counts are a listing each, and a batch that everyone reads: as many chunks are collected as are stored, by
        // one replica. One replica reads what all stored.
        let looks = replicas / journal_s + replicas / COUNTS_EVERY_S.max(journal_s);
        let pages = (batches_per_s * a.journal_h * 3_600.0 / LISTED).ceil();
        let listings = if pages <= JOURNAL_PAGES_MAX { pages } else { 1.0 + replicas };
        (looks + listings / journal_s, batches_per_s + looks)
    } else {
        // A single listing finds all new batches while they fit one page; beyond that, one listing per other replica. Every other
        // replica reads each batch.
        let is_one_page = batches_per_s * a.journal_h * 3_600.0 <= LISTED;
        let listings =
            if is_one_page { measured("idle_requests_per_s_of_one") } else { replicas / journal_s };
        (replicas * listings, batches_per_s * (replicas - 1.0))
    };
    let store_gets_per_s = reads_per_s * (1.0 - hit_ratio) * (a.chunk_bytes / RANGE).ceil();
    // A chunk of 33 MB is uploaded in parts of 8 MiB: one request to begin, one per part, one to complete.
    let store_puts_per_s = writes_per_s * ((a.chunk_bytes / 8.4e6).ceil() + 2.0);
    let index_gb = chunks * measured("index_bytes_per_chunk") / 1e9;
    // One replica lists everything, and all together list their shares.
    let gc_listings = chunks / SLICE_KEYS;
    let gc_pass_s = gc_listings * LISTING_S / LISTED_AT_ONCE;
    let gc_share_s = gc_pass_s / replicas.min(UNITS);
    let gc_listings_per_s =
        gc_listings / (a.gc_interval_s + gc_pass_s) + gc_listings / (a.gc_interval_s + gc_share_s);
    let price = |at: usize| a.prices.get(at).copied().unwrap_or(0.0);
    let lookups_cpu = reads_per_s / a.lookup_chunks * measured("lookup_ms") / 1e3;
    let cpu = bytes_per_s / 1e9 / measured("gb_per_cpu_s") + lookups_cpu;
    let requests = (store_puts_per_s + batches_per_s + journal_listings_per_s + gc_listings_per_s) * price(1)
        / 1e3
        + (store_gets_per_s + journal_reads_per_s) * price(2) / 1e3;
    ProjectedSize {
        replicas,
        routes,
        chunks,
        petabytes: chunks * a.chunk_bytes / 1e15,
        gbits: a.gbits,
        reads_per_s,
        hit_ratio,
        busiest_over_mean,
        cpu_share: cpu * busiest_over_mean / (replicas * a.cores),
        store_gets_per_s,
        store_puts_per_s,
        store_gbits: bytes_per_s * ((1.0 - hit_ratio) + a.write_share) * 8.0 / 1e9,
        journal_listings_per_s,
        journal_reads_per_s,
        index_gb,
        // A replica that reads all journals has a row for every chunk.
        index_gb_of_a_replica: if routes { index_gb / replicas } else { index_gb },
        rebuild_h: gc_pass_s / 3_600.0 + chunks * 0.02 / 128.0 / 3_600.0,
        gc_pass_h: gc_pass_s / 3_600.0,
        gc_share_h: gc_share_s / 3_600.0,
        gc_listings,
        gc_usd_month: gc_listings_per_s * price(1) / 1e3 * MONTH_S,
        storage_usd_month: chunks * a.chunk_bytes / 1e9 * price(0),
        requests_usd_month: requests * MONTH_S,
        replicas_usd_month: replicas * price(3) * MONTH_S / 3_600.0,
    }
}

/// The table for sizes from a test bed to the largest named in the issue.
pub(crate) fn project(arguments: &ProjectArguments) -> Result<Projection> {
    let calibration = calibrate(&arguments.results);
    let sizes = [(4.0, 1e6), (16.0, 5e6), (100.0, 30e6), (100.0, 1e9)];
    let rows = sizes.map(|(replicas, chunks)| row(arguments, &calibration, replicas, chunks)).to_vec();
    let a = arguments;
    let assumptions = vec![
        format!(
            "a chunk of 1,536 tokens of an 8B model has {:.1} MB; reads are of whole chunks",
            a.chunk_bytes / 1e6
        ),
        format!(
            "reads of {} Gb/s in all, however large the store; {:.0} % of their bytes are also written",
            a.gbits,
            a.write_share * 100.0
        ),
        format!(
            "popularity by Zipf's law with exponent {}; hot tiers of {} TB per replica with LRU eviction; {SIMULATED} chunks represent all",
            a.zipf, a.hot_tb
        ),
        format!(
            "{} cores per replica; each core serves at the rate measured here, with any number of connections",
            a.cores
        ),
        format!(
            "a listing of 1,000 keys takes {LISTING_S} s, of a slice of {SLICE_KEYS} as long; {LISTED_AT_ONCE} slices are listed at once; a \
             head is read in 20 ms, 128 concurrently"
        ),
        format!(
            "up to {ROWS_MEMBERS_MAX} replicas: every replica reads the journal every {} s; with more than {LISTED} batches in {} h, \
             it lists each other replica's journal; every batch is read by every other replica",
            a.journal_s, a.journal_h
        ),
        format!(
            "more replicas: all together read removals {READS_PER_S} times a second, each at least every {INTERVAL_MAX_S} s, and \
             counts every {COUNTS_EVERY_S} s; one reads what all stored, for quotas; each has rows of an equal share of the chunks"
        ),
        format!(
            "the collector waits {} s between passes: one replica lists everything, {UNITS} or fewer list their shares of one model; \
             listings only, without what they find to do",
            a.gc_interval_s
        ),
        format!(
            "prices: {:?} dollars a GB and month, 1,000 writes or listings, 1,000 reads, a replica and hour; no price for traffic within a region",
            a.prices
        ),
    ];
    let what = "a projection from assumptions and measurements on one small machine, not a measurement";
    Ok(Projection { what: what.to_owned(), machine: usage::machine(), calibration, assumptions, rows })
}

type Column = (&'static str, fn(&ProjectedSize) -> f64);

/// Lines of the table.
const COLUMNS: [Column; 24] = [
    ("replicas", |r| r.replicas),
    ("index by routes", |r| f64::from(u8::from(r.routes))),
    ("chunks", |r| r.chunks),
    ("stored, PB", |r| r.petabytes),
    ("reads, Gb/s", |r| r.gbits),
    ("chunk reads/s", |r| r.reads_per_s),
    ("hot hit ratio", |r| r.hit_ratio),
    ("busiest replica / mean", |r| r.busiest_over_mean),
    ("CPU of the busiest, share", |r| r.cpu_share),
    ("store reads/s", |r| r.store_gets_per_s),
    ("store writes/s", |r| r.store_puts_per_s),
    ("store traffic, Gb/s", |r| r.store_gbits),
    ("journal listings/s", |r| r.journal_listings_per_s),
    ("journal reads/s", |r| r.journal_reads_per_s),
    ("index, GB", |r| r.index_gb),
    ("index of a replica, GB", |r| r.index_gb_of_a_replica),
    ("rebuild of an index, h", |r| r.rebuild_h),
    ("GC, listing everything, h", |r| r.gc_pass_h),
    ("GC, a share, h", |r| r.gc_share_h),
    ("GC listings, everything", |r| r.gc_listings),
    ("storage, $/month", |r| r.storage_usd_month),
    ("store requests, $/month", |r| r.requests_usd_month),
    ("of these the collector", |r| r.gc_usd_month),
    ("replicas, $/month", |r| r.replicas_usd_month),
];

impl Projection {
    /// The table, with its assumptions, as text.
    pub(crate) fn lines(&self) -> String {
        let mut text = format!("{}\n\ncalibration:\n", self.what);
        for (name, Calibration { value, measured }) in &self.calibration {
            let origin = if *measured { "measured" } else { "ASSUMED: no result" };
            // Writing to a string cannot fail, here and below.
            let _ = writeln!(text, "  {name} = {} ({origin})", number(*value));
        }
        text += "assumptions:\n";
        self.assumptions.iter().for_each(|line| _ = writeln!(text, "  {line}"));
        text += "\n";
        for (name, of) in COLUMNS {
            let values: String = self.rows.iter().map(|row| format!("{:>12}", number(of(row)))).collect();
            let _ = writeln!(text, "{name:<26}{values}");
        }
        text.trim_end().to_owned()
    }

    /// The same as a page.
    pub(crate) fn page(&self) -> String {
        let mut page = Page::new("Projection", &self.what);
        page.paragraph(&report::machine(&self.machine));
        page.heading("Calibration");
        let row = |(name, calibration): (&String, &Calibration)| {
            let origin = if calibration.measured { "measured" } else { "ASSUMED: no result" };
            vec![name.clone(), number(calibration.value), origin.to_owned()]
        };
        page.table(&report::table(&["figure", "value", "origin"], self.calibration.iter().map(row)));
        page.heading("Assumptions");
        self.assumptions.iter().for_each(|assumption| page.paragraph(assumption));
        page.heading("Sizes");
        let sizes = (1..=self.rows.len()).map(|nth| format!("size {nth}"));
        let columns: Vec<String> = [String::new()].into_iter().chain(sizes).collect();
        let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
        let row = |(name, of): Column| {
            [name.to_owned()].into_iter().chain(self.rows.iter().map(|size| number(of(size)))).collect()
        };
        page.table(&report::table(&columns, COLUMNS.into_iter().map(row)));
        page.finish(report::FOOTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_tiers_that_hold_everything_hit_and_small_ones_do_not() {
        let (all, busiest) = simulate(4, 1.0, 0.9);
        let (few, _) = simulate(4, 0.01, 0.9);
        assert!(all > 0.8 && few < all - 0.2, "{all} {few}");
        assert!((1.0..2.0).contains(&busiest), "{busiest}");
        // One replica is its own mean.
        assert!((simulate(1, 0.1, 0.9).1 - 1.0).abs() < 1e-9);
    }
}
