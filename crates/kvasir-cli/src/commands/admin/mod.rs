//! `kvasir admin`: operates a service, or its store directly.

mod direct;
mod events;
mod gc;
mod job;
mod rebuild_index;
mod scrub;
mod seal;
mod top;
mod usage;

use clap::Subcommand;

use crate::error::CliResult;

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum AdminCommand {
    /// Run a pass of the garbage collector.
    Gc(gc::GcArguments),
    /// Read every stored object and verify it against its name.
    Scrub(scrub::ScrubArguments),
    /// Rebuild a service's index from the object store, or from the journal (`--journal`).
    RebuildIndex(rebuild_index::RebuildIndexArguments),
    /// Move a tenant with unencrypted data to its first key: write a new salt and delete the unencrypted objects.
    Seal(seal::SealArguments),
    /// Show what the store holds, and its size.
    Usage(usage::UsageArguments),
    /// Print chunk events as they happen.
    Events(events::EventsArguments),
    /// Show a service live: requests, hits, bytes by level and medium, SLO attainment.
    Top(top::TopArguments),
}

/// Runs the command.
pub(crate) fn run(command: &AdminCommand) -> CliResult {
    match command {
        AdminCommand::Gc(arguments) => gc::run(arguments),
        AdminCommand::Scrub(arguments) => scrub::run(arguments),
        AdminCommand::RebuildIndex(arguments) => rebuild_index::run(arguments),
        AdminCommand::Seal(arguments) => seal::run(arguments),
        AdminCommand::Usage(arguments) => usage::run(arguments),
        AdminCommand::Events(arguments) => events::run(arguments),
        AdminCommand::Top(arguments) => top::run(arguments),
    }
}
