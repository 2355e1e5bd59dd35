//! Loads before stores, and loads beside loads: what is on the wire for whom.

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

/// The loads of a client that are under way: uploads step aside for them, and each takes its share of link and GPU.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    /// By deadline, so that who comes before a load has less slack than it; the number tells equal ones apart.
    loads: watch::Sender<BTreeMap<(Instant, u64), u64>>,
    next: AtomicU64,
}

/// A load under way; ends when dropped.
#[derive(Debug)]
pub(crate) struct Busy {
    activity: Arc<Activity>,
    all: watch::Receiver<BTreeMap<(Instant, u64), u64>>,
    key: (Instant, u64),
    missing_bytes: u64,
    told: Neighbours,
}

impl Activity {
    /// A load begins that wants to be over by `deadline`.
    pub(crate) fn begin(self: &Arc<Self>, deadline: Instant) -> Busy {
        let key = (deadline, self.next.fetch_add(1, Ordering::Relaxed));
        self.loads.send_modify(|loads| {
            loads.insert(key, 0);
        });
        let (all, told) = (self.loads.subscribe(), Neighbours::default());
        Busy { activity: Arc::clone(self), all, key, missing_bytes: 0, told }
    }

    /// Waits until no load is under way, at most `patience`; true when that is so.
    pub(crate) async fn wait_idle(&self, patience: Duration) -> bool {
        let mut all = self.loads.subscribe();
        let idle = all.wait_for(BTreeMap::is_empty);
        matches!(tokio::time::timeout(patience, idle).await, Ok(Ok(_)))
    }
}

impl Busy {
    /// Says how many bytes of bases this load misses, in steps: the others need not hear of every byte.
    pub(crate) fn misses(&mut self, bytes: u64) {
        let bytes = bytes.next_multiple_of(NEIGHBOUR_STEP_BYTES);
        if bytes != self.missing_bytes {
            self.missing_bytes = bytes;
            self.activity.loads.send_modify(|loads| {
                loads.insert(self.key, bytes);
            });
        }
    }

    /// The others, when that is not what was said before. Cancel-safe.
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
            if neighbours != self.told {
                self.told = neighbours;
                return neighbours;
            }
            if self.all.changed().await.is_err() {
                std::future::pending::<()>().await; // the sender is in `activity`, which this holds
            }
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.activity.loads.send_modify(|loads| {
            loads.remove(&self.key);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn loads_hear_of_each_other() {
        let activity = Arc::new(Activity::default());
        let soon = Instant::now() + Duration::from_secs(1);
        let mut first = activity.begin(soon);
        let silence = Duration::from_millis(1);
        assert!(tokio::time::timeout(silence, first.neighbours()).await.is_err(), "nobody else is there");
        let mut second = activity.begin(soon + Duration::from_secs(4));
        second.misses(NEIGHBOUR_STEP_BYTES + 1);
        let expected = Neighbours { loads: 1, missing_bytes: 2 * NEIGHBOUR_STEP_BYTES, urgent_bytes: 0 };
        assert_eq!(first.neighbours().await, expected);
        first.misses(5);
        second.misses(2 * NEIGHBOUR_STEP_BYTES);
        assert!(tokio::time::timeout(silence, first.neighbours()).await.is_err(), "the same in steps");
        // The first is the more urgent one.
        let one = NEIGHBOUR_STEP_BYTES;
        let expected = Neighbours { loads: 1, missing_bytes: one, urgent_bytes: one };
        assert_eq!(second.neighbours().await, expected);
        assert!(!activity.wait_idle(silence).await);
        drop(second);
        assert_eq!(first.neighbours().await, Neighbours::default());
        drop(first);
        assert!(activity.wait_idle(silence).await);
    }
}
