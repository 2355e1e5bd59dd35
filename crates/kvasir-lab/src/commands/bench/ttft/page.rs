//! The report of `kvasir-lab bench ttft`.

use super::{TtftReport, TtftRow};
use crate::commands::bench::page::table as html_table;
use kvasir_plot::{Axis, Figure, Mark, Page, Plot, Series, Side};

/// The strategies, in the order of the report.
const WAYS: [&str; 5] = ["text", "fp16", "8-bit", "cachegen", "progressive"];

/// Rows as comma-separated values.
pub(super) fn csv(report: &TtftReport) -> String {
    let mut out = String::from(
        "way,gbps,requests,samples,total_ms,lookup_ms,queue_ms,fetch_ms,decode_ms,recompute_ms,first_step_ms,worst_ms,\
         there_ms,bytes,kl,computed\n",
    );
    for row in report.links.iter().chain(&report.concurrent) {
        let t = &row.ttft;
        let numbers = [
            t.total_ms,
            t.lookup_ms,
            t.queue_ms,
            t.fetch_ms,
            t.decode_ms,
            t.recompute_ms,
            t.first_step_ms,
            row.worst_ms,
            row.there_ms,
            row.bytes,
        ];
        let numbers: Vec<String> = numbers.iter().map(f64::to_string).collect();
        let kl = row.kl.map_or_else(String::new, |kl| kl.to_string());
        out.push_str(&format!(
            "{},{},{},{},{},{kl},{}\n",
            row.way,
            row.gbps,
            row.requests,
            row.samples,
            numbers.join(","),
            row.computed
        ));
    }
    out
}

/// Head and lines of a table.
pub(super) fn table(rows: &[TtftRow]) -> Vec<Vec<String>> {
    let head = [
        "way",
        "Gb/s",
        "concurrent",
        "TTFT there",
        "TTFT",
        "lookup",
        "queue",
        "fetch",
        "decode",
        "recompute",
        "first step",
        "kB",
        "KL",
    ];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(|row| {
        let t = &row.ttft;
        let ms = |value: f64| format!("{value:.0}");
        let mut line = vec![row.way.to_owned(), row.gbps.to_string(), row.requests.to_string()];
        line.extend([row.there_ms, t.total_ms].map(|value| format!("{value:.0} ms")));
        line.extend(
            [t.lookup_ms, t.queue_ms, t.fetch_ms, t.decode_ms, t.recompute_ms, t.first_step_ms].map(ms),
        );
        line.push(format!("{:.1}", row.bytes / 1e3));
        line.push(match row.kl {
            Some(_) if row.computed > 0.5 => "computed".to_owned(),
            Some(kl) => format!("{kl:.1e}"),
            None => "–".to_owned(),
        });
        line
    }));
    lines
}

fn plot(rows: &[TtftRow], description: &str, x: Axis, of: fn(&TtftRow) -> f64) -> String {
    let series = |way: &&str| {
        let own = rows.iter().filter(|row| row.way == *way);
        let points = own.map(|row| (of(row), row.there_ms).into()).collect();
        Series { name: (*way).to_owned(), mark: Mark::Joined, side: Side::Left, points }
    };
    let plot = Plot {
        description: description.to_owned(),
        x,
        left: Axis::log("TTFT, ms of the stated deployment"),
        right: None,
        series: WAYS.iter().map(series).collect(),
        guides: Vec::new(),
    };
    plot.to_svg()
}

/// The page.
pub(super) fn render(report: &TtftReport) -> String {
    let s = &report.scaling;
    let lede = format!(
        "kvasir-tiny on this CPU in the place of {} on one {}: {} tokens take {:.1} ms of prefill there (by arithmetic, at \
         half of the GPU's peak) and {:.1} ms here (measured), and a token has {} bytes of KV there and {} here. So 1 Gb/s \
         there is {:.2} Mb/s here, and a time here is divided by {:.2}. Decoding is not scaled: it ran on this CPU. \
         Adaptive loads aim at {} ms there.",
        s.like,
        s.gpu,
        report.tokens,
        s.prefill_ms_there,
        s.prefill_ms_here,
        s.token_bytes[0],
        s.token_bytes[1],
        s.bandwidth * 1e3,
        s.time,
        report.slo_ms
    );
    let mut page = Page::new("Time to first token", &lede);
    let at = |way: &str| report.links.iter().filter(|row| row.way == way).find(|row| row.gbps >= 1.0);
    let figures: Vec<Figure> = WAYS
        .iter()
        .filter_map(|way| at(way))
        .map(|row| Figure {
            value: format!("{:.0} ms", row.there_ms),
            label: format!("{} at {} Gb/s", row.way, row.gbps),
        })
        .collect();
    page.figures(&figures);
    page.heading("Over the link's bandwidth, one request");
    page.drawing(
        &plot(
            &report.links,
            "Time to first token over bandwidth by way",
            Axis::log("Gb/s of the stated deployment"),
            |r| r.gbps,
        ),
        "The time to compute from text does not depend on the link. Settings that would have taken more than a minute were not run.",
    );
    page.table(&html_table(table(&report.links)));
    page.heading("Over the number of concurrent requests");
    page.drawing(
        &plot(
            &report.concurrent,
            "Time to first token over concurrency by way",
            Axis::from_zero("concurrent requests"),
            |r| r.requests as f64,
        ),
        "All share one link and one engine.",
    );
    page.table(&html_table(table(&report.concurrent)));
    page.finish(
        "Made by kvasir-lab bench ttft. Times in tables without “there” were measured here, in milliseconds.",
    )
}
