//! `kvasir context`: contexts of a service, by tokens and by name.

mod explain;
mod get;
mod lookup;
mod named;
mod put;
mod request;

use clap::Subcommand;
use kvasir_client::Session;
use kvasir_types::Quality;

use crate::error::{CliError, CliResult, Exit};

/// What to do with contexts.
#[derive(Debug, Subcommand)]
pub(crate) enum ContextCommand {
    /// Encode a KV dump and store it.
    Put(put::PutArguments),
    /// Load a context's KV into a dump.
    Get(get::GetArguments),
    /// Show how much of a context is stored.
    Lookup(lookup::LookupArguments),
    /// Explain why a lookup of a context misses, or what happened to a request of vLLM.
    Explain(explain::ExplainArguments),
    /// Give the stored chunks of a context a name, with labels, a lifetime and a pin.
    Create(named::CreateArguments),
    /// List named contexts by label, or show one of them, or its versions.
    List(named::ListArguments),
    /// Write a new version of a named context: pin, labels, lifetime.
    Update(named::UpdateArguments),
    /// Delete a named context. Its chunks remain.
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

/// Why nothing can be loaded of a context of which nothing was matched.
fn nothing(session: &Session, quality: Option<Quality>) -> CliError {
    match quality {
        Some(quality) if session.below_floor_tokens() > 0 => CliError::new(
            Exit::Nothing,
            format!("no chunk of this context is stored in quality {quality}"),
            "`kvasir context lookup` shows the stored levels. Ask for a lower quality, or store the context in another \
             --namespace: here it is not stored again.",
        ),
        _ => CliError::new(
            Exit::Nothing,
            "nothing is stored for these tokens",
            "Check the model and the namespace, or store the context first.",
        ),
    }
}
