//! The demo's table and its HTML report. Pure functions of [`Outcome`] and [`Evidence`].

use super::{
    GENERATED_TOKENS,
    outcome::{Evidence, Outcome},
};
use crate::output::{bytes, columns};
use kvasir_plot::{Axis, Bar, Bars, Figure, Guide, Mark, Page, Place, Plot, Point, Series, Side, Table};

/// Distance between bars of chunks on one level, in levels.
const ASIDE: f64 = 0.2;

/// What happened, in one sentence.
fn summary(o: &Outcome, evidence: &Evidence) -> String {
    let (took, slo) = (o.ttft_ms.kvasir, o.slo_ms as f64);
    let time = if o.slo_met {
        format!("within the {} ms asked for", o.slo_ms)
    } else {
        format!("{:.0} ms later than the {} ms asked for", (took - slo).ceil(), o.slo_ms)
    };
    let computed = evidence.chunks.iter().filter(|chunk| chunk.level.is_none()).count();
    let sizes = format!("{} came over the link instead of {}", bytes(o.bytes_fetched), bytes(o.bytes_raw));
    let source = if computed == 0 {
        sizes
    } else if computed == evidence.chunks.len() {
        "all chunks were computed instead of loaded".to_owned()
    } else {
        format!("{sizes} and {computed} of {} chunks were computed", evidence.chunks.len())
    };
    let text = if o.same_text { "are those" } else { "differ from those" };
    format!(
        "The first token came after {}, {time}; {source}; the {GENERATED_TOKENS} tokens generated next {text} of the \
         uncompressed cache.",
        ms(took)
    )
}

/// The short table for the terminal, and the sentence.
pub(crate) fn table(outcome: &Outcome, evidence: &Evidence) -> String {
    let o = outcome;
    let times = |size: u64| format!("{:.1}×", o.bytes_raw as f64 / size.max(1) as f64);
    let row = |cells: [String; 3]| cells.to_vec();
    let mut rows = vec![
        row(["tokens".into(), o.tokens.to_string(), String::new()]),
        row(["raw cache (f16)".into(), bytes(o.bytes_raw), String::new()]),
        row(["8-bit cache".into(), bytes(o.bytes_8bit), times(o.bytes_8bit)]),
        row(["stored, all levels".into(), bytes(o.bytes_stored), times(o.bytes_stored)]),
        row(["fetched".into(), bytes(o.bytes_fetched), times(o.bytes_fetched)]),
    ];
    for level in &o.levels {
        let rate = format!("{:.3} b/elem", level.bits_per_element);
        rows.push(row([format!("level {}", level.level), bytes(level.bytes), rate]));
    }
    let mark = if o.slo_met { "within" } else { "over" };
    let slo = format!("{mark} the {} ms SLO", o.slo_ms);
    for (name, value, note) in ttfts(o) {
        rows.push(row([
            format!("TTFT {name}"),
            ms(value),
            if name == "Kvasir" { slo.clone() } else { note },
        ]));
    }
    rows.push(row(["perplexity, uncompressed".into(), format!("{:.3}", o.perplexity.full), String::new()]));
    rows.push(row([
        "perplexity, Kvasir".into(),
        format!("{:.3}", o.perplexity.kvasir),
        format!("KL {:.1e}", evidence.kl),
    ]));
    let positions = format!("{} positions", evidence.positions);
    rows.push(row(["top-1 agreement".into(), format!("{:.2} %", o.top1_agreement * 100.0), positions]));
    rows.push(row([
        "same generated text".into(),
        if o.same_text { "yes" } else { "no" }.into(),
        String::new(),
    ]));
    format!("{}\n{}", columns(&rows), summary(o, evidence))
}

