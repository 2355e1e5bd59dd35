//! `kvasir bench`: the codec measured, beside its peers.

mod codec;
mod page;
mod quality;

use clap::Subcommand;

use crate::error::CliResult;

/// What is measured.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Size against quality: every codec, level and chunk length, on a model's own KV.
    Quality(quality::QualityArguments),
    /// Speed of every decoder and encoder on one core, beside other entropy coders.
    Codec(codec::CodecArguments),
}

/// Runs a benchmark.
pub(crate) fn run(command: &BenchCommand) -> CliResult {
    match command {
        BenchCommand::Quality(arguments) => quality::run(arguments),
        BenchCommand::Codec(arguments) => codec::run(arguments),
    }
}
