//! `kvasir config`: checks a service's settings and prints them. The files that they name may be on another host.

use clap::Args;
use kvasir_server::Config;

use crate::{error::CliResult, output::print, settings::SettingsArguments};

/// Arguments of `kvasir config`.
#[derive(Debug, Args)]
pub(crate) struct ConfigArguments {
    /// Print the commented example: every setting with its meaning and default.
    #[arg(long)]
    example: bool,
    /// The configuration.
    #[command(flatten)]
    settings: SettingsArguments,
}

/// Prints the effective configuration with secrets as `***`, or reports all of its mistakes.
pub(crate) fn run(arguments: &ConfigArguments) -> CliResult {
    if arguments.example {
        return print(Config::default().to_example().trim_end());
    }
    print(arguments.settings.config()?.to_toml().trim_end())
}
