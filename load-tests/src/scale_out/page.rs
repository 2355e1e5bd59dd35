//! What was measured, in words and as a page.

use kvasir_plot::{Axis, Bar, Bars, Guide, Mark, Page, Place, Plot, number};

use super::{
    Scaling, bounds,
    conversation::Conversations,
    hot::HotReads,
    membership::{Change, ReplicasChanged},
};
use crate::report;

pub(super) fn hot_line(row: &HotReads, all: &[HotReads]) -> String {
    let times_one = row.times_one(all).map_or(String::new(), |times| format!(", {times:.2} times one"));
    let mut text = format!(
        "{} replicas: {:.1} MB/s{times_one}; CPU {:.0} % (clients {:.0} %); unique {:.3}; {} of {} lookups of objects just stored by another replica missed; {:.1} store requests/s when idle",
        row.replicas,
        row.mb_per_s,
        row.cpu_of_replicas * 100.0,
        row.cpu_of_clients * 100.0,
        row.unique,
        row.cold_lookups_missed,
        row.cold_lookups,
        row.idle_store_requests_per_s
    );
    if let Some(lost) = &row.with_a_replica_lost {
        let s = &lost.summary;
        text += &format!(
            "\n  one killed at {:.1} s: {} of {} reads failed, {} were tried again, {} wrong; {} of {} objects not found afterwards; p99 {:.1} ms",
            lost.killed_at_s,
            s.failed,
            s.requests,
            s.tried_again,
            s.wrong,
            lost.not_found_afterwards,
            lost.acknowledged,
            s.latency_ms["p99"]
        );
    }
    text
}

pub(super) fn conversation_line(row: &Conversations) -> String {
    format!(
        "{} replicas by {}, {:.0} % with a template: {:.1} % of {} chunks hot; busiest {:.2} of mean; unique {:.3}",
        row.replicas,
        row.spreading.as_str(),
        row.template_share * 100.0,
        row.hot_share * 100.0,
        row.chunks,
        row.busiest_over_mean,
        row.unique
    )
}

pub(super) fn change_line(row: &ReplicasChanged) -> String {
    let what = match row.change {
        Change::RollingRestart => "rolling restart of",
        Change::OneLeaves => "one leaves, of",
        Change::OneJoins => "one joins, of",
    };
    let recovered = row.recovered_after_s.map_or("not".to_owned(), |seconds| format!("{seconds:.0} s later"));
    format!(
        "{what} {} by {} in {:.0} s: {} of {} loads failed, {} were tried again; hot {:.1} % before, {:.1} % at least; back at 90 % of it {recovered}",
        row.replicas,
        row.spreading.as_str(),
        row.last_ready_at_s - row.first_stopped_at_s,
        row.summary.failed,
        row.summary.requests,
        row.summary.tried_again,
        row.hot_before * 100.0,
        row.hot_lowest * 100.0,
    )
}

/// Names the parts that there is nothing to judge of; none if all were measured.
pub(super) fn missing_line(scaling: &Scaling) -> Option<String> {
    let names: Vec<_> = scaling.not_measured().into_iter().map(|part| part.to_string()).collect();
    (!names.is_empty()).then(|| format!("NOT MEASURED: {}", names.join(", ")))
}

pub(super) fn page(scaling: &Scaling) -> String {
    let mut page = Page::new("Scale-out", &scaling.what);
    page.paragraph(&report::machine(&scaling.machine));
    for (part, machine) in &scaling.earlier {
        page.paragraph(&format!("Part {part}, of an earlier run. {}", report::machine(machine)));
    }
    page.paragraph(&format!("Links of {} Mb/s, seed {}.", scaling.link_mbps, scaling.seed));
    if let Some(reason) = &scaling.skipped {
        page.paragraph(&format!("Skipped: {reason}"));
        return page.finish(report::FOOTER);
    }
    bounds::missed(scaling).iter().for_each(|bound| page.paragraph(&format!("MISSED: {bound}.")));
    missing_line(scaling).iter().for_each(|line| page.paragraph(&format!("{line}.")));
    hot(&mut page, &scaling.rows);
    conversations(&mut page, &scaling.conversations);
    scaling.restarts.iter().for_each(|row| change(&mut page, row));
    page.finish(report::FOOTER)
}

