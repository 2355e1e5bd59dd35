//! The command line: which commands there are. Each command's arguments stand in its own file.

use clap::{Parser, Subcommand};

#[cfg(feature = "demo")]
use crate::demo::DemoArguments;
use crate::{
    commands::{
        admin::AdminCommand, completions::CompletionsArguments, config::ConfigArguments,
        context::ContextCommand, model::ModelCommand, object::ObjectCommand, plan::PlanArguments,
        profile::ProfileCommand, selftest::SelftestArguments, serve::ServeArguments, token::TokenArguments,
    },
    error::EXIT_CODES,
};

/// Kvasir stores the KV caches of language models, compressed, and brings them back in time.
#[derive(Debug, Parser)]
#[command(name = "kvasir", version, after_help = EXIT_CODES, arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the whole path once on this machine: model, codec, service, shaped link, report.
    #[cfg(feature = "demo")]
    Demo(DemoArguments),
    /// Run the service.
    Serve(ServeArguments),
    /// Check a service's configuration and print it.
    Config(ConfigArguments),
    /// Say whether a service works: put, lookup, get, compare and delete a chunk of random tokens.
    Selftest(SelftestArguments),
    /// Store, load and look up contexts; explain misses; name, list and pin what is stored.
    #[command(subcommand)]
    Context(ContextCommand),
    /// Operate a service: garbage collection, scrubs, index, usage, events, live view.
    #[command(subcommand)]
    Admin(AdminCommand),
    /// Train, look at and pack profiles.
    #[command(subcommand)]
    Profile(ProfileCommand),
    /// Encode, decode and look at chunk objects, without a service.
    #[command(subcommand)]
    Object(ObjectCommand),
    /// Say what a model's KV cache looks like.
    #[command(subcommand)]
    Model(ModelCommand),
    /// Calculate: size of a model's KV, cost of keeping it, the level that fits a link and an SLO.
    Plan(PlanArguments),
    /// Make a bearer token and the entry of the tenants file that lets it in.
    Token(TokenArguments),
    /// Print a script by which a shell completes this command line.
    Completions(CompletionsArguments),
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
