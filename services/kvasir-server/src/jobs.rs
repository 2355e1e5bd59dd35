//! Jobs that an operator starts over the API: a garbage collection pass, a scrub, sealing a tenant, rebuilding the index.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::ControlFlow,
    panic::AssertUnwindSafe,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures::FutureExt;
use kvasir_api::{ErrorCode, Job, JobKind, JobRequest, JobState, Problem};
use kvasir_storage::{
    RebuildProgress, ScrubReport, SealReport, Storage, WorkShare,
    gc::{GcPolicy, GcReport},
};
use kvasir_store::StoreError;
use kvasir_types::Name;
use parking_lot::Mutex;
use uuid::Uuid;

use crate::{
    api_error::ApiError, background_task::BackgroundTask, limits, metrics::Metrics, wall_clock::unix_ms,
};

/// The jobs of this replica: running and recent ones.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    jobs: Mutex<VecDeque<TrackedJob>>,
    gc_policy: OnceLock<GcPolicy>,
}

#[derive(Debug)]
struct TrackedJob {
    job: Job,
    started: Instant,
    cancellation: Arc<Cancellation>,
}

/// Whether a job should stop, and whether it did.
#[derive(Debug, Default)]
struct Cancellation {
    requested: AtomicBool,
    obeyed: AtomicBool,
}

impl Cancellation {
    /// Whether a pass continues.
    fn next(&self) -> ControlFlow<()> {
        if !self.requested.load(Ordering::Relaxed) {
            return ControlFlow::Continue(());
        }
        self.obeyed.store(true, Ordering::Relaxed);
        ControlFlow::Break(())
    }

    fn is_obeyed(&self) -> bool {
        self.obeyed.load(Ordering::Relaxed)
    }
}

impl Jobs {
    /// Sets the policy of garbage collection jobs.
    pub(crate) fn set_gc_policy(&self, policy: GcPolicy) {
        let _ = self.gc_policy.set(policy);
    }

    /// Age at which the collector of this replica lets chunks expire; `None`: never.
    pub(crate) fn chunk_ttl(&self) -> Option<Duration> {
        self.gc_policy.get().and_then(|policy| policy.ttl)
    }

    /// All recorded jobs, newest first.
    pub(crate) fn list(&self) -> Vec<Job> {
        self.jobs.lock().iter().map(TrackedJob::snapshot).collect()
    }

    /// One of them.
    pub(crate) fn get(&self, job_id: Uuid) -> Option<Job> {
        self.jobs.lock().iter().find(|tracked| tracked.job.job_id == job_id).map(TrackedJob::snapshot)
    }

    /// Asks a job to stop at its next safe point; a finished job stays as it is.
    pub(crate) fn cancel(&self, job_id: Uuid) -> Option<Job> {
        let jobs = self.jobs.lock();
        let tracked = jobs.iter().find(|tracked| tracked.job.job_id == job_id)?;
        tracked.cancellation.requested.store(true, Ordering::Relaxed);
        Some(tracked.snapshot())
    }

    fn register(&self, request: &JobRequest) -> Result<(Job, Arc<Cancellation>), ApiError> {
        let mut jobs = self.jobs.lock();
        let same = |tracked: &&TrackedJob| {
            tracked.job.kind == request.kind && tracked.job.state == JobState::Running
        };
        if let Some(running) = jobs.iter().find(same) {
            let detail =
                format!("job {} is already running on this replica; wait for it", running.job.job_id);
            return Err(Problem::new(ErrorCode::JobRunning, detail).into());
        }
        let job = Job {
            job_id: Uuid::now_v7(),
            kind: request.kind,
            state: JobState::Running,
            dry_run: request.dry_run || request.kind == JobKind::Gc && self.only_counts(),
            tenant: request.tenant.clone(),
            started_at_ms: unix_ms(),
            elapsed_ms: 0,
            counts: BTreeMap::new(),
            error: None,
        };
        let cancellation = Arc::new(Cancellation::default());
        let tracked =
            TrackedJob { job: job.clone(), started: Instant::now(), cancellation: Arc::clone(&cancellation) };
        jobs.push_front(tracked);
        // The oldest that ended: one that runs can still be cancelled. At most one of each kind does.
        while jobs.len() > limits::JOBS_KEPT
            && let Some(ended) = jobs.iter().rposition(|tracked| tracked.job.state != JobState::Running)
        {
            jobs.remove(ended);
        }
        Ok((job, cancellation))
    }

