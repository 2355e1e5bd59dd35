//! Limits concurrency, with a bounded queue of waiting requests: a request that cannot start soon fails at once and holds
//! no memory.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// At most `at_once` permits, and a bounded queue for them.
#[derive(Debug)]
pub(crate) struct ConcurrencyLimit {
    permits: Arc<Semaphore>,
    waiting: AtomicUsize,
    waiting_max: usize,
    wait_max: Duration,
}

/// Too many requests are queued, or this one has waited too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Busy;

impl ConcurrencyLimit {
    pub(crate) fn new(at_once: usize, waiting_max: usize, wait_max: Duration) -> Self {
        let permits = Arc::new(Semaphore::new(at_once.clamp(1, Semaphore::MAX_PERMITS)));
        Self { permits, waiting: AtomicUsize::new(0), waiting_max, wait_max }
    }

    /// Acquires a permit, immediately or after a bounded wait.
    pub(crate) async fn acquire(&self) -> Result<OwnedSemaphorePermit, Busy> {
        if let Some(permit) = self.try_acquire() {
            return Ok(permit);
        }
        self.queued(Arc::clone(&self.permits).acquire_owned()).await?.map_err(|_| Busy)
    }

    /// A permit, if one is free.
    pub(crate) fn try_acquire(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).try_acquire_owned().ok()
    }

    /// The number of free permits.
    pub(crate) fn free(&self) -> usize {
        self.permits.available_permits()
    }

    /// Waits for `permit`, if there is room in the queue, for a bounded time.
    pub(crate) async fn queued<T>(&self, permit: impl Future<Output = T>) -> Result<T, Busy> {
        struct Waits<'a>(&'a AtomicUsize);
        impl Drop for Waits<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let waiting_before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waits = Waits(&self.waiting);
        if waiting_before >= self.waiting_max {
            return Err(Busy);
        }
        tokio::time::timeout(self.wait_max, permit).await.map_err(|_| Busy)
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_queue_is_bounded_in_length_and_time() {
        let limit = ConcurrencyLimit::new(2, 3, Duration::from_secs(5));
        let first = (limit.acquire().await.expect("free"), limit.acquire().await.expect("free"));
        let began = tokio::time::Instant::now();
        let all = join_all((0..5).map(|_| async {
            let entered = limit.acquire().await;
            (entered.is_ok(), began.elapsed())
        }));
        let release = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(first.0);
        };
        let (all, ()) = tokio::join!(all, release);
        let second = Duration::from_secs(1);
        // One after another through the single permit, and two too many.
        assert_eq!(all[..3], [(true, second), (true, second), (true, second)]);
        assert_eq!(all[3..], [(false, Duration::ZERO); 2]);
        let held = limit.acquire().await.expect("free again");
        assert_eq!(limit.acquire().await.expect_err("the time is bounded"), Busy);
        assert_eq!(limit.waiting.load(Ordering::Relaxed), 0);
        drop((held, first.1));
    }
}
