//! `kvasir completions`: scripts by which shells complete the command line.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::{
    args::Arguments,
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
pub(crate) fn run(arguments: &CompletionsArguments) -> CliResult {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "kvasir", &mut script);
    print(String::from_utf8(script).map_err(CliError::internal)?.trim_end())
}
