//! The numbers that the projection is made of, each with where it is from.

use std::{collections::BTreeMap, path::Path};

use kvasir_server::{
    Config, JOURNAL_COUNTS_EVERY, JOURNAL_READS_PER_SECOND, JOURNAL_ROWS_MEMBERS_MAX,
    JOURNAL_SHARED_INTERVAL_MAX, JOURNAL_STORED_TURNS, KNOWN_TAILS_EVERY,
};
use kvasir_storage::limits;
use kvasir_types::CHUNK_TOKENS_DEFAULT;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ProjectArguments;

/// A number, and where it is from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Input {
    pub(super) value: f64,
    pub(super) origin: String,
}

/// All of them, by name.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Inputs(BTreeMap<String, Input>);

/// A recorded trace: its replay says what is written for each byte that is read, its simulation what hot tiers find of it.
pub(super) struct RecordedTrace {
    pub(super) name: &'static str,
    result: &'static str,
    /// Shares of the unique blocks that fit, and of the accesses that found theirs: of `adaptive`, and at last of all that was
    /// ever stored (crates/kvasir-lab/EVICTION.md).
    found: [(f64, f64); 7],
}

/// The two traces.
pub(super) static TRACES: [RecordedTrace; 2] = [
    RecordedTrace {
        name: "conversation",
        result: "replay-conversation-whole",
        found: [
            (0.01, 0.1067),
            (0.02, 0.1519),
            (0.05, 0.2217),
            (0.1, 0.29),
            (0.2, 0.3431),
            (0.5, 0.3621),
            (1.0, 0.3664),
        ],
    },
    RecordedTrace {
        name: "agentic",
        result: "replay-agentic",
        found: [
            (0.01, 0.1291),
            (0.02, 0.2271),
            (0.05, 0.4636),
            (0.1, 0.6918),
            (0.2, 0.8781),
            (0.5, 0.9518),
            (1.0, 0.9617),
        ],
    },
];

impl RecordedTrace {
    /// Of what the store has, the share that hot tiers with room for `share` of it have when it is asked for.
    pub(super) fn hit_ratio(&self, share: f64) -> f64 {
        let mut before = (0.0, 0.0);
        for (at, found) in self.found {
            if share <= at {
                let part = (share - before.0) / (at - before.0);
                return (before.1 + part * (found - before.1)) / self.found[self.found.len() - 1].1;
            }
            before = (at, found);
        }
        1.0
    }
}

const QUESTION: &str = "the question: 30 million chunks are a petabyte, 400 Gb/s of reads";
const S3: &str = "AWS price list AmazonS3, US East (N. Virginia), version 20260928230416, S3 Standard";
const S3_LATENCY: &str = "Amazon S3 User Guide, Optimizing Amazon S3 performance: roughly 100 to 200 ms";
const EC2: &str =
    "Amazon EC2 On-Demand, US East (N. Virginia), 2026-01-19: i4i.4xlarge, 16 vCPU, 3,750 GB of NVMe";
const EC2_ZONES: &str =
    "Amazon EC2 On-Demand, Data Transfer within a Region, 2026-06: $0.01 in each direction";

