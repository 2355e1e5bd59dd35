//! `kvasir admin rebuild-index`: rebuilds a replica's index. Needs a cache directory that no service uses.

use clap::Args;
use kvasir_storage::RebuildProgress;
use serde_json::json;

use super::direct::storage;
use crate::{
    error::{CliError, CliResult, Exit},
    output::print_json,
    progress::Step,
    service::runtime,
    settings::SettingsArguments,
};

/// Arguments of `kvasir admin rebuild-index`.
#[derive(Debug, Args)]
pub(crate) struct RebuildIndexArguments {
    /// Empty the index and fill it from the journal: faster, but limited to the time that the journal covers.
    #[arg(long)]
    journal: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// The service's settings.
    #[command(flatten)]
    settings: SettingsArguments,
}

/// Empties the hot index and fills it from a listing of the store, or from the journal.
pub(crate) fn run(arguments: &RebuildIndexArguments) -> CliResult {
    let config = arguments.settings.config()?;
    let step = Step::start("rebuilding the index");
    let started = std::time::Instant::now();
    let (done, is_kept) = runtime()?.block_on(async {
        let storage = storage(&config, None).await?;
        let replaced = storage.index().replaced();
        storage.index().clear();
        let done = if arguments.journal {
            storage.changes().journal_replay().await.map_err(CliError::unavailable)?;
            storage.index().flush();
            let indexed = storage.index().len();
            RebuildProgress { objects: indexed, indexed, failed: 0 }
        } else {
            let progress = |p: RebuildProgress| step.count(&format!("{} objects", p.objects));
            storage.lifecycle().rebuild_index(progress).await.map_err(CliError::unavailable)?
        };
        Ok::<_, CliError>((done, storage.index().replaced() == replaced))
    })?;
    let RebuildProgress { objects, indexed, failed } = done;
    let seconds = started.elapsed().as_secs_f64();
    step.done(&format!(
        "{objects} objects found, {indexed} indexed, {failed} unreadable, {:.0} per second",
        objects as f64 / seconds
    ));
    if arguments.json {
        print_json(&json!({ "objects": objects, "indexed": indexed, "failed": failed, "seconds": seconds }))?;
    }
    if !is_kept {
        let advice = "Check the space and the permissions of cache.directory, and run the command again.";
        return Err(CliError::new(Exit::NoOutput, "the index could not be kept on disk", advice));
    }
    if failed > 0 {
        let advice = "The others are indexed. The log names these; `kvasir admin scrub --direct` says whether they are damaged.";
        return Err(CliError::new(Exit::Data, format!("{failed} objects could not be read"), advice));
    }
    Ok(())
}
