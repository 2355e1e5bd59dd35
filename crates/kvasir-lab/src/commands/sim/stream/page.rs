//! The HTML report of a stream study.

use std::iter;

use crate::streaming::study::{Cost, Curve, Figures, StreamReport, StreamRow};

use super::{head, line, percent, summary};
use kvasir_plot::{Axis, Bar, Bars, Figure, Guide, Mark, Page, Place, Plot, Series, Side, Table};

/// The page. `shipped` is the same study on the project's own series.
pub(super) fn render(
    report: &StreamReport,
    shipped: Option<&StreamReport>,
    figures: &Figures,
    settings: &str,
) -> String {
    let mut page = Page::new(
        "Streaming policies against the clock",
        "Mistral-7B on an A40 (modelled), contexts of 9.2–9.6 K tokens, every policy on the same contexts, links \
         and size ladders. Violated: the first token came after the SLO. Avoidable: although the oracle, which \
         knows the link's future, meets it.",
    );
    page.figures(&headline(report));
    cells(&mut page, report, "The requested links");
    if let Some(shipped) = shipped {
        cells(&mut page, shipped, "The project's own series, scaled to means of 0.2–10 Gb/s");
    }
    page.heading("Violations against quality");
    page.paragraph("One point for each SLO from 0.25 to 2 s. Better is down and to the right.");
    page.drawing(
        &against_quality(&figures.slo).to_svg(),
        "SLO violations over quality (Fig. 13 of the paper).",
    );
    page.heading("Time to first token");
    let ttft = |row: &StreamRow| row.ttft_ms_p50;
    let over =
        |curves: &[Curve], x: Axis, what: &str| plot(curves, x, ttft, Axis::log("TTFT, ms, median"), what);
    let bandwidth = over(&figures.bandwidth, Axis::log("bandwidth, Gb/s"), "TTFT over bandwidth");
    page.drawing(
        &bandwidth.to_svg(),
        "Over bandwidth (Fig. 11). Policies with an SLO of 1 s use the time that they have; fixed is the \
         published size, 2.29 bits per element.",
    );
    let context = over(&figures.context, Axis::log("context, tokens"), "TTFT over context length");
    page.drawing(&context.to_svg(), "Over context length at 3 Gb/s (Fig. 12).");
    let requests =
        over(&figures.requests, Axis::from_zero("concurrent requests"), "TTFT over concurrent requests");
    page.drawing(&requests.to_svg(), "Over concurrent requests that share 3 Gb/s and the GPU (Fig. 12).");
    let longest = plot(
        &figures.requests,
        Axis::from_zero("concurrent requests"),
        |row| row.ttft_ms_max,
        Axis::log("TTFT, ms, longest"),
        "Longest TTFT over concurrent requests",
    );
    page.drawing(&longest.to_svg(), "The same, of the request that waits longest.");
    gains(&mut page, figures);
    cost(&mut page, &figures.cost);
    page.finish(&format!("Made by kvasir-lab sim stream {settings}."))
}

fn headline(report: &StreamReport) -> Vec<Figure> {
    let summaries =
        report.summary.iter().filter(|s| ["cachegen", "progressive"].contains(&s.policy.as_str()));
    summaries
        .map(|s| Figure {
            value: format!("{:.2} %", s.avoidable_violation_rate * 100.0),
            label: format!("avoidable violations, {} on {}", s.policy, s.ladder),
        })
        .collect()
}

fn cells(page: &mut Page, report: &StreamReport, heading: &str) {
    page.heading(heading);
    let mut seen: Vec<(&str, f64)> = Vec::new();
    for row in &report.rows {
        if !seen.contains(&(&row.set, row.slo_ms)) {
            seen.push((&row.set, row.slo_ms));
        }
    }
    let ladder = report.rows.first().map_or("", |row| row.ladder.as_str());
    for (set, slo_ms) in seen {
        let own = report.rows.iter().filter(|r| r.set == set && r.slo_ms == slo_ms && r.ladder == ladder);
        let bars = own.map(|row| Bar {
            // The bars' margin holds a dozen letters; the full names are in the table.
            label: row.policy.replace("cachegen-", "cg-").replace("progressive-", "prog-"),
            value: row.violation_rate * 100.0,
            text: format!("{} % · q {:.3}", percent(row.violation_rate), row.quality),
            ours: row.policy == "progressive",
        });
        let bars = Bars {
            description: format!("SLO violations by policy on {set} at {slo_ms} ms"),
            bars: bars.collect(),
            limit: None,
        };
        page.drawing(
            &bars.to_svg(),
            &format!("{set}, SLO {slo_ms} ms, ladder {ladder}: requests that violated it."),
        );
    }
    page.table(&Table { head: head(), rows: report.rows.iter().map(line).collect() });
    if !report.summary.is_empty() {
        page.paragraph("Means over the cells (sets and SLOs) where cachegen violates more than 2 %:");
        let mut rows = summary(report);
        let head = rows.remove(0);
        page.table(&Table { head, rows });
    }
}

