//! The report of the hour.

use kvasir_plot::{Axis, Figure, Mark, Page, Plot, number};

use super::{
    CONVERSATION, Hour, folder_of,
    sample::{ReplicaUse, Sample, growth},
    survivor::SURVIVOR,
};
use crate::report;

/// Points of a curve at most: more curves of every second lie over each other.
const POINTS_MAX: f64 = 60.0;

/// A run's results from its log: the last count of a judge and why it ended early, or the lines of a scenario.
pub(super) fn said(log: &str, is_scenario: bool) -> Vec<String> {
    if is_scenario {
        return log.lines().map(|line| line.trim().to_owned()).collect();
    }
    let counts = |line: &&str| line.contains(" histories after ") || line.starts_with("quota of ");
    // With both sides of a comparison.
    let panicked = log.lines().skip_while(|line| !line.contains("panicked at")).take(4);
    log.lines().rfind(counts).into_iter().chain(panicked).map(str::to_owned).collect()
}

pub(crate) fn page(hour: &Hour) -> String {
    let minutes = hour.hour_seconds / 60.0;
    let mut page = Page::new(
        "The long hour",
        "Replicas that are killed, drained, wiped and cut off from their store by a seed, while the model of the promises judges every answer.",
    );
    let busy = hour.busy.iter().map(|(_, share)| share).sum::<f64>() / hour.busy.len().max(1) as f64;
    let figure = |value: String, label: &str| Figure { value, label: label.to_owned() };
    page.figures(&[
        figure(format!("{minutes:.0} min"), "it took"),
        figure(hour.seed.to_string(), "seed"),
        figure(hour.wrong.len().to_string(), "wrong"),
        figure(format!("{:.0} %", busy * 100.0), "of the processors worked, others' work included"),
    ]);
    page.paragraph(&report::machine(&hour.machine));
    for wrong in &hour.wrong {
        page.paragraph(&format!("WRONG: {wrong}"));
    }
    page.heading("Judged tests");
    for run in &hour.runs {
        page.paragraph(&format!("{}: {}", run.name, if run.passed { "nothing wrong" } else { "FAILED" }));
        page.preformatted(&run.said.join("\n"));
    }
    let conversation = folder_of("".as_ref(), CONVERSATION).join("conversation.html");
    page.paragraph(&format!("The conversations have a separate page: {}.", conversation.display()));
    page.heading("Resource use");
    page.paragraph(&format!(
        "Each point is the largest value of a sixtieth of the run, of the number of replicas the smallest. Replica {SURVIVOR} of the conversations is the only one that no fault ends."
    ));
    for (what, y, of, of_one, worst) in [
        (
            "Resident memory of the largest replica.",
            "MiB",
            (|s| s.resident_mib) as Of<Sample>,
            Some((|one| one.resident_mib) as Of<ReplicaUse>),
            f64::max as Worst,
        ),
        (
            "Open files of the replica with most.",
            "files",
            |s| s.fds as f64,
            Some(|one| one.fds as f64),
            f64::max,
        ),
        (
            "Cache directory of the replica with the largest one.",
            "MiB",
            |s| s.cache_mib,
            Some(|one| one.cache_mib),
            f64::max,
        ),
        (
            "The disks of all replicas, including those that were replaced, and the store if it uses files: histories leave their data there.",
            "MiB",
            |s| s.folder_mib,
            None,
            f64::max,
        ),
        ("Replicas that ran.", "replicas", |s| s.replicas as f64, None, f64::min),
    ] {
        page.drawing(&plot(hour, what, y, (of, of_one), worst).to_svg(), what);
    }
    let busy = hour.busy.iter().map(|(at, share)| (*at, share * 100.0));
    let plot = Plot {
        description: "Share of the processors that worked".to_owned(),
        x: Axis::from_zero("seconds"),
        left: Axis::from_zero("%"),
        right: None,
        series: vec![report::line("", Mark::Line, busy)],
        guides: Vec::new(),
    };
    page.drawing(&plot.to_svg(), "Share of the machine's processors in use by any process.");
    let rows = hour.runs.iter().flat_map(|run| {
        growth(&run.samples)
            .into_iter()
            .map(|(what, grew)| vec![format!("{}: {what}", run.name), number(grew)])
    });
    page.heading("Growth");
    page.table(&report::table(&["median of the last quarter over that of the second", ""], rows));
    let rows = hour.survivor.iter().map(|one| {
        let what = format!("{CONVERSATION}, replica {SURVIVOR}: {}", one.what);
        vec![what, number(one.before), number(one.after), number(one.max)]
    });
    page.paragraph(&format!("Replica {SURVIVOR} of the conversations, whose process lives all the time."));
    page.table(&report::table(&["median of a quarter", "second", "last", "last, at most"], rows));
    page.finish(report::FOOTER)
}

