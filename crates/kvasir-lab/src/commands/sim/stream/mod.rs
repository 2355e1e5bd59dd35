//! `kvasir-lab sim stream`: every streaming policy over the same contexts, links and size ladders.

mod page;
mod sweeps;

use std::{fmt, path::PathBuf, time::Duration};

use crate::streaming::{
    Engine, Ladder, Sharing,
    study::{BATCH, Bandwidth, Figures, SERIES_MEAN_GBPS, StreamReport, StreamRow, StreamStudy, StudyPolicy},
};
use clap::Args;
use kvasir_client::tuning::TextMode;
use kvasir_replay::link::{BandwidthSeries, SeriesError};
use serde::Serialize;

use kvasir_cli::{
    error::{CliError, CliResult, Exit, write_file},
    output::{columns, print, print_json},
    progress,
};

/// Arguments of `kvasir-lab sim stream`.
#[derive(Debug, Args)]
pub(crate) struct StreamArguments {
    /// Links: random:LO-HI (Gb/s, drawn for each chunk's transfer: the paper's setting), a file of bandwidth series
    /// (JSON lines; each is scaled to a mean of 0.2–10 Gb/s), `builtin` for the series that the project ships, or
    /// `switching` for links that fall to a tenth and come back, every 200 ms and every second.
    #[arg(long, value_name = "FILE|random:LO-HI", default_value = "random:0.1-10", value_parser = links)]
    bandwidth: Links,
    /// Contexts for each set of links.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    contexts: u32,
    /// Times to first token to meet, in milliseconds, separated by commas.
    #[arg(long, value_name = "MS", default_value = "500,1000", value_delimiter = ',',
        value_parser = clap::value_parser!(u64).range(1..=600_000))]
    slo: Vec<u64>,
    /// Policies, separated by commas: all, or names as in the result.
    #[arg(long, default_value = "all", value_parser = policies)]
    policy: Policies,
    /// Requests that share the link and the GPU.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    concurrent: u8,
    /// How their bytes take turns on the link: `equal` (in turn, as TCP flows do) or `slack` (the request with the least
    /// time to its deadline first). Loads by `progressive` also leave the link to each other, as the client's do.
    #[arg(long, default_value = Sharing::RoundRobin.name(), value_parser = sharing)]
    sharing: Sharing,
    /// Prefill speed: `published` (0.2 s per chunk, CacheGen's simulation) or `data-sheet` (half of the A40's
    /// peak).
    #[arg(long, default_value = "published", value_parser = engine)]
    engine: Engine,
    /// True speed of the GPU, as a share of the speed that the loads assume at first.
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, value_parser = share)]
    gpu_truth: f64,
    /// True speed of decoding, as a share of the speed that the loads assume at first.
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, value_parser = share)]
    decode_truth: f64,
    /// Spread of true prefill and decode times: standard deviation of their logarithm.
    #[arg(long, value_name = "SIGMA", default_value_t = 0.0, value_parser = spread)]
    gpu_jitter: f64,
    /// Prefills and decodes that the client measured before each load. 0: a client's first load, which has only the
    /// assumed speeds.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1_000))]
    prefills: u32,
    /// Engines compute text chunks after the load, as the Python package's and the connector's do, and not beside it.
    #[arg(long)]
    deferred: bool,
    /// The client has measured the link in the second before each load. Without this it knows only the round trip, from the
    /// lookup before the load.
    #[arg(long)]
    known_link: bool,
    /// Round trip: from a request to its first byte, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(..=10_000))]
    rtt_ms: u64,
    /// Largest delay of decodes and timers in milliseconds, as on a busy machine.
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=10_000))]
    jitter_ms: u64,
    /// Means that bandwidth series are scaled to, in Gb/s.
    #[arg(long, value_name = "LO-HI", default_value = "0.2-10", value_parser = scale)]
    scale: (f64, f64),
    /// Seed; the same seed gives the same result.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Requests arrive within this many milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=600_000))]
    spread: u64,
    /// CacheGen's T, in milliseconds: a request waits this long for others to be batched with.
    #[arg(long, value_name = "MS", default_value_t = BATCH.0.as_millis() as u64, value_parser = clap::value_parser!(u64).range(..=600_000))]
    window: u64,
    /// CacheGen's B: most requests that are served together.
    #[arg(long, value_name = "N", default_value_t = BATCH.1 as u8, value_parser = clap::value_parser!(u8).range(1..=64))]
    batch: u8,
    /// Also run the paper's sweeps: bandwidth, context length, concurrent requests, SLO, GPU share, cost.
    #[arg(long)]
    sweeps: bool,
    /// Print the result as one JSON document.
    #[arg(long)]
    json: bool,
    /// Write an HTML report with plots of all the paper's settings.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// The policies of an argument.
