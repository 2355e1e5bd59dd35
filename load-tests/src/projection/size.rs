//! One size of installation: what it does a second, and what that costs.

use serde::{Deserialize, Serialize};

use super::{
    bill::{Bill, Usage},
    inputs::{Inputs, RecordedTrace},
};

/// One size of installation under the load of one trace.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ProjectedSize {
    pub(super) trace: String,
    pub(super) replicas: f64,
    /// Whether each replica has rows of its own routes alone, and reads removals and counts alone.
    pub(super) routes: bool,
    pub(super) chunks: f64,
    pub(super) petabytes: f64,
    pub(super) gbits: f64,
    pub(super) reads_per_s: f64,
    pub(super) writes_per_s: f64,
    pub(super) lookups_per_s: f64,
    pub(super) hit_ratio: f64,
    pub(super) cpu_share: f64,
    pub(super) store_gets_per_s: f64,
    pub(super) store_puts_per_s: f64,
    pub(super) store_gbits: f64,
    pub(super) journal_appends_per_s: f64,
    pub(super) journal_listings_per_s: f64,
    pub(super) journal_reads_per_s: f64,
    pub(super) quiet_replica_requests_per_s: f64,
    pub(super) index_gb: f64,
    pub(super) index_gb_of_a_replica: f64,
    pub(super) rebuild_h: f64,
    pub(super) gc_pass_h: f64,
    pub(super) gc_share_h: f64,
    pub(super) gc_listings: f64,
    /// Dollars a month.
    pub(super) bill: Bill,
}

/// Requests for the journal a second, by all replicas.
struct JournalRequests {
    appends: f64,
    listings: f64,
    reads: f64,
}

fn journal(inputs: &Inputs, replicas: f64, writes_per_s: f64) -> JournalRequests {
    let of = |name: &str| inputs.value(name);
    let routes = replicas > of("rows_members_max");
    let shared = (replicas / of("journal_reads_per_s")).min(of("journal_interval_max_s"));
    let interval_s = if routes { of("journal_interval_s").max(shared) } else { of("journal_interval_s") };
    // Each replica that stored something appends one batch per interval.
    let appends = writes_per_s.min(replicas / interval_s);
    let pages = (appends * of("journal_retention_s") / of("listed_keys")).ceil();
    if routes {
        // Removals and counts are a listing each, and a batch that everyone reads: as many chunks are collected as are stored, by
        // one replica. One replica reads what all stored.
        let looks = replicas / interval_s + replicas / of("journal_counts_every_s").max(interval_s);
        let of_stored = if pages <= of("journal_pages_max") { pages } else { 1.0 + replicas };
        return JournalRequests { appends, listings: looks + of_stored / interval_s, reads: appends + looks };
    }
    // A single listing finds all new batches while they fit one page; beyond that, one listing per other replica. Every other
    // replica reads each batch.
    let listings = if pages <= 1.0 { 1.0 } else { replicas };
    JournalRequests { appends, listings: replicas * listings / interval_s, reads: appends * (replicas - 1.0) }
}

impl ProjectedSize {
    pub(super) fn new(inputs: &Inputs, trace: &RecordedTrace, replicas: f64, chunks: f64) -> Self {
        let of = |name: &str| inputs.value(name);
        let of_trace = |name: &str| inputs.value(&format!("{}_{name}", trace.name));
        let (chunk_bytes, read_bytes_per_s) = (of("chunk_bytes"), of("gbits") * 1e9 / 8.0);
        let reads_per_s = read_bytes_per_s / chunk_bytes;
        let writes_per_s = reads_per_s * of_trace("written_per_read");
        let lookups_per_s = (reads_per_s + writes_per_s) / of_trace("chunks_of_a_prompt");
        let stored_bytes = chunks * chunk_bytes;
        let hit_ratio = trace.hit_ratio(replicas * of("hot_tb") * 1e12 / stored_bytes);
        let routes = replicas > of("rows_members_max");
        let journal = journal(inputs, replicas, writes_per_s);
        let store_gets_per_s = reads_per_s * (1.0 - hit_ratio) * (chunk_bytes / of("range_bytes")).ceil();
        let parts = (chunk_bytes / of("part_bytes")).ceil() + of("part_requests_beyond");
        let index_gb = chunks * of("index_bytes_of_a_chunk") / 1e9;
        // One replica lists everything, and all together list their shares.
        let gc_listings = chunks / of("slice_keys");
        let gc_pass_s = gc_listings * of("listing_s") / of("listings_at_once");
        let gc_share_s = gc_pass_s / replicas.min(of("work_units"));
        let gc_per_s = |pass_s: f64| gc_listings / (of("gc_interval_s") + pass_s);
        let write_bytes_per_s = writes_per_s * chunk_bytes;
        let cpu = read_bytes_per_s / 1e9 / of("gb_read_per_cpu_s")
            + write_bytes_per_s / 1e9 / of("gb_written_per_cpu_s")
            + lookups_per_s * of("lookup_ms") / 1e3;
        let store_to_replica = read_bytes_per_s * (1.0 - hit_ratio);
        let usage = Usage {
            stored_bytes,
            replicas,
            chunk_gets: store_gets_per_s,
            chunk_puts: writes_per_s * parts,
            put_listings: writes_per_s * of("listings_of_a_put"),
            lookup_listings: lookups_per_s * of("listings_of_a_lookup"),
            journal_appends: journal.appends,
            journal_listings: journal.listings,
            journal_reads: journal.reads,
            collector_listings: gc_per_s(gc_pass_s) + gc_per_s(gc_share_s),
            store_to_replica,
            engines_and_replicas: read_bytes_per_s + write_bytes_per_s,
        };
        Self {
            trace: trace.name.to_owned(),
            replicas,
            routes,
            chunks,
            petabytes: stored_bytes / 1e15,
            gbits: of("gbits"),
            reads_per_s,
            writes_per_s,
            lookups_per_s,
            hit_ratio,
            cpu_share: cpu / (replicas * of("cores")),
            store_gets_per_s,
            store_puts_per_s: usage.chunk_puts,
            store_gbits: (store_to_replica + write_bytes_per_s) * 8.0 / 1e9,
            journal_appends_per_s: journal.appends,
            journal_listings_per_s: journal.listings,
            journal_reads_per_s: journal.reads,
            quiet_replica_requests_per_s: of("quiet_replica_requests_per_s"),
            index_gb,
            // A replica that reads all journals has a row for every chunk.
            index_gb_of_a_replica: if routes { index_gb / replicas } else { index_gb },
            rebuild_h: (gc_pass_s + chunks * of("head_s") / of("heads_at_once")) / 3_600.0,
            gc_pass_h: gc_pass_s / 3_600.0,
            gc_share_h: gc_share_s / 3_600.0,
            gc_listings,
            bill: Bill::new(inputs, &usage),
        }
    }

    /// Appends, listings and reads of the journal.
    pub(super) fn journal_requests_per_s(&self) -> f64 {
        self.journal_appends_per_s + self.journal_listings_per_s + self.journal_reads_per_s
    }
}
