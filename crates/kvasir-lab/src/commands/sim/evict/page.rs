//! The HTML report of a replay.

use crate::eviction::{ClassReuse, ClassRow, EvictReport, Row};

use super::{capacities, hit_table, percent, share};
use kvasir_plot::{Axis, Figure, Mark, Page, Plot, Series, Side, Table};

/// Policies that the plots show; all are in the tables.
const PLOTTED: [&str; 7] = ["adaptive", "workload", "lru", "leaf-lru", "leaf-arc", "leaf-gdsf", "belady"];
/// The ablation of the published policy.
const ABLATION: [&str; 5] = ["lru", "workload-distribution", "workload-life", "workload", "adaptive"];
/// Classes with the most requests that get a plot of their reuse times.
const CLASSES_PLOTTED: usize = 6;

/// The page.
pub(super) fn render(report: &EvictReport, trace: &str) -> String {
    let facts = &report.trace;
    let lede = format!(
        "{trace}: {} requests, {} block accesses, {} unique blocks of {} tokens. Capacities are shares of the unique blocks.",
        facts.requests, facts.block_accesses, facts.unique_blocks, facts.block_tokens
    );
    let mut page = Page::new("Eviction policies on a trace", &lede);
    page.figures(&headline(report));
    page.heading("Hit ratio");
    page.paragraph(
        "A block counts as hit only if all blocks before it in its request hit. Belady's MIN knows \
         the future; of one request's blocks it drops the last first, so that what it keeps are whole prefixes.",
    );
    let hits = curves(report, &PLOTTED, |row| row.hit_ratio * 100.0, "blocks hit, %");
    page.drawing(&hits.to_svg(), "Blocks hit over capacity.");
    let saved = curves(report, &PLOTTED, |row| row.seconds_saved_ratio * 100.0, "prefill seconds saved, %");
    page.drawing(&saved.to_svg(), "Seconds of prefill saved, by the stated model of prefill time.");
    let (head, rows) = hit_table(report);
    page.table(&Table { head, rows });
    page.heading("Ablation");
    let ablation = curves(report, &ABLATION, |row| row.hit_ratio * 100.0, "blocks hit, %");
    page.drawing(
        &ablation.to_svg(),
        "The published policy term by term: distribution; + life; + offset; and the default.",
    );
    page.heading("Time per eviction");
    let times = curves(report, &PLOTTED[..6], |row| row.ns_per_eviction, "ns per eviction");
    page.drawing(
        &times.to_svg(),
        "Mean over every 16th eviction on this machine, other rows running beside it.",
    );
    reuse(&mut page, report);
    by_class(&mut page, report);
    page.finish(&format!("Made by kvasir-lab sim evict. {}.", report.notes.join("; ")))
}

fn headline(report: &EvictReport) -> Vec<Figure> {
    let figure = |value: String, label: &str| Figure { value, label: label.to_owned() };
    let own = report.summaries.iter().find(|summary| summary.policy == report.default);
    let mut figures = vec![
        figure(format!("{} %", percent(report.trace.ideal_hit_ratio)), "ideal hit ratio, unbounded cache"),
        figure(format!("{} %", percent(report.trace.reused_share)), "of the blocks are used again"),
        figure(
            format!("{} %", percent(report.trace.blocks_with_90_percent_of_reuses)),
            "of the blocks take 90 % of the reuses",
        ),
    ];
    if let Some(own) = own {
        figures.push(figure(
            format!("{} %", percent(own.mean_hit_ratio)),
            "mean hit ratio of the default policy",
        ));
        figures.push(figure(
            format!("{} points", percent(own.below_best_max)),
            "most that the default is below the best online policy",
        ));
        if let Some(closed) = own.gap_closed {
            figures.push(figure(
                format!("{} %", percent(closed)),
                "of the gap from leaf-first LRU to Belady closed",
            ));
        }
    }
    figures
}

fn curves(report: &EvictReport, policies: &[&str], value: impl Fn(&Row) -> f64, label: &str) -> Plot {
    let series = policies.iter().filter_map(|policy| {
        let own = report.rows.iter().filter(|row| row.policy == *policy && row.capacity > 0.0);
        let points: Vec<_> = own.map(|row| (row.capacity * 100.0, value(row)).into()).collect();
        let name = (*policy).to_owned();
        (!points.is_empty()).then_some(Series { name, mark: Mark::Joined, side: Side::Left, points })
    });
    Plot {
        description: format!("{label} over capacity, by policy"),
        x: Axis::log("capacity, % of unique blocks"),
        left: Axis::from_zero(label),
        right: None,
        series: series.collect(),
        guides: Vec::new(),
    }
}

