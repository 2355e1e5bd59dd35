//! `kvasir-lab sim evict-quality`: refinements evicted first, against whole objects.

use clap::Args;
use kvasir_cli::{
    error::CliResult,
    output::{columns, print},
};
use kvasir_eviction::PolicyKind;

use super::{
    RecordedTrace,
    evict::{capacity, percent, share, trace_error},
};
use crate::eviction::{EvictedUnit, LevelQualities, quality_weighted_hits};

/// Arguments of `kvasir-lab sim evict-quality`.
#[derive(Debug, Args)]
pub(crate) struct QualityArguments {
    #[command(flatten)]
    recorded: RecordedTrace,
    /// Capacities in per cent of the bytes of the trace's unique blocks, separated by commas.
    #[arg(long, default_value = "1%,2%,5%,10%,20%,50%", value_delimiter = ',', value_parser = capacity)]
    capacity: Vec<f64>,
}

/// Runs the command.
pub(crate) fn run(arguments: &QualityArguments) -> CliResult {
    let QualityArguments { recorded, capacity } = arguments;
    let source = recorded.source();
    let levels = LevelQualities::shipped();
    let head = ["policy", "evicts"].map(str::to_owned).into_iter().chain(capacity.iter().copied().map(share));
    let mut table = vec![head.chain(["bytes".to_owned()]).collect::<Vec<String>>()];
    for kind in PolicyKind::ALL {
        for unit in EvictedUnit::ALL {
            let hits = quality_weighted_hits(&source, kind, unit, &levels, capacity);
            let hits = hits.map_err(|error| trace_error(&recorded.trace, error))?;
            let names = [kind.name().to_owned(), unit.name().to_owned()];
            let bytes = hits.iter().map(|hits| hits.bytes).sum::<f64>() / hits.len().max(1) as f64;
            let qualities = hits.iter().map(|hits| percent(hits.quality));
            table.push(names.into_iter().chain(qualities).chain([format!("{bytes:.0}")]).collect());
        }
    }
    print(&columns(&table))
}
