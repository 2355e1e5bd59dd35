//! What all handlers share.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use kvasir_api::{ErrorCode, Problem};
use kvasir_storage::Storage;

use crate::{
    auth::Authority, egress::Link, handlers::ApiError, jobs::Jobs, keys::Keys, metrics::Metrics,
    quota::Meters, tls::Tls,
};

/// Shared state; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct AppState(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    metrics: Arc<Metrics>,
    /// There once the store was reached.
    storage: OnceLock<Arc<Storage>>,
    draining: AtomicBool,
    authority: Authority,
    meters: Meters,
    tls: Option<Tls>,
    keys: Option<Keys>,
    link: Option<Link>,
    jobs: Jobs,
}

impl AppState {
    pub(crate) fn new(
        metrics: Arc<Metrics>,
        authority: Authority,
        tls: Option<Tls>,
        keys: Option<Keys>,
        link: Option<Link>,
    ) -> Self {
        let draining = AtomicBool::new(false);
        let storage = OnceLock::new();
        let (meters, jobs) = (Meters::default(), Jobs::default());
        Self(Arc::new(Inner { metrics, storage, draining, authority, meters, tls, keys, link, jobs }))
    }

    pub(crate) fn authority(&self) -> &Authority {
        &self.0.authority
    }

    pub(crate) fn meters(&self) -> &Meters {
        &self.0.meters
    }

    /// The way out that tenants share, if its rate is known.
    pub(crate) fn link(&self) -> Option<&Link> {
        self.0.link.as_ref()
    }

    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.0.tls.as_ref()
    }

    /// Keys of encryption at rest.
    pub(crate) fn keys(&self) -> Option<&Keys> {
        self.0.keys.as_ref()
    }

    /// Takes in changed files of credentials, keys and certificates; blocks on the disk.
    pub(crate) fn reload(&self) {
        self.0.authority.reload();
        if let Some(tls) = &self.0.tls {
            tls.reload();
        }
        if let Some(keys) = &self.0.keys {
            keys.reload();
        }
    }

    pub(crate) fn metrics(&self) -> &Arc<Metrics> {
        &self.0.metrics
    }

    pub(crate) fn storage(&self) -> Result<&Arc<Storage>, ApiError> {
        self.started().ok_or_else(|| {
            let detail =
                "the store has not answered since this replica started; try again, or another replica";
            Problem::new(ErrorCode::StoreUnavailable, detail).into()
        })
    }

    pub(crate) fn jobs(&self) -> &Jobs {
        &self.0.jobs
    }

    pub(crate) fn started(&self) -> Option<&Arc<Storage>> {
        self.0.storage.get()
    }

    pub(crate) fn start(&self, storage: Arc<Storage>) {
        self.metrics().conditional_create(storage.abilities().conditional_create);
        if self.0.storage.set(storage).is_ok() {
            self.metrics().ready(!self.is_draining());
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.0.draining.load(Ordering::Relaxed)
    }

    pub(crate) fn drain(&self) {
        self.0.draining.store(true, Ordering::Relaxed);
        self.metrics().ready(false);
    }
}
