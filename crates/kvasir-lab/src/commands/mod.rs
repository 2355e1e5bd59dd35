//! The command line of the laboratory.

mod bench;
mod dump;
mod engine;
mod model;
mod report;
mod sim;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use kvasir_cli::{
    command_line,
    error::{CliResult, EXIT_CODES},
};

/// Measures Kvasir: the codec compared with other codecs, policies in simulation, the reference engine.
#[derive(Debug, Parser)]
#[command(name = "kvasir-lab", version, after_help = EXIT_CODES, arg_required_else_help = true)]
struct Arguments {
    /// The command.
    #[command(subcommand)]
    command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
enum Command {
    /// Measure the codec against other codecs, and caches on the real engine.
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Simulate on recorded traces.
    #[command(subcommand)]
    Sim(sim::SimCommand),
    /// Compute the KV cache of a text with the shipped model and write it as a dump.
    Dump(dump::DumpArguments),
    /// Run the reference engine: completions over HTTP, KV from Kvasir.
    #[command(subcommand)]
    Engine(engine::EngineCommand),
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    match command_line::parse::<Arguments>().and_then(|arguments| run(&arguments.command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => kvasir_cli::report(&error),
    }
}

fn run(command: &Command) -> CliResult {
    match command {
        Command::Bench(command) => bench::run(command),
        Command::Sim(command) => sim::run(command),
        Command::Dump(arguments) => dump::run(arguments),
        Command::Engine(command) => engine::run(command),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
