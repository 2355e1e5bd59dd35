//! `kvasir-lab sim routes`: what routes keep of the hit ratio of one replica with all the memory.

use std::path::PathBuf;

use clap::Args;
use kvasir_cli::{
    error::CliResult,
    output::{columns, print},
};
use kvasir_eviction::PolicyKind;
use kvasir_replay::trace::{BadLine, TraceFormat};

use super::evict::{capacity, percent, share, trace_error};
use crate::eviction::{SharedTemplate, Spreading, TraceSource, spread};

/// Arguments of `kvasir-lab sim routes`.
#[derive(Debug, Args)]
pub(crate) struct RoutesArguments {
    /// Trace file, one JSON row per line (unpack compressed ones first).
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Its format: mooncake or bailian.
    #[arg(long)]
    format: TraceFormat,
    /// The policy: adaptive, adaptive-cost or lru.
    #[arg(long, default_value_t = PolicyKind::AdaptiveCost)]
    policy: PolicyKind,
    /// Memory of all replicas together in per cent of the trace's unique blocks, separated by commas.
    #[arg(long, default_value = "2%,10%", value_delimiter = ',', value_parser = capacity)]
    capacity: Vec<f64>,
    /// Numbers of replicas, separated by commas.
    #[arg(long, default_value = "1,2,4,8", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1000))]
    replicas: Vec<u16>,
    /// Conversations, in per cent, that begin with one system prompt which the trace does not have.
    #[arg(long, default_value = "0%", value_parser = share_of_conversations)]
    template_share: f64,
    /// Blocks of that prompt.
    #[arg(long, default_value_t = 8)]
    template_blocks: u64,
}

fn share_of_conversations(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').and_then(|digits| digits.parse::<f64>().ok());
    number
        .filter(|percent| (0.0..=100.0).contains(percent))
        .map(|percent| percent / 100.0)
        .ok_or_else(|| format!("{text:?} is not a share as 60%"))
}

/// Runs the command.
pub(crate) fn run(arguments: &RoutesArguments) -> CliResult {
    let RoutesArguments { trace, format, policy, capacity, replicas, template_share, template_blocks } =
        arguments;
    let source = TraceSource::File { path: trace.clone(), format: *format, bad_line: BadLine::Fail };
    let template = SharedTemplate {
        share: *template_share,
        blocks: if *template_share > 0.0 { *template_blocks } else { 0 },
    };
    let replicas: Vec<usize> = replicas.iter().copied().map(usize::from).collect();
    let rows =
        spread(&source, *policy, capacity, &replicas, template).map_err(|error| trace_error(trace, error))?;
    let head = ["memory", "replicas", "spread by", "found %", "busiest/mean", "unique", "splits"];
    let rows = rows.iter().map(|row| {
        let by = match (row.replicas, row.spreading) {
            (1, _) => "",
            (_, Spreading::Routes) => "routes",
            (_, Spreading::Random) => "chance",
        };
        vec![
            share(row.capacity),
            row.replicas.to_string(),
            by.to_owned(),
            percent(row.hit_ratio),
            format!("{:.2}", row.busiest_over_mean),
            format!("{:.3}", row.unique),
            row.splits.to_string(),
        ]
    });
    print(&columns(&[head.map(str::to_owned).to_vec()].into_iter().chain(rows).collect::<Vec<_>>()))
}
