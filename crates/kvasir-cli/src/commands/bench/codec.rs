//! `kvasir bench codec`: speed on one core.

use clap::Args;

use crate::error::CliResult;

/// Arguments of `kvasir bench codec`.
#[derive(Debug, Args)]
pub(crate) struct CodecArguments {
    /// Print the result as one JSON document.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(_arguments: &CodecArguments) -> CliResult {
    Ok(())
}
