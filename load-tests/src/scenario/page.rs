//! An outcome for people: lines on a terminal, and a page.

use std::time::Duration;

use kvasir_plot::{Axis, Guide, Mark, Page, Place, Plot, Series, Side, number};

use super::outcome::{Outcome, Sample, Threshold};
use crate::{
    report,
    traffic::record::{SecondSummary, Summary},
};

/// A summary in a few lines.
pub(crate) fn lines(outcome: &Outcome, took: Duration) -> String {
    let mut text = format!("{} over {}", outcome.scenario, outcome.store);
    if let Some(reason) = &outcome.skipped {
        return format!("SKIPPED {}: {reason}", outcome.scenario);
    }
    let mut add = |line: String| text.push_str(&line);
    add(format!(", {:.0} s ({:.0} s in all)\n", outcome.seconds, took.as_secs_f64()));
    for (name, load) in &outcome.loads {
        let ms = |name: &str| number(load.latency_ms[name]);
        add(format!(
            "  {name}: {} requests, {} failed, {:.1} MB/s; p50 {} ms, p99 {} ms, max {} ms\n",
            load.requests,
            load.failed,
            load.bytes as f64 / 1e6 / outcome.seconds,
            ms("p50"),
            ms("p99"),
            ms("max")
        ));
        if !load.causes.is_empty() {
            add(format!("    {:?}\n", load.causes));
        }
    }
    let durability = &outcome.durability;
    add(format!(
        "  {} acknowledged, {} read again: {} lost, {} wrong",
        durability.acknowledged, durability.checked, durability.lost, outcome.figures["all.wrong"],
    ));
    let resident = outcome.figures.get("service.resident_mib_max");
    add(resident.map_or("\n".to_owned(), |mib| format!("; at most {} MiB resident\n", number(*mib))));
    for threshold in &outcome.thresholds {
        let mark = if threshold.held { "ok  " } else { "FAIL" };
        add(format!("  {mark} {}\n", in_words(threshold)));
    }
    text.trim_end().to_owned()
}

fn in_words(threshold: &Threshold) -> String {
    let value = threshold.value.map_or("not measured".to_owned(), number);
    let bound =
        |name: &str, bound: Option<f64>| bound.map(|b| format!(" {name} {}", number(b))).unwrap_or_default();
    format!("{} = {value}{}{}", threshold.figure, bound("≥", threshold.min), bound("≤", threshold.max))
}

fn requests(page: &mut Page, outcome: &Outcome) {
    page.heading("Requests");
    page.paragraph("Milliseconds from the moment a request was due; in brackets from when it was sent.");
    let row = |(name, load): (&String, &Summary)| {
        let ms = |p: &str| format!("{} ({})", number(load.latency_ms[p]), number(load.from_sent_ms[p]));
        let mb_per_s = number(load.bytes as f64 / 1e6 / outcome.seconds);
        let counts = [name.clone(), load.requests.to_string(), load.failed.to_string(), mb_per_s];
        counts.into_iter().chain(["p50", "p99", "p999", "max"].map(ms)).collect()
    };
    let columns = ["", "requests", "failed", "MB/s", "p50", "p99", "p99.9", "max"];
    page.table(&report::table(&columns, outcome.loads.iter().map(row)));
    let failures = outcome.loads.iter().flat_map(|(name, load)| {
        load.causes.iter().map(move |(cause, count)| vec![format!("{name}: {cause}"), count.to_string()])
    });
    let failures: Vec<_> = failures.collect();
    if !failures.is_empty() {
        page.table(&report::table(&["why requests failed", "how many"], failures));
    }
}

fn thresholds(page: &mut Page, outcome: &Outcome) {
    page.heading("Thresholds");
    let row = |threshold: &Threshold| {
        let or_empty = |bound: Option<f64>| bound.map(number).unwrap_or_default();
        vec![
            threshold.figure.clone(),
            threshold.value.map_or("not measured".to_owned(), number),
            or_empty(threshold.min),
            or_empty(threshold.max),
            if threshold.held { "held" } else { "MISSED" }.to_owned(),
        ]
    };
    let columns = ["figure", "value", "at least", "at most", ""];
    page.table(&report::table(&columns, outcome.thresholds.iter().map(row)));
}

fn faults(outcome: &Outcome) -> Vec<Guide> {
    let guide = |fault: &super::fault::FaultWindow| Guide {
        at: Place::XRange(fault.from_s, fault.to_s),
        label: fault.what.clone(),
    };
    outcome.faults.iter().map(guide).collect()
}

fn line(name: &str, points: impl Iterator<Item = (f64, f64)>) -> Series {
    report::line(name, Mark::Line, points)
}

