//! Loads before stores, and loads beside loads: what is on the wire for whom.

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;

use crate::{fetcher::Neighbours, limits::NEIGHBOUR_STEP_BYTES};

/// The loads of a client that are under way: uploads step aside for them, and each takes its share of link and GPU.
#[derive(Debug, Default)]
pub(crate) struct Activity(watch::Sender<Totals>);

/// Over all loads under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Totals {
    loads: u32,
    /// Bytes of bases that they miss.
    missing_bytes: u64,
}

/// A load under way; ends when dropped.
#[derive(Debug)]
pub(crate) struct Busy {
    activity: Arc<Activity>,
    all: watch::Receiver<Totals>,
    missing_bytes: u64,
    told: Neighbours,
}

impl Activity {
    pub(crate) fn begin(self: &Arc<Self>) -> Busy {
        self.0.send_modify(|all| all.loads += 1);
        let (all, told) = (self.0.subscribe(), Neighbours::default());
        Busy { activity: Arc::clone(self), all, missing_bytes: 0, told }
    }

    /// Waits until no load is under way, at most `patience`; true when that is so.
    pub(crate) async fn wait_idle(&self, patience: Duration) -> bool {
        let mut all = self.0.subscribe();
        let idle = all.wait_for(|all| all.loads == 0);
        matches!(tokio::time::timeout(patience, idle).await, Ok(Ok(_)))
    }
}

impl Busy {
    /// Says what this load misses, in steps: the others need not hear of every byte.
    pub(crate) fn misses(&mut self, bytes: u64) {
        let bytes = bytes.next_multiple_of(NEIGHBOUR_STEP_BYTES);
        if bytes != self.missing_bytes {
            let before = std::mem::replace(&mut self.missing_bytes, bytes);
            self.activity.0.send_modify(|all| all.missing_bytes = all.missing_bytes - before + bytes);
        }
    }

    /// The others, when that is not what was said before. Cancel-safe.
    pub(crate) async fn neighbours(&mut self) -> Neighbours {
        loop {
            let all = *self.all.borrow_and_update();
            let neighbours = Neighbours {
                loads: all.loads.saturating_sub(1),
                missing_bytes: all.missing_bytes.saturating_sub(self.missing_bytes),
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
        self.activity.0.send_modify(|all| {
            all.loads -= 1;
            all.missing_bytes -= self.missing_bytes;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn loads_hear_of_each_other() {
        let activity = Arc::new(Activity::default());
        let mut first = activity.begin();
        let silence = Duration::from_millis(1);
        assert!(tokio::time::timeout(silence, first.neighbours()).await.is_err(), "nobody else is there");
        let mut second = activity.begin();
        second.misses(NEIGHBOUR_STEP_BYTES + 1);
        let expected = Neighbours { loads: 1, missing_bytes: 2 * NEIGHBOUR_STEP_BYTES };
        assert_eq!(first.neighbours().await, expected);
        first.misses(5);
        second.misses(2 * NEIGHBOUR_STEP_BYTES);
        assert!(tokio::time::timeout(silence, first.neighbours()).await.is_err(), "the same in steps");
        assert_eq!(second.neighbours().await, Neighbours { loads: 1, missing_bytes: NEIGHBOUR_STEP_BYTES });
        assert!(!activity.wait_idle(silence).await);
        drop(second);
        assert_eq!(first.neighbours().await, Neighbours::default());
        drop(first);
        assert!(activity.wait_idle(silence).await);
    }
}
