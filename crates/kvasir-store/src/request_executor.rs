//! Executes calls to the store: concurrency limit, breaker, deadline, and retries within a budget.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use object_store::{GetOptions, Result};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, timeout, timeout_at},
};

use crate::{
    body_limit::{BodyLimit, BodyPermit},
    breaker::{Breaker, BreakerChange, BreakerPermit},
    budget::RetryBudget,
    concurrency_limit::ConcurrencyLimit,
    config::StoreConfig,
    error_class::{CallError, ErrorClass},
    limits,
    observe::{StoreEvent, StoreObserver},
};

/// The side of a call; reads and writes fail independently (a full store can still be read).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestSide {
    Read,
    Write,
}

/// Executes the calls to one store.
#[derive(Debug)]
pub(crate) struct RequestExecutor {
    requests: ConcurrencyLimit,
    bodies: BodyLimit,
    reads: Arc<Breaker>,
    writes: Arc<Breaker>,
    budget: RetryBudget,
    jitter: AtomicU64,
    request_timeout: Duration,
    retries_max: usize,
    retry_timeout: Duration,
    observer: Arc<dyn StoreObserver>,
}

/// A result, and the number of attempts.
pub(crate) struct CallResult<T> {
    pub(crate) result: Result<T>,
    pub(crate) attempts: usize,
}

impl RequestExecutor {
    pub(crate) fn new(config: &StoreConfig, observer: Arc<dyn StoreObserver>) -> Self {
        let limit =
            |at_once| ConcurrencyLimit::new(at_once, limits::STORE_WAITING_MAX, limits::STORE_WAIT_MAX);
        Self {
            requests: limit(config.requests_max),
            bodies: BodyLimit::new(limit(
                config.requests_max.saturating_mul(limits::STORE_BODIES_PER_REQUEST),
            )),
            reads: Breaker::new(),
            writes: Breaker::new(),
            budget: RetryBudget::new(),
            jitter: AtomicU64::new(config.jitter_seed),
            request_timeout: config.request_timeout,
            retries_max: config.retries_max,
            retry_timeout: config.retry_timeout,
            observer,
        }
    }