fn over_time(outcome: &Outcome, what: &str, y: &str, of: fn(&SecondSummary) -> f64) -> Plot {
    let series = |(name, load): (&String, &Summary)| {
        line(name, load.seconds.iter().enumerate().map(|(at, second)| (at as f64, of(second))))
    };
    Plot {
        description: what.to_owned(),
        x: Axis::from_zero("seconds"),
        left: Axis::from_zero(y),
        right: None,
        series: outcome.loads.iter().map(series).collect(),
        guides: faults(outcome),
    }
}

fn percentiles(outcome: &Outcome) -> Plot {
    let at = [("p50", 2.0), ("p75", 4.0), ("p90", 10.0), ("p99", 1e2), ("p999", 1e3), ("p9999", 1e4)];
    let series = |(name, load): (&String, &Summary)| Series {
        name: name.clone(),
        mark: Mark::Joined,
        side: Side::Left,
        points: at.map(|(percentile, x)| (x, load.latency_ms[percentile]).into()).into(),
    };
    Plot {
        description: "Latency by percentile".to_owned(),
        x: Axis::log("one request in N is slower"),
        left: Axis::log("ms"),
        right: None,
        series: outcome.loads.iter().map(series).collect(),
        guides: Vec::new(),
    }
}

fn resources(outcome: &Outcome, what: &str, y: &str, of: fn(&Sample) -> f64) -> Plot {
    Plot {
        description: what.to_owned(),
        x: Axis::from_zero("seconds"),
        left: Axis::from_zero(y),
        right: None,
        series: vec![line("", outcome.samples.iter().map(|sample| (sample.at_s, of(sample))))],
        guides: faults(outcome),
    }
}

fn plots(page: &mut Page, outcome: &Outcome) {
    page.heading("Over time");
    if outcome.loads.values().all(|load| load.seconds.is_empty()) {
        page.paragraph("The result has no seconds of requests, so nothing is plotted over time.");
    } else {
        let loads: Vec<_> = outcome.loads.iter().map(|(name, load)| (name.as_str(), load)).collect();
        page.drawing(
            &report::p99_plot(&loads, faults(outcome)).to_svg(),
            "Slowest one per cent of each second; no value if no request succeeded.",
        );
        for (what, y, of) in [
            ("Requests that failed.", "per second", (|s| s.failed as f64) as fn(&SecondSummary) -> f64),
            ("Bytes.", "MB/s", |s| s.bytes as f64 / 1e6),
        ] {
            page.drawing(&over_time(outcome, what, y, of).to_svg(), what);
        }
    }
    page.drawing(
        &percentiles(outcome).to_svg(),
        "Latency from when requests were due: 50, 75, 90, 99, 99.9 and 99.99 %.",
    );
    page.heading("Processes of the service");
    if outcome.samples.is_empty() {
        page.paragraph(
            "The result has no samples of the service's processes: memory, files and disk are not plotted.",
        );
        return;
    }
    for (what, y, of) in [
        ("Resident memory.", "MiB", (|s| s.resident_mib) as fn(&Sample) -> f64),
        ("Open files.", "files", |s| s.fds as f64),
        ("Index, spool and hot tier on disk.", "MiB", |s| s.cache_mib),
    ] {
        page.drawing(&resources(outcome, what, y, of).to_svg(), what);
    }
}

/// The page of a run.
pub(crate) fn page(outcome: &Outcome) -> String {
    let mut page = Page::new(&outcome.scenario, &outcome.about);
    if let Some(reason) = &outcome.skipped {
        page.paragraph(&format!("Skipped: {reason}"));
        return page.finish(report::FOOTER);
    }
    let size = if outcome.smoke { "size for CI: times are not meaningful" } else { "full size" };
    let seconds = number(outcome.seconds);
    page.paragraph(&format!("Store: {}. {seconds} s, seed {}, {size}.", outcome.store, outcome.seed));
    page.paragraph(&report::machine(&outcome.machine));
    for trace in &outcome.traces {
        let (from, to) = trace.window_s;
        page.paragraph(&format!(
            "Trace: {}, seconds {from} to {to}; {} requests, {} tokens.",
            trace.source, trace.requests, trace.tokens
        ));
    }
    requests(&mut page, outcome);
    thresholds(&mut page, outcome);
    plots(&mut page, outcome);
    page.heading("All figures");
    let figures = outcome.figures.iter().map(|(name, value)| vec![name.clone(), number(*value)]);
    page.table(&report::table(&["figure", "value"], figures));
    page.heading("Scenario");
    page.preformatted(&serde_json::to_string_pretty(&outcome.specification).unwrap_or_default());
    page.finish(report::FOOTER)
}
