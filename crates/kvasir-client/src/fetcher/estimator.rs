//! Throughput estimators. They see samples from byte arrivals; time to first byte is modelled apart.

use std::{collections::VecDeque, time::Duration};

use super::rate::ByteRate;

/// Samples that the harmonic mean and the quantile look back on (seed B, after FESTIVE).
pub const WINDOW_SAMPLES: usize = 20;
/// Half-life of the exponentially weighted mean, in seconds of transfer.
const EWMA_HALF_LIFE: f64 = 0.5;
/// The conservative estimate: this quantile of the window.
const QUANTILE: f64 = 0.25;

/// What was measured, by bytes that arrived.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sample {
    /// A short stretch of one or more overlapping transfers.
    Window(ByteRate, Duration),
    /// A whole request from its first byte to its last.
    Transfer(ByteRate),
}

/// Which estimator a load uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EstimatorKind {
    /// Throughput of the last chunk (CacheGen, Algorithm 1).
    LastChunk,
    /// Harmonic mean of the last 20 samples (seed B).
    #[default]
    Harmonic,
    /// Mean whose weight halves with every half second of transfer.
    Ewma,
    /// Lower quartile of the last 20 samples, and never above their harmonic mean.
    Conservative,
}

/// A throughput estimate that follows samples.
#[derive(Debug, Clone)]
pub struct Estimator {
    kind: EstimatorKind,
    window: VecDeque<ByteRate>,
    last_transfer: Option<ByteRate>,
    mean: Option<f64>,
}

impl Estimator {
    /// An estimator without samples.
    pub fn new(kind: EstimatorKind) -> Self {
        Self { kind, window: VecDeque::with_capacity(WINDOW_SAMPLES), last_transfer: None, mean: None }
    }

    /// Takes one sample in.
    pub fn observe(&mut self, sample: Sample) {
        match sample {
            Sample::Transfer(rate) => self.last_transfer = Some(rate),
            Sample::Window(rate, took) => {
                if self.window.len() == WINDOW_SAMPLES {
                    self.window.pop_front();
                }
                self.window.push_back(rate);
                let keep = 0.5f64.powf(took.as_secs_f64() / EWMA_HALF_LIFE);
                let fresh = rate.bytes_per_second();
                self.mean = Some(self.mean.map_or(fresh, |mean| keep * mean + (1.0 - keep) * fresh));
            }
        }
    }

    /// The estimate, or `None` before the first usable sample.
    pub fn rate(&self) -> Option<ByteRate> {
        match self.kind {
            EstimatorKind::LastChunk => self.last_transfer,
            EstimatorKind::Harmonic => self.harmonic(),
            EstimatorKind::Ewma => self.mean.and_then(ByteRate::new),
            EstimatorKind::Conservative => {
                let mut sorted: Vec<f64> = self.window.iter().map(|r| r.bytes_per_second()).collect();
                sorted.sort_by(f64::total_cmp);
                let index = (QUANTILE * sorted.len() as f64).ceil() as usize;
                let quantile = ByteRate::new(*sorted.get(index.saturating_sub(1))?)?;
                self.harmonic().map(|mean| if mean < quantile { mean } else { quantile })
            }
        }
    }

    fn harmonic(&self) -> Option<ByteRate> {
        let inverse: f64 = self.window.iter().map(|r| r.bytes_per_second().recip()).sum();
        ByteRate::new(self.window.len() as f64 / inverse)
    }
}

/// Turns byte arrivals into samples, and measures time to first byte.
///
/// A window opens with the first byte that arrives while nothing was flowing (that byte's own batch waited for
/// the round trip, so it does not count) and closes after `WINDOW_MIN` and `WINDOW_BYTES`.
#[derive(Debug, Clone)]
pub(super) struct Meter {
    estimator: Estimator,
    window: Option<(Duration, u64)>,
    last_arrival: Duration,
    first_byte: Duration,
    samples: Vec<(Duration, ByteRate)>,
}

