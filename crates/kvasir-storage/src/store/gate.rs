//! Bounded concurrency with a bounded queue in front of it: who cannot be served soon is told so, and holds no memory.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A door that lets `at_once` through and a queue in front of it.
#[derive(Debug)]
pub(super) struct Gate {
    places: Arc<Semaphore>,
    waiting: AtomicUsize,
    waiting_max: usize,
    wait_max: Duration,
}

/// Too many wait, or this one has waited for too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Busy;

impl Gate {
    pub(super) fn new(at_once: usize, waiting_max: usize, wait_max: Duration) -> Self {
        let places = Arc::new(Semaphore::new(at_once.clamp(1, Semaphore::MAX_PERMITS)));
        Self { places, waiting: AtomicUsize::new(0), waiting_max, wait_max }
    }

    /// Comes in, at once or after a bounded while.
    pub(super) async fn enter(&self) -> Result<OwnedSemaphorePermit, Busy> {
        if let Ok(permit) = Arc::clone(&self.places).try_acquire_owned() {
            return Ok(permit);
        }
        struct Waits<'a>(&'a AtomicUsize);
        impl Drop for Waits<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let ahead = self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waits = Waits(&self.waiting);
        if ahead >= self.waiting_max {
            return Err(Busy);
        }
        let permit = tokio::time::timeout(self.wait_max, Arc::clone(&self.places).acquire_owned()).await;
        permit.ok().and_then(Result::ok).ok_or(Busy)
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_queue_is_bounded_in_length_and_time() {
        let gate = Gate::new(2, 3, Duration::from_secs(5));
        let first = (gate.enter().await.expect("free"), gate.enter().await.expect("free"));
        let began = tokio::time::Instant::now();
        let all = join_all((0..5).map(|_| async {
            let entered = gate.enter().await;
            (entered.is_ok(), began.elapsed())
        }));
        let release = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(first.0);
        };
        let (all, ()) = tokio::join!(all, release);
        let second = Duration::from_secs(1);
        // One after another through the one place, and two too many.
        assert_eq!(all[..3], [(true, second), (true, second), (true, second)]);
        assert_eq!(all[3..], [(false, Duration::ZERO); 2]);
        let held = gate.enter().await.expect("free again");
        assert_eq!(gate.enter().await.expect_err("the time is bounded"), Busy);
        assert_eq!(gate.waiting.load(Ordering::Relaxed), 0);
        drop((held, first.1));
    }
}
