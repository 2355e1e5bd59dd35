//! `kvasir-lab sim evict-curve`: how well the service estimates the hit ratio with more memory.

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
use crate::eviction::compare_curve;

/// Arguments of `kvasir-lab sim evict-curve`.
#[derive(Debug, Args)]
pub(crate) struct CurveArguments {
    #[command(flatten)]
    recorded: RecordedTrace,
    /// The policy: adaptive or lru.
    #[arg(long, default_value_t = PolicyKind::DEFAULT)]
    policy: PolicyKind,
    /// Capacities in per cent of the trace's unique blocks, separated by commas.
    #[arg(long, default_value = "2%,5%,10%", value_delimiter = ',', value_parser = capacity)]
    capacity: Vec<f64>,
}

/// Runs the command.
pub(crate) fn run(arguments: &CurveArguments) -> CliResult {
    let CurveArguments { recorded, policy, capacity } = arguments;
    let rows = compare_curve(&recorded.source(), *policy, capacity);
    let rows = rows.map_err(|error| trace_error(&recorded.trace, error))?;
    let head = ["capacity", "times", "found %", "estimated %", "error"].map(str::to_owned).to_vec();
    let rows = rows.iter().map(|row| {
        let error = format!("{:+.2}", (row.estimated - row.found) * 100.0);
        vec![share(row.capacity), row.scale.to_string(), percent(row.found), percent(row.estimated), error]
    });
    print(&columns(&[head].into_iter().chain(rows).collect::<Vec<_>>()))
}
