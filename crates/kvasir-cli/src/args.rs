//! The command line and its commands. Each command declares its arguments in its own file.

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

/// Kvasir stores the KV caches of language models in compressed form and loads them back in time.
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
    /// Check a service's settings, but not the files that they name, and print them.
    Config(ConfigArguments),
    /// Test a service: put, look up, fetch, compare and delete a chunk of random tokens.
    Selftest(SelftestArguments),
    /// Store, load and look up contexts; explain misses; name, list and pin stored contexts.
    #[command(subcommand)]
    Context(ContextCommand),
    /// Operate a service: garbage collection, scrubs, index, usage, events, live view.
    #[command(subcommand)]
    Admin(AdminCommand),
    /// Train, publish, inspect and pack profiles; show those of a model at a service.
    #[command(subcommand)]
    Profile(ProfileCommand),
    /// Encode, decode and inspect chunk objects without a service.
    #[command(subcommand)]
    Object(ObjectCommand),
    /// Print the spec of a model's KV cache.
    #[command(subcommand)]
    Model(ModelCommand),
    /// Estimate the size of a model's KV cache, the cost of keeping it, and the level that fits a link and an
    /// SLO.
    Plan(PlanArguments),
    /// Generate a bearer token or an S3 access key (on stderr), and its entry for the tenants file (on stdout).
    Token(TokenArguments),
    /// Print a shell completion script.
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