/// Shortest window: below, timer and socket-buffer granularity is what one measures.
const WINDOW_MIN: Duration = Duration::from_millis(10);
/// Fewest bytes of a window, for the same reason.
const WINDOW_BYTES: u64 = 16 << 10;
/// Pauses up to this are how links deliver (bursts, shapers, schedulers).
const SILENCE_MIN: Duration = Duration::from_millis(50);
/// Samples kept for the report.
const SAMPLES_MAX: usize = 4096;
/// Time to first byte before any was seen: a warm connection within a region.
const FIRST_BYTE_PRIOR: Duration = Duration::from_millis(5);

impl Meter {
    pub(super) fn new(kind: EstimatorKind) -> Self {
        Self {
            estimator: Estimator::new(kind),
            window: None,
            last_arrival: Duration::ZERO,
            first_byte: FIRST_BYTE_PRIOR,
            samples: Vec::new(),
        }
    }

    /// A request's first bytes came `waited` after it was sent; `alone` when nothing else was flowing (then
    /// the wait is latency and not queueing behind other bytes).
    pub(super) fn on_first_byte(&mut self, waited: Duration, alone: bool) {
        if alone {
            self.first_byte = self.first_byte.mul_f64(0.7) + waited.min(Duration::from_secs(60)).mul_f64(0.3);
        }
    }

    pub(super) fn on_bytes(&mut self, now: Duration, bytes: u64) {
        self.last_arrival = now;
        let Some((since, so_far)) = &mut self.window else {
            self.window = Some((now, 0));
            return;
        };
        *so_far += bytes;
        if now.saturating_sub(*since) >= WINDOW_MIN && *so_far >= WINDOW_BYTES {
            self.close_window(now);
            self.window = Some((now, 0));
        }
    }

    /// A request ended: `bytes` in `flowing` since its first byte, `elapsed` since it was sent.
    pub(super) fn on_transfer(&mut self, now: Duration, bytes: u64, flowing: Duration, elapsed: Duration) {
        // An answer that arrived in one piece has no flow to time: its whole duration is a lower bound.
        let net = if flowing >= Duration::from_millis(1) { flowing } else { elapsed };
        let Some(rate) = ByteRate::of(bytes, net) else { return };
        self.estimator.observe(Sample::Transfer(rate));
        if self.samples.is_empty() || (flowing >= WINDOW_MIN && self.close_window(now).is_none()) {
            self.record(now, rate, net);
        }
    }

    /// Nothing is in flight any more: a gap is no evidence of a slow link.
    pub(super) fn on_idle(&mut self) {
        self.window = None;
    }

    fn close_window(&mut self, now: Duration) -> Option<ByteRate> {
        let (since, bytes) = self.window.take()?;
        let took = now.saturating_sub(since);
        if took < WINDOW_MIN || bytes < WINDOW_BYTES {
            return None;
        }
        let rate = ByteRate::of(bytes, took)?;
        self.record(now, rate, took);
        Some(rate)
    }

    fn record(&mut self, now: Duration, rate: ByteRate, took: Duration) {
        self.estimator.observe(Sample::Window(rate, took));
        if self.samples.len() < SAMPLES_MAX {
            self.samples.push((now, rate));
        }
    }

    /// The estimate after bytes that are due have been missing for `silent`: silence is evidence too, so
    /// beyond `SILENCE_MIN` the estimate (or the prior) falls as the inverse of its length.
    pub(super) fn rate(&self, silent: Duration, prior: Option<ByteRate>) -> Option<ByteRate> {
        let rate = self.estimator.rate().or(prior)?;
        if silent <= SILENCE_MIN {
            return Some(rate);
        }
        Some(rate.scaled(SILENCE_MIN.as_secs_f64() / silent.as_secs_f64()))
    }

    pub(super) fn last_arrival(&self) -> Duration {
        self.last_arrival
    }

    pub(super) fn first_byte(&self) -> Duration {
        self.first_byte
    }

    pub(super) fn samples(&self) -> &[(Duration, ByteRate)] {
        &self.samples
    }
}

#[cfg(test)]
#[path = "estimator_tests.rs"]
mod tests;