    /// Whether the settings let collections only count.
    fn only_counts(&self) -> bool {
        self.gc_policy.get().is_some_and(|policy| policy.dry_run)
    }

    fn update(&self, job_id: Uuid, change: impl FnOnce(&mut Job)) {
        let mut jobs = self.jobs.lock();
        if let Some(tracked) = jobs.iter_mut().find(|tracked| tracked.job.job_id == job_id) {
            tracked.job.elapsed_ms = tracked.started.elapsed().as_millis() as u64;
            change(&mut tracked.job);
        }
    }
}

impl TrackedJob {
    fn snapshot(&self) -> Job {
        let mut job = self.job.clone();
        if job.state == JobState::Running {
            job.elapsed_ms = self.started.elapsed().as_millis() as u64;
        }
        job
    }
}

/// The work of a job.
#[derive(Debug)]
enum Work {
    Gc { dry_run: bool },
    Scrub { dry_run: bool, bytes_per_second: u64 },
    Seal(Name),
    RebuildIndex,
}

/// The work that a request asks for, unless it asks for something that its kind of job does not have.
fn work(request: &JobRequest) -> Result<Work, ApiError> {
    let JobRequest { kind, dry_run, bytes_per_second, ref tenant } = *request;
    let problem = match (kind, tenant) {
        (JobKind::Seal, None) => "a `seal` needs the `tenant` that it moves to its key",
        (JobKind::Gc | JobKind::Scrub | JobKind::RebuildIndex, Some(_)) => {
            "only a `seal` is of one `tenant`; leave it out"
        }
        (JobKind::Seal | JobKind::RebuildIndex, _) if dry_run => {
            "`seal` and `rebuild_index` have no dry run; leave `dry_run` out"
        }
        (JobKind::Gc, None) => return Ok(Work::Gc { dry_run }),
        (JobKind::Scrub, None) => return Ok(Work::Scrub { dry_run, bytes_per_second }),
        (JobKind::Seal, Some(tenant)) => return Ok(Work::Seal(tenant.clone())),
        (JobKind::RebuildIndex, None) => return Ok(Work::RebuildIndex),
    };
    Err(Problem::new(ErrorCode::BadRequest, problem).into())
}

/// Starts a job. It continues if the caller disconnects, and ends with the process.
pub(crate) fn start(
    jobs: &Arc<Jobs>,
    storage: Arc<Storage>,
    metrics: Arc<Metrics>,
    request: &JobRequest,
) -> Result<Job, ApiError> {
    let work = work(request)?;
    let (job, cancellation) = jobs.register(request)?;
    let (jobs, job_id) = (Arc::clone(jobs), job.job_id);
    tokio::spawn(async move {
        let run = run(&work, &jobs, &storage, &metrics, job_id, &cancellation);
        // A job that panicked must not appear to run forever: it would block others of its kind.
        let done = match AssertUnwindSafe(run).catch_unwind().await {
            Ok(done) => done.map_err(|error| error.to_string()),
            Err(_) => {
                metrics.health().background_panicked(BackgroundTask::Job);
                Err("it panicked; the service's log has the cause".to_owned())
            }
        };
        jobs.update(job_id, |job| match done {
            Ok(counts) => {
                job.counts = counts;
                job.state = if cancellation.is_obeyed() { JobState::Cancelled } else { JobState::Done };
            }
            Err(error) => {
                tracing::warn!(error, ?job_id, "an admin job failed");
                job.error = Some(error);
                job.state = JobState::Failed;
            }
        });
    });
    Ok(job)
}

