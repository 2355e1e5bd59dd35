//! `kvasir serve`: the service; and `kvasir rebuild-index`, which needs the same settings.

use std::sync::Arc;

use kvasir_server::{Config, Layers, USAGE, listen, run as serve, shutdown_signal, telemetry};
use kvasir_storage::{Storage, index::Index, observe::NoObserver, store::OpenStore};

use crate::{
    args::ServeArguments,
    error::{CliError, CliResult, Exit},
    output::print,
    progress::Step,
};

/// What the settings ask for.
enum Wish {
    /// Say something and be done.
    Say(String),
    /// Go on with this configuration.
    Config(Box<Config>),
}

/// Serves until SIGTERM or SIGINT.
pub(crate) fn run(arguments: &ServeArguments) -> CliResult {
    let config = match wish(arguments)? {
        Wish::Say(text) => return print(&text),
        Wish::Config(config) => *config,
    };
    telemetry::init(&config.log);
    runtime()?.block_on(async {
        let listener = listen(&config).await.map_err(unavailable)?;
        serve(config, listener, shutdown_signal()).await.map_err(unavailable)
    })
}

/// Builds the index anew from the store.
pub(crate) fn rebuild_index(arguments: &ServeArguments) -> CliResult {
    let config = match wish(arguments)? {
        Wish::Say(text) => return print(&text),
        Wish::Config(config) => *config,
    };
    let directory = config.cache.directory.clone();
    let step = Step::start("rebuilding the index");
    let done = runtime()?.block_on(async {
        let store = OpenStore::open(&config.store, Arc::new(NoObserver)).map_err(unavailable)?;
        let index =
            Index::sled(directory, store.identity, config.cache.index_memory_bytes).map_err(|error| {
                CliError::new(Exit::Unavailable, error, "Stop the service that uses this directory first.")
            })?;
        let abilities = store.probe().await.map_err(unavailable)?;
        index.clear();
        let storage = Storage::new(store, abilities, index, config.storage.clone());
        let progress = |p: kvasir_storage::RebuildProgress| step.count(&format!("{} objects", p.objects));
        storage.rebuild_index(progress).await.map_err(unavailable)
    })?;
    step.done(&format!("{} objects met, {} indexed, {} unreadable", done.objects, done.indexed, done.failed));
    Ok(())
}

fn wish(arguments: &ServeArguments) -> CliResult<Wish> {
    let layers = Layers::from_process().with_arguments(arguments.settings.iter().cloned());
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

fn unavailable(error: impl std::fmt::Display) -> CliError {
    CliError::new(Exit::Unavailable, error, "")
}
