//! The active loads of a client: uploads yield to them, and loads share link and GPU.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use crate::{fetcher::Neighbours, limits::NEIGHBOUR_STEP_BYTES};

/// The active loads of a client. Uploads yield to them, and each load takes its share of link and GPU.
#[derive(Debug, Default)]
pub(crate) struct ActiveLoads {
    /// By deadline, so that loads before an entry have less slack than it; the number distinguishes equal
    /// deadlines.
    loads: watch::Sender<BTreeMap<(Instant, u64), u64>>,
    next: AtomicU64,
}

/// Registers one active load until it is dropped.
#[derive(Debug)]
pub(crate) struct ActiveLoadGuard {
    active_loads: Arc<ActiveLoads>,
    all: watch::Receiver<BTreeMap<(Instant, u64), u64>>,
    key: (Instant, u64),
    missing_bytes: u64,
    last_reported: Neighbours,
}

impl ActiveLoads {
    /// Registers a load with a deadline.
    pub(crate) fn begin(self: &Arc<Self>, deadline: Instant) -> ActiveLoadGuard {
        let key = (deadline, self.next.fetch_add(1, Ordering::Relaxed));
        self.loads.send_modify(|loads| {
            loads.insert(key, 0);
        });
        let (all, last_reported) = (self.loads.subscribe(), Neighbours::default());
        ActiveLoadGuard { active_loads: Arc::clone(self), all, key, missing_bytes: 0, last_reported }
    }

    /// Waits until no load is active, at most `patience`. Returns whether none is.
    pub(crate) async fn wait_idle(&self, patience: Duration) -> bool {
        let mut all = self.loads.subscribe();
        let idle = all.wait_for(BTreeMap::is_empty);
        matches!(tokio::time::timeout(patience, idle).await, Ok(Ok(_)))
    }
}

impl ActiveLoadGuard {
    /// Publishes the missing bytes of this load's bases, in steps of [`NEIGHBOUR_STEP_BYTES`].
    pub(crate) fn set_missing_bytes(&mut self, bytes: u64) {
        let bytes = bytes.next_multiple_of(NEIGHBOUR_STEP_BYTES);
        if bytes != self.missing_bytes {
            self.missing_bytes = bytes;
            self.active_loads.loads.send_modify(|loads| {
                loads.insert(self.key, bytes);
            });
        }
    }

    /// Waits until the other loads differ from the last result, and returns them. Cancel-safe.
    pub(crate) async fn neighbours(&mut self) -> Neighbours {
        loop {
            let neighbours = {
                let all = self.all.borrow_and_update();
                Neighbours {
                    loads: all.len().saturating_sub(1) as u32,
                    missing_bytes: all.values().sum::<u64>().saturating_sub(self.missing_bytes),
                    urgent_bytes: all.range(..self.key).map(|(_, bytes)| bytes).sum(),
                }
            };
            if neighbours != self.last_reported {
                self.last_reported = neighbours;
                return neighbours;
            }
            if self.all.changed().await.is_err() {
                std::future::pending::<()>().await; // the sender is in `active_loads`, which this holds
            }
        }
    }
}

impl Drop for ActiveLoadGuard {
    fn drop(&mut self) {
        self.active_loads.loads.send_modify(|loads| {
            loads.remove(&self.key);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn loads_hear_of_each_other() {
        let active_loads = Arc::new(ActiveLoads::default());
        let soon = Instant::now() + Duration::from_secs(1);
        let mut first = active_loads.begin(soon);
        let silence = Duration::from_millis(1);
        assert!(tokio::time::timeout(silence, first.neighbours()).await.is_err(), "nobody else is there");
        let mut second = active_loads.begin(soon + Duration::from_secs(4));
        second.set_missing_bytes(NEIGHBOUR_STEP_BYTES + 1);
        let expected = Neighbours { loads: 1, missing_bytes: 2 * NEIGHBOUR_STEP_BYTES, urgent_bytes: 0 };
        assert_eq!(first.neighbours().await, expected);
        first.set_missing_bytes(5);
        second.set_missing_bytes(2 * NEIGHBOUR_STEP_BYTES);
        assert!(tokio::time::timeout(silence, first.neighbours()).await.is_err(), "the same in steps");
        // The first is the more urgent one.
        let one = NEIGHBOUR_STEP_BYTES;
        let expected = Neighbours { loads: 1, missing_bytes: one, urgent_bytes: one };
        assert_eq!(second.neighbours().await, expected);
        assert!(!active_loads.wait_idle(silence).await);
        drop(second);
        assert_eq!(first.neighbours().await, Neighbours::default());
        drop(first);
        assert!(active_loads.wait_idle(silence).await);
    }
}
