//! Opens a store directly, with its service's settings. Maintenance may run while any number of services use
//! the store.

use std::sync::Arc;

use kvasir_server::{Config, telemetry};
use kvasir_storage::{Storage, index::Index, observe::NoObserver};

use crate::error::{CliError, CliResult, Exit};

/// Opens the storage core over the store that `config` names, and starts logging: the log names the objects that a
/// command counts. Without `index`, it uses the replica's own index, which no service may use meanwhile.
pub(super) async fn storage(config: &Config, index: Option<Index>) -> CliResult<Arc<Storage>> {
    telemetry::init(&config.log);
    let url = &config.store.url;
    let directory = (url.scheme() == "file").then(|| url.to_file_path().ok()).flatten();
    // Opening makes the directory: a mistyped one would be an empty store.
    if let Some(directory) = directory.filter(|directory| !directory.exists()) {
        let message = format!("there is no store at {}", directory.display());
        let advice = "Check store.url: `kvasir serve` makes the directory, this command does not.";
        return Err(CliError::new(Exit::Unavailable, message, advice));
    }
    let store = kvasir_server::open_store(config, Arc::new(NoObserver)).map_err(CliError::unavailable)?;
    let index = match index {
        Some(index) => index,
        None => {
            let directory = config.cache.directory.clone();
            Index::sled_alone(directory, store.identity(), config.cache.index_memory_bytes).map_err(
                |error| {
                    let advice =
                        "Stop the service that uses this directory, or name another with --cache.directory.";
                    CliError::new(Exit::Unavailable, error, advice)
                },
            )?
        }
    };
    if let Some(former) = store.former_layout().await.map_err(CliError::unavailable)? {
        return Err(CliError::unavailable(former));
    }
    let abilities = store.probe().await.map_err(CliError::unavailable)?;
    Ok(Storage::new(store, abilities, index, config.storage.clone(), None))
}
