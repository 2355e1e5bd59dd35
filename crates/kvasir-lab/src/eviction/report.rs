//! The outcome of a replay as data: rows for machines, summaries and curves for a page.

use serde::Serialize;

use super::{ComparedPolicy, Replay, ReplayRow, TimeHistogram, lane::Tally};
use kvasir_eviction::PolicyKind;

/// Gap to Belady's MIN, in hit ratio, below which its closing is not judged.
const GAP_JUDGED: f64 = 0.10;

/// One policy at one capacity.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Name of the policy; `belady` is the offline optimum.
    pub policy: String,
    /// Capacity as a share of the unique blocks.
    pub capacity: f64,
    /// Capacity in blocks.
    pub capacity_blocks: u64,
    /// Share of the blocks that hit, with all previous blocks of their request hitting too.
    pub hit_ratio: f64,
    /// Seconds of prefill saved.
    pub seconds_saved: f64,
    /// The same as a share of all prefill.
    pub seconds_saved_ratio: f64,
    /// Mean time of an eviction on this machine; 0 if there was none.
    pub ns_per_eviction: f64,
    /// Evictions.
    pub evictions: u64,
    /// By request class.
    pub classes: Vec<ClassRow>,
}

/// One class of a [`Row`].
#[derive(Debug, Clone, Serialize)]
pub struct ClassRow {
    /// Type and turn.
    pub class: String,
    /// Requested blocks.
    pub blocks: u64,
    /// Share that hit.
    pub hit_ratio: f64,
    /// Seconds of prefill saved.
    pub seconds_saved: f64,
}

/// One policy over all capacities.
#[derive(Debug, Clone, Serialize)]
pub struct PolicySummary {
    /// Name.
    pub policy: String,
    /// Mean hit ratio over the capacities.
    pub mean_hit_ratio: f64,
    /// Furthest below the best online policy at any capacity.
    pub below_best_max: f64,
    /// The capacity where that is; absent if it is below at none.
    pub below_best_at: Option<f64>,
    /// Share of the gap between leaf-first LRU and Belady that it closes: the mean over the capacities where
    /// the gap is at least 10 points. Absent if there is no such capacity, or one of the two was not
    /// replayed.
    pub gap_closed: Option<f64>,
}

/// Reuse of one class: the distribution and the exponential that the workload-aware policy assumes.
#[derive(Debug, Clone, Serialize)]
pub struct ClassReuse {
    /// Type and turn.
    pub class: String,
    /// Requests.
    pub requests: u64,
    /// Requested blocks.
    pub blocks: u64,
    /// Share of them that an unbounded cache would have.
    pub ideal_hit_ratio: f64,
    /// Reuses observed.
    pub samples: u64,
    /// Mean wait: the exponential's parameter.
    pub mean_seconds: Option<f64>,
    /// Largest distance between the distribution and the exponential.
    pub exponential_distance: Option<f64>,
    /// Share of the waits at or below each of [`EvictReport::edges_seconds`].
    pub cumulative: Vec<f64>,
}

/// Facts about the trace.
#[derive(Debug, Clone, Serialize)]
pub struct TraceFacts {
    /// Requests.
    pub requests: u64,
    /// Block accesses.
    pub block_accesses: u64,
    /// Different blocks.
    pub unique_blocks: u64,
    /// Tokens of a block.
    pub block_tokens: u64,
    /// Share that an unbounded cache would serve.
    pub ideal_hit_ratio: f64,
    /// Share of the blocks used more than once.
    pub reused_share: f64,
    /// Share of the blocks that takes 90 % of the reuses.
    pub blocks_with_90_percent_of_reuses: f64,
    /// Shares of the blocks, most reused first, and the share of the reuses that they take.
    pub reuse_skew: Vec<(f64, f64)>,
    /// Median time from first to last use of the blocks used more than once, to half an octave.
    pub lifespan_median_seconds: Option<f64>,
    /// Share of lifespans at or below each of [`EvictReport::edges_seconds`].
    pub lifespan_cumulative: Vec<f64>,
}

/// Everything about a replay.
#[derive(Debug, Clone, Serialize)]
pub struct EvictReport {
    /// [`PolicyKind::DEFAULT`]: the default of the garbage collector and of the hot tier.
    pub default: String,
    /// One per policy and capacity.
    pub rows: Vec<Row>,
    /// One per policy.
    pub summaries: Vec<PolicySummary>,
    /// The trace.
    pub trace: TraceFacts,
    /// Upper edges of the bins of all distributions.
    pub edges_seconds: Vec<f64>,
    /// Reuse by class, for classes that occur.
    pub reuse: Vec<ClassReuse>,
    /// Remarks that a reader of the numbers needs.
    pub notes: Vec<&'static str>,
}

const NOTES: [&str; 4] = [
    "a block counts as hit only if all blocks before it in its request hit",
    "belady knows the future: no online policy reaches it; of the blocks of one request it drops the last first, so that the remaining blocks are whole prefixes",
    "seconds are those of the stated prefill model, not measured on this machine",
    "ns_per_eviction is measured on this machine while other rows run: every 16th eviction, without the slowest hundredth",
];

fn name_of(row: &ReplayRow) -> String {
    row.policy.map_or_else(|| "belady".to_owned(), |kind| kind.to_string())
}

