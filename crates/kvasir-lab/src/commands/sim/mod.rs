//! `kvasir-lab sim`: the simulators.

mod evict;
mod evict_curve;
mod evict_study;
mod routes;
mod stream;

use clap::Subcommand;
use kvasir_cli::error::CliResult;

/// The simulation to run.
#[derive(Debug, Subcommand)]
pub(crate) enum SimCommand {
    /// Replay a request trace through the eviction policies.
    Evict(evict::EvictArguments),
    /// Compare the service's estimated hit ratios with those of whole caches.
    EvictCurve(evict_curve::CurveArguments),
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
        SimCommand::EvictStudy(arguments) => evict_study::run(arguments),
        SimCommand::Routes(arguments) => routes::run(arguments),
        SimCommand::Stream(arguments) => stream::run(arguments),
    }
}