/// Does the work of a job, and gives its counts.
async fn run(
    work: &Work,
    jobs: &Jobs,
    storage: &Storage,
    metrics: &Metrics,
    job_id: Uuid,
    cancellation: &Cancellation,
) -> Result<BTreeMap<String, u64>, StoreError> {
    let said = |counts: BTreeMap<String, u64>| {
        jobs.update(job_id, |job| job.counts = counts);
        cancellation.next()
    };
    match *work {
        Work::Gc { dry_run } => {
            let mut policy = jobs.gc_policy.get().cloned().unwrap_or_default();
            policy.dry_run |= dry_run;
            let progress = |report: &GcReport| {
                metrics.collecting(report);
                said(gc_counts(report))
            };
            let report = storage.lifecycle().collect_garbage(&policy, &WorkShare::WHOLE, progress).await?;
            // A dry run counts for its caller, not as work of the collector.
            if report.led && !policy.dry_run {
                metrics.collected(&report, cancellation.is_obeyed());
            }
            Ok(gc_counts(&report))
        }
        Work::Scrub { dry_run, bytes_per_second } => {
            let mut before = ScrubReport::default();
            let progress = |report: &ScrubReport| {
                metrics.scrubbed(&before, report);
                before = *report;
                said(scrub_counts(report))
            };
            let report =
                storage.lifecycle().scrub(&WorkShare::WHOLE, bytes_per_second, dry_run, progress).await?;
            Ok(scrub_counts(&report))
        }
        Work::Seal(ref tenant) => {
            let report = storage.lifecycle().seal_tenant(tenant, |now| said(seal_counts(now))).await?;
            Ok(seal_counts(report))
        }
        Work::RebuildIndex => {
            let done = storage.lifecycle().rebuild_index(|now| said(rebuild_counts(now))).await?;
            Ok(rebuild_counts(done))
        }
    }
}

fn counts<const N: usize>(counts: [(&str, u64); N]) -> BTreeMap<String, u64> {
    counts.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
}

fn gc_counts(report: &GcReport) -> BTreeMap<String, u64> {
    counts([
        ("led", report.led.into()),
        ("objects", report.objects),
        ("bytes", report.bytes),
        ("expired", report.expired),
        ("duplicates", report.duplicates),
        ("contained", report.contained),
        ("evicted", report.evicted),
        ("evicted_bytes", report.evicted_bytes),
        ("pinned", report.pinned),
        ("spared", report.spared),
        ("contexts_unreadable", report.contexts_unreadable),
        ("unread", report.unread),
        ("deleted", report.deleted),
        ("deleted_bytes", report.deleted_bytes),
        ("tombstones_deleted", report.tombstones_deleted),
        ("batches_deleted", report.batches_deleted),
        ("uploads_deleted", report.uploads_deleted),
        ("leftovers_deleted", report.leftovers_deleted),
        ("context_versions_deleted", report.context_versions_deleted),
    ])
}

fn scrub_counts(report: &ScrubReport) -> BTreeMap<String, u64> {
    counts([
        ("objects", report.objects),
        ("bytes", report.bytes),
        ("quarantined", report.quarantined),
        ("unread", report.unread),
        ("misread", report.misread),
    ])
}

fn seal_counts(report: SealReport) -> BTreeMap<String, u64> {
    counts([
        ("salts", report.salts),
        ("records", report.records),
        ("uploads", report.uploads),
        ("objects", report.objects),
        ("bytes", report.bytes),
    ])
}

fn rebuild_counts(done: RebuildProgress) -> BTreeMap<String, u64> {
    counts([("objects", done.objects), ("indexed", done.indexed), ("failed", done.failed)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collection_only_counts_where_the_settings_say_so() {
        let jobs = Jobs::default();
        jobs.set_gc_policy(GcPolicy { dry_run: true, ..GcPolicy::default() });
        for (kind, only_counts) in [(JobKind::Gc, true), (JobKind::Scrub, false)] {
            let (job, _) = jobs.register(&JobRequest::new(kind)).expect("none runs");
            assert_eq!(job.dry_run, only_counts);
        }
    }

    #[test]
    fn a_job_that_runs_stays_known_however_many_end_meanwhile() {
        let jobs = Jobs::default();
        let start = |kind| jobs.register(&JobRequest::new(kind)).map(|(job, _)| job.job_id);
        let scrub = start(JobKind::Scrub).expect("none runs");
        for _ in 0..2 * limits::JOBS_KEPT {
            let gc = start(JobKind::Gc).expect("none runs");
            jobs.update(gc, |job| job.state = JobState::Done);
        }
        assert_eq!(jobs.list().len(), limits::JOBS_KEPT);
        assert!(jobs.cancel(scrub).is_some() && start(JobKind::Scrub).is_err());
    }
}
