//! What all handlers share.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use kvasir_api::{ErrorCode, Problem};
use kvasir_storage::Storage;
use kvasir_types::Name;

use crate::{handlers::ApiError, metrics::Metrics};

/// Shared state; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct AppState(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    metrics: Arc<Metrics>,
    /// There once the store was reached.
    storage: OnceLock<Arc<Storage>>,
    draining: AtomicBool,
    tenant: Name,
}

impl AppState {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        // Until there is authentication, everything belongs to one tenant.
        let tenant = "default".parse().unwrap_or_else(|_| unreachable!("a constant of the alphabet"));
        Self(Arc::new(Inner { metrics, storage: OnceLock::new(), draining: AtomicBool::new(false), tenant }))
    }

    pub(crate) fn metrics(&self) -> &Arc<Metrics> {
        &self.0.metrics
    }

    /// Whose request this is; from the credential, never from the body.
    pub(crate) fn tenant(&self) -> &Name {
        &self.0.tenant
    }

    pub(crate) fn storage(&self) -> Result<&Arc<Storage>, ApiError> {
        self.started().ok_or_else(|| {
            let detail =
                "the store has not answered since this replica started; try again, or another replica";
            Problem::new(ErrorCode::StoreUnavailable, detail).into()
        })
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