    pub(crate) fn observer(&self) -> &Arc<dyn StoreObserver> {
        &self.observer
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    fn breaker(&self, side: RequestSide) -> &Arc<Breaker> {
        match side {
            RequestSide::Read => &self.reads,
            RequestSide::Write => &self.writes,
        }
    }

    /// Acquires a permit of the concurrency limit and of the breaker for one request.
    pub(crate) async fn enter(&self, side: RequestSide) -> Result<(OwnedSemaphorePermit, BreakerPermit)> {
        let Ok(permit) = self.requests.acquire().await else {
            self.observer.event(StoreEvent::Busy);
            return Err(CallError::Busy.into());
        };
        match self.breaker(side).admit() {
            Ok(breaker_permit) => Ok((permit, breaker_permit)),
            Err(_) => {
                self.observer.event(StoreEvent::RefusedByBreaker);
                Err(CallError::Open.into())
            }
        }
    }

    /// Acquires a permit for the body of a read with these options.
    pub(crate) async fn body(&self, options: &GetOptions) -> Result<BodyPermit> {
        let entered = self.bodies.acquire(options).await;
        entered.map_err(|_| {
            self.observer.event(StoreEvent::Busy);
            CallError::Busy.into()
        })
    }

    pub(crate) fn settle(&self, side: RequestSide, breaker_permit: BreakerPermit, class: ErrorClass) {
        match breaker_permit.settle(class == ErrorClass::Definitive) {
            Some(BreakerChange::Opened) => {
                tracing::error!(?side, "the store fails every request; pausing requests to it");
                self.observer.event(StoreEvent::BreakerOpened);
            }
            Some(BreakerChange::Closed) => {
                tracing::info!(?side, "the store responds again");
                self.observer.event(StoreEvent::BreakerClosed);
            }
            None => {}
        }
    }

    /// Makes a call: `attempt` is repeated while it fails in a retryable way, within the limits on number and
    /// time, and as far as the budget allows.
    pub(crate) async fn call<T, F>(&self, side: RequestSide, mut attempt: impl FnMut() -> F) -> CallResult<T>
    where
        F: Future<Output = Result<T>>,
    {
        let (mut retries, mut failed) = (Retries::new(self), None);
        let last = retries.begun + self.retry_timeout + self.request_timeout;
        loop {
            let result = match self.enter(side).await {
                Ok((permit, breaker_permit)) => {
                    let deadline = last.min(Instant::now() + self.request_timeout);
                    let result = timeout_at(deadline, attempt()).await.unwrap_or_else(|_| {
                        self.observer.event(StoreEvent::DeadlinePassed);
                        Err(CallError::Deadline(self.request_timeout).into())
                    });
                    drop(permit);
                    let class = ErrorClass::of(&result);
                    self.settle(side, breaker_permit, class);
                    if class == ErrorClass::Definitive {
                        return CallResult { result, attempts: retries.made + 1 };
                    }
                    result
                }
                // No request was sent: fail at once. What the last one failed with says more.
                Err(error) => {
                    return CallResult { result: Err(failed.unwrap_or(error)), attempts: retries.made };
                }
            };
            if !retries.next().await {
                return CallResult { result, attempts: retries.made + 1 };
            }
            failed = result.err();
        }
    }

    /// One attempt, regardless of the outcome.
    pub(crate) async fn once<T>(
        &self,
        side: RequestSide,
        attempt: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let (_permit, breaker_permit) = self.enter(side).await?;
        let result = self.with_deadline(attempt).await.and_then(|done| done);
        self.settle(side, breaker_permit, ErrorClass::of(&result));
        result
    }

    /// Like [`call`](Self::call), without counting attempts.
    pub(crate) async fn ask<T, F>(&self, side: RequestSide, attempt: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        self.call(side, attempt).await.result
    }

    /// Waits for `request` no longer than the request timeout.
    pub(crate) async fn with_deadline<T>(&self, request: impl Future<Output = T>) -> Result<T> {
        timeout(self.request_timeout, request).await.map_err(|_| {
            self.observer.event(StoreEvent::DeadlinePassed);
            CallError::Deadline(self.request_timeout).into()
        })
    }

    /// Waits for work whose requests cannot be ended, for as long as one call may take with its retries. If it has not
    /// ended by then, it counts as a failed request.
    pub(crate) async fn patiently<T>(&self, side: RequestSide, work: impl Future<Output = T>) -> Result<T> {
        let patience = self.retry_timeout.saturating_add(self.request_timeout);
        timeout(patience, work).await.map_err(|_| {
            self.observer.event(StoreEvent::DeadlinePassed);
            if let Ok(breaker_permit) = self.breaker(side).admit() {
                self.settle(side, breaker_permit, ErrorClass::Transient);
            }
            CallError::Deadline(patience).into()
        })
    }

    /// A number below one. Seeded, so that a simulation is reproducible.
    fn jitter(&self) -> f64 {
        let mut z = self.jitter.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The retries of one call.
pub(crate) struct Retries<'a> {
    executor: &'a RequestExecutor,
    begun: Instant,
    made: usize,
}

impl<'a> Retries<'a> {
    /// A call begins.
    pub(crate) fn new(executor: &'a RequestExecutor) -> Self {
        executor.budget.deposit();
        Self { executor, begun: Instant::now(), made: 0 }
    }

    /// Continues a call that has already made this many retries in this time.
    pub(crate) fn resumed(executor: &'a RequestExecutor, begun: Instant, made: usize) -> Self {
        Self { executor, begun, made }
    }

    /// Whether to make another attempt; waits until it is due.
    pub(crate) async fn next(&mut self) -> bool {
        let executor = self.executor;
        if self.made >= executor.retries_max || self.begun.elapsed() >= executor.retry_timeout {
            return false;
        }
        if !executor.budget.withdraw() {
            executor.observer.event(StoreEvent::BudgetSpent);
            return false;
        }
        let exponent = u32::try_from(self.made).unwrap_or(u32::MAX).min(16);
        let pause = (limits::RETRY_PAUSE_MIN * 2u32.pow(exponent)).min(limits::RETRY_PAUSE_MAX);
        self.made += 1;
        executor.observer.event(StoreEvent::Retried);
        // Between half and all of it, so that requests that failed together do not retry together.
        tokio::time::sleep(pause.mul_f64(0.5 + executor.jitter() / 2.0)).await;
        true
    }
}
