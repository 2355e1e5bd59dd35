//! `kvasir-lab bench ttft`: time to first token on the real engine, by source of the KV, over shaped links.
//!
//! **Scaling.** The small model on a CPU prefills at another speed than a large one on a GPU, and its KV has
//! another size. The ratio of the two decides between computing and loading, so links are scaled until the
//! ratio equals that of the stated model. Let `s` = our prefill time over that of the stated model, and `b` =
//! our KV bytes per token over its KV bytes per token. Then a link of `w` bit/s there is one of `w · b / s`
//! here, a round trip of `t` is `t · s`, and a time measured here divided by `s` is the time there. Decoding
//! is not scaled: it runs on the CPU here and on a GPU there, which is to the disadvantage of the strategies
//! that decode.

mod page;
mod strategies;

use clap::Args;
use kvasir_model::plan::{bytes_at, gpu, prefill_flops, preset};
use serde::Serialize;

use self::strategies::{Link, Strategy, Testbed};
use crate::commands::report::write_report;
use kvasir_cli::{
    error::{CliError, CliResult, Exit},
    output::{columns, print, print_json},
    progress::Step,
    service::runtime,
    shipped::{self, engine_error},
};

/// Share of a GPU's peak that prefill reaches: as `kvasir plan` assumes.
const PREFILL_EFFICIENCY: f64 = 0.5;
/// Round trip that is scaled, in milliseconds: within a region.
const ROUND_TRIP_MS: f64 = 1.0;
/// Measurements that would take longer than this are not made.
const PATIENCE_S: f64 = 60.0;

/// Arguments of `kvasir-lab bench ttft`.
#[derive(Debug, Args)]
pub(crate) struct TtftArguments {
    /// Model whose ratio of prefill time to KV size is imitated (`kvasir plan --list`).
    #[arg(long, value_name = "NAME", default_value = "mistral-7b")]
    like: String,
    /// GPU of the imitated deployment.
    #[arg(long, value_name = "NAME", default_value = "a40")]
    gpu: String,
    /// Tokens of a context.
    #[arg(long, value_name = "N", default_value_t = 768)]
    tokens: usize,
    /// Bandwidths of the imitated deployment's links, in Gb/s.
    #[arg(long, value_name = "GBPS", value_delimiter = ',', default_values_t = [0.05, 0.1, 0.2, 0.5, 1.0, 3.0, 10.0])]
    bandwidth: Vec<f64>,
    /// Concurrent requests over the link of --concurrent-bandwidth.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1u16, 2, 4, 8])]
    concurrency: Vec<u16>,
    /// Link of the concurrent requests, in Gb/s.
    #[arg(long, value_name = "GBPS", default_value_t = 3.0)]
    concurrent_bandwidth: f64,
    /// Time to first token that adaptive loads aim at, in milliseconds of the imitated deployment.
    #[arg(long, value_name = "MS", default_value_t = 100.0)]
    slo_ms: f64,
    /// Times that each setting is measured.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// One round, two links, two requests: to see that everything runs.
    #[arg(long)]
    quick: bool,
    /// Folder for ttft.csv, ttft.json and the report ttft.html.
    #[arg(long, value_name = "DIR")]
    out: Option<std::path::PathBuf>,
    /// Print the result as one JSON document.
    #[arg(long)]
    json: bool,
}

/// How the small model is scaled to represent a large one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Scaling {
    /// The stated model and GPU.
    pub(super) like: String,
    /// Its GPU.
    pub(super) gpu: String,
    /// Its prefill of as many tokens, by the arithmetic of `kvasir plan` at half of the GPU's peak, in milliseconds.
    pub(super) prefill_ms_there: f64,
    /// Ours, measured, in milliseconds.
    pub(super) prefill_ms_here: f64,
    /// KV bytes per token there (16 bit) and here.
    pub(super) token_bytes: [u64; 2],
    /// `s`: a time there is a time here divided by this.
    pub(super) time: f64,
    /// A bandwidth here is a bandwidth there times this.
    pub(super) bandwidth: f64,
}

/// One strategy over one link, with the requests of all rounds. Times are measured here, in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct TtftRow {
    /// `text`, `fp16`, `8-bit`, `cachegen`, `progressive`.
    pub(super) way: &'static str,
    /// Of the stated deployment.
    pub(super) gbps: f64,
    /// Concurrent requests.
    pub(super) requests: usize,
    /// Measured requests.
    pub(super) samples: usize,
    /// Mean time to first token, and its parts.
    pub(super) ttft: kvasir_engine::serving::TtftBreakdown,
    /// The slowest.
    pub(super) worst_ms: f64,
    /// The mean, in milliseconds of the stated deployment.
    pub(super) there_ms: f64,
    /// Mean bytes of KV that travelled.
    pub(super) bytes: f64,
    /// Mean predicted KL of the loaded KV; 0 if it is exact, `None` if there is no prediction.
    pub(super) kl: Option<f64>,
    /// Share of requests whose prompt was mostly computed instead of loaded.
    pub(super) computed: f64,
}

