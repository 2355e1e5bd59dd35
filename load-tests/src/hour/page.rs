//! The report of the hour.

use kvasir_plot::{Axis, Figure, Mark, Page, Plot, number};

use super::{
    CONVERSATION, Hour, folder_of,
    sample::{Sample, growth},
};
use crate::report;

/// A run's results from its log: the last count of a judge, or the lines of a scenario.
pub(super) fn said(log: &str, is_scenario: bool) -> Vec<String> {
    if is_scenario {
        return log.lines().map(|line| line.trim().to_owned()).collect();
    }
    let counts = |line: &&str| line.contains(" histories after ") || line.starts_with("quota of ");
    log.lines().rfind(counts).map(str::to_owned).into_iter().collect()
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
    for (what, y, of) in [
        ("Resident memory of the largest replica.", "MiB", (|s| s.resident_mib) as fn(&Sample) -> f64),
        ("Open files of the replica with most.", "files", |s| s.fds as f64),
        ("The disks of all replicas, including stopped ones, and the store if it uses files.", "MiB", |s| {
            s.disk_mib
        }),
        ("Replicas that ran.", "replicas", |s| s.replicas as f64),
    ] {
        page.drawing(&plot(hour, what, y, of).to_svg(), what);
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
    page.finish(report::FOOTER)
}

fn plot(hour: &Hour, what: &str, y: &str, of: fn(&Sample) -> f64) -> Plot {
    let series = hour.runs.iter().map(|run| {
        // Between two lives of a replica there is nothing to sample.
        let seen = run
            .samples
            .iter()
            .map(|sample| (sample.at_s, if sample.replicas > 0 { of(sample) } else { f64::NAN }));
        report::line(&run.name, Mark::Line, seen)
    });
    Plot {
        description: what.to_owned(),
        x: Axis::from_zero("seconds"),
        left: Axis::from_zero(y),
        right: None,
        series: series.collect(),
        guides: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use kvasir_plot::markup::check_markup;

    use super::{super::HourRun, *};
    use crate::process::usage;

    #[test]
    fn what_a_judge_said_last_is_in_the_page_and_a_gap_is_no_number() {
        let log = "running\nfiles: 1 histories after 2s\nfiles: 2 histories after 4s, {\"put\": 3}\ntest result: ok\n";
        let sample =
            |n: usize| Sample { at_s: n as f64, replicas: n % 3, resident_mib: 40.0, fds: 30, disk_mib: 1.0 };
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
            runs: vec![run],
            busy: vec![(2.0, 0.5)],
            wrong: vec!["files: <memory> grew".to_owned()],
        };
        let page = page(&hour);
        check_markup(&page).unwrap();
        assert!(
            page.contains("2 histories after 4s")
                && !page.contains("1 histories after")
                && !page.contains("NaN")
        );
        assert!(page.contains("&lt;memory&gt; grew"));
    }
}
