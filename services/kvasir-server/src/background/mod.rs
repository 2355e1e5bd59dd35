//! Background tasks of a replica: writing out its index, the journal, the garbage collector.

use std::{cell::Cell, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use hickory_resolver::TokioResolver;
use kvasir_storage::{JournalReading, ScrubReport, gc::GcPolicy};
use kvasir_store::StoreError;
use tokio::{
    task::{JoinSet, spawn_blocking},
    time::Instant,
};

use crate::{
    background_task::BackgroundTask,
    config::Config,
    journal_sync::{count_usage, reading},
    limits,
    state::AppState,
};

/// Starts all tasks. Each except the reload and the series begins once the store was reached; all end with
/// the set.
pub(crate) fn start(state: &AppState, config: &Config) -> JoinSet<()> {
    use BackgroundTask::{Gc, IndexFlush, Journal, Members, Reload, RemovalsExpiry, Scrub, Series, Usage};
    let mut tasks = JoinSet::new();
    tasks.spawn(repeat(IndexFlush, state.clone(), jittered(limits::INDEX_FLUSH_EVERY), async |state| {
        if let Some(storage) = state.ready_storage().cloned() {
            blocking(move || storage.index().flush()).await;
        }
    }));
    tasks.spawn(repeat(
        RemovalsExpiry,
        state.clone(),
        jittered(limits::REMOVALS_EXPIRE_EVERY),
        async |state| {
            if let Some(storage) = state.ready_storage().cloned() {
                blocking(move || storage.changes().expire_removals()).await;
            }
        },
    ));
    // Check files of credentials and certificates whether or not the store responds.
    tasks.spawn(repeat(
        Reload,
        state.clone(),
        || limits::RELOAD_EVERY,
        async |state| {
            blocking(move || state.reload()).await;
        },
    ));
    if state.cluster().is_resolved() {
        let mut resolver = None;
        let pause = jittered(limits::MEMBERS_RESOLVE_EVERY);
        // The first time at once: a client that asks early must not learn an empty list.
        let is_first = Cell::new(true);
        let pause = move || if is_first.replace(false) { Duration::ZERO } else { pause() };
        tasks.spawn(repeat(Members, state.clone(), pause, async move |state| {
            resolve_members(&state, &mut resolver).await;
        }));
    }
    // The series must cover outages of the store.
    tasks.spawn(repeat(
        Series,
        state.clone(),
        || limits::SERIES_STEP,
        async |state| {
            if let Some(storage) = state.ready_storage() {
                state.metrics().refresh(storage);
            }
            state.series().take(&state.metrics().gather());
        },
    ));
    // An interval of zero disables the task.
    if state.journal().is_on() {
        let of = state.clone();
        let pause = move || jittered(of.journal().interval(of.cluster().len()))();
        tasks.spawn(repeat(Journal, state.clone(), pause.clone(), sync_journal));
        // It may list a tenant's objects for minutes. Reads of the journal, and thereby removals, do not wait for it.
        tasks.spawn(repeat(Usage, state.clone(), pause, async |state| {
            if let Some(storage) = state.ready_storage() {
                count_usage(&state, storage).await;
            }
        }));
    }
    let (gc, scrubs) = (config.gc.interval, config.scrub.interval);
    if !gc.is_zero() {
        let (policy, mut tails_collected) = (config.gc.policy.clone(), None);
        tasks.spawn(repeat(Gc, state.clone(), jittered(gc), async move |state| {
            collect_garbage(&state, &policy, &mut tails_collected).await;
        }));
    }
    if !scrubs.is_zero() {
        let (rate, interval) = (config.scrub.bytes_per_second, jittered(scrubs)());
        let (mut begun, mut delay) = (Instant::now(), Duration::ZERO);
        let pause = jittered(scrubs.min(limits::SCRUB_DUE_EVERY));
        tasks.spawn(repeat(Scrub, state.clone(), pause, async move |state| {
            delay = scrub_delay(delay, interval, scrub(&state, interval, &mut begun, rate).await);
            tokio::time::sleep(delay).await;
        }));
    }
    tasks
}

/// Intervals that vary by a quarter, so that replicas do not synchronise.
fn jittered(interval: Duration) -> impl Fn() -> Duration {
    move || {
        let quarter = interval.as_secs_f64() / 4.0;
        let jitter = f64::from(uuid::Uuid::new_v4().as_fields().0) / f64::from(u32::MAX);
        interval.mul_f64(0.875) + Duration::from_secs_f64(quarter * jitter)
    }
}

/// Repeats forever. Counts a panicking run, and delays the next one by a doubling pause.
pub(crate) async fn repeat(
    task: BackgroundTask,
    state: AppState,
    pause: impl Fn() -> Duration,
    mut turn: impl AsyncFnMut(AppState),
) {
    let mut panics = 0;
    loop {
        let pause = pause() + back_off(panics);
        // A sleep takes a millisecond at least.
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        match AssertUnwindSafe(turn(state.clone())).catch_unwind().await {
            Ok(()) => panics = 0,
            Err(_) => {
                panics += 1;
                state.metrics().health().background_panicked(task);
                tracing::error!(task = task.as_str(), panics, "a background task panicked; it runs again");
            }
        }
        state.set_failing(task, task.is_needed() && panics >= limits::BACKGROUND_PANICS_MAX);
    }
}

/// The pause after this many consecutive panics.
fn back_off(panics: u32) -> Duration {
    let Some(doublings) = panics.checked_sub(1) else { return Duration::ZERO };
    Duration::from_secs(1)
        .saturating_mul(1u32.checked_shl(doublings).unwrap_or(u32::MAX))
        .min(limits::BACKGROUND_BACK_OFF_MAX)
}

/// Runs blocking work, and propagates its panic.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) {
    if let Err(error) = spawn_blocking(work).await
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
}

