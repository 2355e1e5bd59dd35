//! Layer-wise start: the suffix is prefilled while later layers of its prefix are still being decoded.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::{error::EngineError, model::Observer};

/// Tracks how many leading layers of the prefix are in place. The load opens it step by step; the computation
/// waits before each layer. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct LayerGate(Arc<GateShared>);

#[derive(Debug, Default)]
struct GateShared {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    complete: usize,
    aborted: bool,
}

impl LayerGate {
    /// Lets the first `layers` layers through.
    pub(super) fn open(&self, layers: usize) {
        let mut state = self.0.state.lock();
        state.complete = state.complete.max(layers);
        self.0.changed.notify_all();
    }

    /// Ends all present and future waits: the prefix will not be complete.
    pub(super) fn abort(&self) {
        self.0.state.lock().aborted = true;
        self.0.changed.notify_all();
    }
}

impl Observer for LayerGate {
    fn enter(&mut self, layer: usize) -> Result<(), EngineError> {
        let mut state = self.0.state.lock();
        while state.complete <= layer && !state.aborted {
            self.0.changed.wait(&mut state);
        }
        if state.aborted { Err(EngineError::Interrupted) } else { Ok(()) }
    }
}

/// Aborts the gate when the load's owner is dropped, so that no waiter remains.
#[derive(Debug)]
pub(super) struct GateOwner(pub(super) LayerGate);

impl Drop for GateOwner {
    fn drop(&mut self) {
        self.0.abort();
    }
}