#[derive(Debug, Clone)]
struct Policies(Vec<StudyPolicy>);

fn policies(text: &str) -> Result<Policies, String> {
    StudyPolicy::parse(text).map(Policies).ok_or_else(|| {
        let names: Vec<_> = StudyPolicy::ALL.iter().map(|p| p.name()).collect();
        format!("policies are: all, {}", names.join(", "))
    })
}

fn engine(text: &str) -> Result<Engine, String> {
    match text {
        "published" => Ok(Engine::mistral_7b_a40()),
        "data-sheet" => Ok(Engine::mistral_7b_a40_data_sheet()),
        _ => Err("published or data-sheet".to_owned()),
    }
}

fn sharing(text: &str) -> Result<Sharing, String> {
    Sharing::parse(text).ok_or_else(|| "equal or slack".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if (0.01..=100.0).contains(&share) { Ok(share) } else { Err("must be 0.01 to 100".to_owned()) }
}

fn spread(text: &str) -> Result<f64, String> {
    let sigma: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if (0.0..=3.0).contains(&sigma) { Ok(sigma) } else { Err("must be 0 to 3".to_owned()) }
}

fn scale(text: &str) -> Result<(f64, f64), String> {
    match Bandwidth::parse_random(&format!("random:{text}")) {
        Ok(Bandwidth::Random(low, high)) => Ok((low, high)),
        _ => Err("write LO-HI in Gb/s, e.g. 0.2-10, with 0 < LO <= HI".to_owned()),
    }
}

/// Source of the links.
#[derive(Debug, Clone)]
enum Links {
    Random(Bandwidth),
    Builtin,
    Switching,
    File(PathBuf),
}

fn links(text: &str) -> Result<Links, String> {
    match text {
        "builtin" => Ok(Links::Builtin),
        "switching" => Ok(Links::Switching),
        text if text.starts_with("random:") => {
            Bandwidth::parse_random(text).map(Links::Random).map_err(|error| error.to_string())
        }
        file => Ok(Links::File(file.into())),
    }
}

fn bandwidth(links: &Links) -> Result<Bandwidth, CliError> {
    let series = match links {
        Links::Random(random) => return Ok(random.clone()),
        Links::Switching => return Ok(Bandwidth::switching()),
        Links::Builtin => BandwidthSeries::all_builtin(),
        Links::File(file) => BandwidthSeries::read_file(file).map_err(|error| match error {
            SeriesError::Read { .. } => CliError::new(Exit::NoInput, error, "Check the path."),
            SeriesError::Lines(_) | SeriesError::Empty => CliError::data(file, error),
        })?,
    };
    Ok(Bandwidth::Series(series, Some(SERIES_MEAN_GBPS)))
}

impl fmt::Display for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Random(Bandwidth::Random(low, high)) => write!(f, "random:{low}-{high}"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Switching => f.write_str("switching"),
            Self::Random(Bandwidth::Series(..)) | Self::Builtin => f.write_str("builtin"),
        }
    }
}

/// Runs the command.
pub(crate) fn run(arguments: &StreamArguments) -> CliResult {
    let slos = arguments.slo.iter().map(|&ms| Duration::from_millis(ms)).collect();
    let mut study = StreamStudy::paper(bandwidth(&arguments.bandwidth)?, arguments.contexts as usize, slos);
    study.policies.clone_from(&arguments.policy.0);
    study.concurrent = usize::from(arguments.concurrent);
    study.sharing = arguments.sharing;
    study.spread = Duration::from_millis(arguments.spread);
    study.batch = (Duration::from_millis(arguments.window), usize::from(arguments.batch));
    if let Bandwidth::Series(_, means) = &mut study.bandwidth {
        *means = Some(arguments.scale);
    }
    study.first_byte = Duration::from_millis(arguments.rtt_ms);
    (study.gpu_truth, study.gpu_jitter) = (arguments.gpu_truth, arguments.gpu_jitter);
    study.decode_truth = arguments.decode_truth;
    study.prefills = arguments.prefills as usize;
    if arguments.deferred {
        study.text_mode = TextMode::Deferred;
    }
    study.known_link = arguments.known_link;
    study.late = Duration::from_millis(arguments.jitter_ms);
    study.engine = arguments.engine.clone();
    study.seed = arguments.seed;
    let report = study.run();
    let figures = (arguments.sweeps || arguments.html.is_some()).then(|| {
        progress::note("running the sweeps …");
        Figures::run(&study)
    });
    if let (Some(path), Some(figures)) = (&arguments.html, &figures) {
        let settings = format!(
            "--bandwidth {} --contexts {} --concurrent {} --sharing {} --seed {}",
            arguments.bandwidth,
            arguments.contexts,
            arguments.concurrent,
            arguments.sharing.name(),
            arguments.seed
        );
        let reference = if matches!(arguments.bandwidth, Links::Builtin) {
            None
        } else {
            let shipped = StreamStudy {
                bandwidth: bandwidth(&Links::Builtin)?,
                contexts: study.contexts.min(SHIPPED_CONTEXTS),
                ladders: vec![Ladder::paper()],
                ..study.clone()
            };
            Some(shipped.run())
        };
        write_file(path, page::render(&report, reference.as_ref(), figures, &settings).as_bytes())?;
    }
    let figures = figures.filter(|_| arguments.sweeps);
    if arguments.json {
        let sweeps = figures.as_ref().map(sweeps::Document::of);
        return print_json(&Document { report: &report, sweeps });
    }
    let mut out = text(&report);
    if let Some(figures) = figures {
        out.push_str(&sweeps::text(&figures));
    }
    print(&out)
}