/// Asks DNS for the members; the resolver is made of the system's configuration when it is first needed.
async fn resolve_members(state: &AppState, resolver: &mut Option<TokioResolver>) {
    let asked = match resolver {
        Some(resolver) => state.cluster().resolve(resolver).await,
        None => match TokioResolver::builder_tokio().and_then(|builder| builder.build()) {
            Ok(made) => state.cluster().resolve(resolver.insert(made)).await,
            Err(error) => Err(error.to_string()),
        },
    };
    if let Err(error) = asked {
        state.metrics().cluster().resolve_failed();
        tracing::warn!(
            error,
            "the list of the cluster's members could not be resolved; the previous list stays in use"
        );
    }
}

async fn sync_journal(state: AppState) {
    let Some(storage) = state.ready_storage() else { return };
    let (journal, changes) = (state.journal(), storage.changes());
    let is_stored_due = journal.begin_turn(state.cluster().is_large());
    let appended =
        if is_stored_due { changes.journal_append().await } else { changes.journal_append_removals().await };
    if is_stored_due && appended.is_err() {
        journal.repeat_turn();
    }
    note_appended(&state, appended);
    if journal.is_due(&state, storage) {
        journal.read(&state, storage, reading(&state, storage), is_stored_due).await;
        // The others wait for the counts that followed. All else waits for the next turn, and so all of a turn is one batch.
        note_appended(&state, changes.journal_append_counts().await);
    }
}

fn note_appended(state: &AppState, appended: Result<usize, StoreError>) {
    match appended {
        Ok(entries) => state.metrics().journal("appended", entries),
        Err(error) => tracing::warn!(%error, "writing this replica's journal failed; it will be retried"),
    }
}

/// `tails_collected`: when the last pass began that also collected known tails in the units of others.
async fn collect_garbage(state: &AppState, policy: &GcPolicy, tails_collected: &mut Option<Instant>) {
    let Some(storage) = state.ready_storage() else { return };
    let known_tails = tails_collected.is_none_or(|begun| begun.elapsed() >= limits::KNOWN_TAILS_EVERY);
    let (begun, metrics, share) = (Instant::now(), state.metrics(), state.cluster().work_share(known_tails));
    if share.keeps_accounts() && reading(state, storage) == JournalReading::Counts {
        // Its count needs to know what others store from here on.
        state.journal().read(state, storage, JournalReading::Stored, true).await;
    }
    match storage.lifecycle().collect_garbage(policy, &share, |now| metrics.collecting(now)).await {
        Ok(report) if report.led => {
            if share.has_known_tails() {
                *tails_collected = Some(begun);
            }
            metrics.collected(&report, false);
            tracing::info!(?report, dry_run = policy.dry_run, "a garbage collection pass finished");
        }
        Ok(_) => tracing::debug!("another replica is collecting garbage"),
        Err(error) => {
            tracing::warn!(%error, "the garbage collector stopped early; the next pass continues")
        }
    }
}

/// `begun`: when this process began, or last ended a pass. After an error, the number of objects that this attempt read.
async fn scrub(state: &AppState, interval: Duration, begun: &mut Instant, rate: u64) -> Result<(), u64> {
    let Some(storage) = state.ready_storage() else { return Ok(()) };
    let (metrics, share) = (state.metrics(), state.cluster().work_share(false));
    let (mut before, mut read) = (None, 0);
    let progress = |now: &ScrubReport| {
        // What earlier processes verified is not counted again.
        if let Some(before) = before.replace(*now) {
            metrics.scrubbed(&before, now);
            read += now.objects - before.objects;
        }
    };
    let scrubbed =
        storage.lifecycle().continue_scrub(&share, interval, begun.elapsed(), rate, progress).await;
    match scrubbed {
        Ok(Some(report)) => {
            // Were the index emptied now, the interval would count from here.
            *begun = Instant::now();
            tracing::info!(?report, "a scrub finished");
        }
        Ok(None) => {}
        Err(error) => {
            tracing::warn!(%error, "a scrub stopped early");
            return Err(read);
        }
    }
    Ok(())
}

/// The delay beside the task's pause: each attempt lists what is verified again, so it doubles while they read nothing.
fn scrub_delay(before: Duration, interval: Duration, attempt: Result<(), u64>) -> Duration {
    let delay = match attempt {
        Ok(()) => return Duration::ZERO,
        Err(0) => before.saturating_mul(2),
        Err(_) => Duration::ZERO,
    };
    delay.max(limits::SCRUB_DUE_EVERY).min(interval)
}

/// At shutdown, writes the journal's last batch, the index, and to disk what is hot in memory alone.
pub(crate) async fn flush(state: &AppState) {
    let Some(storage) = state.ready_storage() else { return };
    let append =
        tokio::time::timeout(limits::FINAL_JOURNAL_BATCH_TIME_MAX, storage.changes().journal_append());
    if !matches!(append.await, Ok(Ok(_))) {
        tracing::warn!(
            "the last journal batch was not written; other replicas will find its chunks by asking the store"
        );
    }
    storage.index().flush();
    if let Some(hot) = storage.tier().map(|hot| Arc::clone(hot.tier())) {
        let written = spawn_blocking(move || hot.write_back(limits::HOT_WRITE_BACK_TIME_MAX)).await;
        tracing::info!(bytes = written.unwrap_or_default(), "wrote hot data from memory to disk");
    }
}

#[cfg(test)]
mod tests;
