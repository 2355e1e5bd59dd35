//! What replicas have to do together, and what of it a measurement missed.

use kvasir_plot::number;

use super::{
    Part, Scaling, clients::Spreading, conversation::Conversations, hot::HotReads,
    membership::ReplicasChanged,
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

/// The bounds that a measurement missed, each with what was measured. Parts that were not measured miss none.
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
    let part = row.part();
    let what = |what: &str| format!("{part} of {} by {}, {what}", row.replicas, row.spreading.as_str());
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
    let is_compared = part == Part::Restart && row.spreading == Spreading::Routes;
    let missed = [
        none(&what("failed loads"), row.summary.failed),
        none(&what("wrong loads"), row.summary.wrong),
        is_compared.then(recovery).flatten(),
    ];
    missed.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;
    use crate::{
        process::usage,
        scale_out::{page, samples::kept},
    };

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
    fn a_part_that_was_not_measured_is_not_judged_and_named() {
        let mut scaling = kept(&usage::machine());
        scaling.rows[0].unique = 0.1;
        scaling.conversations[1].unique = 0.1;
        scaling.conversations[4].unique = 0.1;
        scaling.restarts[0].summary.failed = 1;
        scaling.restarts[2].summary.failed = 1;
        for (nth, part) in Part::value_variants()[..5].iter().enumerate() {
            assert_eq!(missed(&scaling).len(), 5 - nth, "{:?}", missed(&scaling));
            scaling.leave_out(&[*part]);
            let named = ["hot", "conversation", "template", "restart", "leave"][..=nth].join(", ");
            let line = format!("NOT MEASURED: {named}, join");
            assert!(scaling.lines().ends_with(&line), "{}", scaling.lines());
            assert!(scaling.page().contains(&line), "{line}");
        }
        assert!(scaling.passed());
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