/// The result.
#[derive(Debug, Serialize)]
pub(super) struct TtftReport {
    /// Tokens of a context.
    pub(super) tokens: usize,
    /// How it is scaled.
    pub(super) scaling: Scaling,
    /// Objective of the adaptive strategies, in milliseconds there.
    pub(super) slo_ms: f64,
    /// One request over every link.
    pub(super) links: Vec<TtftRow>,
    /// Several requests over one.
    pub(super) concurrent: Vec<TtftRow>,
}

/// Runs the command.
pub(crate) fn run(arguments: &TtftArguments) -> CliResult {
    let report = measure(arguments)?;
    if let Some(folder) = &arguments.out {
        write_report(
            folder,
            "ttft",
            &report,
            &[("csv", page::csv(&report)), ("html", page::render(&report))],
        )?;
    }
    if arguments.json { print_json(&report) } else { print(&text(&report)) }
}

fn measure(arguments: &TtftArguments) -> CliResult<TtftReport> {
    let usage = |message: String| CliError::new(Exit::Data, message, "See `kvasir plan --list`.");
    let like =
        preset(&arguments.like).ok_or_else(|| usage(format!("no model is called {}", arguments.like)))?;
    let card =
        gpu(&arguments.gpu).ok_or_else(|| usage(format!("there is no known GPU {}", arguments.gpu)))?;
    let (tokens, rounds) = if arguments.quick { (256, 1) } else { (arguments.tokens, arguments.rounds) };
    let positive = |x: &f64| x.is_finite() && *x > 0.0;
    let links = arguments.bandwidth.iter().chain([&arguments.concurrent_bandwidth, &arguments.slo_ms]);
    if !links.clone().all(positive) || tokens < 64 {
        return Err(usage("--bandwidth and --slo-ms must be above 0, --tokens at least 64".to_owned()));
    }
    let concurrency = if arguments.quick { vec![2] } else { arguments.concurrency.clone() };
    let most = concurrency.iter().copied().max().unwrap_or(1).max(1);
    let model = std::sync::Arc::new(shipped::model()?);
    let runtime = runtime()?;
    let step = Step::start("storing the contexts");
    let testbed = Testbed::start(&runtime, &model, tokens, usize::from(most))?;
    step.done(&format!("{most} contexts of {tokens} tokens"));
    let here = testbed.prefill_ms(3).map_err(engine_error)?;
    let there = prefill_flops(like, tokens as u64) / (card.flops.value * PREFILL_EFFICIENCY) * 1e3;
    let token_bytes = [bytes_at(like, 1).fp16, model.spec().bytes_per_token() as u64];
    let time = here / there;
    let scaling = Scaling {
        like: arguments.like.clone(),
        gpu: arguments.gpu.clone(),
        prefill_ms_there: there,
        prefill_ms_here: here,
        token_bytes,
        time,
        bandwidth: token_bytes[1] as f64 / token_bytes[0] as f64 / time,
    };
    let link = |gbps: f64| Link {
        mbps: gbps * 1e3 * scaling.bandwidth,
        delay: std::time::Duration::from_secs_f64(ROUND_TRIP_MS / 2e3 * time),
        slo: std::time::Duration::from_secs_f64(arguments.slo_ms / 1e3 * time),
    };
    let run = |gbps: f64, requests: u16| -> CliResult<Vec<TtftRow>> {
        let step = Step::start(format!("{gbps} Gb/s, {requests} concurrent"));
        let mut rows = Vec::new();
        for way in Strategy::ALL {
            let seconds =
                way.bytes(&model, tokens) as f64 * 8.0 * f64::from(requests) / (link(gbps).mbps * 1e6);
            if seconds <= PATIENCE_S {
                let samples =
                    testbed.measure(way, &link(gbps), usize::from(requests), usize::from(rounds))?;
                rows.push(strategies::row(way, gbps, usize::from(requests), &samples, time));
            }
        }
        step.done(&format!("{} strategies", rows.len()));
        Ok(rows)
    };
    let gbps = if arguments.quick { vec![1.0, 10.0] } else { arguments.bandwidth.clone() };
    let links = gbps.iter().map(|gbps| run(*gbps, 1)).collect::<CliResult<Vec<_>>>()?.concat();
    let at = arguments.concurrent_bandwidth;
    let concurrent = concurrency.iter().map(|n| run(at, *n)).collect::<CliResult<Vec<_>>>()?.concat();
    testbed.stop()?;
    Ok(TtftReport { tokens, scaling, slo_ms: arguments.slo_ms, links, concurrent })
}

fn text(report: &TtftReport) -> String {
    let s = &report.scaling;
    format!(
        "like {} on one {}: prefill of {} tokens {:.1} ms there, {:.1} ms here; 1 Gb/s there is {:.2} Mb/s here\n\n{}\n\n{}",
        s.like,
        s.gpu,
        report.tokens,
        s.prefill_ms_there,
        s.prefill_ms_here,
        s.bandwidth * 1e3,
        columns(&page::table(&report.links)),
        columns(&page::table(&report.concurrent))
    )
}