/// Numbers that nobody measures here.
const STATED: &[(&str, f64, &str)] = &[
    ("chunk_bytes", 33.3e6, QUESTION),
    ("hot_tb", 3.75, EC2),
    ("cores", 16.0, EC2),
    (
        "part_requests_beyond",
        2.0,
        "S3: an upload in parts has a request that begins and one that completes it",
    ),
    ("listings_of_a_put", 2.0, "the tombstones of its chunk are listed before and after a PUT"),
    ("listing_s", 0.15, S3_LATENCY),
    ("request_s", 0.15, S3_LATENCY),
    ("requests_of_a_rebuilt_row", 2.0, "HEAD of a tombstone, then GET of a chunk's head"),
    (
        "requests_of_a_collected_chunk",
        12.0,
        "one after the other, for many chunks at once: HEAD of the chunk, HEAD of the tombstone, DELETE, GET of the reason, PUT of the note; after the \
         retention HEAD of the chunk and of the note, at most once too early and once in time, HEAD of the tombstone, DELETE of both",
    ),
    (
        "actions_of_a_collected_chunk",
        3.0,
        "that count for gc.actions_per_second, by the owner of its unit: its tombstone, the deletions of its bytes and of its tombstone",
    ),
    (
        "tenant_actions_of_a_collected_chunk",
        2.0,
        "that count for what its tenant may have of a pass: its tombstone, the deletion of its bytes",
    ),
    (
        "requests_of_an_intent",
        3.0,
        "one after the other, beside those for tombstones: PUT of the intent, LIST of its tenant's contexts, DELETE of the intent",
    ),
    (
        "requests_of_a_known_tail",
        7.0,
        "one after the other, for one tail at a time: HEAD of the tail and of the longer chunk, HEAD of the tombstones of both, GET of the heads of \
         both, GET of the longer chunk, whose bytes take no time here",
    ),
    (
        "requests_of_a_marked_tail",
        3.0,
        "one after the other, for many at once: HEAD of the longer chunk and of its tombstone, PUT of the tombstone",
    ),
    ("work_units", 16.0, "first hex digits of hashes: the units of a model"),
    ("usd_put_post_list", 0.005 / 1e3, S3),
    ("usd_get", 0.0004 / 1e3, S3),
    ("usd_gib_month_first_50_tib", 0.023, S3),
    ("usd_gib_month_next_450_tib", 0.022, S3),
    ("usd_gib_month_beyond", 0.021, S3),
    ("usd_gib_store_to_replica", 0.0, S3),
    ("usd_gib_between_zones", 0.02, EC2_ZONES),
    ("usd_replica_hour", 1.373, EC2),
];

