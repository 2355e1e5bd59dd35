//! The simulator against small traces whose answers are known.

use std::io::Write;

use kvasir_eviction::PolicyKind;
use proptest::prelude::*;

use kvasir_replay::trace::{TraceError, TraceFormat};

use super::*;

fn options(text: &str) -> (tempfile::NamedTempFile, ReplayOptions) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let options = ReplayOptions {
        trace: TraceSource::File { path: file.path().to_owned(), format: TraceFormat::Mooncake },
        policies: ComparedPolicy::ALL.to_vec(),
        belady: true,
        capacities: vec![0.0, 0.25, 0.5, 1.0],
        warm_share: 0.0,
        recompute: RecomputeModel::default(),
        threads: 2,
    };
    (file, options)
}

fn line(millis: u64, blocks: &[u64]) -> String {
    let tokens = blocks.len() * 512;
    format!(
        "{{\"timestamp\": {millis}, \"input_length\": {tokens}, \"output_length\": 1, \"hash_ids\": {blocks:?}}}\n"
    )
}

#[test]
fn an_empty_trace_is_refused() {
    for text in ["", "\n\n", &line(0, &[])] {
        assert!(matches!(replay(&options(text).1), Err(TraceError::Empty)));
    }
}

/// While all of a trace is in the sample, the curve is what whole caches find.
#[test]
fn the_curve_of_a_small_trace_is_exact() {
    let request = |n: u64| line(n * 1_000, &[0, 1 + n % 7, 10 + n % 3, 20 + n % 13]);
    let text: String = (0..200).map(request).collect();
    let (_file, options) = options(&text);
    for kind in PolicyKind::ALL {
        let rows = compare_curve(&options.trace, kind, &[0.25, 0.5]).unwrap();
        assert!(rows.iter().any(|row| row.found > 0.2 && row.found < 0.9), "{rows:?}");
        assert!(rows.iter().all(|row| (row.found - row.estimated).abs() < 1e-9), "{rows:?}");
    }
}

/// LRU with room for two of four blocks, counted by hand.
#[test]
fn hits_follow_prefix_semantics() {
    let text: String = [
        line(0, &[1, 2]),
        line(1_000, &[1, 2]), // both hit
        line(2_000, &[3]),    // 1 goes
        line(3_000, &[1, 2]), // 2 is there, but not what is before it
        line(4_000, &[1, 4]), // 1 hits
    ]
    .concat();
    let (_file, options) = options(&text);
    let report = EvictReport::new(&replay(&options).unwrap());
    let row = |policy: &str, capacity: f64| {
        report.rows.iter().find(|row| row.policy == policy && row.capacity == capacity).unwrap().clone()
    };
    assert_eq!(report.trace.unique_blocks, 4);
    assert_eq!(report.trace.block_tokens, 512);
    assert_eq!(report.trace.ideal_hit_ratio, 5.0 / 9.0);
    assert_eq!(row("lru", 0.5).hit_ratio, 3.0 / 9.0);
    assert_eq!(row("lru", 1.0).hit_ratio, 5.0 / 9.0);
    assert_eq!(row("lru", 0.0).hit_ratio, 0.0);
    assert_eq!(row("belady", 0.5).hit_ratio, 5.0 / 9.0);
    let model = RecomputeModel::default();
    let expected = 2.0 * model.seconds(0, 512) + model.seconds(512, 1_024);
    assert!((row("lru", 0.5).seconds_saved - expected).abs() < 1e-6);
    assert_eq!(report.default, PolicyKind::DEFAULT.name());
}

#[test]
fn the_time_split_counts_only_what_follows() {
    let text: String = (0..10).map(|step| line(step * 1_000, &[1, 2])).collect();
    let (_file, mut options) = options(&text);
    options.warm_share = 0.5;
    let replay = replay(&options).unwrap();
    let full = replay
        .rows
        .iter()
        .find(|row| row.policy == Some(ComparedPolicy::Shipped(PolicyKind::Lru)) && row.capacity == 1.0)
        .unwrap();
    assert_eq!((full.total.blocks, full.total.hits), (10, 10), "the first miss lies in the warm half");
}

#[test]
fn reuse_times_are_fitted() {
    // One block of its own per wait, waits drawn from an exponential of mean 100 s by its inverse.
    let mut events: Vec<(u64, u64)> = Vec::new();
    for block in 0..2_000u64 {
        let wait = -100_000.0 * (1.0 - (block as f64 + 0.5) / 2_000.0).ln();
        events.extend([(block * 10, block), (block * 10 + wait as u64, block)]);
    }
    events.sort_unstable();
    let text: String = events.iter().map(|(millis, block)| line(*millis, &[*block])).collect();
    let report = EvictReport::new(&replay(&options(&text).1).unwrap());
    let first = report.reuse.iter().find(|class| class.class == "turn 1").unwrap();
    assert_eq!(first.samples, 2_000);
    assert!((first.mean_seconds.unwrap() - 100.0).abs() < 1.0, "{:?}", first.mean_seconds);
    assert!(first.exponential_distance.unwrap() < 0.02, "{:?}", first.exponential_distance);
    assert_eq!(report.trace.reused_share, 1.0);
    assert_eq!(report.trace.blocks_with_90_percent_of_reuses, 0.9);
    // One reuse each: any share of the blocks takes the same share of the reuses.
    assert!(report.trace.reuse_skew.iter().all(|(blocks, reuses)| (blocks - reuses).abs() < 1e-3));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_policy_beats_the_ideal_and_all_reach_it_with_room_for_all(
        requests in prop::collection::vec((0..4_000u64, prop::collection::vec(0..3u64, 1..6)), 1..60),
    ) {
        // Ids are paths in a tree, as real ones are: equal ids mean equal prefixes.
        let mut now = 0;
        let mut text = String::new();
        for (wait, choices) in requests {
            now += wait;
            let mut id = 0;
            let path: Vec<u64> = choices.iter().map(|choice| { id = id * 4 + choice + 1; id }).collect();
            text.push_str(&line(now, &path));
        }
        let report = EvictReport::new(&replay(&options(&text).1).unwrap());
        for row in &report.rows {
            prop_assert!(row.hit_ratio <= report.trace.ideal_hit_ratio + 1e-12, "{}", row.policy);
            prop_assert_eq!(row.classes.iter().map(|class| class.blocks).sum::<u64>(), report.trace.block_accesses);
            if row.capacity == 1.0 && row.policy != "ttl" {
                prop_assert!((row.hit_ratio - report.trace.ideal_hit_ratio).abs() < 1e-12, "{}", row.policy);
            }
            if row.capacity == 0.0 {
                prop_assert_eq!(row.hit_ratio, 0.0);
            }
        }
    }
}
