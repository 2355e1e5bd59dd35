//! `kvasir object`: chunk objects without a service.

mod decode;
mod encode;
mod inspect;

use clap::Subcommand;

use crate::error::CliResult;

/// What to do with objects.
#[derive(Debug, Subcommand)]
pub(crate) enum ObjectCommand {
    /// Encode a KV dump into one chunk object.
    Encode(encode::EncodeArguments),
    /// Decode a chunk object into a KV dump.
    Decode(decode::DecodeArguments),
    /// Show the contents of a chunk object (.kvc).
    Inspect(inspect::InspectArguments),
}

/// Runs the command.
pub(crate) fn run(command: &ObjectCommand) -> CliResult {
    match command {
        ObjectCommand::Encode(arguments) => encode::run(arguments),
        ObjectCommand::Decode(arguments) => decode::run(arguments),
        ObjectCommand::Inspect(arguments) => inspect::run(arguments),
    }
}
