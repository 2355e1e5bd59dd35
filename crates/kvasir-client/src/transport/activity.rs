//! Loads before stores: what is on the wire for whom.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

/// Counts the loads of a client that are under way, so that uploads can step aside.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    loads: AtomicUsize,
    idle: Notify,
}

/// A load under way; ends when dropped.
#[derive(Debug)]
pub(crate) struct Busy(Arc<Activity>);

impl Activity {
    pub(crate) fn begin(self: &Arc<Self>) -> Busy {
        self.loads.fetch_add(1, Ordering::AcqRel);
        Busy(Arc::clone(self))
    }

    /// Whether no load is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.loads.load(Ordering::Acquire) == 0
    }

    /// Waits until no load is under way, at most `patience`; true when that is so.
    pub(crate) async fn wait_idle(&self, patience: Duration) -> bool {
        let waiting = async {
            loop {
                let idle = self.idle.notified();
                if self.is_idle() {
                    return;
                }
                idle.await;
            }
        };
        tokio::time::timeout(patience, waiting).await.is_ok()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        if self.0.loads.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}
