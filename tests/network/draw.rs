//! The picture: what the link had, what the client measured, which chunk came when and how well (Fig. 7 of the paper).

use std::fmt::Write as _;

use super::{SCALE, SLO_MS, client::Run};

const WIDTH: f64 = 760.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 20.0;
const LINK_HEIGHT: f64 = 120.0;
const ROW: f64 = 22.0;
/// Levels, coarsest first, and text.
const COLOURS: [&str; 4] = ["#c6dbef", "#6baed6", "#2171b5", "#08306b"];
const TEXT_COLOUR: &str = "#e6550d";

/// One page with a plot for each run.
pub(crate) fn page(runs: &[Run]) -> String {
    let end = runs.iter().map(|r| r.ttft.as_secs_f64()).fold(SLO_MS as f64 / 1e3, f64::max) * 1.05;
    let mut html = String::from(
        "<!doctype html><meta charset=utf-8><title>Kvasir on a changing link</title>\n\
         <style>body{font:14px sans-serif;max-width:800px;margin:2em auto}svg text{font:12px sans-serif}</style>\n\
         <h1>A load through a drop to a tenth of the bandwidth, and back</h1>\n",
    );
    let _ = writeln!(
        html,
        "<p>896 tokens of kvasir-tiny stand for 9,400 tokens of a 70 B model: bandwidth is the stated one divided by \
         {SCALE:.0}; times are real. Client and server are in network namespaces of their own, joined by a veth pair \
         that a token bucket shapes; delay, jitter and loss come from a proxy; the store is an S3 server. Above: the \
         link (black) and what the client measured (dots). Below: a bar a chunk from its first request to its last \
         byte, a tick where its layers were handed over; the colour is the level, {} text. The dashed line is the \
         time to first token that was asked for, the green or red one that which was reached.</p>",
        swatch(TEXT_COLOUR)
    );
    let levels: Vec<String> = COLOURS
        .iter()
        .enumerate()
        .map(|(level, colour)| format!("{} level {level}", swatch(colour)))
        .collect();
    let _ = writeln!(html, "<p>{}</p>", levels.join(" &nbsp; "));
    for run in runs {
        let _ = writeln!(
            html,
            "<h2>{}: first token after {} ms</h2><p>{} bytes in {} requests; predicted KL {:.1e} nats a token</p>\n{}",
            run.name,
            run.ttft.as_millis(),
            run.report.bytes,
            run.report.reads.requests,
            run.report.kl_beneath,
            plot(run, end)
        );
    }
    html
}

fn swatch(colour: &str) -> String {
    format!("<span style=\"background:{colour}\">&emsp;</span>")
}

fn plot(run: &Run, end: f64) -> String {
    let x = |seconds: f64| LEFT + seconds / end * (WIDTH - LEFT - RIGHT);
    let y = |mbps: f64| 10.0 + LINK_HEIGHT * (1.0 - (mbps.max(30.0) / 30.0).ln() / (2000f64 / 30.0).ln());
    let rows = run.report.chunks.len() as f64;
    let height = LINK_HEIGHT + 50.0 + rows * ROW + 30.0;
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" xmlns=\"http://www.w3.org/2000/svg\">\n");
    for mbps in [100.0, 300.0, 1000.0] {
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{mbps} Mb/s</text><line x1=\"{LEFT}\" x2=\"{}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"#ddd\"/>",
            LEFT - 6.0,
            y(mbps) + 4.0,
            WIDTH - RIGHT,
            y(mbps),
            y(mbps)
        );
    }
    let mut path = String::new();
    for (i, (at, mbps)) in run.link.iter().enumerate() {
        let at = x(at.as_secs_f64());
        let command =
            if i == 0 { format!("M{at:.1} {:.1}", y(*mbps)) } else { format!("H{at:.1}V{:.1}", y(*mbps)) };
        path.push_str(&command);
    }
    let _ = writeln!(
        svg,
        "<path d=\"{path}H{:.1}\" fill=\"none\" stroke=\"black\" stroke-width=\"1.5\"/>",
        x(end)
    );
    for (at, rate) in &run.report.samples {
        let (cx, cy) = (x(at.as_secs_f64()), y(rate.mbps() * SCALE));
        let _ = writeln!(svg, "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"2\" fill=\"#756bb1\"/>");
    }
    bars(&mut svg, run, x);
    let bottom = LINK_HEIGHT + 40.0 + rows * ROW;
    let colour = if run.ttft.as_millis() <= u128::from(SLO_MS) { "#31a354" } else { "#de2d26" };
    for (at, style) in [
        (SLO_MS as f64 / 1e3, "stroke=\"#555\" stroke-dasharray=\"5 4\"".to_owned()),
        (run.ttft.as_secs_f64(), format!("stroke=\"{colour}\" stroke-width=\"2\"")),
    ] {
        let _ = writeln!(svg, "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"10\" y2=\"{bottom}\" {style}/>", x(at));
    }
    let mut tick = 0.0;
    while tick <= end {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{tick:.1} s</text>",
            x(tick),
            bottom + 18.0
        );
        tick += 0.5;
    }
    svg + "</svg>\n"
}

fn bars(svg: &mut String, run: &Run, x: impl Fn(f64) -> f64) {
    for (row, chunk) in run.report.chunks.iter().enumerate() {
        let top = LINK_HEIGHT + 34.0 + row as f64 * ROW;
        let name = format!("{}–{}", chunk.tokens.start, chunk.tokens.end);
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{name}</text>",
            LEFT - 6.0,
            top + 13.0
        );
        let from = chunk.started.unwrap_or_default().as_secs_f64();
        let until = chunk.fetched.or(chunk.resolved).unwrap_or_default().as_secs_f64();
        let colour = chunk.level.map_or(TEXT_COLOUR, |level| COLOURS[level.index().min(3)]);
        let _ = writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{top}\" width=\"{:.1}\" height=\"{}\" fill=\"{colour}\"/>",
            x(from),
            (x(until) - x(from)).max(1.0),
            ROW - 5.0
        );
        for (at, _) in
            run.ready.iter().filter(|(_, end)| *end > chunk.tokens.start && *end <= chunk.tokens.end)
        {
            let at = x(at.as_secs_f64());
            let _ = writeln!(
                svg,
                "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{top}\" y2=\"{}\" stroke=\"black\"/>",
                top + ROW - 5.0
            );
        }
    }
}
