//! `kvasir profile`: profiles of a model.

mod inspect;
mod levels;
mod pack;
mod retrain;
mod retrain_all;
mod status;
mod train;

use clap::Subcommand;

use crate::error::CliResult;

/// What to do with profiles.
#[derive(Debug, Subcommand)]
pub(crate) enum ProfileCommand {
    /// Train a profile from KV dumps of one model, or for the shipped model from texts.
    Train(train::TrainArguments),
    /// Train a profile on a sample of a model's stored chunks, or one for each model, and publish it if loads get
    /// smaller and no slower.
    Retrain(retrain::RetrainArguments),
    /// Show a model's profiles at a service: which one encodes new caches, how it was made, what it achieves.
    Status(status::StatusArguments),
    /// Show a profile (.kvp): levels, scopes, ranks, tables, decoding cost.
    Inspect(inspect::InspectArguments),
    /// Pack a profile's bases and factors into fewer bits, to fit a budget.
    Pack(pack::PackArguments),
}

/// Runs the command.
pub(crate) fn run(command: &ProfileCommand) -> CliResult {
    match command {
        ProfileCommand::Train(arguments) => train::run(arguments),
        ProfileCommand::Retrain(arguments) => retrain::run(arguments),
        ProfileCommand::Status(arguments) => status::run(arguments),
        ProfileCommand::Inspect(arguments) => inspect::run(arguments),
        ProfileCommand::Pack(arguments) => pack::run(arguments),
    }
}
