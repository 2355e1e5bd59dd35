//! Sends requests when they are due, whatever became of those before.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Semaphore, task::JoinSet, time::Instant};

use super::record::{Completion, Failure, Recorder};

/// Sends the request with a number.
pub(crate) type RequestFn =
    Arc<dyn Fn(u64) -> Pin<Box<dyn Future<Output = Result<Completion, Failure>> + Send>> + Send + Sync>;

/// Most requests that wait or run at the same time; beyond it the generator itself would be the bottleneck.
const WAITING_MAX: usize = 100_000;

/// One kind of caller, ready to begin.
pub(crate) struct Callers {
    pub(crate) request: RequestFn,
    pub(crate) due: Vec<Duration>,
    pub(crate) at_once: usize,
    pub(crate) patience: Duration,
    pub(crate) recorder: Arc<Recorder>,
}

impl Callers {
    /// Sends all of them, counted from `begun`, and waits until each has ended or its patience has.
    pub(crate) async fn run(self, begun: Instant) {
        let permits = Arc::new(Semaphore::new(self.at_once.max(1)));
        let mut tasks = JoinSet::new();
        for (number, due) in self.due.into_iter().enumerate() {
            tokio::time::sleep_until(begun + due).await;
            while tasks.try_join_next().is_some() {}
            if tasks.len() >= WAITING_MAX {
                self.recorder.ended(
                    due,
                    Duration::ZERO,
                    Duration::ZERO,
                    &Err(Failure::new("generator full")),
                );
                continue;
            }
            let (permits, recorder) = (Arc::clone(&permits), Arc::clone(&self.recorder));
            let (request, patience) = (Arc::clone(&self.request), self.patience);
            tasks.spawn(async move {
                let start = begun + due;
                let whole = async {
                    let _permit = permits.acquire_owned().await;
                    let waited = start.elapsed();
                    (waited, request(number as u64).await)
                };
                let (waited, result) = match tokio::time::timeout_at(start + patience, whole).await {
                    Ok(ended) => ended,
                    Err(_) => (Duration::ZERO, Err(Failure::new("no end within the caller's patience"))),
                };
                recorder.ended(due, waited, start.elapsed(), &result);
            });
        }
        while tasks.join_next().await.is_some() {}
    }
}

/// Requests per second of `at_once` closed-loop clients, each of which waits for its previous request: the
/// peak.
pub(crate) async fn peak(request: &RequestFn, at_once: usize, seconds: f64) -> (f64, Vec<Failure>) {
    let (count, begun) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let mut tasks = JoinSet::new();
    for caller in 0..at_once.max(1) {
        let (request, count) = (Arc::clone(request), Arc::clone(&count));
        tasks.spawn(async move {
            let mut failures = Vec::new();
            let mut number = caller as u64;
            while begun.elapsed().as_secs_f64() < seconds {
                match request(number).await {
                    Ok(_) => _ = count.fetch_add(1, Ordering::Relaxed),
                    Err(failure) => failures.push(failure),
                }
                number += at_once as u64;
            }
            failures
        });
    }
    let failures = tasks.join_all().await.concat();
    (count.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64(), failures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_service_that_stalls_is_seen_by_all_who_were_due() {
        // One at a time, 1 ms each; the 100th takes a second. Those behind it wait, and the result must show
        // that.
        let request: RequestFn = Arc::new(|number| {
            Box::pin(async move {
                let ms = if number == 100 { 1_000 } else { 1 };
                tokio::time::sleep(Duration::from_millis(ms)).await;
                Ok(Completion::default())
            })
        });
        let recorder = Arc::new(Recorder::default());
        let due = (0..200).map(|i| Duration::from_millis(i * 10)).collect();
        let patience = Duration::from_secs(60);
        let callers = Callers { request, due, at_once: 1, patience, recorder: Arc::clone(&recorder) };
        callers.run(Instant::now()).await;
        let summary = recorder.summary();
        assert_eq!((summary.requests, summary.failed), (200, 0));
        assert!(summary.latency_ms["p90"] > 700.0, "{:?}", summary.latency_ms);
        assert!(
            summary.from_sent_ms["p90"] < 3.0,
            "a closed loop would have seen this: {:?}",
            summary.from_sent_ms
        );
    }

    #[tokio::test(start_paused = true)]
    async fn patience_ends() {
        let request: RequestFn = Arc::new(|_| Box::pin(std::future::pending()));
        let recorder = Arc::new(Recorder::default());
        let due = vec![Duration::ZERO; 3];
        let patience = Duration::from_secs(2);
        Callers { request, due, at_once: 8, patience, recorder: Arc::clone(&recorder) }
            .run(Instant::now())
            .await;
        let summary = recorder.summary();
        assert_eq!((summary.requests, summary.failed), (3, 3));
    }
}
