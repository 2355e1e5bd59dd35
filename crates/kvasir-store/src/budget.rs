//! The retry budget: retries may only be a share of the calls, so that a failing store does not get several
//! times the requests of a healthy one.

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::limits;

/// A bucket of retries, filled by calls and by time.
#[derive(Debug)]
pub(crate) struct RetryBudget(Mutex<Bucket>);

#[derive(Debug)]
struct Bucket {
    retries: f64,
    filled: Instant,
}

impl RetryBudget {
    /// Full.
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Bucket { retries: limits::RETRY_BUDGET_MAX, filled: Instant::now() }))
    }

    /// A call begins: it earns a share of a retry.
    pub(crate) fn deposit(&self) {
        let mut bucket = self.0.lock();
        bucket.retries = (bucket.retries + limits::RETRIES_PER_CALL).min(limits::RETRY_BUDGET_MAX);
    }

    /// Takes one retry, if one is left.
    pub(crate) fn withdraw(&self) -> bool {
        let mut bucket = self.0.lock();
        let now = Instant::now();
        let earned = now.duration_since(bucket.filled).as_secs_f64() * limits::RETRIES_PER_SECOND;
        bucket.filled = now;
        bucket.retries = (bucket.retries + earned).min(limits::RETRY_BUDGET_MAX);
        let affordable = bucket.retries >= 1.0;
        if affordable {
            bucket.retries -= 1.0;
        }
        affordable
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn retries_are_a_share_of_the_calls() {
        let budget = RetryBudget::new();
        let spent = (0..10_000).filter(|_| budget.withdraw()).count();
        assert_eq!(spent, limits::RETRY_BUDGET_MAX as usize, "what was saved up");
        for _ in 0..100 {
            budget.deposit();
        }
        let spent = (0..10_000).filter(|_| budget.withdraw()).count() as f64;
        assert!((spent - 100.0 * limits::RETRIES_PER_CALL).abs() <= 1.0, "{spent}");
        tokio::time::advance(Duration::from_secs(1)).await;
        let spent = (0..10_000).filter(|_| budget.withdraw()).count() as f64;
        assert!((spent - limits::RETRIES_PER_SECOND).abs() <= 1.0, "{spent}");
    }
}