impl EvictReport {
    /// The report of a replay.
    pub fn new(replay: &Replay) -> Self {
        let rows: Vec<Row> = replay.rows.iter().map(|row| to_row(row, &replay.classes)).collect();
        let profile = &replay.profile;
        let reuse = profile.classes.iter().zip(&replay.classes).filter(|(class, _)| class.requests > 0);
        Self {
            default: PolicyKind::DEFAULT.to_string(),
            summaries: summaries(&rows),
            rows,
            trace: TraceFacts {
                requests: profile.requests,
                block_accesses: profile.block_accesses,
                unique_blocks: profile.unique_blocks,
                block_tokens: profile.block_tokens,
                ideal_hit_ratio: profile.ideal_hit_ratio(),
                reused_share: profile.reused_share,
                blocks_with_90_percent_of_reuses: profile.blocks_with_90_percent_of_reuses,
                reuse_skew: profile.skew.clone(),
                lifespan_median_seconds: profile.lifespans.quantile_seconds(0.5),
                lifespan_cumulative: profile.lifespans.cumulative(),
            },
            edges_seconds: (0..super::profile::HISTOGRAM_BINS).map(TimeHistogram::edge_seconds).collect(),
            reuse: reuse
                .map(|(class, name)| ClassReuse {
                    class: name.clone(),
                    requests: class.requests,
                    blocks: class.blocks,
                    ideal_hit_ratio: class.ideal_hits as f64 / class.blocks.max(1) as f64,
                    samples: class.reuse.samples(),
                    mean_seconds: class.reuse.mean_seconds(),
                    exponential_distance: class.reuse.exponential_distance(),
                    cumulative: class.reuse.cumulative(),
                })
                .collect(),
            notes: NOTES.to_vec(),
        }
    }
}

fn to_row(row: &ReplayRow, classes: &[String]) -> Row {
    let class_row = |(tally, class): (&Tally, &String)| ClassRow {
        class: class.clone(),
        blocks: tally.blocks,
        hit_ratio: tally.hit_ratio(),
        seconds_saved: tally.seconds_saved,
    };
    let ratio = row.total.seconds_saved / row.total.seconds.max(f64::MIN_POSITIVE);
    Row {
        policy: name_of(row),
        capacity: row.capacity,
        capacity_blocks: row.capacity_blocks,
        hit_ratio: row.total.hit_ratio(),
        seconds_saved: row.total.seconds_saved,
        seconds_saved_ratio: ratio,
        ns_per_eviction: row.nanos_per_eviction.unwrap_or(0.0),
        evictions: row.evictions,
        classes: row
            .by_class
            .iter()
            .zip(classes)
            .filter(|(tally, _)| tally.blocks > 0)
            .map(class_row)
            .collect(),
    }
}

fn summaries(rows: &[Row]) -> Vec<PolicySummary> {
    let ratio = |policy: &str, capacity: f64| {
        let row = rows.iter().find(|row| row.policy == policy && row.capacity == capacity);
        row.map(|row| row.hit_ratio)
    };
    let mut policies: Vec<&str> = rows.iter().map(|row| row.policy.as_str()).collect();
    policies.dedup();
    let summary = |policy: &str| {
        let own = || rows.iter().filter(|row| row.policy == policy);
        let best_online = |capacity: f64| {
            let online = rows.iter().filter(|row| row.policy != "belady" && row.capacity == capacity);
            online.map(|row| row.hit_ratio).fold(0.0, f64::max)
        };
        let below = own().map(|row| (best_online(row.capacity) - row.hit_ratio, row.capacity));
        let furthest = below.filter(|(below, _)| *below > 0.0).max_by(|(a, _), (b, _)| a.total_cmp(b));
        let closed: Vec<f64> = own()
            .filter_map(|row| {
                let lru = ratio(ComparedPolicy::REFERENCE.name(), row.capacity)?;
                let belady = ratio("belady", row.capacity)?;
                (belady - lru >= GAP_JUDGED).then(|| (row.hit_ratio - lru) / (belady - lru))
            })
            .collect();
        PolicySummary {
            policy: policy.to_owned(),
            mean_hit_ratio: own().map(|row| row.hit_ratio).sum::<f64>() / own().count().max(1) as f64,
            below_best_max: furthest.map_or(0.0, |(below, _)| below),
            below_best_at: furthest.map(|(_, capacity)| capacity),
            gap_closed: (!closed.is_empty()).then(|| closed.iter().sum::<f64>() / closed.len() as f64),
        }
    };
    policies.into_iter().map(summary).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_says_where_a_policy_is_below_the_best() {
        let row = |(policy, capacity, hit_ratio): (&str, f64, f64)| Row {
            policy: policy.to_owned(),
            capacity,
            capacity_blocks: 0,
            hit_ratio,
            seconds_saved: 0.0,
            seconds_saved_ratio: 0.0,
            ns_per_eviction: 0.0,
            evictions: 0,
            classes: Vec::new(),
        };
        let cells = [
            ("adaptive", 0.1, 0.25),
            ("adaptive", 0.5, 0.75),
            ("lru", 0.1, 0.5),
            ("lru", 0.5, 0.625),
            ("belady", 0.1, 1.0),
            ("belady", 0.5, 1.0),
        ];
        let found: Vec<_> = summaries(&cells.map(row))
            .into_iter()
            .map(|summary| (summary.policy, summary.below_best_max, summary.below_best_at))
            .collect();
        let expected = [("adaptive", 0.25, Some(0.1)), ("lru", 0.125, Some(0.5))];
        assert_eq!(found[..2], expected.map(|(policy, below, at)| (policy.to_owned(), below, at)));
    }
}