fn reuse(page: &mut Page, report: &EvictReport) {
    page.heading("Reuse times and lifespans");
    page.paragraph(
        "How long blocks wait for their next use, by the class of the request that used them last, and the \
         exponential of the same mean that the workload-aware policy assumes.",
    );
    let mut classes: Vec<&ClassReuse> = report.reuse.iter().filter(|class| class.samples > 0).collect();
    classes.sort_by_key(|class| std::cmp::Reverse(class.samples));
    for class in classes.iter().take(CLASSES_PLOTTED) {
        let distance = class.exponential_distance.unwrap_or(0.0);
        let caption = format!(
            "{}: {} reuses, mean {:.1} s; largest distance to the exponential {distance:.2}.",
            class.class,
            class.samples,
            class.mean_seconds.unwrap_or(0.0)
        );
        page.drawing(&distribution(report, class).to_svg(), &caption);
    }
    page.drawing(
        &skew(report).to_svg(),
        "Reuse skew: the share of all reuses that the most reused blocks take.",
    );
    let lifespans = vec![line("blocks used more than once", report, &report.trace.lifespan_cumulative)];
    page.drawing(&time_plot("lifespan", lifespans).to_svg(), "Time from first to last use of a block.");
    let rows = classes.iter().map(|class| {
        vec![
            class.class.clone(),
            class.requests.to_string(),
            class.blocks.to_string(),
            percent(class.ideal_hit_ratio),
            class.samples.to_string(),
            class.mean_seconds.map_or("-".to_owned(), |mean| format!("{mean:.1}")),
            class.exponential_distance.map_or("-".to_owned(), |distance| format!("{distance:.3}")),
        ]
    });
    let head = ["class", "requests", "blocks", "ideal hit %", "reuses", "mean wait s", "distance"];
    page.table(&Table { head: head.map(str::to_owned).to_vec(), rows: rows.collect() });
}

fn skew(report: &EvictReport) -> Plot {
    let points = report.trace.reuse_skew.iter();
    let points = points.map(|(blocks, reuses)| (blocks * 100.0, reuses * 100.0).into()).collect();
    let name = "most reused blocks".to_owned();
    Plot {
        description: "share of the reuses over the share of the blocks that take them".to_owned(),
        x: Axis::log("share of the blocks, %"),
        left: Axis::from_zero("share of the reuses, %"),
        right: None,
        series: vec![Series { name, mark: Mark::Joined, side: Side::Left, points }],
        guides: Vec::new(),
    }
}

fn line(name: &str, report: &EvictReport, cumulative: &[f64]) -> Series {
    let points =
        report.edges_seconds.iter().zip(cumulative).map(|(edge, share)| (*edge, share * 100.0).into());
    Series { name: name.to_owned(), mark: Mark::Joined, side: Side::Left, points: points.collect() }
}

fn time_plot(what: &str, series: Vec<Series>) -> Plot {
    Plot {
        description: format!("cumulative distribution of the {what}"),
        x: Axis::log("seconds"),
        left: Axis::from_zero("at or below, %"),
        right: None,
        series,
        guides: Vec::new(),
    }
}

fn distribution(report: &EvictReport, class: &ClassReuse) -> Plot {
    let mean = class.mean_seconds.unwrap_or(1.0).max(f64::MIN_POSITIVE);
    let fit: Vec<f64> = report.edges_seconds.iter().map(|edge| -(-edge / mean).exp_m1()).collect();
    time_plot(
        "reuse time",
        vec![line("observed", report, &class.cumulative), line("exponential", report, &fit)],
    )
}

/// One row a class, one column a capacity.
fn by_class(page: &mut Page, report: &EvictReport) {
    let own: Vec<&Row> = report.rows.iter().filter(|row| row.policy == report.default).collect();
    let capacities = capacities(report);
    let mut classes: Vec<(&str, u64)> = Vec::new();
    for class in own.iter().flat_map(|row| &row.classes) {
        if !classes.iter().any(|(name, _)| *name == class.class) {
            classes.push((&class.class, class.blocks));
        }
    }
    let table = |value: &dyn Fn(&ClassRow) -> String| {
        let mut head = vec!["class".to_owned(), "blocks".to_owned()];
        head.extend(capacities.iter().map(|capacity| share(*capacity)));
        let rows = classes.iter().map(|(name, blocks)| {
            let mut line = vec![(*name).to_owned(), blocks.to_string()];
            line.extend(capacities.iter().map(|capacity| {
                let row = own.iter().find(|row| row.capacity == *capacity);
                let class = row.and_then(|row| row.classes.iter().find(|class| class.class == *name));
                class.map_or(String::new(), value)
            }));
            line
        });
        Table { head, rows: rows.collect() }
    };
    page.heading("By request class: blocks hit, %");
    page.paragraph(&format!("Under {}, by capacity.", report.default));
    page.table(&table(&|class| percent(class.hit_ratio)));
    page.heading("By request class: seconds of prefill saved");
    page.table(&table(&|class| format!("{:.0}", class.seconds_saved)));
}
