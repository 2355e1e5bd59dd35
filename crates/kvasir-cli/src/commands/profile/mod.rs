//! `kvasir profile`: profiles of a model.

mod inspect;
mod levels;
mod pack;
mod retrain;
mod status;
mod train;

use clap::Subcommand;

use crate::error::CliResult;

/// What to do with profiles.
#[derive(Debug, Subcommand)]
pub(crate) enum ProfileCommand {
    /// Train a profile from KV dumps of one model, or for the shipped model from texts.
    Train(train::TrainArguments),
    /// Train a profile on a sample of what a service has stored of a model, and publish it where loads get smaller and no slower.
    Retrain(retrain::RetrainArguments),
    /// Show which profiles a service has of a model: which one new caches are encoded with, how it was made, what it achieves.
    Status(status::StatusArguments),
    /// Show a profile (.kvp): levels, scopes, ranks, tables, what decoding costs.
    Inspect(inspect::InspectArguments),
    /// Pack a profile's bases and factors in few bits, so that it fits a budget.
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