fn ttfts(outcome: &Outcome) -> [(&'static str, f64, String); 4] {
    let t = &outcome.ttft_ms;
    let against = |value: f64| format!("{:.1}× Kvasir's", value / t.kvasir);
    [
        ("Kvasir", t.kvasir, String::new()),
        ("recompute", t.recompute, against(t.recompute)),
        ("raw fetch", t.raw, against(t.raw)),
        ("8-bit fetch", t.int8, against(t.int8)),
    ]
}

fn ms(value: f64) -> String {
    format!("{value:.0} ms")
}

/// The HTML report.
pub(crate) fn html(outcome: &Outcome, evidence: &Evidence) -> String {
    let o = outcome;
    let lede = format!(
        "A KV cache of {} tokens went through the whole path on this machine: computed by kvasir-tiny, encoded, stored over HTTP, \
         dropped, found again by its tokens, streamed back over a link shaped after “{}”, decoded into paged blocks, and generated from.",
        o.tokens, evidence.link_name
    );
    let mut page = Page::new("Kvasir demo", &lede);
    page.figures(&headline(o));
    page.paragraph(&summary(o, evidence));
    page.heading("Level and bandwidth over time");
    page.drawing(&timeline(o, evidence).to_svg(), &timeline_caption(o, evidence));
    page.heading("Time to first token");
    page.drawing(&ttft_bars(o).to_svg(), "All four ran on this machine: the fetches over the same shaped link from the same point of the series, the recomputation on its CPU. kvasir-tiny has 6 M parameters, so recomputing is far cheaper here, relative to the size of its cache, than for the models that Kvasir is meant for.");
    let parts = evidence.parts_ms.iter().map(|(name, value)| vec![name.clone(), ms(*value)]);
    page.table(&Table { head: vec!["part of Kvasir's time".into(), "time".into()], rows: parts.collect() });
    page.heading("Size against quality");
    page.drawing(&size_quality(evidence).to_svg(), &format!(
        "Logit KL against the uncompressed cache over {} teacher-forced positions of {} contexts; lower left is better. Each level is a prefix of the next, so storing all of them takes no more space than the finest.",
        evidence.positions, evidence.contexts
    ));
    page.table(&quality_table(o, evidence));
    page.heading("What it generated");
    page.paragraph(if o.same_text {
        "Greedy generation over the loaded cache gave the same text as over the uncompressed one."
    } else {
        "Greedy generation over the loaded cache diverges from the text over the uncompressed one at some token."
    });
    page.preformatted(&evidence.text_kvasir);
    if !o.same_text {
        page.paragraph("Over the uncompressed cache:");
        page.preformatted(&evidence.text_full);
    }
    page.finish(&format!(
        "kvasir {} demo, SLO {} ms, chunks of {} tokens",
        env!("CARGO_PKG_VERSION"),
        o.slo_ms,
        evidence.chunk_tokens
    ))
}

fn headline(o: &Outcome) -> Vec<Figure> {
    let figure = |value: String, label: &str| Figure { value, label: label.to_owned() };
    vec![
        figure(
            ms(o.ttft_ms.kvasir),
            if o.slo_met { "to the first token, within the SLO" } else { "to the first token, over the SLO" },
        ),
        figure(
            format!("{:.0}×", o.bytes_raw as f64 / o.bytes_fetched.max(1) as f64),
            "fewer bytes fetched than in the f16 cache",
        ),
        figure(
            format!("{:.0}×", o.bytes_8bit as f64 / o.bytes_stored.max(1) as f64),
            "smaller than 8-bit with all levels stored",
        ),
        figure(format!("{:.1} %", o.top1_agreement * 100.0), "top-1 agreement with the uncompressed cache"),
    ]
}

fn timeline(o: &Outcome, evidence: &Evidence) -> Plot {
    let loaded = evidence.chunks.iter().map(|c| c.until.as_secs_f64()).fold(0.0, f64::max);
    let end = loaded.max(o.slo_ms as f64 / 1e3) * 1.05;
    let mut link: Vec<Point> = evidence.link.iter().filter(|p| p.0 <= end).map(|&p| p.into()).collect();
    if let Some(last) = link.last().cloned() {
        link.push((end, last.y).into());
    }
    let top = o.levels.len().saturating_sub(1) as u32;
    let spans = evidence.chunks.iter().enumerate().filter_map(|(index, chunk)| {
        let label = format!("chunk {} · {}", index + 1, bytes(chunk.bytes));
        let (x, x_end) = (chunk.from.as_secs_f64(), chunk.until.as_secs_f64());
        // Draw chunks on one level next to each other, not on top of each other.
        let aside = (evidence.chunks.len() as f64 / 2.0 - 0.5 - index as f64) * ASIDE;
        chunk.level.map(|level| Point { x, x_end, y: f64::from(level) + aside, label })
    });
    let series = |name: &str, mark, side, points| Series { name: name.to_owned(), mark, side, points };
    Plot {
        description: "Bandwidth of the link and the level of every chunk over the time of the load"
            .to_owned(),
        x: Axis::from_zero("seconds since the request"),
        left: Axis::from_zero("Mbit/s"),
        right: Some(Axis::whole("level", top)),
        series: vec![
            series("level of a chunk", Mark::Spans, Side::Right, spans.collect()),
            series("bandwidth of the link", Mark::Step, Side::Left, link),
            series(
                "as the client measured it",
                Mark::Points,
                Side::Left,
                evidence.measured.iter().map(|&p| p.into()).collect(),
            ),
        ],
        guides: vec![Guide { at: Place::X(o.slo_ms as f64 / 1e3), label: format!("SLO {} ms", o.slo_ms) }],
    }
}

fn timeline_caption(o: &Outcome, evidence: &Evidence) -> String {
    let text = evidence.chunks.iter().filter(|c| c.level.is_none()).count();
    let recomputed =
        if text > 0 { format!(" {text} chunks were recomputed from their text.") } else { String::new() };
    format!(
        "Each bar is the transfer of a chunk of at most {} tokens, at the level that the fetcher chose from the bandwidth seen so far (right axis; {} is the finest).{recomputed}",
        evidence.chunk_tokens,
        o.levels.len().saturating_sub(1)
    )
}

fn ttft_bars(o: &Outcome) -> Bars {
    let bar = |(name, value, note): (&str, f64, String)| Bar {
        label: name.to_owned(),
        value,
        text: if note.is_empty() {
            ms(value)
        } else {
            format!("{} ({:.1}×)", ms(value), value / o.ttft_ms.kvasir)
        },
        ours: name == "Kvasir",
    };
    Bars {
        description: "Time to first token of Kvasir, recomputation, raw fetch and 8-bit fetch".to_owned(),
        bars: ttfts(o).map(bar).into(),
        limit: Some((o.slo_ms as f64, format!("SLO {} ms", o.slo_ms))),
    }
}

fn size_quality(evidence: &Evidence) -> Plot {
    let points = |levels: bool| {
        let ours = evidence.qualities.iter().filter(|q| q.name.starts_with("level") == levels);
        ours.map(|q| Point { label: q.name.clone(), ..(q.bits_per_element, q.kl).into() }).collect::<Vec<_>>()
    };
    let series = |name: &str, mark, points| Series { name: name.to_owned(), mark, side: Side::Left, points };
    Plot {
        description: "Bits per element against logit KL for every level and for 8-bit".to_owned(),
        x: Axis::log("bits per KV element"),
        left: Axis::log("logit KL, nats per token"),
        right: None,
        series: vec![
            series("Kvasir's levels", Mark::Joined, points(true)),
            series("8-bit", Mark::Points, points(false)),
        ],
        guides: vec![],
    }
}

fn quality_table(o: &Outcome, evidence: &Evidence) -> Table {
    let head = ["", "bits/element", "size", "logit KL", "top-1", "perplexity"].map(str::to_owned).to_vec();
    let full = vec![
        "f16, uncompressed".into(),
        "16".into(),
        bytes(o.bytes_raw),
        "0".into(),
        "100 %".into(),
        format!("{:.3}", o.perplexity.full),
    ];
    let mut rows = vec![full];
    rows.extend(evidence.qualities.iter().map(|q| {
        let size = q.bits_per_element / 16.0 * o.bytes_raw as f64;
        vec![
            q.name.clone(),
            format!("{:.3}", q.bits_per_element),
            bytes(size as u64),
            format!("{:.1e}", q.kl),
            format!("{:.1} %", q.top1 * 100.0),
            format!("{:.3}", q.perplexity),
        ]
    }));
    Table { head, rows }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
