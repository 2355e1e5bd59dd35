//! What all handlers share.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use kvasir_api::{ErrorCode, Problem};
use kvasir_storage::Storage;

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
}

impl AppState {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self(Arc::new(Inner { metrics, storage: OnceLock::new(), draining: AtomicBool::new(false) }))
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
