//! `kvasir serve`: the service.

use kvasir_server::{Config, Layers, USAGE, listen, run as serve, shutdown_signal, telemetry};

use crate::{
    args::ServeArguments,
    error::{CliError, CliResult, Exit},
    output::print,
};

/// What the settings ask for.
pub(super) enum Wish {
    /// Say something and be done.
    Say(String),
    /// Go on with this configuration.
    Config(Box<Config>),
}

/// Serves until SIGTERM or SIGINT.
pub(crate) fn run(arguments: &ServeArguments) -> CliResult {
    let layers = Layers::from_process().with_arguments(arguments.settings.iter().cloned());
    let config = match wish(layers)? {
        Wish::Say(text) => return print(&text),
        Wish::Config(config) => *config,
    };
    telemetry::init(&config.log);
    runtime()?.block_on(async {
        let listener = listen(&config).await.map_err(unavailable)?;
        serve(config, listener, shutdown_signal()).await.map_err(unavailable)
    })
}

/// What `layers` ask for.
pub(super) fn wish(layers: Layers) -> CliResult<Wish> {
    if layers.help {
        return Ok(Wish::Say(USAGE.replace("kvasir-server [", "kvasir serve [")));
    }
    if layers.version {
        return Ok(Wish::Say(format!("kvasir {}", env!("CARGO_PKG_VERSION"))));
    }
    if layers.example {
        return Ok(Wish::Say(Config::default().to_example()));
    }
    let print = layers.print;
    let config = layers.load().map_err(|error| {
        CliError::new(
            Exit::Config,
            error,
            "Correct them all and start again; `kvasir serve --help` shows how settings are given.",
        )
    })?;
    Ok(if print { Wish::Say(config.to_toml()) } else { Wish::Config(Box::new(config)) })
}

/// The runtime of commands that talk to somebody.
pub(crate) fn runtime() -> CliResult<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(CliError::internal)
}

/// A service or store that does not answer.
pub(super) fn unavailable(error: impl std::fmt::Display) -> CliError {
    CliError::new(Exit::Unavailable, error, "")
}
