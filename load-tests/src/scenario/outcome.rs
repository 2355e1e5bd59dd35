//! The result of a run: figures by name, the bounds for them, and all of it as one JSON document.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    fault::FaultWindow,
    spec::{Bound, Scenario},
};
use crate::{process::usage::Machine, replay::trace::TraceFacts, report, traffic::record::Summary};

/// The service's processes in one second.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) at_s: f64,
    pub(crate) cpu_s: f64,
    pub(crate) resident_mib: f64,
    pub(crate) fds: u64,
    pub(crate) cache_mib: f64,
}

/// The number of acknowledged objects, and how many of them were stored at the end.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Durability {
    pub(crate) acknowledged: u64,
    pub(crate) checked: u64,
    pub(crate) lost: u64,
    pub(crate) wrong: u64,
    pub(crate) bytes: u64,
}

/// A bound and whether it held.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Threshold {
    pub(crate) figure: String,
    pub(crate) value: Option<f64>,
    pub(crate) min: Option<f64>,
    pub(crate) max: Option<f64>,
    pub(crate) held: bool,
}

/// A whole run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) scenario: String,
    pub(crate) about: String,
    pub(crate) smoke: bool,
    pub(crate) machine: Machine,
    pub(crate) seed: u64,
    pub(crate) store: String,
    pub(crate) seconds: f64,
    /// Why the scenario was skipped, if something is missing on this machine.
    pub(crate) skipped: Option<String>,
    #[serde(deserialize_with = "report::finite_or_nan_by_name")]
    pub(crate) figures: BTreeMap<String, f64>,
    #[serde(rename = "gates")]
    pub(crate) thresholds: Vec<Threshold>,
    pub(crate) loads: BTreeMap<String, Summary>,
    #[serde(rename = "truth")]
    pub(crate) durability: Durability,
    pub(crate) faults: Vec<FaultWindow>,
    pub(crate) traces: Vec<TraceFacts>,
    pub(crate) samples: Vec<Sample>,
    pub(crate) specification: Scenario,
}

/// Largest mean of a third of the samples over that of the third before the last: how much something grew after warming up.
fn growth(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> Option<f64> {
    let third = samples.len() / 3;
    let mean = |part: &[Sample]| part.iter().map(&of).sum::<f64>() / part.len() as f64;
    (third > 2).then(|| mean(&samples[2 * third..]) - mean(&samples[third..2 * third]))
}

/// Figures by name, as used by thresholds and readers.
pub(crate) fn figures(
    loads: &BTreeMap<String, Summary>,
    durability: &Durability,
    faults: &[FaultWindow],
    samples: &[Sample],
    seconds: f64,
) -> BTreeMap<String, f64> {
    let mut figures = BTreeMap::new();
    for (name, load) in loads {
        let mut put = |what: &str, value: f64| figures.insert(format!("{name}.{what}"), value);
        put("requests", load.requests as f64);
        put("failed", load.failed as f64);
        put("availability", 1.0 - load.failed as f64 / load.requests.max(1) as f64);
        put("mb_per_s", load.bytes as f64 / 1e6 / seconds);
        for percentile in ["p50", "p99", "p999", "max"] {
            put(&format!("{percentile}_ms"), load.latency_ms[percentile]);
        }
        put("p99_over_p50", load.latency_ms["p99"] / load.latency_ms["p50"].max(1e-3));
        // In seconds during which something was wrong, and in the others.
        let ill = |at: usize| faults.iter().any(|f| f.from_s < at as f64 + 1.0 && f.to_s > at as f64);
        for (what, wanted) in [("availability_in_faults", true), ("availability_else", false)] {
            let of = load.seconds.iter().enumerate().filter(|(at, _)| ill(*at) == wanted);
            let (due, failed) = of.fold((0, 0), |(d, f), (_, second)| (d + second.due, f + second.failed));
            if due > 0 && !faults.is_empty() {
                put(what, 1.0 - failed as f64 / due as f64);
            }
        }
        if let Some(last) = faults.last() {
            put("recovery_s", load.last_failure_s.map_or(0.0, |at| (at - last.to_s).max(0.0)));
        }
    }
    figures.insert("all.failed".into(), loads.values().map(|l| l.failed as f64).sum());
    figures.insert(
        "all.wrong".into(),
        loads.values().map(|l| l.wrong as f64).sum::<f64>() + durability.wrong as f64,
    );
    figures.insert("all.lost".into(), durability.lost as f64);
    figures.insert("all.checked".into(), durability.checked as f64);
    let most = |of: fn(&Sample) -> f64| samples.iter().map(of).fold(0.0, f64::max);
    figures.insert("service.resident_mib_max".into(), most(|s| s.resident_mib));
    figures.insert("service.fds_max".into(), most(|s| s.fds as f64));
    figures.insert("service.cache_mib_max".into(), most(|s| s.cache_mib));
    let cpu = samples.last().map_or(0.0, |last| last.cpu_s - samples[0].cpu_s);
    figures.insert("service.cpu_s".into(), cpu);
    for (name, of) in [
        ("service.resident_growth_mib", (|s| s.resident_mib) as fn(&Sample) -> f64),
        ("service.fds_growth", |s| s.fds as f64),
        ("service.cache_growth_mib", |s| s.cache_mib),
    ] {
        if let Some(value) = growth(samples, of) {
            figures.insert(name.into(), value);
        }
    }
    figures
}

/// Compares figures with bounds. A missing figure fails its bound, unless the run was so short that nothing
/// may have been due (`lenient`). Every run has the bound that nothing is lost or wrong.
pub(crate) fn thresholds(
    figures: &BTreeMap<String, f64>,
    bounds: &[BTreeMap<String, Bound>],
    lenient: bool,
) -> Vec<Threshold> {
    let none = Bound { min: None, max: Some(0.0) };
    let always = [("all.lost".to_owned(), none), ("all.wrong".to_owned(), none)];
    let given = bounds.iter().flat_map(|bounds| bounds.iter().map(|(name, bound)| (name.clone(), *bound)));
    always
        .into_iter()
        .chain(given)
        .map(|(figure, Bound { min, max })| {
            let value = figures.get(&figure).copied();
            let held =
                value.map_or(lenient, |v| min.is_none_or(|min| v >= min) && max.is_none_or(|max| v <= max));
            Threshold { figure, value, min, max, held }
        })
        .collect()
}

impl Outcome {
    /// Whether all bounds held.
    pub(crate) fn passed(&self) -> bool {
        self.skipped.is_some() || self.thresholds.iter().all(|threshold| threshold.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_hold_only_where_the_figure_is_there_and_within() {
        let figures =
            BTreeMap::from([("all.lost".into(), 0.0), ("all.wrong".into(), 1.0), ("a.p99_ms".into(), 5.0)]);
        let bound = |min, max| Bound { min, max };
        let bounds = BTreeMap::from([
            ("a.p99_ms".to_owned(), bound(Some(1.0), Some(5.0))),
            ("b.p99_ms".to_owned(), bound(None, Some(5.0))),
        ]);
        let held: Vec<bool> =
            thresholds(&figures, &[bounds], false).iter().map(|threshold| threshold.held).collect();
        assert_eq!(held, [true, false, true, false]);
    }
}
