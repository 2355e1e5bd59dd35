//! `kvasir serve`: the service.

use clap::Args;
use kvasir_server::{listen, run as serve, shutdown_signal, telemetry};

use crate::{
    error::{CliError, CliResult},
    service::runtime,
    settings::SettingsArguments,
};

/// Arguments of `kvasir serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// Settings of the service.
    #[command(flatten)]
    settings: SettingsArguments,
}

/// Serves until SIGTERM or SIGINT.
pub(crate) fn run(arguments: &ServeArguments) -> CliResult {
    let config = arguments.settings.config()?;
    telemetry::init(&config.log);
    runtime()?.block_on(async {
        let listeners = listen(&config).await.map_err(CliError::unavailable)?;
        serve(config, listeners, shutdown_signal()).await.map_err(CliError::unavailable)
    })
}
