//! `kvasir context`: contexts of a service, by their tokens and by name.

mod explain;
mod get;
mod lookup;
mod named;
mod put;
mod request;

use clap::Subcommand;

use crate::error::{CliError, CliResult, Exit};

/// What to do with contexts.
#[derive(Debug, Subcommand)]
pub(crate) enum ContextCommand {
    /// Encode a KV dump and store it.
    Put(put::PutArguments),
    /// Load a context's KV into a dump.
    Get(get::GetArguments),
    /// Say how much of a context is stored.
    Lookup(lookup::LookupArguments),
    /// Say why a lookup of a context misses, or what became of a request of vLLM.
    Explain(explain::ExplainArguments),
    /// Name what is stored of a context: labels, life, pin.
    Create(named::CreateArguments),
    /// List named contexts, by labels; or one of them, or its versions.
    List(named::ListArguments),
    /// Write a named context's next version: pin, labels, life.
    Update(named::UpdateArguments),
    /// Delete a named context; its chunks stay.
    Delete(named::DeleteArguments),
}

/// Runs the command.
pub(crate) fn run(command: &ContextCommand) -> CliResult {
    match command {
        ContextCommand::Put(arguments) => put::run(arguments),
        ContextCommand::Get(arguments) => get::run(arguments),
        ContextCommand::Lookup(arguments) => lookup::run(arguments),
        ContextCommand::Explain(arguments) => explain::run(arguments),
        ContextCommand::Create(arguments) => named::create(arguments),
        ContextCommand::List(arguments) => named::list(arguments),
        ContextCommand::Update(arguments) => named::update(arguments),
        ContextCommand::Delete(arguments) => named::delete(arguments),
    }
}

fn nothing_stored() -> CliError {
    CliError::new(
        Exit::Nothing,
        "nothing is stored for these tokens",
        "Check model and namespace, or store the context first.",
    )
}
