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
    pub(super) journal_deletions_per_s: f64,
    pub(super) quiet_replica_requests_per_s: f64,
    pub(super) index_gb: f64,
    pub(super) index_gb_of_a_replica: f64,
    pub(super) rebuild_h: f64,
    pub(super) gc_pass_h: f64,
    pub(super) gc_share_h: f64,
    pub(super) gc_listings: f64,
    /// Chunks of one tenant's model that the members can collect a second, at most: as many have to be as are stored, once the
    /// store has reached `gc.capacity`. One replica chooses them, and the owners of units mark and delete them. None of these
    /// exceeds the default of `gc.actions_per_second`, nor what it leaves a tenant of a pass.
    pub(super) gc_chunks_per_s_max: f64,
    /// Dollars a month.
    pub(super) bill: Bill,
}

/// Requests for the journal a second, by all replicas.
struct JournalRequests {
    appends: f64,
    listings: f64,
    /// Of batches, and of the dates of one's own.
    reads: f64,
    deletions: f64,
}

/// The collectors of all replicas, as far as the journal says what they do.
struct Collectors {
    owners: f64,
    /// From one pass of an owner to its next.
    period_s: f64,
    /// The same of the replica that lists everything.
    whole_period_s: f64,
    /// Chunks a second, by all owners.
    evicted_per_s: f64,
    /// Tails a second that all replicas verify in the units of others.
    known_tails_per_s: f64,
}

impl Collectors {
    /// Batches of removals a second: those of marks, which owners append while they mark, of deleted objects, and of known tails.
    fn removals_per_s(&self, inputs: &Inputs, replicas: f64, interval_s: f64) -> f64 {
        let of = |name: &str| inputs.value(name);
        let marked = self.evicted_per_s * marking_s(inputs, 1.0) / interval_s;
        let gone = self.evicted_per_s / of("gone_waiting_max") + self.owners / self.period_s;
        if replicas <= of("rows_members_max") {
            return marked + gone;
        }
        // Each replica marks together what it has verified: in one turn, and in others while that lasts.
        let tails_s = self.known_tails_per_s * marking_s(inputs, of("requests_of_a_marked_tail"));
        let tails = replicas / of("known_tails_every_s").max(of("gc_interval_s")) + tails_s / interval_s;
        marked + gone + tails
    }
}

/// Tails a second that the replicas verify in the units of others, at most: each prompt that goes on leaves one, and each replica
/// verifies one after the other.
fn known_tails_per_s(inputs: &Inputs, replicas: f64, lookups_per_s: f64) -> f64 {
    let verifying_s = inputs.value("requests_of_a_known_tail") * inputs.value("request_s");
    lookups_per_s.min(replicas / verifying_s)
}

/// Requests that find the new batches of a log to which all replicas together append `batches_per_s`, each kept for `kept_s`: a
/// listing of all of it while that has few pages, otherwise one of its folders and one of that of each other replica.
fn listings_of_a_log(inputs: &Inputs, replicas: f64, batches_per_s: f64, kept_s: f64) -> f64 {
    let pages = (batches_per_s * kept_s / inputs.value("listed_keys")).ceil().max(1.0);
    if pages <= inputs.value("journal_pages_max") { pages.min(replicas) } else { replicas }
}

fn journal(inputs: &Inputs, replicas: f64, writes_per_s: f64, collectors: &Collectors) -> JournalRequests {
    let of = |name: &str| inputs.value(name);
    let routes = replicas > of("rows_members_max");
    let shared = (replicas / of("journal_reads_per_s")).min(of("journal_interval_max_s"));
    let interval_s = if routes { of("journal_interval_s").max(shared) } else { of("journal_interval_s") };
    // Each replica that stored something appends one batch per interval, or per several.
    let stored_interval_s = if routes { interval_s * of("journal_stored_turns") } else { interval_s };
    let stored = writes_per_s.min(replicas / stored_interval_s);
    let removed = collectors.removals_per_s(inputs, replicas, interval_s);
    let counted = if routes { 1.0 / stored_interval_s } else { 0.0 };
    let looks = replicas / interval_s;
    let kept_s = of("journal_retention_s") + collectors.whole_period_s;
    let of_stored = listings_of_a_log(inputs, replicas, stored, kept_s);
    // By the times in their names, whoever wrote them.
    let of_removed = (removed * of("removals_window_s") / of("listed_keys")).ceil().max(1.0);
    // A slice is listed until one behind it is met.
    let of_slice = removed * of("removals_kept_s") / of("removals_slices") / of("listed_keys");
    let of_all_removed = of("removals_slices") * (of_slice.floor() + 1.0);
    let now_and_then = replicas / of("removals_listed_every_s") * of_all_removed;
    let (appends, others) = (stored + removed + counted, replicas - 1.0);
    let (listings, read) = if routes {
        // Everyone reads removals and counts, one reads what all stored, and removals once more with it.
        let of_counted = replicas / of("journal_counts_every_s").max(interval_s);
        let of_stored = (of_stored + of_removed) / stored_interval_s;
        (looks * of_removed + of_counted + of_stored, stored + (removed + counted) * others)
    } else {
        (looks * (of_stored + of_removed + 1.0), appends * others)
    };
    JournalRequests { appends, listings: listings + now_and_then, reads: read + removed, deletions: appends }
}

