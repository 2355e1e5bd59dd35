//! The results of requests. Latency counts from the moment a request was *due*, so that a service that keeps
//! its clients waiting cannot hide that by receiving fewer requests (coordinated omission).

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longest distinguishable latency, in microseconds: an hour.
const MICROS_MAX: u64 = 3_600_000_000;

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Bounded in number: a status, a kind of broken connection.
    pub(crate) cause: String,
    /// The received bytes are not those of the object: this must never happen.
    pub(crate) wrong: bool,
}

impl Failure {
    /// An ordinary failure.
    pub(crate) fn new(cause: impl Into<String>) -> Self {
        Self { cause: cause.into(), wrong: false }
    }

    /// Wrong bytes.
    pub(crate) fn wrong(cause: impl Into<String>) -> Self {
        Self { cause: cause.into(), wrong: true }
    }
}

/// A request that succeeded.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Completion {
    /// Bytes that were read and verified, or stored.
    pub(crate) bytes: u64,
    /// Tried on another replica first, or again.
    pub(crate) again: u32,
    /// Time that the client deliberately spent after its answer: not part of the latency.
    pub(crate) held: Duration,
}

/// A second of the run, by when requests were due.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SecondSummary {
    pub(crate) due: u64,
    pub(crate) failed: u64,
    pub(crate) bytes: u64,
    pub(crate) p99_ms: f64,
}

struct SecondRecord {
    due: u64,
    failed: u64,
    bytes: u64,
    latency: Histogram<u32>,
}

struct Inner {
    latency: Histogram<u64>,
    service: Histogram<u64>,
    seconds: Vec<SecondRecord>,
    causes: BTreeMap<String, u64>,
    done: u64,
    failed: u64,
    wrong: u64,
    again: u64,
    bytes: u64,
    last_failure: Option<Duration>,
}

/// The book of one kind of caller.
pub(crate) struct Recorder(Mutex<Inner>);

/// Figures of one kind of caller.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub(crate) requests: u64,
    pub(crate) failed: u64,
    pub(crate) wrong: u64,
    pub(crate) tried_again: u64,
    pub(crate) bytes: u64,
    pub(crate) causes: BTreeMap<String, u64>,
    /// Milliseconds by percentile, from the moment a request was due.
    pub(crate) latency_ms: BTreeMap<String, f64>,
    /// The same from the moment it was sent: a closed loop would have hidden the difference.
    pub(crate) from_sent_ms: BTreeMap<String, f64>,
    pub(crate) seconds: Vec<SecondSummary>,
    /// When the last request that failed was due, in seconds.
    pub(crate) last_failure_s: Option<f64>,
}

const PERCENTILES: [(&str, f64); 7] = [
    ("p50", 50.0),
    ("p75", 75.0),
    ("p90", 90.0),
    ("p99", 99.0),
    ("p999", 99.9),
    ("p9999", 99.99),
    ("max", 100.0),
];

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(MICROS_MAX).clamp(1, MICROS_MAX)
}

fn percentiles(of: &Histogram<u64>) -> BTreeMap<String, f64> {
    PERCENTILES
        .iter()
        .map(|(name, percent)| ((*name).to_owned(), of.value_at_percentile(*percent) as f64 / 1e3))
        .collect()
}

impl Default for Recorder {
    fn default() -> Self {
        let histogram = || Histogram::new_with_bounds(1, MICROS_MAX, 3).expect("constant bounds");
        Self(Mutex::new(Inner {
            latency: histogram(),
            service: histogram(),
            seconds: Vec::new(),
            causes: BTreeMap::new(),
            done: 0,
            failed: 0,
            wrong: 0,
            again: 0,
            bytes: 0,
            last_failure: None,
        }))
    }
}

impl Recorder {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere leaves counts that are still counts.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request that was due at `due`, was sent `waited` later and is over after `took` from `due` on.
    pub(crate) fn ended(
        &self,
        due: Duration,
        waited: Duration,
        took: Duration,
        result: &Result<Completion, Failure>,
    ) {
        let mut inner = self.inner();
        let at = due.as_secs() as usize;
        while inner.seconds.len() <= at {
            let latency = Histogram::new_with_bounds(1, MICROS_MAX, 2).expect("constant bounds");
            inner.seconds.push(SecondRecord { due: 0, failed: 0, bytes: 0, latency });
        }
        inner.seconds[at].due += 1;
        match result {
            Ok(Completion { bytes, again, held }) => {
                let took = took.saturating_sub(*held);
                inner.done += 1;
                inner.again += u64::from(*again > 0);
                inner.bytes += bytes;
                inner.latency.saturating_record(micros(took));
                inner.service.saturating_record(micros(took.saturating_sub(waited)));
                inner.seconds[at].bytes += bytes;
                inner.seconds[at].latency.saturating_record(micros(took));
            }
            Err(Failure { cause, wrong }) => {
                inner.failed += 1;
                inner.wrong += u64::from(*wrong);
                inner.seconds[at].failed += 1;
                *inner.causes.entry(cause.clone()).or_default() += 1;
                inner.last_failure = inner.last_failure.max(Some(due));
            }
        }
    }

    /// The figures so far.
    pub(crate) fn summary(&self) -> Summary {
        let inner = self.inner();
        let second = |slot: &SecondRecord| SecondSummary {
            due: slot.due,
            failed: slot.failed,
            bytes: slot.bytes,
            p99_ms: slot.latency.value_at_percentile(99.0) as f64 / 1e3,
        };
        Summary {
            requests: inner.done + inner.failed,
            failed: inner.failed,
            wrong: inner.wrong,
            tried_again: inner.again,
            bytes: inner.bytes,
            causes: inner.causes.clone(),
            latency_ms: percentiles(&inner.latency),
            from_sent_ms: percentiles(&inner.service),
            seconds: inner.seconds.iter().map(second).collect(),
            last_failure_s: inner.last_failure.map(|at| at.as_secs_f64()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_counts_and_failures_are_kept_apart() {
        let recorder = Recorder::default();
        let ms = Duration::from_millis;
        for i in 0..100 {
            recorder.ended(
                ms(i * 20),
                ms(90),
                ms(100),
                &Ok(Completion { bytes: 10, ..Completion::default() }),
            );
        }
        recorder.ended(ms(1_500), ms(0), ms(5), &Err(Failure::new("503")));
        recorder.ended(ms(700), ms(0), ms(5), &Err(Failure::wrong("bytes")));
        let summary = recorder.summary();
        assert_eq!((summary.requests, summary.failed, summary.wrong, summary.bytes), (102, 2, 1, 1_000));
        assert!((summary.latency_ms["p50"] - 100.0).abs() < 0.2, "{summary:?}");
        assert!((summary.from_sent_ms["p50"] - 10.0).abs() < 0.2, "{summary:?}");
        assert_eq!(summary.last_failure_s, Some(1.5));
        assert_eq!((summary.seconds[1].due, summary.seconds[1].failed), (51, 1));
    }
}
