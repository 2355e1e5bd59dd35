//! State shared by all handlers.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use kvasir_api::{ErrorCode, Problem};
use kvasir_storage::Storage;
use parking_lot::Mutex;

use crate::{
    api_error::ApiError,
    audit::AuditLog,
    auth::Authenticator,
    background_task::BackgroundTask,
    cluster::Cluster,
    egress::EgressScheduler,
    encryption_keys::EncryptionKeys,
    jobs::Jobs,
    journal_sync::JournalSync,
    loads::LoadLog,
    metrics::{Metrics, ReloadedFiles},
    quota::QuotaLimiter,
    series::SeriesLog,
    tls::Tls,
    trainings::TrainingLog,
};

/// Shared state; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct AppState(Arc<SharedState>);

#[derive(Debug)]
struct SharedState {
    metrics: Arc<Metrics>,
    /// Set once the store was reached.
    storage: OnceLock<Arc<Storage>>,
    draining: AtomicBool,
    authenticator: Authenticator,
    quota_limiter: QuotaLimiter,
    tls: Option<Tls>,
    keys: Option<EncryptionKeys>,
    egress: Option<EgressScheduler>,
    jobs: Arc<Jobs>,
    series: SeriesLog,
    loads: LoadLog,
    trainings: TrainingLog,
    audit: AuditLog,
    cluster: Cluster,
    journal: JournalSync,
    /// Background tasks that keep panicking, and without which this replica must not receive traffic.
    failing: Mutex<BTreeSet<BackgroundTask>>,
}

impl AppState {
    pub(crate) fn new(
        metrics: Arc<Metrics>,
        authenticator: Authenticator,
        tls: Option<Tls>,
        keys: Option<EncryptionKeys>,
        egress: Option<EgressScheduler>,
        journal: JournalSync,
        cluster: Cluster,
    ) -> Self {
        let draining = AtomicBool::new(false);
        let storage = OnceLock::new();
        let (quota_limiter, jobs) = (QuotaLimiter::default(), Arc::default());
        Self(Arc::new(SharedState {
            metrics,
            storage,
            draining,
            authenticator,
            quota_limiter,
            tls,
            keys,
            egress,
            jobs,
            series: SeriesLog::new(),
            loads: LoadLog::default(),
            trainings: TrainingLog::default(),
            audit: AuditLog::default(),
            cluster,
            journal,
            failing: Mutex::default(),
        }))
    }

    pub(crate) fn authenticator(&self) -> &Authenticator {
        &self.0.authenticator
    }

    pub(crate) fn quota_limiter(&self) -> &QuotaLimiter {
        &self.0.quota_limiter
    }

    /// The scheduler of the egress bandwidth, if its rate is configured.
    pub(crate) fn egress(&self) -> Option<&EgressScheduler> {
        self.0.egress.as_ref()
    }

    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.0.tls.as_ref()
    }

    /// Keys of encryption at rest.
    pub(crate) fn keys(&self) -> Option<&EncryptionKeys> {
        self.0.keys.as_ref()
    }

    /// Reloads changed files of credentials, keys and certificates; blocks on the disk.
    pub(crate) fn reload(&self) {
        self.0.authenticator.reload();
        if let Some(tls) = &self.0.tls {
            tls.reload();
        }
        if let Some(keys) = &self.0.keys {
            keys.reload();
        }
        let [tenants, jwks] = self.0.authenticator.rejected_files();
        let tls = (ReloadedFiles::Tls, self.tls().is_some_and(Tls::has_rejected_files));
        let keys =
            (ReloadedFiles::EncryptionKeys, self.keys().is_some_and(EncryptionKeys::has_rejected_file));
        for (files, are_rejected) in [tenants, jwks, tls, keys] {
            self.metrics().health().files_rejected(files, are_rejected);
        }
    }

    pub(crate) fn metrics(&self) -> &Arc<Metrics> {
        &self.0.metrics
    }

    pub(crate) fn storage(&self) -> Result<&Arc<Storage>, ApiError> {
        self.ready_storage().ok_or_else(|| {
            let detail =
                "the store has not responded since this replica started; try again, or use another replica";
            Problem::new(ErrorCode::StoreUnavailable, detail).into()
        })
    }

    /// Like [`storage`](Self::storage), for requests whose response must include other replicas' removals.
    pub(crate) async fn caught_up_storage(&self) -> Result<&Arc<Storage>, ApiError> {
        let storage = self.storage()?;
        self.0.journal.catch_up(self, storage).await;
        Ok(storage)
    }

    pub(crate) fn journal(&self) -> &JournalSync {
        &self.0.journal
    }

    pub(crate) fn jobs(&self) -> &Arc<Jobs> {
        &self.0.jobs
    }

    /// The last hour of this replica.
    pub(crate) fn series(&self) -> &SeriesLog {
        &self.0.series
    }

    /// The latest loads that clients reported.
    pub(crate) fn loads(&self) -> &LoadLog {
        &self.0.loads
    }

    /// The latest trainings of profiles that were reported.
    pub(crate) fn trainings(&self) -> &TrainingLog {
        &self.0.trainings
    }

    /// The latest changes by callers.
    pub(crate) fn audit(&self) -> &AuditLog {
        &self.0.audit
    }

    /// The replicas that share the bucket.
    pub(crate) fn cluster(&self) -> &Cluster {
        &self.0.cluster
    }

    /// The storage, if the store was reached.
    pub(crate) fn ready_storage(&self) -> Option<&Arc<Storage>> {
        self.0.storage.get()
    }

    /// Sets the storage once the store was reached, and reports this replica as ready.
    pub(crate) fn set_storage(&self, storage: Arc<Storage>) {
        self.metrics().conditional_create(storage.abilities().conditional_create);
        if self.0.storage.set(storage).is_ok() {
            self.report_ready();
        }
    }

    /// Records whether a required background task fails.
    pub(crate) fn set_failing(&self, task: BackgroundTask, is_failing: bool) {
        let changed = {
            let mut failing = self.0.failing.lock();
            if is_failing { failing.insert(task) } else { failing.remove(&task) }
        };
        if changed {
            self.report_ready();
        }
    }

    /// A required background task that fails.
    pub(crate) fn failing_task(&self) -> Option<&'static str> {
        self.0.failing.lock().first().map(|task| task.as_str())
    }

    fn report_ready(&self) {
        let is_ready = self.ready_storage().is_some() && !self.is_draining() && self.failing_task().is_none();
        self.metrics().ready(is_ready);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.0.draining.load(Ordering::Relaxed)
    }

    pub(crate) fn drain(&self) {
        self.0.draining.store(true, Ordering::Relaxed);
        self.report_ready();
    }
}
