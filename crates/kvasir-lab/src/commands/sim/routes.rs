//! `kvasir-lab sim routes`: what routes keep of the hit ratio of one replica with all the memory.

use std::path::PathBuf;

use clap::Args;
use kvasir_cli::{
    error::CliResult,
    output::{columns, print},
};
use kvasir_eviction::PolicyKind;
use kvasir_replay::trace::TraceFormat;

use super::evict::{capacity, percent, share, trace_error};
use crate::eviction::{DAY_SECONDS, SharedTemplate, Spreading, TraceSource, conversations, spread};

/// Arguments of `kvasir-lab sim routes`.
#[derive(Debug, Args)]
pub(crate) struct RoutesArguments {
    /// Trace file, one JSON row per line (unpack compressed ones first); without it, a generated day of conversations.
    #[arg(long, value_name = "FILE", requires = "format")]
    trace: Option<PathBuf>,
    /// Its format: mooncake or bailian.
    #[arg(long, requires = "trace")]
    format: Option<TraceFormat>,
    /// The policy: adaptive or lru.
    #[arg(long, default_value_t = PolicyKind::DEFAULT)]
    policy: PolicyKind,
    /// Memory of all replicas together in per cent of the trace's unique blocks, separated by commas.
    #[arg(long, default_value = "2%,10%", value_delimiter = ',', value_parser = capacity)]
    capacity: Vec<f64>,
    /// Numbers of replicas, separated by commas.
    #[arg(long, default_value = "1,2,4,8", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1000))]
    replicas: Vec<u16>,
    /// Per cent of the conversations that get one common system prompt put before them.
    #[arg(long, default_value = "0%", value_parser = capacity)]
    template_share: f64,
    /// Blocks of that system prompt.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    template_blocks: u64,
}

const SEED: u64 = 1;

/// Runs the command.
pub(crate) fn run(arguments: &RoutesArguments) -> CliResult {
    let RoutesArguments { trace, format, policy, capacity, replicas, template_share, template_blocks } =
        arguments;
    let (source, named) = match (trace, format) {
        (Some(path), Some(format)) => {
            let (path, format) = (path.clone(), *format);
            (TraceSource::File { path: path.clone(), format }, path)
        }
        _ => (TraceSource::Requests(conversations(SEED, DAY_SECONDS)), "the generated day".into()),
    };
    let template = SharedTemplate { share: *template_share, blocks: *template_blocks };
    let replicas: Vec<usize> = replicas.iter().copied().map(usize::from).collect();
    let rows = spread(&source, *policy, capacity, &replicas, template);
    let rows = rows.map_err(|error| trace_error(&named, error))?;
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