/// The document that `--json` prints.
#[derive(Debug, Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    report: &'a StreamReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    sweeps: Option<sweeps::Document<'a>>,
}

/// Contexts for each shipped series in a report about other links.
const SHIPPED_CONTEXTS: usize = 40;

/// A range of shares, in per cent.
fn range([low, high]: [f64; 2]) -> String {
    format!("{:.1}–{:.1}", low * 100.0, high * 100.0)
}

/// Per cent with one decimal.
fn percent(ratio: f64) -> String {
    format!("{:.1}", ratio * 100.0)
}

fn line(row: &StreamRow) -> Vec<String> {
    vec![
        row.policy.clone(),
        row.set.clone(),
        row.ladder.clone(),
        row.sharing.to_owned(),
        format!("{}", row.slo_ms),
        percent(row.violation_rate),
        percent(row.avoidable_violation_rate),
        range(row.avoidable_interval),
        format!("{:.0}", row.ttft_ms_p50),
        format!("{:.0}", row.ttft_ms_p95),
        format!("{:.4}", row.quality),
        format!("{:.0}", row.bytes / 1e6),
    ]
}

fn head() -> Vec<String> {
    [
        "policy",
        "set",
        "ladder",
        "sharing",
        "slo ms",
        "violated %",
        "avoidable %",
        "95 %",
        "p50 ms",
        "p95 ms",
        "quality",
        "MB",
    ]
    .map(str::to_owned)
    .to_vec()
}

/// Means over the cells that count.
fn summary(report: &StreamReport) -> Vec<Vec<String>> {
    let mut rows = vec![
        ["policy", "ladder", "cells", "avoidable %", "95 %", "worst %", "above cachegen in", "quality"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(report.summary.iter().map(|s| {
        vec![
            s.policy.clone(),
            s.ladder.clone(),
            s.cells.to_string(),
            format!("{:.2}", s.avoidable_violation_rate * 100.0),
            range(s.avoidable_interval),
            percent(s.avoidable_violation_rate_max),
            s.worse_than_cachegen.to_string(),
            format!("{:.4}", s.quality),
        ]
    }));
    rows
}

fn text(report: &StreamReport) -> String {
    let mut rows = vec![head()];
    rows.extend(report.rows.iter().map(line));
    let mut out = columns(&rows);
    if !report.summary.is_empty() {
        out.push_str("\n\nmeans over the cells where cachegen violates more than 2 %\n\n");
        out.push_str(&columns(&summary(report)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_checked() {
        assert!(policies("all").is_ok() && policies("cachegen,progressive").is_ok());
        assert!([share("0"), share("x"), spread("-1"), spread("NaN")].iter().all(Result::is_err));
        assert!(scale("2-1").is_err() && scale("0.2-10") == Ok((0.2, 10.0)));
        assert!(policies("nonesuch").is_err() && engine("h200").is_err() && sharing("layers").is_err());
        let read = |text| bandwidth(&links(text).unwrap());
        assert!(["builtin", "switching", "random:1-2"].into_iter().all(|text| read(text).is_ok()));
        assert!(read("/no/such/file").is_err());
        assert!(links("random:2-1").is_err());
    }

    #[test]
    fn the_page_and_the_table_hold_every_policy() {
        let links = bandwidth(&links("random:0.5-5").unwrap()).unwrap();
        let mut study = StreamStudy::paper(links, 1, vec![Duration::from_millis(800)]);
        study.ladders.truncate(1);
        let (report, figures) = (study.run(), page::tests::few_figures());
        let page = page::render(&report, None, &figures, "<settings>");
        let text = text(&report);
        for policy in StudyPolicy::ALL {
            assert!(text.contains(policy.name()) && page.contains(policy.name()), "{policy:?}");
        }
        assert!(text.contains("equal"), "{text}");
        let swept = sweeps::text(&figures);
        assert!(swept.contains("over bandwidth") && swept.contains("break-even"), "{swept}");
        assert!(page.contains("&lt;settings&gt;") && page.matches("<svg").count() >= 7);
    }
}