/// Limits and defaults of the service, as its code has them.
fn limits_and_defaults() -> [(&'static str, f64, &'static str); 28] {
    let defaults = Config::default();
    let policy = &defaults.gc.policy;
    [
        ("chunk_tokens", CHUNK_TOKENS_DEFAULT as f64, "CHUNK_TOKENS_DEFAULT"),
        ("range_bytes", limits::HOT_FETCH_BYTES as f64, "HOT_FETCH_BYTES"),
        ("part_bytes", limits::MULTIPART_PART_BYTES as f64, "MULTIPART_PART_BYTES"),
        ("listed_keys", limits::LISTING_PAGE as f64, "LISTING_PAGE"),
        ("listings_at_once", limits::LISTINGS_AT_ONCE as f64, "LISTINGS_AT_ONCE"),
        ("slice_keys", limits::LISTING_SLICE_KEYS as f64, "LISTING_SLICE_KEYS"),
        ("collected_at_once", limits::GC_PARALLEL as f64, "GC_PARALLEL"),
        ("chunks_of_an_intent", limits::GC_INTENT_CHUNKS_MAX as f64, "GC_INTENT_CHUNKS_MAX"),
        ("objects_to_choose_from", limits::COLD_OBJECTS_MAX as f64, "COLD_OBJECTS_MAX"),
        ("gc_actions_per_s", f64::from(policy.actions_per_second), "default of gc.actions_per_second"),
        (
            "tenant_actions_of_a_pass",
            f64::from(policy.actions_per_second * limits::GC_TENANTS_SECONDS),
            "default of gc.actions_per_second, for GC_TENANTS_SECONDS: of a tenant that is alone",
        ),
        ("listed_bits", limits::GC_LISTED_BITS as f64, "GC_LISTED_BITS"),
        ("tombstones_kept_s", policy.tombstone_retention.as_secs_f64(), "default of gc.tombstone_retention"),
        ("rebuilt_at_once", limits::REBUILD_PARALLEL as f64, "REBUILD_PARALLEL"),
        ("journal_pages_max", limits::JOURNAL_PAGES_MAX as f64, "JOURNAL_PAGES_MAX"),
        ("rows_members_max", JOURNAL_ROWS_MEMBERS_MAX as f64, "JOURNAL_ROWS_MEMBERS_MAX"),
        ("journal_reads_per_s", JOURNAL_READS_PER_SECOND, "JOURNAL_READS_PER_SECOND"),
        ("journal_interval_max_s", JOURNAL_SHARED_INTERVAL_MAX.as_secs_f64(), "JOURNAL_SHARED_INTERVAL_MAX"),
        ("journal_counts_every_s", JOURNAL_COUNTS_EVERY.as_secs_f64(), "JOURNAL_COUNTS_EVERY"),
        ("journal_interval_s", defaults.journal.interval.as_secs_f64(), "default of journal.interval"),
        ("journal_retention_s", policy.journal_retention.as_secs_f64(), "default of journal.retention"),
        ("journal_stored_turns", f64::from(JOURNAL_STORED_TURNS), "JOURNAL_STORED_TURNS"),
        ("known_tails_every_s", KNOWN_TAILS_EVERY.as_secs_f64(), "KNOWN_TAILS_EVERY"),
        ("gone_waiting_max", limits::GC_GONE_WAITING_MAX as f64, "GC_GONE_WAITING_MAX"),
        ("removals_window_s", limits::JOURNAL_REMOVALS_WINDOW.as_secs_f64(), "JOURNAL_REMOVALS_WINDOW"),
        (
            "removals_kept_s",
            policy.removals_kept().as_secs_f64(),
            "defaults of gc.grace and gc.tombstone_retention",
        ),
        (
            "removals_listed_every_s",
            limits::JOURNAL_REMOVALS_LISTED_EVERY.as_secs_f64(),
            "JOURNAL_REMOVALS_LISTED_EVERY",
        ),
        ("removals_slices", limits::JOURNAL_FOLDERS_AT_ONCE as f64, "JOURNAL_FOLDERS_AT_ONCE"),
    ]
}

