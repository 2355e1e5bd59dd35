//! What a replica does beside serving: writing its index out, the journal, the garbage collector.

use std::{sync::Arc, time::Duration};

use kvasir_storage::{ScrubReport, Storage, gc::GcPolicy};
use tokio::task::JoinSet;

use crate::{config::Config, limits, metrics::Metrics, state::AppState};

/// Starts all of it. Each task begins once the store was reached, and ends with the set.
pub(crate) fn start(state: &AppState, config: &Config) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(run_every(state.clone(), limits::INDEX_FLUSH_EVERY, async |_, storage| {
        let _ = tokio::task::spawn_blocking(move || storage.index().flush()).await;
    }));
    tasks.spawn(reload(state.clone()));
    let interval = config.journal.interval;
    tasks.spawn(run_every(state.clone(), interval, async |metrics, storage| {
        sync_journal(&metrics, &storage).await
    }));
    let policy = config.gc.policy.clone();
    tasks.spawn(run_every(state.clone(), config.gc.interval, async move |metrics, storage| {
        collect_garbage(&metrics, &storage, &policy).await;
    }));
    let rate = config.scrub.bytes_per_second;
    tasks.spawn(run_every(state.clone(), config.scrub.interval, async move |metrics, storage| {
        scrub(&metrics, &storage, rate).await;
    }));
    tasks
}

/// Repeats with a pause that varies by a quarter, so that replicas do not move in step. Zero: never.
async fn run_every(
    state: AppState,
    interval: Duration,
    mut task: impl AsyncFnMut(Arc<Metrics>, Arc<Storage>),
) {
    if interval.is_zero() {
        return;
    }
    loop {
        let quarter = interval.as_secs_f64() / 4.0;
        let jitter = f64::from(uuid::Uuid::new_v4().as_fields().0) / f64::from(u32::MAX);
        tokio::time::sleep(interval.mul_f64(0.875) + Duration::from_secs_f64(quarter * jitter)).await;
        if let Some(storage) = state.ready_storage() {
            task(Arc::clone(state.metrics()), Arc::clone(storage)).await;
        }
    }
}

/// Looks at files of credentials and certificates, whether the store answers or not.
async fn reload(state: AppState) {
    loop {
        tokio::time::sleep(limits::RELOAD_EVERY).await;
        let state = state.clone();
        let _ = tokio::task::spawn_blocking(move || state.reload()).await;
    }
}

async fn sync_journal(metrics: &Metrics, storage: &Storage) {
    match storage.journal_append().await {
        Ok(entries) => metrics.journal("appended", entries),
        Err(error) => tracing::warn!(%error, "the journal waits"),
    }
    match storage.journal_tail().await {
        Ok(entries) => {
            metrics.journal("applied", entries);
            metrics.journal_skipped(storage.journal_skipped());
        }
        Err(error) => tracing::warn!(%error, "other replicas' journals wait"),
    }
}

async fn collect_garbage(metrics: &Metrics, storage: &Storage, policy: &GcPolicy) {
    match storage.collect_garbage(policy, |now| metrics.collecting(now)).await {
        Ok(report) if report.led => {
            metrics.collected(&report);
            tracing::info!(?report, dry_run = policy.dry_run, "garbage collected");
        }
        Ok(_) => tracing::debug!("another replica collects"),
        Err(error) => {
            tracing::warn!(%error, "the garbage collector stopped early and goes on with the next pass")
        }
    }
}

async fn scrub(metrics: &Metrics, storage: &Storage, rate: u64) {
    let mut before = ScrubReport::default();
    let scrubbed = storage.scrub(rate, false, |now| {
        metrics.scrubbed(&before, now);
        before = *now;
    });
    match scrubbed.await {
        Ok(report) => tracing::info!(?report, "scrubbed"),
        Err(error) => tracing::warn!(%error, "a scrub stopped early"),
    }
}

/// At shutdown, writes the journal's last batch and the index.
pub(crate) async fn flush(state: &AppState) {
    let Some(storage) = state.ready_storage() else { return };
    let append = tokio::time::timeout(limits::FINAL_JOURNAL_BATCH_TIME_MAX, storage.journal_append());
    if !matches!(append.await, Ok(Ok(_))) {
        tracing::warn!("the last journal batch was not written; other replicas find its chunks in the store");
    }
    storage.index().flush();
}
