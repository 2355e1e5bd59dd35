//! Throughput estimators. Their input is samples of the link that [`super::meter::Meter`] cuts from byte
//! arrivals; time to first byte is modelled separately.

use std::{collections::VecDeque, time::Duration};

use super::byte_rate::ByteRate;

/// Number of samples in the window of the harmonic mean (seed B, after FESTIVE).
pub(crate) const WINDOW_SAMPLES: usize = 20;
/// Transfer time in the window. It is limited by time as well, so that many short samples of a fast link do
/// not push out others, and an old fast moment is not remembered.
const WINDOW_TIME: Duration = Duration::from_secs(2);

/// Bytes and their transfer time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TimedBytes {
    pub(super) bytes: u64,
    pub(super) took: Duration,
}

impl TimedBytes {
    /// Its rate; `None` when it is empty.
    pub(super) fn rate(self) -> Option<ByteRate> {
        ByteRate::of(self.bytes, self.took)
    }
}

/// A throughput measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ThroughputSample {
    /// A short window of the link, whichever transfers shared it.
    Window(TimedBytes),
    /// A whole request, without the bytes that came with the first one.
    Transfer(TimedBytes),
}

/// Which estimator a load uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EstimatorKind {
    /// Throughput of the last chunk (CacheGen, Algorithm 1).
    LastChunk,
    /// Harmonic mean of the last 20 samples (seed B).
    #[default]
    Harmonic,
}

/// A throughput estimate that follows samples.
#[derive(Debug, Clone)]
pub(super) struct Estimator {
    kind: EstimatorKind,
    window: VecDeque<TimedBytes>,
    last_transfer: Option<ByteRate>,
}

impl Estimator {
    /// An estimator without samples.
    pub(super) fn new(kind: EstimatorKind) -> Self {
        Self { kind, window: VecDeque::with_capacity(WINDOW_SAMPLES), last_transfer: None }
    }

    /// Adds one sample; an empty one is ignored.
    pub(super) fn observe(&mut self, sample: ThroughputSample) {
        match sample {
            ThroughputSample::Transfer(stretch) => {
                self.last_transfer = stretch.rate().or(self.last_transfer);
            }
            ThroughputSample::Window(stretch) => {
                if stretch.rate().is_some() {
                    self.window.push_back(stretch);
                    self.forget_old();
                }
            }
        }
    }

    fn forget_old(&mut self) {
        let mut total: Duration = self.window.iter().map(|s| s.took).sum();
        while let Some(oldest) = self.window.front().copied()
            && (self.window.len() > WINDOW_SAMPLES || total - oldest.took >= WINDOW_TIME)
        {
            total -= oldest.took;
            self.window.pop_front();
        }
    }

    /// The estimate, or `None` before the first usable sample.
    pub(super) fn rate(&self) -> Option<ByteRate> {
        match self.kind {
            EstimatorKind::LastChunk => self.last_transfer,
            EstimatorKind::Harmonic => {
                let rates = self.window.iter().filter_map(|s| s.rate());
                let inverse: f64 = rates.map(|rate| rate.bytes_per_second().recip()).sum();
                ByteRate::new(self.window.len() as f64 / inverse)
            }
        }
    }
}

#[cfg(test)]
#[path = "estimator_tests.rs"]
mod tests;
