//! `kvasir admin seal`: moves a tenant whose data is stored unencrypted to its first key.

use clap::Args;
use kvasir_storage::{SealReport, index::Index};
use kvasir_types::Name;
use serde_json::json;

use super::direct::storage;
use crate::{
    error::{CliError, CliResult},
    output::{bytes, print_json},
    progress::Step,
    service::runtime,
    settings::SettingsArguments,
};

/// Arguments of `kvasir admin seal`.
#[derive(Debug, Args)]
pub(crate) struct SealArguments {
    /// The tenant. Every replica must already have its key.
    #[arg(long)]
    tenant: Name,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// The service's settings.
    #[command(flatten)]
    settings: SettingsArguments,
}

/// Gives the tenant a new, sealed salt and removes its unencrypted data. Resumes where an earlier run
/// stopped.
pub(crate) fn run(arguments: &SealArguments) -> CliResult {
    let config = arguments.settings.config()?;
    let step = Step::start("sealing");
    let report = runtime()?.block_on(async {
        let storage = storage(&config, Some(Index::memory())).await?;
        let progress = |now: SealReport| {
            step.count(&format!("{} records, {} objects, {}", now.records, now.objects, bytes(now.bytes)));
        };
        storage.lifecycle().seal_tenant(&arguments.tenant, progress).await.map_err(CliError::unavailable)
    })?;
    let SealReport { salts, records, uploads, objects, bytes: freed } = report;
    let salt = if salts == 0 { "salt already sealed" } else { "new salt written" };
    step.done(&format!(
        "{salt}; unencrypted data removed: {records} contexts and salts, {uploads} uploads, {objects} objects, {}",
        bytes(freed)
    ));
    if arguments.json {
        print_json(&json!({
            "salts": salts, "records": records, "uploads": uploads, "objects": objects, "bytes": freed,
        }))?;
    }
    Ok(())
}