/// Seconds that it takes to mark a chunk: the tombstones of an intent are written together, each in so many requests.
fn marking_s(inputs: &Inputs, requests: f64) -> f64 {
    let of = |name: &str| inputs.value(name);
    let chunks = of("chunks_of_an_intent");
    let rounds = of("requests_of_an_intent") + (chunks / of("collected_at_once")).ceil() * requests;
    rounds * of("request_s") / chunks
}

/// Of the tombstones whose bytes are gone, the part that a pass which listed so many objects looks under all the same: both bits
/// of the object are those of others.
fn looked_under(inputs: &Inputs, listed: f64) -> f64 {
    (1.0 - (-2.0 * listed / inputs.value("listed_bits")).exp()).powi(2)
}

/// Seconds that an owner spends on a chunk, which it deletes and marks.
fn collecting_s(inputs: &Inputs) -> f64 {
    let of = |name: &str| inputs.value(name);
    let deleting_s = of("requests_of_a_collected_chunk") * of("request_s") / of("collected_at_once");
    let by_rate_s = of("actions_of_a_collected_chunk") / of("gc_actions_per_s");
    (deleting_s + marking_s(inputs, 1.0)).max(by_rate_s)
}

/// Seconds for which a pass over so many objects looks under tombstones that are kept, for each chunk a second that goes.
fn looking_s(inputs: &Inputs, listed: f64) -> f64 {
    let of = |name: &str| inputs.value(name);
    let looks = of("tombstones_kept_s") * looked_under(inputs, listed);
    looks * of("request_s") / of("collected_at_once")
}

/// From one pass of an owner to its next, while it collects so many chunks a second.
fn owner_period_s(inputs: &Inputs, listed: f64, share_s: f64, per_s: f64) -> f64 {
    let idle_s = inputs.value("gc_interval_s") + share_s + looking_s(inputs, listed) * per_s;
    idle_s / (1.0 - collecting_s(inputs) * per_s)
}