fn plot(curves: &[Curve], x: Axis, value: fn(&StreamRow) -> f64, left: Axis, what: &str) -> Plot {
    let series = curves.iter().map(|curve| Series {
        name: curve.policy.clone(),
        mark: Mark::Joined,
        side: Side::Left,
        points: curve.points.iter().map(|(x, row)| (*x, value(row)).into()).collect(),
    });
    let (series, guides) = (series.collect(), Vec::new());
    Plot { description: format!("{what}, by policy"), x, left, right: None, series, guides }
}

fn against_quality(curves: &[Curve]) -> Plot {
    let measured = curves.iter().filter(|c| c.policy != "text" && c.policy != "int8");
    let series = measured.map(|curve| Series {
        name: curve.policy.clone(),
        mark: Mark::Joined,
        side: Side::Left,
        points: curve
            .points
            .iter()
            .map(|(_, row)| (row.quality, row.violation_rate * 100.0).into())
            .collect(),
    });
    Plot {
        description: "SLO violations over quality, by policy".to_owned(),
        x: Axis { label: "quality (1 = exact)".to_owned(), ..Axis::default() },
        left: Axis::from_zero("violations, %"),
        right: None,
        series: series.collect(),
        guides: Vec::new(),
    }
}

fn gains(page: &mut Page, figures: &Figures) {
    page.heading("Where loading pays");
    page.paragraph(
        "TTFT of the better of text and 8 bits over that of the published size, by the share of the GPU that the \
         request gets and by bandwidth (Fig. 19).",
    );
    let mut gbps: Vec<f64> = figures.heat.iter().map(|c| c.gbps).collect();
    gbps.dedup();
    let mut shares: Vec<f64> = figures.heat.iter().map(|c| c.gpu_share).collect();
    shares.sort_by(|a, b| b.total_cmp(a));
    shares.dedup();
    let rows = shares.iter().map(|share| {
        let own = figures.heat.iter().filter(|c| c.gpu_share == *share);
        let gains = own.map(|c| format!("{:.1}×", c.gain));
        iter::once(format!("{:.0} %", share * 100.0)).chain(gains).collect()
    });
    let columns = gbps.iter().map(|g| format!("{g} Gb/s"));
    let head = iter::once("share of the GPU".to_owned()).chain(columns);
    page.table(&Table { head: head.collect(), rows: rows.collect() });
}

fn cost(page: &mut Page, cost: &Cost) {
    page.heading("Storing against recomputing");
    page.paragraph(&format!(
        "A context of 9.4 K tokens, {:.3} US$ per GB and month of object storage and {:.2} US$ per GPU hour. Nested \
         levels store what the finest takes; separate versions store their sum. Storing is cheaper from {:.0} \
         reuses per month on (Appendix E of the paper says 150 for Llama-13B and its prices).",
        Cost::STORE_GB_MONTH,
        Cost::GPU_HOUR,
        cost.break_even().ceil()
    ));
    let reuses = [1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0];
    let series = |name: &str, value: &dyn Fn(f64) -> f64| Series {
        name: name.to_owned(),
        mark: Mark::Joined,
        side: Side::Left,
        points: reuses.iter().map(|&n| (n, value(n)).into()).collect(),
    };
    let plot = Plot {
        description: "Cost per month over reuses per month".to_owned(),
        x: Axis::log("reuses per month"),
        left: Axis::log("US$ a month"),
        right: None,
        series: vec![
            series("recompute", &|n| n * cost.recompute),
            series("store, nested levels", &|_| cost.store_month),
            series("store, versions", &|_| cost.store_versions_month),
        ],
        guides: vec![Guide { at: Place::X(cost.break_even()), label: "break-even".to_owned() }],
    };
    page.drawing(&plot.to_svg(), "Monthly cost of one context (Appendix E).");
}

#[cfg(test)]
pub(super) mod tests {
    use crate::streaming::{Engine, study::HeatCell};

    use super::*;

    /// Figures with one point each: the page's shape does not depend on how many there are.
    pub(in super::super) fn few_figures() -> Figures {
        let row = StreamRow {
            policy: "cachegen".into(),
            set: "s".into(),
            ladder: "paper".into(),
            sharing: "equal",
            slo_ms: 1.0,
            requests: 1,
            violation_rate: 0.5,
            avoidable_violation_rate: 0.5,
            avoidable_interval: [0.0, 1.0],
            ttft_ms_p50: 10.0,
            ttft_ms_p95: 20.0,
            ttft_ms_max: 20.0,
            quality: 0.9,
            bytes: 1e6,
        };
        let curves = vec![Curve { policy: "cachegen".into(), points: vec![(1.0, row)] }];
        Figures {
            bandwidth: curves.clone(),
            context: curves.clone(),
            requests: curves.clone(),
            slo: curves,
            heat: vec![HeatCell { gbps: 1.0, gpu_share: 1.0, gain: 3.0 }],
            cost: Cost::of(&Engine::mistral_7b_a40()),
        }
    }
}
