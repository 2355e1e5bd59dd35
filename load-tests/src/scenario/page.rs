//! An outcome for people: lines on a terminal, and a page that needs nothing from elsewhere.

use std::{fmt::Write as _, time::Duration};

use crate::{
    outcome::{Gate, Outcome},
    record::Summary,
    svg::{Line, Plot, escape, short},
};

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:820px;margin:2em auto;padding:0 1em;color:#222}\
 table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}\
 td:first-child,th:first-child{text-align:left}.bad{color:#b00020;font-weight:600}.ok{color:#1c7c3c}\
 svg{width:100%;margin:.6em 0}.t{font-size:13px;font-weight:600}.l,.u{font-size:11px}.l{text-anchor:end}.m{font-size:11px;text-anchor:middle}\
 .g{stroke:#e4e4e4}.p{fill:none;stroke-width:1.6}.f{fill:#f3d9d4}pre{background:#f6f6f6;padding:1em;overflow:auto}";

/// A page around a body.
pub(crate) fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{0}</title><style>{STYLE}</style><h1>{0}</h1>{body}</html>\n",
        escape(title)
    )
}

/// What happened, in a few lines.
pub(crate) fn lines(outcome: &Outcome, took: Duration) -> String {
    let mut text = format!("{} over {}", outcome.scenario, outcome.store);
    if let Some(reason) = &outcome.skipped {
        return format!("SKIPPED {}: {reason}", outcome.scenario);
    }
    let mut add = |line: String| text.push_str(&line);
    add(format!(", {:.0} s ({:.0} s in all)\n", outcome.seconds, took.as_secs_f64()));
    for (name, load) in &outcome.loads {
        let ms = |name: &str| short(load.latency_ms[name]);
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
    let truth = &outcome.truth;
    add(format!(
        "  {} acknowledged, {} read again: {} lost, {} wrong",
        truth.acknowledged, truth.checked, truth.lost, outcome.figures["all.wrong"],
    ));
    let resident = outcome.figures.get("service.resident_mib_max");
    add(resident.map_or("\n".to_owned(), |mib| format!("; at most {} MiB resident\n", short(*mib))));
    for gate in &outcome.gates {
        let mark = if gate.held { "ok  " } else { "FAIL" };
        add(format!("  {mark} {}\n", in_words(gate)));
    }
    text.trim_end().to_owned()
}

fn in_words(gate: &Gate) -> String {
    let value = gate.value.map_or("not measured".to_owned(), short);
    let bound =
        |name: &str, bound: Option<f64>| bound.map(|b| format!(" {name} {}", short(b))).unwrap_or_default();
    format!("{} = {value}{}{}", gate.figure, bound("≥", gate.min), bound("≤", gate.max))
}

fn facts(outcome: &Outcome) -> String {
    let machine = serde_json::to_string(&outcome.machine).unwrap_or_default();
    let size = if outcome.smoke { "size for CI: times mean nothing" } else { "full size" };
    format!(
        "<p>{}</p><p>Store: {}. {} s, seed {}, {size}.</p><p>{}</p>",
        escape(&outcome.about),
        escape(&outcome.store),
        short(outcome.seconds),
        outcome.seed,
        escape(&machine)
    )
}

fn tables(outcome: &Outcome) -> String {
    let mut html = String::from(
        "<h2>Requests</h2><p>Milliseconds from the moment a request was due; in brackets from when it was sent.</p>\
         <table><tr><th></th><th>requests</th><th>failed</th><th>MB/s</th><th>p50</th><th>p99</th><th>p99.9</th><th>max</th></tr>",
    );
    for (name, load) in &outcome.loads {
        let ms = |p: &str| format!("{} ({})", short(load.latency_ms[p]), short(load.from_sent_ms[p]));
        // A string takes all that is written to it, here and below.
        let _ = write!(
            html,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(name),
            load.requests,
            load.failed,
            short(load.bytes as f64 / 1e6 / outcome.seconds),
            ms("p50"),
            ms("p99"),
            ms("p999"),
            ms("max")
        );
    }
    html += "</table><h2>What had to hold</h2><table>";
    for gate in &outcome.gates {
        let class = if gate.held { "ok" } else { "bad" };
        let _ = write!(html, "<tr><td class=\"{class}\">{}</td></tr>", escape(&in_words(gate)));
    }
    html + "</table>"
}

fn line(name: &str, points: impl Iterator<Item = (f64, f64)>) -> Line {
    Line { name: name.to_owned(), points: points.collect() }
}

fn plots(outcome: &Outcome) -> Vec<Plot> {
    let shaded: Vec<_> = outcome.faults.iter().map(|f| (f.from_s, f.to_s, f.what.clone())).collect();
    let over_time = |title: &str, y: &str, log: bool, of: fn(&crate::record::Second) -> f64| Plot {
        title: title.to_owned(),
        x: "seconds".into(),
        y: y.to_owned(),
        lines: outcome
            .loads
            .iter()
            .map(|(name, load)| line(name, load.seconds.iter().enumerate().map(|(at, s)| (at as f64, of(s)))))
            .collect(),
        shaded: shaded.clone(),
        log,
    };
    let percentiles = |load: &Summary| {
        let at = ["p50", "p75", "p90", "p99", "p999", "p9999"].into_iter().enumerate();
        at.map(|(x, name)| (x as f64, load.latency_ms[name])).collect::<Vec<_>>()
    };
    let resources = |title: &str, y: &str, of: fn(&crate::outcome::Sample) -> f64| Plot {
        title: title.to_owned(),
        x: "seconds".into(),
        y: y.to_owned(),
        lines: vec![line("", outcome.samples.iter().map(|s| (s.at_s, of(s))))],
        shaded: shaded.clone(),
        log: false,
    };
    vec![
        over_time("Slowest per cent of each second", "p99, ms", true, |s| s.p99_ms.max(0.01)),
        over_time("Requests that failed", "a second", false, |s| s.failed as f64),
        over_time("Bytes", "MB/s", false, |s| s.bytes as f64 / 1e6),
        Plot {
            title: "Latency: 50, 75, 90, 99, 99.9, 99.99 %".into(),
            x: "percentile, in that order".into(),
            y: "ms".into(),
            lines: outcome.loads.iter().map(|(n, l)| line(n, percentiles(l).into_iter())).collect(),
            shaded: Vec::new(),
            log: true,
        },
        resources("Resident memory of the service", "MiB", |s| s.resident_mib),
        resources("Open files of the service", "", |s| s.fds as f64),
        resources("Index, spool and hot tier on disk", "MiB", |s| s.cache_mib),
    ]
}

/// The page of a run.
pub(crate) fn html(outcome: &Outcome) -> String {
    if let Some(reason) = &outcome.skipped {
        return page(&outcome.scenario, &format!("<p>Skipped: {}</p>", escape(reason)));
    }
    let mut body = facts(outcome) + &tables(outcome);
    plots(outcome).iter().for_each(|plot| body += &plot.svg());
    body += "<h2>All figures</h2><table>";
    for (name, value) in &outcome.figures {
        let _ = write!(body, "<tr><td>{}</td><td>{}</td></tr>", escape(name), short(*value));
    }
    let specification = serde_json::to_string_pretty(&outcome.specification).unwrap_or_default();
    body += &format!("</table><h2>Scenario</h2><pre>{}</pre>", escape(&specification));
    page(&outcome.scenario, &body)
}