type Of<T> = fn(&T) -> f64;
type Worst = fn(f64, f64) -> f64;

/// One figure of every run, and of the replica that no fault ends in the run that has one.
fn plot(
    hour: &Hour,
    what: &str,
    y: &str,
    (of, of_one): (Of<Sample>, Option<Of<ReplicaUse>>),
    worst: Worst,
) -> Plot {
    let step = (hour.hour_seconds / POINTS_MAX).max(1.0);
    let mut series = Vec::new();
    for run in &hour.runs {
        let values = run.samples.iter().map(|sample| (sample.at_s, of(sample)));
        series.push(report::line(&run.name, Mark::Line, coarser(values, step, worst).into_iter()));
    }
    for (run, of_one) in hour.runs.iter().filter_map(|run| Some((run, of_one?))) {
        let values = run.samples.iter().filter_map(|sample| Some((sample.at_s, of_one(&sample.survivor?))));
        let points = coarser(values, step, worst);
        if !points.is_empty() {
            let name = format!("{}, replica {SURVIVOR}", run.name);
            series.push(report::line(&name, Mark::Line, points.into_iter()));
        }
    }
    Plot {
        description: what.to_owned(),
        x: Axis::from_zero("seconds"),
        left: Axis::from_zero(y),
        right: None,
        series,
        guides: Vec::new(),
    }
}

/// The worst value of each `step` seconds.
fn coarser(values: impl Iterator<Item = (f64, f64)>, step: f64, worst: Worst) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = Vec::new();
    for (at_s, value) in values {
        let at = (at_s / step).floor() * step;
        match points.last_mut() {
            Some((last, so_far)) if *last == at => *so_far = worst(*so_far, value),
            _ => points.push((at, value)),
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use kvasir_plot::markup::check_markup;

    use super::{
        super::{HourRun, survivor},
        *,
    };
    use crate::process::usage;

    #[test]
    fn what_a_judge_said_last_is_in_the_page() {
        let log = "running\nfiles: 1 histories after 2s\nfiles: 2 histories after 4s, {\"put\": 3}\ntest result: ok\n";
        let sample = |n: usize| Sample {
            at_s: n as f64,
            replicas: n % 3,
            resident_mib: 40.0,
            fds: 30,
            cache_mib: 1.0,
            folder_mib: 2.0,
            survivor: Some(ReplicaUse { id: 7, resident_mib: 40.0, fds: 30, cache_mib: 1.0 }),
        };
        let run = HourRun {
            name: "files".to_owned(),
            said: said(log, false),
            passed: true,
            samples: (0..40).map(sample).collect(),
        };
        let hour = Hour {
            hour_seconds: 80.0,
            seed: 7,
            machine: usage::machine(),
            survivor: survivor::growth(&run.samples).unwrap(),
            runs: vec![run],
            busy: vec![(2.0, 0.5)],
            wrong: vec!["files: <memory> grew".to_owned()],
        };
        let nothing = said("\nrunning 0 tests\n\ntest result: ok. 0 passed\n", false);
        assert!(nothing.is_empty());
        let page = page(&hour);
        check_markup(&page).unwrap();
        assert!(
            page.contains("2 histories after 4s")
                && !page.contains("1 histories after")
                && !page.contains("NaN")
        );
        assert!(page.contains("&lt;memory&gt; grew"));
        assert_eq!(page.matches("files, replica 0").count(), 3, "a line of its own in three drawings");
        assert!(page.contains("conversation, replica 0: resident MiB"));
        let log = "running\n'x' panicked at quota.rs:7:9:\nassertion failed\n  left: 1\n right: 2\nstack\n";
        let panicked: Vec<_> = log.lines().skip(1).take(4).collect();
        assert_eq!(said(log, false), panicked);
        let counted = "files: 3 histories after 9s";
        assert_eq!(said(&format!("{counted}\n{log}"), false), [&[counted][..], &panicked].concat());
    }
}
