//! `kvasir admin usage`: what the store holds, and its size.

use clap::Args;

use crate::{
    error::CliResult,
    output::{bytes, columns, print, print_json},
    service::{AddressArguments, client, client_error, runtime},
};

/// Arguments of `kvasir admin usage`.
#[derive(Debug, Args)]
pub(crate) struct UsageArguments {
    /// The service.
    #[command(flatten)]
    service: AddressArguments,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(arguments: &UsageArguments) -> CliResult {
    let client = client(&arguments.service)?;
    let usage = runtime()?.block_on(client.usage()).map_err(client_error)?;
    if arguments.json {
        return print_json(&usage);
    }
    let row = |name: &str, count: u64, size: u64| vec![name.to_owned(), count.to_string(), bytes(size)];
    let mut rows = vec![
        vec!["".to_owned(), "objects".to_owned(), "size".to_owned()],
        row("chunks", usage.objects, usage.bytes),
        row("removed, not yet deleted", usage.removed_objects, usage.removed_bytes),
    ];
    let models = usage.bytes_by_model.iter();
    rows.extend(
        models.map(|(id, size)| {
            vec![format!("  model {}", &id.to_string()[..16]), String::new(), bytes(*size)]
        }),
    );
    rows.push(row("profiles", usage.profiles, usage.profile_bytes));
    rows.push(vec!["models and namespaces".to_owned(), usage.records.to_string(), String::new()]);
    rows.push(vec!["context versions".to_owned(), usage.context_versions.to_string(), String::new()]);
    rows.push(vec!["uploads to be committed".to_owned(), usage.waiting_uploads.to_string(), String::new()]);
    print(&columns(&rows))
}
