//! Converts byte arrivals to throughput samples, and measures time to first byte.

use std::{collections::VecDeque, time::Duration};

use super::{
    byte_rate::ByteRate,
    estimator::{Estimator, EstimatorKind, ThroughputSample, TimedBytes, WINDOW_SAMPLES},
    transfer_rate::{ExpectedRate, caution},
};

/// Shortest sample: anything shorter measures the granularity of timers and socket buffers.
const SAMPLE_TIME_MIN: Duration = Duration::from_millis(10);
/// Fewest bytes of a sample, for the same reason.
const SAMPLE_BYTES_MIN: u64 = 16 << 10;
/// Pauses up to this length are normal delivery (bursts, shapers, schedulers).
const SILENCE_MIN: Duration = Duration::from_millis(50);
/// Window for the link's present rate.
const RECENT: Duration = Duration::from_millis(50);
/// Samples kept for the report.
const SAMPLES_MAX: usize = 4096;
/// Time to first byte before the first measurement, if the plan names none: a warm connection within a region.
const FIRST_BYTE_PRIOR: Duration = Duration::from_millis(5);
/// Longest plausible time to first byte.
const FIRST_BYTE_MAX: Duration = Duration::from_secs(60);

/// A request's figures when it ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transfer {
    /// When it was sent.
    pub(super) sent: Duration,
    /// Time of its first bytes, and their number.
    pub(super) first: Option<(Duration, u64)>,
    /// All its bytes.
    pub(super) bytes: u64,
}

/// Converts byte arrivals to samples, and measures time to first byte.
///
/// The time before an arrival counts for that arrival's bytes, unless nothing was in transfer: then it was
/// waiting time. So a sample opens at an arrival and contains the bytes after it, and a response that arrives
/// in one piece has no rate: small reads measure a round trip, not bandwidth.
#[derive(Debug, Clone)]
pub(super) struct Meter {
    estimator: Estimator,
    open: Option<(Duration, u64)>,
    last_arrival: Duration,
    first_byte: Option<Duration>,
    /// What counts before the first measurement.
    first_byte_prior: Duration,
    /// A lower bound of the rate, from responses too short to measure; used until there is a better one.
    floor: Option<ByteRate>,
    samples: Vec<(Duration, ByteRate)>,
    /// The most recent samples, as measured.
    recent: VecDeque<TimedBytes>,
}

impl Meter {
    pub(super) fn new(kind: EstimatorKind, first_byte: Option<Duration>) -> Self {
        Self {
            estimator: Estimator::new(kind),
            open: None,
            last_arrival: Duration::ZERO,
            first_byte: None,
            first_byte_prior: first_byte.unwrap_or(FIRST_BYTE_PRIOR).min(FIRST_BYTE_MAX),
            floor: None,
            samples: Vec::new(),
            recent: VecDeque::with_capacity(WINDOW_SAMPLES),
        }
    }

    /// A request's first `bytes` came `waited` after it was sent; `alone` if no other transfer was active
    /// (then the wait is latency, not queueing behind other bytes).
    pub(super) fn on_first_byte(&mut self, waited: Duration, bytes: u64, alone: bool) {
        if !alone {
            return;
        }
        // Part of the wait was the transmission of the bytes themselves.
        let transmission = self.estimator.rate().map_or(Duration::ZERO, |rate| rate.time_for(bytes));
        let waited = waited.min(FIRST_BYTE_MAX);
        let latency = waited.saturating_sub(transmission.min(waited.mul_f64(0.9)));
        self.first_byte =
            Some(self.first_byte.map_or(latency, |so_far| so_far.mul_f64(0.7) + latency.mul_f64(0.3)));
    }

    pub(super) fn on_bytes(&mut self, now: Duration, bytes: u64) {
        self.last_arrival = now;
        let Some((since, so_far)) = &mut self.open else {
            self.open = Some((now, 0));
            return;
        };
        *so_far += bytes;
        if now.saturating_sub(*since) >= SAMPLE_TIME_MIN && *so_far >= SAMPLE_BYTES_MIN {
            self.close_sample(now);
            self.open = Some((now, 0));
        }
    }

