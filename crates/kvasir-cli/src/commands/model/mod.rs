//! `kvasir model`: specs of models' KV caches.

mod spec;

use clap::Subcommand;

use crate::error::CliResult;

/// What to say about models.
#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// Print the model spec derived from a Hugging Face config.json.
    Spec(spec::SpecArguments),
}

/// Runs the command.
pub(crate) fn run(command: &ModelCommand) -> CliResult {
    match command {
        ModelCommand::Spec(arguments) => spec::run(arguments),
    }
}
