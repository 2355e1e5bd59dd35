//! `kvasir maintain gc`, `kvasir maintain scrub`, `kvasir rebuild-index`: on a store directly, with the settings of its service.
//!
//! They may run beside any number of services. `rebuild-index` needs a cache directory that no service uses.

use std::sync::Arc;

use kvasir_server::{Config, Layers};
use kvasir_storage::{
    RebuildProgress, ScrubReport, Storage, gc::GcReport, index::Index, observe::NoObserver,
};
use serde_json::json;

use super::serve::{Wish, runtime, unavailable, wish};
use crate::{
    args::MaintainArguments,
    error::{CliError, CliResult, Exit},
    output::{bytes, print, print_json},
    progress::Step,
};

/// Flags of our own, wherever they stand, and the service's configuration.
struct Task {
    config: Config,
    json: bool,
    dry_run: bool,
}

impl Task {
    /// `None` where the settings only wanted something said.
    fn of(arguments: &MaintainArguments) -> CliResult<Option<Self>> {
        let is_own = |text: &&String| !matches!(text.as_str(), "--json" | "--dry-run");
        let settings = &arguments.settings;
        let has = |flag: &str| settings.iter().any(|text| text == flag);
        let (json, dry_run) = (arguments.json || has("--json"), arguments.dry_run || has("--dry-run"));
        let layers = Layers::from_process().with_arguments(settings.iter().filter(is_own).cloned());
        match wish(layers)? {
            Wish::Say(text) => print(&text).map(|()| None),
            Wish::Config(config) => Ok(Some(Self { config: *config, json, dry_run })),
        }
    }

    async fn storage(&self, index: Option<Index>) -> CliResult<Arc<Storage>> {
        let store = kvasir_server::open_store(&self.config, Arc::new(NoObserver)).map_err(unavailable)?;
        let index = match index {
            Some(index) => index,
            None => {
                let directory = self.config.cache.directory.clone();
                Index::sled(directory, store.identity, self.config.cache.index_memory_bytes).map_err(|error| {
                    let advice = "Stop the service that uses this directory first, or name another: --cache.directory.";
                    CliError::new(Exit::Unavailable, error, advice)
                })?
            }
        };
        let abilities = store.probe().await.map_err(unavailable)?;
        Ok(Storage::new(store, abilities, index, self.config.storage.clone()))
    }
}

/// One pass of the garbage collector.
pub(crate) fn gc(arguments: &MaintainArguments) -> CliResult {
    let Some(task) = Task::of(arguments)? else { return Ok(()) };
    let mut policy = task.config.gc.policy.clone();
    policy.dry_run |= task.dry_run;
    let step = Step::start(if policy.dry_run { "looking for garbage" } else { "collecting garbage" });
    let report = runtime()?.block_on(async {
        // What a service's index knows of siblings comes from the journal here.
        let storage = task.storage(Some(Index::memory())).await?;
        storage.journal_replay().await.map_err(unavailable)?;
        let progress = |now: &GcReport| step.count(&format!("{} objects, {}", now.objects, bytes(now.bytes)));
        let report = storage.collect_garbage(&policy, progress).await.map_err(unavailable)?;
        storage.journal_append().await.map_err(unavailable)?;
        Ok::<_, CliError>(report)
    })?;
    if !report.led {
        let (message, advice) = ("another collector has just begun a pass", "Nothing was done; try again.");
        return Err(CliError::new(Exit::Unavailable, message, advice));
    }
    step.done(&format!("{} objects, {}", report.objects, bytes(report.bytes)));
    if task.json {
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
        ("remains of writers deleted", report.leftovers_deleted),
        ("versions of contexts deleted", report.context_versions_deleted),
        ("spared for a pin", report.pinned),
    ];
    let lines = lines.map(|(what, count)| format!("{count:>10}  {what}{would}"));
    print(&format!("{}\n{:>10}  freed{would}", lines.join("\n"), bytes(report.deleted_bytes)))
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
    })
}

/// Reads all objects at the rate of `scrub.rate`, and compares them with their names.
pub(crate) fn scrub(arguments: &MaintainArguments) -> CliResult {
    let Some(task) = Task::of(arguments)? else { return Ok(()) };
    let step = Step::start("scrubbing");
    let report = runtime()?.block_on(async {
        let storage = task.storage(Some(Index::memory())).await?;
        let progress = |now: &ScrubReport| {
            let wrong = now.quarantined + now.unread;
            step.count(&format!("{} objects, {}, {wrong} wrong", now.objects, bytes(now.bytes)));
        };
        let rate = task.config.scrub.bytes_per_second;
        let report = storage.scrub(rate, task.dry_run, progress).await.map_err(unavailable)?;
        storage.journal_append().await.map_err(unavailable)?;
        Ok::<_, CliError>(report)
    })?;
    let ScrubReport { objects, bytes: read, quarantined, unread, misread } = report;
    step.done(&format!("{objects} objects, {}", bytes(read)));
    if task.json {
        let (dry_run, quarantined) = (task.dry_run, quarantined);
        print_json(&json!({
            "dry_run": dry_run, "objects": objects, "bytes": read,
            "quarantined": quarantined, "unread": unread, "misread": misread,
        }))?;
    } else {
        print(&format!(
            "{quarantined:>10}  corrupt\n{unread:>10}  unreadable\n{misread:>10}  wrong only once"
        ))?;
    }
    if quarantined + unread == 0 {
        return Ok(());
    }
    let advice = "Corrupt objects are hidden and deleted after the grace; look after the store.";
    Err(CliError::new(
        Exit::Data,
        format!("{quarantined} objects are corrupt, {unread} cannot be read"),
        advice,
    ))
}

/// Fills the hot index anew: from the store's listing, or, quicker and only as far back as it goes, from the journal.
pub(crate) fn rebuild_index(arguments: &MaintainArguments) -> CliResult {
    let from_journal = arguments.settings.iter().any(|text| text == "--journal");
    let settings = arguments.settings.iter().filter(|text| *text != "--journal").cloned().collect();
    let Some(task) = Task::of(&MaintainArguments { settings, ..*arguments })? else { return Ok(()) };
    let step = Step::start("rebuilding the index");
    let started = std::time::Instant::now();
    let done = runtime()?.block_on(async {
        let storage = task.storage(None).await?;
        storage.index().clear();
        if from_journal {
            storage.journal_replay().await.map_err(unavailable)?;
            storage.index().flush();
            let indexed = storage.index().len();
            return Ok(RebuildProgress { objects: indexed, indexed, failed: 0 });
        }
        let progress = |p: RebuildProgress| step.count(&format!("{} objects", p.objects));
        storage.rebuild_index(progress).await.map_err(unavailable)
    })?;
    let RebuildProgress { objects, indexed, failed } = done;
    let seconds = started.elapsed().as_secs_f64();
    step.done(&format!(
        "{objects} objects met, {indexed} indexed, {failed} unreadable, {:.0} a second",
        objects as f64 / seconds
    ));
    if task.json {
        print_json(&json!({ "objects": objects, "indexed": indexed, "failed": failed, "seconds": seconds }))?;
    }
    Ok(())
}