fn read(results: &Path, name: &str) -> Value {
    let text = std::fs::read_to_string(results.join(format!("{name}.json"))).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

impl Inputs {
    /// What the results say, what is stated, and what the caller wants.
    pub(super) fn new(arguments: &ProjectArguments) -> Self {
        let stated = STATED
            .iter()
            .map(|&(name, value, origin)| (name.to_owned(), Input { value, origin: origin.to_owned() }));
        let mut inputs = Self(stated.collect());
        for (name, value, origin) in limits_and_defaults() {
            inputs.set(name, value, &format!("the code: {origin}"));
        }
        inputs.set("gbits", arguments.gbits, QUESTION);
        inputs.set("gc_interval_s", arguments.gc_interval_s, "--gc-interval-s, as gc.interval");
        let results = &arguments.results;
        let alone = read(results, "peers-alone");
        let rate = |operation: &str| {
            let row = |row: &&Value| {
                row["server"] == "kvasir" && row["operation"] == operation && row["megabytes"] == 16
            };
            alone["rows"].as_array()?.iter().find(row)?["gb_per_cpu_s"].as_f64()
        };
        inputs.measure("gb_read_per_cpu_s", rate("get"), "peers-alone", 3.8);
        inputs.measure("gb_written_per_cpu_s", rate("put"), "peers-alone", 0.75);
        let large = read(results, "namespace-1m");
        let rows = large["specification"]["data"]["rows"].as_f64().filter(|rows| *rows > 0.0);
        let cache = large["figures"]["service.cache_mib_max"].as_f64();
        let per_row = rows.zip(cache).map(|(rows, mib)| mib * f64::from(1 << 20) / rows);
        inputs.measure("index_bytes_of_a_chunk", per_row, "namespace-1m", 900.0);
        inputs.measure("lookup_ms", large["figures"]["lookups.p50_ms"].as_f64(), "namespace-1m", 2.0);
        let scale = read(results, "scale-out");
        let quiet = || {
            let row = scale["rows"].as_array()?.last()?;
            Some(row["idle_store_requests_per_s"].as_f64()? / row["replicas"].as_f64()?)
        };
        inputs.measure("quiet_replica_requests_per_s", quiet(), "scale-out", 0.5);
        let listings = || {
            let of_one = |row: &&Value| row["replicas"] == 1 && row["template_share"] == 0.0;
            let row = scale["conversations"].as_array()?.iter().find(of_one)?;
            let all = row["store_requests"]["list"].as_f64()?;
            let of_puts = row["chunks_stored"].as_f64()? * inputs.value("listings_of_a_put");
            Some((all - of_puts) / row["prompts"].as_f64()?)
        };
        // At most: four ends of chunks of the usual length, then the five other ends within the first one.
        let listings = listings();
        inputs.measure("listings_of_a_lookup", listings, "scale-out", 9.0);
        for trace in &TRACES {
            inputs.measure_trace(trace, &read(results, trace.result));
        }
        inputs
    }

    pub(super) fn set(&mut self, name: &str, value: f64, origin: &str) {
        self.0.insert(name.to_owned(), Input { value, origin: origin.to_owned() });
    }

    /// A measured value, or an assumed one if there is no measurement.
    fn measure(&mut self, name: &str, value: Option<f64>, result: &str, otherwise: f64) {
        match value {
            Some(value) => self.set(name, value, &format!("measured: {result}.json")),
            None => self.set(name, otherwise, &format!("ASSUMED: {result}.json does not say")),
        }
    }

    fn measure_trace(&mut self, trace: &RecordedTrace, replayed: &Value) {
        let RecordedTrace { name, result, .. } = trace;
        let figure = |figure: &str| replayed["figures"][format!("{name}.{figure}")].as_f64();
        let written_per_read = || {
            let stored_mb = figure("stored_mb")?;
            Some(stored_mb / (replayed["loads"][*name]["bytes"].as_f64()? / 1e6 - stored_mb))
        };
        let chunk_tokens = self.value("chunk_tokens");
        let chunks = || Some(figure("tokens")? / figure("requests")? / chunk_tokens);
        self.measure(&format!("{name}_written_per_read"), written_per_read(), result, 1.0);
        self.measure(&format!("{name}_chunks_of_a_prompt"), chunks(), result, 8.0);
    }

    /// The number with a name.
    pub(super) fn value(&self, name: &str) -> f64 {
        self.0.get(name).map_or(f64::NAN, |input| input.value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &Input)> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_tiers_that_hold_everything_find_all_of_it_and_more_room_never_finds_less() {
        for trace in &TRACES {
            let ratios: Vec<f64> = (0..=100).map(|n| trace.hit_ratio(f64::from(n) / 100.0)).collect();
            assert!(ratios.is_sorted() && ratios[0] == 0.0, "{}: {ratios:?}", trace.name);
            assert!((ratios[100] - 1.0).abs() < 1e-9 && trace.hit_ratio(2.0) == 1.0, "{}", trace.name);
        }
        assert!((TRACES[0].hit_ratio(0.1) - 0.29 / 0.3664).abs() < 1e-9);
    }

    #[test]
    fn what_hot_tiers_find_is_what_the_page_of_policies_says() {
        let page = include_str!("../../../crates/kvasir-lab/EVICTION.md").replace("**", "");
        for trace in &TRACES {
            let found = trace.found[..6].iter().map(|(_, found)| format!("{:.2}", found * 100.0));
            let row = format!("| adaptive | {} |", found.collect::<Vec<_>>().join(" | "));
            assert!(page.contains(&row), "{}: {row}", trace.name);
        }
    }
}
