//! The plot: the link's bandwidth, the client's measurements, and the time and quality of each chunk (Fig. 7
//! of the paper).

use kvasir_plot::{Axis, Guide, Mark, Page, Place, Plot, Point, Series, Side};

use super::{SCALE, SLO_MS, client::Run};

/// Levels of the profile, coarsest first.
const LEVELS: usize = 4;

/// One page with a plot for each run.
pub(crate) fn page(runs: &[Run]) -> String {
    let end = runs.iter().map(|r| r.ttft.as_secs_f64()).fold(SLO_MS as f64 / 1e3, f64::max) * 1.05;
    let mut page = Page::new(
        "Kvasir on a changing link",
        "A load through a drop to a tenth of the bandwidth, and back.",
    );
    page.paragraph(&format!(
        "896 tokens of kvasir-tiny stand for 9,400 tokens of a 70 B model: bandwidth is the stated one divided by \
         {SCALE:.0}; times are real. Client and server are in network namespaces of their own, joined by a veth pair \
         that a token bucket shapes; delay, jitter and loss come from a proxy; the store is an S3 server."
    ));
    page.paragraph(
        "Left axis: the link and what the client measured. Right axis: a bar a chunk from its first request to its last \
         byte in the colour of its level, and a dot where layers were handed over. The labelled vertical line is the \
         time to first token that was asked for, the other the one that was reached.",
    );
    for run in runs {
        page.heading(&format!("{}: first token after {} ms", run.name, run.ttft.as_millis()));
        page.paragraph(&format!(
            "{} bytes in {} requests; predicted KL {:.1e} nats per token",
            run.report.bytes, run.report.reads.requests, run.report.loss.kl
        ));
        let verdict = if run.ttft.as_millis() <= u128::from(SLO_MS) { "met" } else { "missed" };
        let chunks = run.report.chunks.iter().enumerate();
        let ranges = chunks.map(|(nth, c)| format!("{nth}: tokens {}–{}", c.tokens.start, c.tokens.end));
        let ranges: Vec<_> = ranges.collect();
        let caption = format!("The {SLO_MS} ms were {verdict}. Chunks: {}.", ranges.join(", "));
        page.drawing(&plot(run, end).to_svg(), &caption);
    }
    page.finish("Drawn by tests/network.")
}

fn plot(run: &Run, end: f64) -> Plot {
    let last = run.link.last().map(|(_, mbps)| (end, *mbps));
    let link = run.link.iter().map(|(at, mbps)| (at.as_secs_f64(), *mbps)).chain(last);
    let measured = run.report.samples.iter().map(|(at, rate)| (at.as_secs_f64(), rate.mbps() * SCALE));
    let mut series = vec![
        of_link("link", Mark::Step, link),
        of_link("measured", Mark::Points, measured.filter(|(_, mbps)| *mbps > 0.0)),
    ];
    let names = (0..LEVELS).map(|level| (Some(level), format!("level {level}")));
    for (level, name) in names.chain([(None, "text".to_owned())]) {
        series.push(of_chunks(&name, Mark::Spans, spans(run, level)));
    }
    let handed_over = run.ready.iter().filter_map(|(at, end)| {
        let chunk = run.report.chunks.iter().position(|c| *end > c.tokens.start && *end <= c.tokens.end)?;
        Some((at.as_secs_f64(), chunk as f64).into())
    });
    series.push(of_chunks("handed over", Mark::Points, handed_over.collect()));
    let guide = |seconds: f64, label: &str| Guide { at: Place::X(seconds), label: label.to_owned() };
    Plot {
        description: format!("Link, measured rate and chunks of the load by {}", run.name),
        x: Axis::from_zero("seconds since the request"),
        left: Axis::log("Mb/s, as stated"),
        right: Some(Axis::whole("chunk", run.report.chunks.len().saturating_sub(1) as u32)),
        series,
        guides: vec![guide(SLO_MS as f64 / 1e3, "asked for"), guide(run.ttft.as_secs_f64(), "")],
    }
}

/// The chunks that arrived at a level, or as text: from the first request to the last byte.
fn spans(run: &Run, level: Option<usize>) -> Vec<Point> {
    let chunks = run.report.chunks.iter().enumerate();
    let of_level = chunks.filter(|(_, chunk)| chunk.level.map(|l| l.index().min(LEVELS - 1)) == level);
    let span = |(nth, chunk): (usize, &kvasir_client::report::ChunkReport)| Point {
        x: chunk.started.unwrap_or_default().as_secs_f64(),
        x_end: chunk.fetched.or(chunk.resolved).unwrap_or_default().as_secs_f64(),
        y: nth as f64,
        label: String::new(),
    };
    of_level.map(span).collect()
}

fn of_link(name: &str, mark: Mark, points: impl Iterator<Item = (f64, f64)>) -> Series {
    Series { name: name.to_owned(), mark, side: Side::Left, points: points.map(Into::into).collect() }
}

fn of_chunks(name: &str, mark: Mark, points: Vec<Point>) -> Series {
    Series { name: name.to_owned(), mark, side: Side::Right, points }
}
