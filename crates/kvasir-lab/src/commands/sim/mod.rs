//! `kvasir-lab sim`: the simulators.

mod evict;
mod evict_curve;
mod evict_quality;
mod evict_study;
mod routes;
mod stream;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use kvasir_cli::error::CliResult;
use kvasir_replay::trace::TraceFormat;

use crate::eviction::TraceSource;

/// A recorded trace.
#[derive(Debug, Args)]
struct RecordedTrace {
    /// Trace file, one JSON row per line (unpack compressed ones first).
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Its format: mooncake or bailian.
    #[arg(long)]
    format: TraceFormat,
}

impl RecordedTrace {
    fn source(&self) -> TraceSource {
        TraceSource::File { path: self.trace.clone(), format: self.format }
    }
}

/// The simulation to run.
#[derive(Debug, Subcommand)]
pub(crate) enum SimCommand {
    /// Replay a request trace through the eviction policies.
    Evict(evict::EvictArguments),
    /// Compare the service's estimated hit ratios with those of whole caches.
    EvictCurve(evict_curve::CurveArguments),
    /// Compare evicting refinements first with evicting whole objects.
    EvictQuality(evict_quality::QualityArguments),
    /// Compare the policies on recorded, generated and mixed traces.
    EvictStudy(evict_study::StudyArguments),
    /// Spread a request trace over replicas by their routes, at random, and over one that has all their memory.
    Routes(routes::RoutesArguments),
    /// Stream contexts over recorded or random links under every policy.
    Stream(Box<stream::StreamArguments>),
}

/// Runs a simulation.
pub(crate) fn run(command: &SimCommand) -> CliResult {
    match command {
        SimCommand::Evict(arguments) => evict::run(arguments),
        SimCommand::EvictCurve(arguments) => evict_curve::run(arguments),
        SimCommand::EvictQuality(arguments) => evict_quality::run(arguments),
        SimCommand::EvictStudy(arguments) => evict_study::run(arguments),
        SimCommand::Routes(arguments) => routes::run(arguments),
        SimCommand::Stream(arguments) => stream::run(arguments),
    }
}
