//! The result of loads with deadlines: means, and differences between two services.

use std::time::Duration;

use kvasir_plot::{Page, number};
use serde::{Deserialize, Serialize};

use crate::{process::usage::Machine, report};

/// One load.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoadSample {
    pub(super) took: Duration,
    /// Whether all of it was in its pages by the deadline.
    pub(super) in_time: bool,
    /// Share of its tokens that were there by then at the finest level.
    pub(super) finest: f64,
    pub(super) bytes: u64,
}

/// What is compared, round by round: its name, and that of one load.
pub(super) type Measure = (&'static str, fn(&LoadSample) -> f64);

pub(super) const MEASURES: [Measure; 3] = [
    ("loads whole in time, %", |load| f64::from(load.in_time) * 100.0),
    ("tokens in time at the finest level, %", |load| load.finest * 100.0),
    ("MB a load", |load| load.bytes as f64 / 1e6),
];
const COLUMNS: [&str; 6] = ["service", MEASURES[0].0, MEASURES[1].0, MEASURES[2].0, "p50, ms", "p95, ms"];

fn mean(loads: &[LoadSample], of: fn(&LoadSample) -> f64) -> f64 {
    loads.iter().map(of).sum::<f64>() / loads.len() as f64
}

/// What one service did: the means of the measures over all loads, and percentiles of the loads' times.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Served {
    service: String,
    means: [f64; 3],
    p50_ms: f64,
    p95_ms: f64,
}

impl Served {
    pub(super) fn new(service: &str, rounds: &[Vec<LoadSample>]) -> Self {
        let loads = rounds.concat();
        let mut times: Vec<f64> = loads.iter().map(|load| load.took.as_secs_f64() * 1e3).collect();
        times.sort_by(f64::total_cmp);
        let [p50_ms, p95_ms] = [0.5, 0.95].map(|share| times[(times.len() as f64 * share) as usize]);
        let means = MEASURES.map(|(_, of)| mean(&loads, of));
        Self { service: service.to_owned(), means, p50_ms, p95_ms }
    }
}

/// How far the present service is above the one before.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Difference {
    of: String,
    /// Mean of the rounds' differences, and the ends of its interval of 95 % (normal).
    mean_low_high: [f64; 3],
}

impl Difference {
    pub(super) fn new((name, of): Measure, now: &[Vec<LoadSample>], before: &[Vec<LoadSample>]) -> Self {
        let pairs = now.iter().zip(before);
        let differences: Vec<f64> = pairs.map(|(now, before)| mean(now, of) - mean(before, of)).collect();
        let rounds = differences.len() as f64;
        let mean = differences.iter().sum::<f64>() / rounds;
        let squares = differences.iter().map(|difference| (difference - mean).powi(2)).sum::<f64>();
        let half = 1.96 * (squares / (rounds - 1.0) / rounds).sqrt();
        Self { of: name.to_owned(), mean_low_high: [mean, mean - half, mean + half] }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Deadlines {
    pub(super) what: String,
    pub(super) machine: Machine,
    pub(super) seed: u64,
    pub(super) rounds: usize,
    pub(super) services: Vec<Served>,
    pub(super) differences: Vec<Difference>,
}

impl Deadlines {
    fn rows(&self) -> impl Iterator<Item = Vec<String>> {
        self.services.iter().map(|served| {
            let times = [served.p50_ms, served.p95_ms];
            let figures = served.means.into_iter().chain(times).map(number);
            [served.service.clone()].into_iter().chain(figures).collect()
        })
    }

    fn differences(&self) -> impl Iterator<Item = Vec<String>> {
        self.differences.iter().map(|difference| {
            let [mean, low, high] = difference.mean_low_high.map(number);
            vec![difference.of.clone(), format!("{mean} ({low} to {high})")]
        })
    }

    /// The tables, as text.
    pub(crate) fn lines(&self) -> String {
        let rows = [COLUMNS.map(str::to_owned).to_vec()].into_iter().chain(self.rows());
        let rows = rows.map(|row| row.join(" | "));
        let differences = self.differences().map(|row| row.join(", now above before: "));
        [self.what.clone()].into_iter().chain(rows).chain(differences).collect::<Vec<_>>().join("\n")
    }

    /// The page of the measurement.
    pub(crate) fn page(&self) -> String {
        let mut page = Page::new("Loads by their deadlines", &self.what);
        page.paragraph(&report::machine(&self.machine));
        page.table(&report::table(&COLUMNS, self.rows()));
        page.paragraph(&format!(
            "{} rounds, seed {}. Below, the means of the rounds' differences in pairs, with the interval of 95 %.",
            self.rounds, self.seed
        ));
        page.table(&report::table(&["", "now above before"], self.differences()));
        page.finish(report::FOOTER)
    }
}

#[cfg(test)]
mod tests {
    use kvasir_plot::markup::check_markup;

    use super::*;
    use crate::process::usage;

    /// Rounds differ more from each other than the services do in any of them.
    fn rounds(shift: f64) -> Vec<Vec<LoadSample>> {
        let sample = |finest| LoadSample { took: Duration::from_secs(1), in_time: true, finest, bytes: 1 };
        (0..20).map(|n| vec![sample(f64::from(n) / 40.0 + shift * f64::from(n % 3)); 2]).collect()
    }

    #[test]
    fn a_difference_within_rounds_is_told_from_that_between_them() {
        let difference = |shift| Difference::new(MEASURES[1], &rounds(shift), &rounds(0.0));
        let [mean, low, high] = difference(0.1).mean_low_high;
        assert!(5.0 < low && low < mean && mean < high && high < 15.0, "{mean} ({low} to {high})");
        let (what, machine) = (String::new(), usage::machine());
        let differences = vec![difference(0.0)];
        let deadlines = Deadlines { what, machine, seed: 1, rounds: 20, services: Vec::new(), differences };
        assert!(deadlines.lines().ends_with("now above before: 0 (0 to 0)"), "{}", deadlines.lines());
        check_markup(&deadlines.page()).unwrap();
    }
}
