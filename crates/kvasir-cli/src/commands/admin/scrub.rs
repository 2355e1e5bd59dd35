//! `kvasir admin scrub`: reads every object and verifies it against its name, through a service or directly
//! on its store.

use clap::Args;
use kvasir_api::{JobKind, JobRequest};
use kvasir_storage::{ScrubReport, WorkShare, index::Index};
use serde_json::json;

use super::{direct::storage, job::watch};
use crate::{
    error::{CliError, CliResult, Exit},
    output::{bytes, print, print_json},
    progress::Step,
    service::{AddressArguments, runtime},
    settings::SettingsArguments,
};

/// Arguments of `kvasir admin scrub`.
#[derive(Debug, Args)]
pub(crate) struct ScrubArguments {
    /// The service.
    #[command(flatten)]
    service: AddressArguments,
    /// Work on the object store itself, with the service's settings. Safe while any number of services run.
    #[arg(long, conflicts_with_all = ["url", "token_file", "ca_file"])]
    direct: bool,
    /// With `--direct`: report corrupt objects without quarantining them.
    #[arg(long, requires = "direct")]
    dry_run: bool,
    /// Read at most N bytes per second. 0 or absent: no limit. With `--direct`, use `--scrub.rate`.
    #[arg(long, value_name = "N", conflicts_with = "direct")]
    bytes_per_second: Option<u64>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// With `--direct`: the service's settings.
    #[command(flatten)]
    settings: SettingsArguments,
}

/// Runs the command.
pub(crate) fn run(arguments: &ScrubArguments) -> CliResult {
    if arguments.direct {
        return scrub_directly(arguments);
    }
    arguments.settings.only_with_direct()?;
    scrub_by_service(arguments)
}

/// Scrubs through the service.
fn scrub_by_service(arguments: &ScrubArguments) -> CliResult {
    let bytes_per_second = arguments.bytes_per_second.unwrap_or(0);
    let request = JobRequest { bytes_per_second, ..JobRequest::new(JobKind::Scrub) };
    let job = watch(&arguments.service, &request, "scrubbing", |count| {
        format!(
            "{} objects ({}) read, {} quarantined, {} unreadable",
            count("objects"),
            bytes(count("bytes")),
            count("quarantined"),
            count("unread"),
        )
    })?;
    if arguments.json {
        print_json(&job)?;
    }
    let count = |name: &str| job.counts.get(name).copied().unwrap_or(0);
    match (count("quarantined"), count("unread")) {
        (0, 0) => Ok(()),
        (0, unread) => Err(CliError::new(
            Exit::Data,
            format!("{unread} objects could not be read"),
            "They stay as they are. The service's log names them and the cause: the store, or a key that is not available.",
        )),
        (corrupt, unread) => Err(CliError::new(
            Exit::Data,
            format!(
                "{corrupt} corrupt objects were found and quarantined, {unread} objects could not be read"
            ),
            "Quarantined objects are now misses; engines store them again when needed. Check the store's health.",
        )),
    }
}

/// Reads all objects at the rate of `scrub.rate` and verifies them against their names.
fn scrub_directly(arguments: &ScrubArguments) -> CliResult {
    let config = arguments.settings.config()?;
    let step = Step::start("scrubbing");
    let report = runtime()?.block_on(async {
        let storage = storage(&config, Some(Index::memory())).await?;
        let progress = |now: &ScrubReport| {
            let wrong = now.quarantined + now.unread;
            step.count(&format!("{} objects, {}, {wrong} wrong", now.objects, bytes(now.bytes)));
        };
        let rate = config.scrub.bytes_per_second;
        let report = storage
            .lifecycle()
            .scrub(&WorkShare::WHOLE, rate, arguments.dry_run, progress)
            .await
            .map_err(CliError::unavailable)?;
        storage.changes().journal_append().await.map_err(CliError::unavailable)?;
        Ok::<_, CliError>(report)
    })?;
    let ScrubReport { objects, bytes: read, quarantined, unread, misread } = report;
    step.done(&format!("{objects} objects, {}", bytes(read)));
    if arguments.json {
        let (dry_run, quarantined) = (arguments.dry_run, quarantined);
        print_json(&json!({
            "dry_run": dry_run, "objects": objects, "bytes": read,
            "quarantined": quarantined, "unread": unread, "misread": misread,
        }))?;
    } else {
        print(&format!(
            "{quarantined:>10}  corrupt\n{unread:>10}  unreadable\n{misread:>10}  wrong on first read only"
        ))?;
    }
    if quarantined + unread == 0 {
        return Ok(());
    }
    let advice = if arguments.dry_run {
        "Nothing was quarantined: this was a dry run. The log above names the objects. Check the store's health."
    } else {
        "The log above names the objects. Corrupt ones are hidden, and deleted after the grace period. Check the store's health."
    };
    Err(CliError::new(
        Exit::Data,
        format!("{quarantined} objects are corrupt, {unread} are unreadable"),
        advice,
    ))
}