/// Chunks a second that the owners of a tenant's units can delete and mark, of those that passes over the whole store choose.
/// `chunks`: all that are stored. `share_s`, `whole_pass_s`: what it takes to list a share, and everything.
fn collected_per_s_max(inputs: &Inputs, owners: f64, chunks: f64, share_s: f64, whole_pass_s: f64) -> f64 {
    let of = |name: &str| inputs.value(name);
    let allowed = of("tenant_actions_of_a_pass") / of("tenant_actions_of_a_collected_chunk");
    let chunks_of_a_pass = allowed.min(of("objects_to_choose_from") / owners);
    let own_s = chunks_of_a_pass * collecting_s(inputs);
    // Each pass also looks under some of the tombstones that are kept, and the more chunks go a second, the more these are. So
    // it is the positive x of x · (period_s + kept_s · x) = chunks_of_a_pass.
    let kept_s = looking_s(inputs, chunks / owners);
    let period_s = of("gc_interval_s") + share_s + own_s;
    let root = (period_s.powi(2) + 4.0 * kept_s * chunks_of_a_pass).sqrt();
    let by_owner = 2.0 * chunks_of_a_pass / (period_s + root);
    // The replica that chooses may own units, too.
    let chosen = of("objects_to_choose_from") / (of("gc_interval_s") + whole_pass_s + own_s);
    (owners * by_owner).min(chosen)
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
        let store_gets_per_s = reads_per_s * (1.0 - hit_ratio) * (chunk_bytes / of("range_bytes")).ceil();
        let parts = (chunk_bytes / of("part_bytes")).ceil() + of("part_requests_beyond");
        let index_gb = chunks * of("index_bytes_of_a_chunk") / 1e9;
        // One replica lists everything, and all together list their shares.
        let gc_listings = chunks / of("slice_keys");
        let gc_pass_s = gc_listings * of("listing_s") / of("listings_at_once");
        let owners = replicas.min(of("work_units"));
        let gc_share_s = gc_pass_s / owners;
        let gc_chunks_per_s_max = collected_per_s_max(inputs, owners, chunks, gc_share_s, gc_pass_s);
        let evicted_per_s = writes_per_s.min(gc_chunks_per_s_max);
        let period_s = owner_period_s(inputs, chunks / owners, gc_share_s, evicted_per_s / owners);
        // It may own units, too.
        let whole_period_s = period_s + gc_pass_s;
        let known_tails_per_s = known_tails_per_s(inputs, replicas, lookups_per_s);
        let collectors = Collectors { owners, period_s, whole_period_s, evicted_per_s, known_tails_per_s };
        let journal = journal(inputs, replicas, writes_per_s, &collectors);
        let rebuilt_row_s = of("requests_of_a_rebuilt_row") * of("request_s");
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
            journal_deletions_per_s: journal.deletions,
            quiet_replica_requests_per_s: of("quiet_replica_requests_per_s"),
            index_gb,
            // A replica that reads all journals has a row for every chunk.
            index_gb_of_a_replica: if routes { index_gb / replicas } else { index_gb },
            rebuild_h: (gc_pass_s + chunks * rebuilt_row_s / of("rebuilt_at_once")) / 3_600.0,
            gc_pass_h: gc_pass_s / 3_600.0,
            gc_share_h: gc_share_s / 3_600.0,
            gc_listings,
            gc_chunks_per_s_max,
            bill: Bill::new(inputs, &usage),
        }
    }

    /// Appends, listings and reads of the journal. Deletions cost nothing.
    pub(super) fn journal_requests_per_s(&self) -> f64 {
        self.journal_appends_per_s + self.journal_listings_per_s + self.journal_reads_per_s
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::projection::{ProjectArguments, inputs::TRACES};

    fn inputs(gc_interval_s: f64) -> Inputs {
        let nowhere = PathBuf::from("there is no such folder");
        Inputs::new(&ProjectArguments { results: nowhere.clone(), out: nowhere, gbits: 400.0, gc_interval_s })
    }

    #[test]
    fn a_log_is_listed_by_pages_while_they_are_few_and_else_replica_by_replica() {
        let inputs = inputs(600.0);
        let listings = |replicas, batches| listings_of_a_log(&inputs, replicas, batches, 1.0);
        assert_eq!([0.0, 1_000.0, 1_001.0, 32_000.0].map(|n| listings(100.0, n)), [1.0, 1.0, 2.0, 32.0]);
        assert_eq!([32_001.0, 1e6].map(|n| listings(100.0, n)), [100.0; 2]);
        assert_eq!([3_000.0, 5_000.0, 1e6].map(|n| listings(4.0, n)), [3.0, 4.0, 4.0]);
    }

    /// A pass begins ten minutes after the one before, lists, looks under some of a day's tombstones, 32 at a time, deletes 32
    /// chunks at a time in twelve requests of 150 ms, and writes intents of 100 chunks, in three requests and four rounds of
    /// tombstones. It has 50,000 actions by default, two for each chunk. At most as many go as passes over the whole store choose,
    /// of which one may do all this as well.
    #[test]
    fn what_is_collected_follows_from_what_a_pass_takes_and_may_do() {
        let inputs = inputs(600.0);
        let chunk_s = 12.0 * 0.15 / 32.0 + 7.0 * 0.15 / 100.0;
        // One pass takes one tombstone in 25 for one with an object, another one in 5,000.
        for (owners, part) in [(1.0, 0.0402), (16.0, 0.000_192)] {
            let rate = collected_per_s_max(&inputs, owners, 3e7, 20.0, 300.0) / owners;
            let pass_s = 20.0 + rate * 86_400.0 * part * 0.15 / 32.0 + 25_000.0 * chunk_s;
            let collected = rate * (600.0 + pass_s);
            assert!((collected / 25_000.0 - 1.0).abs() < 1e-3, "{rate} a second, {pass_s} s");
            let period_s = owner_period_s(&inputs, 3e7 / owners, 20.0, rate);
            assert!((rate * period_s / 25_000.0 - 1.0).abs() < 1e-9, "{period_s} s");
        }
        let others_s = 600.0 + 25_000.0 * chunk_s;
        let chosen = collected_per_s_max(&inputs, 16.0, 3e7, 20.0, 100_000.0 - others_s);
        assert!((chosen - 10.0).abs() < 1e-9, "{chosen}");
        // A hundred owners could do more than what is chosen for them.
        let chosen = collected_per_s_max(&inputs, 100.0, 3e7, 20.0, 300.0);
        assert!((chosen - 1e6 / (900.0 + 10_000.0 * chunk_s)).abs() < 1e-9, "{chosen}");
    }

    /// Removals are kept for a day, and each read lists those of the last half hour: rare passes cost fewer reads of batches.
    #[test]
    fn a_read_of_removals_lists_one_page_however_often_replicas_collect() {
        let of = |seconds, replicas| {
            let collectors = Collectors {
                owners: 16.0,
                period_s: seconds,
                whole_period_s: seconds,
                evicted_per_s: 100.0,
                known_tails_per_s: 0.0,
            };
            journal(&inputs(seconds), replicas, 1e3, &collectors)
        };
        let (often, rarely) = (of(600.0, 100.0), of(21_600.0, 100.0));
        // 8 reads of the log a second, 3.3 of that of counts, and each replica lists all removals once an hour.
        let listings = 8.0 + 100.0 / 30.0 + 16.0 * 100.0 / 3_600.0;
        // One lists what all stored: 17 pages in 25 s, or the folder of each, as old batches are deleted late; and removals again.
        assert!((often.listings - listings - 18.0 / 25.0).abs() < 1e-9, "{}", often.listings);
        assert!((rarely.listings - listings - 101.0 / 25.0).abs() < 1e-9, "{}", rarely.listings);
        assert!(rarely.appends < often.appends && rarely.reads < often.reads);
        // Ten thousand replicas write more than a page in half an hour.
        assert!(of(600.0, 1e4).listings > 800.0 * 5.0);
    }

    /// Seven requests of 150 ms verify a tail. Intents of a hundred tails, each of three requests and four rounds of three, are
    /// announced in each turn of 12.5 s while they are carried out.
    #[test]
    fn tails_are_announced_while_they_are_marked_and_once_an_hour() {
        let inputs = inputs(600.0);
        assert_eq!(known_tails_per_s(&inputs, 100.0, 15.0), 15.0);
        let most = known_tails_per_s(&inputs, 100.0, 500.0);
        assert!((most - 100.0 / 1.05).abs() < 1e-9, "{most}");
        let batches = |replicas, known_tails_per_s| {
            let collectors = Collectors {
                owners: 0.0,
                period_s: 1.0,
                whole_period_s: 1.0,
                evicted_per_s: 0.0,
                known_tails_per_s,
            };
            collectors.removals_per_s(&inputs, replicas, 12.5)
        };
        let tails = batches(100.0, most);
        assert!((tails - 100.0 / 3_600.0 - most * 0.0225 / 12.5).abs() < 1e-9, "{tails}");
        assert_eq!(batches(8.0, most), 0.0, "owners know all tails of their units");
    }

    /// A hundred replicas, with each change of ADR-084 and without one of them, which saves so many requests a second at least.
    /// While every replica verifies tails all the time, all together are more than the fifty that were wanted.
    #[test]
    fn each_change_of_the_journal_saves_requests() {
        let changes = [
            ("journal_stored_turns", 1.0, 15.0),
            ("journal_pages_max", 10.0, 2.0),
            ("known_tails_every_s", 0.0, 10.0),
            ("gone_waiting_max", 1_000.0, 10.0),
        ];
        for trace in &TRACES {
            let requests = |inputs: &Inputs, chunks| {
                ProjectedSize::new(inputs, trace, 100.0, chunks).journal_requests_per_s()
            };
            let [now, large] = [3e7, 1e9].map(|chunks| requests(&inputs(600.0), chunks));
            assert!(now <= 70.0 && large <= 70.0, "{}: {now} and {large}", trace.name);
            for (name, before, saved) in changes {
                let mut inputs = inputs(600.0);
                inputs.set(name, before, "before");
                let before = requests(&inputs, 3e7);
                assert!(before - now >= saved, "{}: {before} without {name}, {now} with it", trace.name);
            }
        }
    }
}