fn hot(page: &mut Page, rows: &[HotReads]) {
    if rows.is_empty() {
        return;
    }
    let bar = |row: &HotReads| {
        let times_one =
            row.times_one(rows).map_or(String::new(), |times| format!(", {} times one", number(times)));
        Bar {
            label: format!("{} replicas", row.replicas),
            value: row.mb_per_s,
            text: format!("{} MB/s{times_one}", number(row.mb_per_s)),
            ours: true,
        }
    };
    let description = "Bytes per second of hot objects, closed loop".to_owned();
    let bars = rows.iter().map(bar).collect();
    page.drawing(&Bars { description: description.clone(), bars, limit: None }.to_svg(), &description);
    let columns =
        ["replicas", "MB/s", "times one", "CPU", "unique", "lookups missed", "of", "idle store requests/s"];
    let row = |row: &HotReads| {
        vec![
            row.replicas.to_string(),
            number(row.mb_per_s),
            row.times_one(rows).map(number).unwrap_or_default(),
            format!("{:.0} %", (row.cpu_of_replicas + row.cpu_of_clients) * 100.0),
            format!("{:.3}", row.unique),
            row.cold_lookups_missed.to_string(),
            row.cold_lookups.to_string(),
            number(row.idle_store_requests_per_s),
        ]
    };
    page.table(&report::table(&columns, rows.iter().map(row)));
    for (row, loss) in rows.iter().filter_map(|row| Some((row, row.with_a_replica_lost.as_ref()?))) {
        page.heading(&format!("One of {} replicas killed", row.replicas));
        page.paragraph(&format!(
            "{} of {} reads failed, {} were tried again, {} wrong; {} of {} objects not found afterwards.",
            loss.summary.failed,
            loss.summary.requests,
            loss.summary.tried_again,
            loss.summary.wrong,
            loss.not_found_afterwards,
            loss.acknowledged
        ));
        let guides = vec![Guide { at: Place::X(loss.killed_at_s), label: "killed".into() }];
        let loads = [("reads", &loss.summary)];
        page.drawing(&report::p99_plot(&loads, guides).to_svg(), "Slowest per cent of each second.");
    }
}

fn conversations(page: &mut Page, rows: &[Conversations]) {
    if rows.is_empty() {
        return;
    }
    page.heading("Hit ratios of conversations");
    page.paragraph("All replicas together have memory for a tenth of the different chunks.");
    let columns = [
        "trace",
        "prompts",
        "replicas",
        "spread by",
        "with a template",
        "chunks hot",
        "busiest / mean",
        "unique",
    ];
    let row = |row: &Conversations| {
        vec![
            row.trace.clone(),
            row.prompts.to_string(),
            row.replicas.to_string(),
            if row.replicas > 1 { row.spreading.as_str().to_owned() } else { String::new() },
            format!("{:.0} %", row.template_share * 100.0),
            format!("{:.1} %", row.hot_share * 100.0),
            format!("{:.2}", row.busiest_over_mean),
            format!("{:.3}", row.unique),
        ]
    };
    page.table(&report::table(&columns, rows.iter().map(row)));
}

fn change(page: &mut Page, row: &ReplicasChanged) {
    let what = match row.change {
        Change::RollingRestart => "Rolling restart of",
        Change::OneLeaves => "One leaves, of",
        Change::OneJoins => "One joins, of",
    };
    page.heading(&format!("{what} {} replicas by {}", row.replicas, row.spreading.as_str()));
    page.paragraph(&(change_line(row) + "."));
    let points = row.hot_share.iter().enumerate().map(|(at, share)| (at as f64, share * 100.0));
    let plot = Plot {
        description: "Loads from memory, of each second".to_owned(),
        x: Axis::from_zero("seconds"),
        left: Axis::from_zero("hot, %"),
        right: None,
        series: vec![report::line("hot", Mark::Line, points)],
        guides: vec![
            Guide { at: Place::X(row.first_stopped_at_s), label: "it begins".into() },
            Guide { at: Place::X(row.last_ready_at_s), label: "it is done".into() },
        ],
    };
    page.drawing(&plot.to_svg(), "Loads from memory, per cent of each second.");
}
