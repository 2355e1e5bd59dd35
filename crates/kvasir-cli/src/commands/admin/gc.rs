//! `kvasir admin gc`: runs one garbage collection pass, through a service or directly on its store.

use clap::Args;
use kvasir_api::{JobKind, JobRequest};
use kvasir_storage::{WorkShare, gc::GcReport, index::Index};
use serde_json::json;

use super::{direct::storage, job::watch};
use crate::{
    error::{CliError, CliResult, Exit},
    output::{bytes, print, print_json},
    progress::{Step, note},
    service::{AddressArguments, runtime},
    settings::SettingsArguments,
};

/// Arguments of `kvasir admin gc`.
#[derive(Debug, Args)]
pub(crate) struct GcArguments {
    /// The service.
    #[command(flatten)]
    service: AddressArguments,
    /// Work on the object store itself, with the service's settings. Safe while any number of services run.
    #[arg(long, conflicts_with_all = ["url", "token_file", "ca_file"])]
    direct: bool,
    /// Report what would be deleted, and delete nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// With `--direct`: the service's settings.
    #[command(flatten)]
    settings: SettingsArguments,
}

/// Runs the command.
pub(crate) fn run(arguments: &GcArguments) -> CliResult {
    if arguments.direct {
        return collect_directly(arguments);
    }
    arguments.settings.only_with_direct()?;
    collect_by_service(arguments)
}

/// Runs one pass through the service.
fn collect_by_service(arguments: &GcArguments) -> CliResult {
    let name = if arguments.dry_run { "counting garbage" } else { "collecting garbage" };
    let request = JobRequest { dry_run: arguments.dry_run, ..JobRequest::new(JobKind::Gc) };
    let job = watch(&arguments.service, &request, name, |count| {
        format!(
            "{} objects ({}), {} deleted ({}), {} expired, {} duplicates, {} evicted, {} pinned; {} contexts and {} objects unreadable",
            count("objects"),
            bytes(count("bytes")),
            count("deleted"),
            bytes(count("deleted_bytes")),
            count("expired"),
            count("duplicates"),
            count("evicted"),
            count("pinned"),
            count("contexts_unreadable"),
            count("unread"),
        )
    })?;
    if job.dry_run && !arguments.dry_run {
        note("nothing was deleted: gc.dry_run of the service is true");
    }
    if arguments.json {
        print_json(&job)?;
    }
    if job.counts.get("led") == Some(&0) {
        return Err(CliError::new(
            Exit::Nothing,
            "another replica is collecting",
            "That pass does the same work. Wait for it, or try again later.",
        ));
    }
    Ok(())
}

/// Runs one pass directly on the store.
fn collect_directly(arguments: &GcArguments) -> CliResult {
    let config = arguments.settings.config()?;
    let mut policy = config.gc.policy.clone();
    policy.dry_run |= arguments.dry_run;
    let step = Step::start(if policy.dry_run { "looking for garbage" } else { "collecting garbage" });
    let report = runtime()?.block_on(async {
        // A service's index knows which chunks are siblings. Without one, the pass learns it from the
        // journal.
        let storage = storage(&config, Some(Index::memory())).await?;
        storage.changes().journal_replay().await.map_err(CliError::unavailable)?;
        let progress = |now: &GcReport| step.count(&format!("{} objects, {}", now.objects, bytes(now.bytes)));
        let report = storage
            .lifecycle()
            .collect_garbage(&policy, &WorkShare::WHOLE, progress)
            .await
            .map_err(CliError::unavailable)?;
        storage.changes().journal_append().await.map_err(CliError::unavailable)?;
        Ok::<_, CliError>(report)
    })?;
    if !report.led {
        let (message, advice) =
            ("another collector has just started a pass", "Nothing was deleted. Try again later.");
        return Err(CliError::new(Exit::Unavailable, message, advice));
    }
    step.done(&format!("{} objects, {}", report.objects, bytes(report.bytes)));
    if arguments.json {
        return print_json(&gc_json(&report, policy.dry_run));
    }
    let would = if policy.dry_run { " (dry run: would be)" } else { "" };
    let lines = [
        ("expired", report.expired),
        ("duplicates", report.duplicates),
        ("contained in longer chunks", report.contained),
        ("evicted", report.evicted),
        ("deleted", report.deleted),
        ("tombstones deleted", report.tombstones_deleted),
        ("journal batches deleted", report.batches_deleted),
        ("direct uploads deleted", report.uploads_deleted),
        ("orphaned uploads deleted", report.leftovers_deleted),
        ("versions of contexts deleted", report.context_versions_deleted),
    ];
    let kept = [
        ("kept: pinned", report.pinned),
        ("kept: pinned or needed meanwhile", report.spared),
        ("contexts unreadable: no chunk of their tenants expires or is evicted", report.contexts_unreadable),
        ("objects unreadable", report.unread),
    ];
    let lines = lines.map(|(what, count)| format!("{count:>10}  {what}{would}"));
    let kept = kept.map(|(what, count)| format!("{count:>10}  {what}"));
    let freed = bytes(report.deleted_bytes);
    print(&format!("{}\n{freed:>10}  freed{would}\n{}", lines.join("\n"), kept.join("\n")))
}

fn gc_json(report: &GcReport, dry_run: bool) -> serde_json::Value {
    json!({
        "dry_run": dry_run,
        "objects": report.objects,
        "bytes": report.bytes,
        "expired": report.expired,
        "duplicates": report.duplicates,
        "contained": report.contained,
        "evicted": report.evicted,
        "evicted_bytes": report.evicted_bytes,
        "deleted": report.deleted,
        "deleted_bytes": report.deleted_bytes,
        "tombstones_deleted": report.tombstones_deleted,
        "batches_deleted": report.batches_deleted,
        "uploads_deleted": report.uploads_deleted,
        "leftovers_deleted": report.leftovers_deleted,
        "context_versions_deleted": report.context_versions_deleted,
        "pinned": report.pinned,
        "spared": report.spared,
        "contexts_unreadable": report.contexts_unreadable,
        "unread": report.unread,
    })
}
