//! What replicas have to do together, and what of it a measurement missed.

use kvasir_plot::number;

use super::{
    Scaling,
    clients::Spreading,
    conversation::Conversations,
    hot::HotReads,
    membership::{Change, ReplicasChanged},
};

/// Throughput of hot reads by N replicas, over N times that of one.
const THROUGHPUT_MIN: f64 = 0.9;
/// CPU seconds per second and core while hot reads are measured, clients included: above it, links are not all that bounds them.
const CPU_MAX: f64 = 0.7;
/// Different bytes per byte in all hot tiers.
const UNIQUE_MIN: f64 = 0.85;
/// Requests to the store per second by a replica without load.
const IDLE_STORE_REQUESTS_MAX: f64 = 0.05;
/// Hit ratio that one replica with the memory of all may have beyond that of N. Not measured with this version.
const HIT_RATIO_LOST_MAX: f64 = 0.01;
/// Requests of the busiest replica per mean, where most conversations have a template in common.
const BUSIEST_MAX: f64 = 1.3;
/// Time until hits are back after a rolling restart, of the time that it takes by chance.
const RECOVERY_MAX: f64 = 0.5;
/// What is back in less than this was never away: hit ratios are those of whole seconds.
const RECOVERY_SECONDS: f64 = 1.0;

/// Infinity, too, falls short: something was divided by nothing.
fn falls_short(measured: f64, least: f64) -> bool {
    !measured.is_finite() || measured < least
}

fn at_least(what: &str, measured: f64, least: f64) -> Option<String> {
    falls_short(measured, least)
        .then(|| format!("{what}: {}, at least {} wanted", number(measured), number(least)))
}

/// As [`at_least`], of shares: in per cent with two decimals, because they miss by little.
fn at_least_percent(what: &str, measured: f64, least: f64) -> Option<String> {
    falls_short(measured, least)
        .then(|| format!("{what}: {:.2} %, at least {:.2} % wanted", measured * 100.0, least * 100.0))
}

fn at_most(what: &str, measured: f64, most: f64) -> Option<String> {
    let missed = measured.is_nan() || measured > most;
    missed.then(|| format!("{what}: {}, at most {} wanted", number(measured), number(most)))
}

fn none(what: &str, count: u64) -> Option<String> {
    (count > 0).then(|| format!("{what}: {count}, none wanted"))
}

/// The bounds that a measurement missed, each with what was measured.
pub(super) fn missed(scaling: &Scaling) -> Vec<String> {
    let Scaling { rows, conversations, restarts, .. } = scaling;
    let hot = rows.iter().flat_map(|row| of_hot_reads(row, rows));
    let conversations = conversations.iter().flat_map(|row| of_conversations(row, conversations));
    let restarts = restarts.iter().flat_map(|row| of_change(row, restarts));
    hot.chain(conversations).chain(restarts).collect()
}

fn of_hot_reads(row: &HotReads, all: &[HotReads]) -> Vec<String> {
    let replicas = row.replicas as f64;
    let what = |what: &str| format!("{} replicas, {what}", row.replicas);
    let throughput = row.times_one(all).and_then(|times| {
        at_least(&what("hot reads per replica, of those of one"), times / replicas, THROUGHPUT_MIN)
    });
    let idle = row.idle_store_requests_per_s / replicas;
    let mut missed = vec![
        throughput,
        at_most(&what("CPU"), row.cpu_of_replicas + row.cpu_of_clients, CPU_MAX),
        at_least(&what("unique"), row.unique, UNIQUE_MIN),
        at_most(&what("store requests/s of each without load"), idle, IDLE_STORE_REQUESTS_MAX),
        none(&what("objects just stored that a replica did not find"), row.cold_lookups_missed),
    ];
    if let Some(lost) = &row.with_a_replica_lost {
        missed.extend([
            none(&what("failed reads while one was killed"), lost.summary.failed),
            none(&what("wrong reads while one was killed"), lost.summary.wrong),
            none(&what("objects not found after one was killed"), lost.not_found_afterwards),
        ]);
    }
    missed.into_iter().flatten().collect()
}

