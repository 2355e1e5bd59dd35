//! Log lines about lookups. An outage, or a service that flaps, is logged once a minute, not once a request; that
//! stored tokens are below the quality floor, once.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::Error;

/// Minimum interval between two log lines about failures.
const EVERY: Duration = Duration::from_secs(60);

/// Whether lookups currently fail, and what was said about their answers.
#[derive(Debug, Default)]
pub(crate) struct LookupLog {
    failures: Mutex<Failures>,
    /// Whether a line said that stored tokens are below the floor.
    told_below_floor: AtomicBool,
}

#[derive(Debug, Default)]
struct Failures {
    /// Failures not logged yet.
    count: u64,
    told: Option<Instant>,
    /// Whether the log's last line says that lookups fail.
    is_open: bool,
}

impl LookupLog {
    /// A lookup failed: its session is a miss.
    pub(crate) fn failed(&self, error: &Error) {
        match self.failures().fail(Instant::now()) {
            Some(failed) => tracing::warn!(%error, failed, "lookups fail: their sessions are misses"),
            None => tracing::debug!(%error, "a lookup failed: the session is a miss"),
        }
    }

    /// A lookup succeeded.
    pub(crate) fn answered(&self) {
        if self.failures().answer() {
            tracing::info!("lookups succeed again");
        }
    }

    /// A session ends before this many stored tokens because the first of them are below the quality floor.
    pub(crate) fn below_floor(&self, tokens: u64) {
        if !self.told_below_floor.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "{tokens} stored tokens are below the quality floor: they are computed at each request, and not stored again. \
                 Give clients of a higher quality a namespace of their own"
            );
        }
    }

    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Failures {
    /// The number of failures since the last log line, if it is time for the next.
    fn fail(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        let is_due = self.told.is_none_or(|told| now.duration_since(told) >= EVERY);
        is_due.then(|| {
            (self.told, self.is_open) = (Some(now), true);
            std::mem::take(&mut self.count)
        })
    }

    /// Whether to log the end of the failures.
    fn answer(&mut self) -> bool {
        std::mem::take(&mut self.is_open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The log lines for five lookups a second over two minutes: failures with their counts, and ends of
    /// failures.
    fn told(is_answered: fn(u32) -> bool) -> (Vec<u64>, usize) {
        let (mut failures, start) = (Failures::default(), Instant::now());
        let (mut warned, mut ended) = (Vec::new(), 0);
        for n in 0..600 {
            if is_answered(n) {
                ended += usize::from(failures.answer());
            } else {
                warned.extend(failures.fail(start + n * Duration::from_millis(200)));
            }
        }
        (warned, ended)
    }

    #[test]
    fn failures_are_told_once_a_minute() {
        assert_eq!(told(|_| false), (vec![1, 300], 0));
        assert_eq!(told(|n| n >= 10), (vec![1], 1));
        assert_eq!(told(|n| n % 2 == 1), (vec![1, 150], 2), "a service that comes and goes");
    }
}
