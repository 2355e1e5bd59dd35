//! `kvasir completions`: shell completion scripts.

use clap::{Args, Command};
use clap_complete::Shell;

use crate::{
    error::{CliError, CliResult},
    output::print,
};

/// Arguments of `kvasir completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArguments {
    /// The shell.
    shell: Shell,
}

/// Runs the command.
pub(crate) fn run(arguments: &CompletionsArguments, mut command: Command) -> CliResult {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "kvasir", &mut script);
    print(String::from_utf8(script).map_err(CliError::internal)?.trim_end())
}