fn of_conversations(row: &Conversations, all: &[Conversations]) -> Vec<String> {
    if row.replicas == 1 || row.spreading == Spreading::Chance {
        return Vec::new();
    }
    let share = row.template_share * 100.0;
    let what = |what: &str| format!("{} replicas, {share:.0} % with a template, {what}", row.replicas);
    let unique = at_least(&what("unique"), row.unique, UNIQUE_MIN);
    let other = if row.template_share > 0.0 {
        at_most(&what("busiest / mean"), row.busiest_over_mean, BUSIEST_MAX)
    } else {
        let one = all.iter().find(|one| one.replicas == 1 && one.template_share == 0.0);
        one.and_then(|one| at_least_percent(&what("hot"), row.hot_share, one.hot_share - HIT_RATIO_LOST_MAX))
    };
    unique.into_iter().chain(other).collect()
}

fn of_change(row: &ReplicasChanged, all: &[ReplicasChanged]) -> Vec<String> {
    let change = match row.change {
        Change::RollingRestart => "restart",
        Change::OneLeaves => "leave",
        Change::OneJoins => "join",
    };
    let what = |what: &str| format!("{change} of {} by {}, {what}", row.replicas, row.spreading.as_str());
    let recovery = || {
        let is_by_chance = |other: &&ReplicasChanged| {
            other.change == row.change
                && other.replicas == row.replicas
                && other.spreading == Spreading::Chance
        };
        let by_chance = all.iter().find(is_by_chance)?.recovered_after_s.unwrap_or(f64::INFINITY);
        let most = RECOVERY_SECONDS.max(RECOVERY_MAX * by_chance);
        let what = what("seconds until 90 % of the hits were back");
        match row.recovered_after_s {
            Some(seconds) => at_most(&what, seconds, most),
            None => Some(format!("{what}: not within a minute")),
        }
    };
    let is_compared = row.change == Change::RollingRestart && row.spreading == Spreading::Routes;
    let missed = [
        none(&what("failed loads"), row.summary.failed),
        none(&what("wrong loads"), row.summary.wrong),
        is_compared.then(recovery).flatten(),
    ];
    missed.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{
        process::usage::{self, Machine},
        scale_out::{hot::ReplicaLoss, page},
        traffic::record::Recorder,
    };

    fn hot_reads(replicas: usize, mb_per_s: f64) -> HotReads {
        let lost = ReplicaLoss {
            killed_at_s: 5.0,
            summary: Recorder::default().summary(),
            acknowledged: 9,
            not_found_afterwards: 0,
        };
        HotReads {
            replicas,
            mb_per_s,
            cpu_of_replicas: 0.3,
            cpu_of_clients: 0.3,
            unique: 0.9,
            cold_lookups: 9,
            cold_lookups_missed: 0,
            idle_store_requests_per_s: 0.04 * replicas as f64,
            with_a_replica_lost: (replicas > 1).then_some(lost),
        }
    }

    fn conversations(replicas: usize, template_share: f64, hot_share: f64) -> Conversations {
        Conversations {
            trace: "a trace".to_owned(),
            replicas,
            spreading: Spreading::Routes,
            template_share,
            prompts: 9,
            chunks: 9,
            chunks_stored: 9,
            store_requests: BTreeMap::new(),
            memory_bytes_of_each: 9,
            hot_share,
            busiest_over_mean: 1.2,
            unique: 0.9,
        }
    }

    fn changed(change: Change, spreading: Spreading, recovered_after_s: f64) -> ReplicasChanged {
        ReplicasChanged {
            change,
            replicas: 8,
            spreading,
            rate: 9.0,
            first_stopped_at_s: 20.0,
            last_ready_at_s: 40.0,
            hot_before: 1.0,
            hot_lowest: 0.5,
            recovered_after_s: Some(recovered_after_s),
            hot_share: Vec::new(),
            summary: Recorder::default().summary(),
        }
    }

    /// Keeps every bound, some of them barely.
    fn kept(machine: &Machine) -> Scaling {
        Scaling {
            what: String::new(),
            machine: machine.clone(),
            link_mbps: 200,
            seed: 1,
            skipped: None,
            rows: vec![hot_reads(1, 10.0), hot_reads(8, 72.5)],
            conversations: vec![
                conversations(1, 0.0, 0.3),
                conversations(8, 0.0, 0.295),
                Conversations { spreading: Spreading::Chance, unique: 0.2, ..conversations(8, 0.0, 0.1) },
                conversations(1, 0.6, 0.5),
                conversations(8, 0.6, 0.4),
            ],
            restarts: vec![
                changed(Change::RollingRestart, Spreading::Routes, 9.0),
                changed(Change::RollingRestart, Spreading::Chance, 20.0),
                changed(Change::OneLeaves, Spreading::Routes, 9.0),
            ],
        }
    }

    #[test]
    fn each_bound_is_missed_by_what_is_beyond_it() {
        let machine = usage::machine();
        assert_eq!(missed(&kept(&machine)), Vec::<String>::new());
        let worse: [fn(&mut Scaling); 18] = [
            |s| s.rows[1].mb_per_s = 71.5,
            |s| s.rows[1].cpu_of_clients = 0.41,
            |s| s.rows[0].unique = 0.84,
            |s| s.rows[0].unique = f64::INFINITY,
            |s| s.rows[0].idle_store_requests_per_s = 0.06,
            |s| s.rows[1].idle_store_requests_per_s = 0.41,
            |s| s.rows[0].cold_lookups_missed = 1,
            |s| s.rows[1].with_a_replica_lost.as_mut().expect("one was").summary.failed = 1,
            |s| s.rows[1].with_a_replica_lost.as_mut().expect("one was").summary.wrong = 1,
            |s| s.rows[1].with_a_replica_lost.as_mut().expect("one was").not_found_afterwards = 1,
            |s| s.conversations[1].hot_share = 0.289,
            |s| s.conversations[1].unique = f64::NAN,
            |s| s.conversations[4].busiest_over_mean = 1.31,
            |s| s.restarts[0].recovered_after_s = Some(10.5),
            |s| s.restarts[0].recovered_after_s = None,
            |s| s.restarts[1].recovered_after_s = Some(17.0),
            |s| s.restarts[1].summary.failed = 1,
            |s| s.restarts[2].summary.wrong = 1,
        ];
        for (nth, worsen) in worse.into_iter().enumerate() {
            let mut scaling = kept(&machine);
            worsen(&mut scaling);
            assert_eq!(missed(&scaling).len(), 1, "{nth}: {:?}", missed(&scaling));
            assert!(!scaling.passed(), "{nth}");
        }
    }

    #[test]
    fn a_hit_ratio_that_misses_its_bound_by_little_does_not_read_as_if_it_met_it() {
        let mut scaling = kept(&usage::machine());
        scaling.conversations[1].hot_share = 0.2896;
        let missed = missed(&scaling);
        assert!(missed.iter().any(|bound| bound.contains("28.96 %, at least 29.00 % wanted")), "{missed:?}");
    }

    #[test]
    fn a_result_with_figures_that_json_does_not_have_can_be_read() {
        let mut scaling = kept(&usage::machine());
        scaling.rows[0].unique = f64::INFINITY;
        let row = &mut scaling.conversations[4];
        (row.unique, row.hot_share, row.busiest_over_mean) = (f64::NAN, f64::NAN, f64::NAN);
        scaling.restarts[0].hot_before = f64::NAN;
        let text = serde_json::to_string(&scaling).expect("JSON");
        let read: Scaling = serde_json::from_str(&text).expect("a result");
        assert_eq!(missed(&read), missed(&scaling));
    }

    #[test]
    fn without_one_replica_there_is_nothing_to_compare_with() {
        let mut scaling = kept(&usage::machine());
        let texts = |of: &Scaling| [page::hot_line(&of.rows[of.rows.len() - 1], &of.rows), of.page()];
        assert!(texts(&scaling).iter().all(|text| text.contains(", 7.25 times one")));
        scaling.rows.remove(0);
        assert!(texts(&scaling).iter().all(|text| !text.contains(" times one")));
    }

    #[test]
    fn what_is_back_within_a_second_need_not_be_faster_than_by_chance() {
        let machine = usage::machine();
        let of = |routes: f64, chance: Option<f64>| {
            let mut scaling = kept(&machine);
            scaling.restarts[0].recovered_after_s = Some(routes);
            scaling.restarts[1].recovered_after_s = chance;
            scaling.passed()
        };
        assert!(of(0.9, Some(0.1)) && of(59.0, None));
        assert!(!of(1.1, Some(0.1)));
    }
}
