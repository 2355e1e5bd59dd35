//! When to retry, and the limit on retries.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rand::RngExt;

use crate::{
    Error,
    limits::{BACKOFF_BASE, BACKOFF_MAX, RETRY_BUDGET, RETRY_REFILL},
};

/// A budget shared by all requests of a client: each retry costs one, each success returns a tenth.
#[derive(Debug)]
pub(crate) struct RetryBudget(Mutex<f64>);

impl RetryBudget {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(RETRY_BUDGET))
    }

    fn with<T>(&self, f: impl FnOnce(&mut f64) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes one retry from the budget, if one is left.
    pub(crate) fn take(&self) -> bool {
        self.with(|left| {
            let granted = *left >= 1.0;
            *left -= if granted { 1.0 } else { 0.0 };
            granted
        })
    }

    pub(crate) fn on_success(&self) {
        self.with(|left| *left = (*left + RETRY_REFILL).min(RETRY_BUDGET));
    }
}

/// Wait before attempt `attempt` (the first retry is 1): full jitter below a doubling bound, and never less
/// than the service asked for. `None` if it asked for longer than is worth waiting.
pub(crate) fn backoff(attempt: u32, error: Option<&Error>) -> Option<Duration> {
    let asked = match error {
        Some(Error::Api(error)) => error.retry_after.unwrap_or_default(),
        _ => Duration::ZERO,
    };
    if asked > BACKOFF_MAX {
        return None;
    }
    let bound = (BACKOFF_BASE * 2u32.saturating_pow(attempt.min(16).saturating_sub(1))).min(BACKOFF_MAX);
    Some(asked + bound.mul_f64(rand::rng().random_range(0.0..1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_bounds_retries_and_refills_slowly() {
        let budget = RetryBudget::new();
        assert_eq!((0..100).filter(|_| budget.take()).count(), RETRY_BUDGET as usize);
        (0..11).for_each(|_| budget.on_success());
        assert!(budget.take() && !budget.take());
    }

    #[test]
    fn backoff_is_bounded_and_honours_retry_after() {
        for attempt in 1..40 {
            assert!(backoff(attempt, None).unwrap() <= BACKOFF_MAX);
        }
        let asked = |seconds| {
            let retry_after = Some(Duration::from_secs(seconds));
            Error::Api(crate::error::ApiError {
                status: 503,
                code: "draining".into(),
                known: None,
                detail: String::new(),
                retryable: true,
                retry_after,
            })
        };
        assert!(backoff(1, Some(&asked(1))).unwrap() >= Duration::from_secs(1));
        assert_eq!(backoff(1, Some(&asked(60))), None);
    }
}
