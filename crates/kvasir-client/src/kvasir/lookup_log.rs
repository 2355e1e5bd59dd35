//! What an engine's log hears of lookups: an outage is one line a minute, not one a request.

use std::{sync::Mutex, sync::PoisonError, time::Duration};

use tokio::time::Instant;

use crate::Error;

/// How often a failure that goes on is told.
const EVERY: Duration = Duration::from_secs(60);

/// Whether lookups fail at the moment.
#[derive(Debug, Default)]
pub(crate) struct LookupLog(Mutex<Failures>);

#[derive(Debug, Default)]
struct Failures {
    /// Since the last lookup that was answered.
    count: u64,
    told: Option<Instant>,
}

impl LookupLog {
    /// A lookup failed: its session is a miss.
    pub(crate) fn failed(&self, error: &Error) {
        match self.count_failure(Instant::now()) {
            Some(1) => tracing::warn!(%error, "a lookup failed: the session is a miss"),
            Some(failed) => tracing::warn!(%error, failed, "lookups still fail: their sessions are misses"),
            None => tracing::debug!(%error, "a lookup failed: the session is a miss"),
        }
    }

    /// A lookup was answered.
    pub(crate) fn answered(&self) {
        let failed = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)).count;
        if failed > 0 {
            tracing::info!(failed, "lookups are answered again");
        }
    }

    /// How many have failed so far, where that is to be told.
    fn count_failure(&self, now: Instant) -> Option<u64> {
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        failures.count += 1;
        let is_due = failures.told.is_none_or(|told| now.duration_since(told) >= EVERY);
        is_due.then(|| {
            failures.told = Some(now);
            failures.count
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_told_once_a_minute() {
        let (log, start) = (LookupLog::default(), Instant::now());
        let told: Vec<u64> =
            (0..600).filter_map(|n| log.count_failure(start + n * Duration::from_millis(200))).collect();
        assert_eq!(told, [1, 301]);
        log.answered();
        assert_eq!(log.count_failure(start), Some(1));
    }
}