    /// A request ended, or was cancelled.
    pub(super) fn on_transfer(&mut self, now: Duration, transfer: &Transfer) {
        let elapsed = now.saturating_sub(transfer.sent);
        let Some((first_at, with_first)) = transfer.first else { return };
        let flowed = TimedBytes { bytes: transfer.bytes - with_first, took: now.saturating_sub(first_at) };
        if flowed.bytes >= SAMPLE_BYTES_MIN && flowed.took >= Duration::from_millis(1) {
            self.estimator.observe(ThroughputSample::Transfer(flowed));
            if self.samples.is_empty() {
                self.record(now, flowed);
            }
        } else if let Some(rate) = ByteRate::of(transfer.bytes, elapsed) {
            self.floor = self.floor.filter(|floor| *floor >= rate).or(Some(rate));
        }
    }

    /// No request is in flight: a gap is no evidence of a slow link.
    pub(super) fn on_idle(&mut self, now: Duration) {
        self.close_sample(now);
    }

    fn close_sample(&mut self, now: Duration) {
        let Some((since, bytes)) = self.open.take() else { return };
        let took = now.saturating_sub(since);
        if took >= SAMPLE_TIME_MIN && bytes >= SAMPLE_BYTES_MIN {
            self.record(now, TimedBytes { bytes, took });
        }
    }

    fn record(&mut self, now: Duration, window: TimedBytes) {
        self.estimator.observe(ThroughputSample::Window(window));
        if self.recent.len() == WINDOW_SAMPLES {
            self.recent.pop_front();
        }
        self.recent.push_back(window);
        if let Some(rate) = window.rate()
            && self.samples.len() < SAMPLES_MAX
        {
            self.samples.push((now, rate));
        }
    }

    /// The estimate after due bytes have been missing for `silent`. Silence is evidence too: beyond
    /// `SILENCE_MIN` the estimate (or the prior) falls with the inverse of its length.
    pub(super) fn rate(&self, silent: Duration, prior: Option<ByteRate>) -> Option<ByteRate> {
        Some(after_silence(self.estimator.rate().or(prior).or(self.floor)?, silent))
    }

    /// The expected rate of the link by itself: recent bytes over their time, and the variation of its
    /// samples. `None` before the first sample.
    pub(super) fn expectation(&self) -> Option<ExpectedRate> {
        let (mut bytes, mut took) = (0.0, Duration::ZERO);
        if let Some((since, so_far)) = self.open {
            (bytes, took) = (so_far as f64, self.last_arrival.saturating_sub(since));
        }
        for window in self.recent.iter().rev() {
            if took >= RECENT {
                break;
            }
            bytes += window.bytes as f64;
            took += window.took;
        }
        let rate = ByteRate::new(bytes / took.as_secs_f64())?;
        let times = self.recent.iter().filter_map(|s| s.rate()).map(|rate| rate.bytes_per_second().recip());
        (!self.recent.is_empty()).then(|| ExpectedRate { rate: Some(rate), caution: caution(times) })
    }

    /// A rate seen at `at`, scaled by the change of the link's rate since then.
    pub(super) fn since(&self, rate: ByteRate, at: Duration) -> ByteRate {
        // The sample that was open then, or the previous one.
        let ended = self.samples.partition_point(|(end, _)| *end <= at + SAMPLE_TIME_MIN);
        match (self.samples.get(ended.saturating_sub(1)), self.samples.last()) {
            (Some((_, then)), Some((_, now))) if now > then => {
                rate.scaled(now.bytes_per_second() / then.bytes_per_second())
            }
            _ => rate,
        }
    }

    pub(super) fn last_arrival(&self) -> Duration {
        self.last_arrival
    }

    pub(super) fn first_byte(&self) -> Duration {
        self.first_byte.unwrap_or(self.first_byte_prior)
    }

    /// Whether a time to first byte was measured.
    pub(super) const fn has_first_byte(&self) -> bool {
        self.first_byte.is_some()
    }

    pub(super) fn samples(&self) -> &[(Duration, ByteRate)] {
        &self.samples
    }
}

/// The estimate that remains after due bytes have been missing for `silent`.
pub(super) fn after_silence(rate: ByteRate, silent: Duration) -> ByteRate {
    if silent <= SILENCE_MIN { rate } else { rate.scaled(SILENCE_MIN.as_secs_f64() / silent.as_secs_f64()) }
}

#[cfg(test)]
#[path = "meter_tests.rs"]
mod tests;
