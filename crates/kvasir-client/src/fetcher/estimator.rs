//! Throughput estimators. Their input is samples of the link that [`super::meter::Meter`] cuts from byte
//! arrivals; time to first byte is modelled separately.

use std::{collections::VecDeque, time::Duration};

use super::byte_rate::ByteRate;

/// Number of samples in the window of the harmonic mean and the quantile (seed B, after FESTIVE).
pub const WINDOW_SAMPLES: usize = 20;
/// Transfer time in the window. It is limited by time as well, so that many short samples of a fast link do
/// not push out others, and an old fast moment is not remembered.
const WINDOW_TIME: Duration = Duration::from_secs(2);
/// Half-life of the exponentially weighted mean, in seconds of transfer.
const EWMA_HALF_LIFE: f64 = 0.5;
/// The conservative estimate: this quantile of the window.
const QUANTILE: f64 = 0.25;

/// Bytes and their transfer time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimedBytes {
    /// How many.
    pub bytes: u64,
    /// How long.
    pub took: Duration,
}

impl TimedBytes {
    /// Its rate; `None` when it is empty.
    pub fn rate(self) -> Option<ByteRate> {
        ByteRate::of(self.bytes, self.took)
    }
}

/// A throughput measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThroughputSample {
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
    /// Mean whose weight halves with every half second of transfer.
    Ewma,
    /// Lower quartile of the last 20 samples, but never above their harmonic mean.
    Conservative,
}

/// A throughput estimate that follows samples.
#[derive(Debug, Clone)]
pub struct Estimator {
    kind: EstimatorKind,
    window: VecDeque<TimedBytes>,
    last_transfer: Option<ByteRate>,
    mean: Option<f64>,
}

impl Estimator {
    /// An estimator without samples.
    pub fn new(kind: EstimatorKind) -> Self {
        let window = VecDeque::with_capacity(WINDOW_SAMPLES);
        Self { kind, window, last_transfer: None, mean: None }
    }

    /// Adds one sample; an empty one is ignored.
    pub fn observe(&mut self, sample: ThroughputSample) {
        match sample {
            ThroughputSample::Transfer(stretch) => {
                self.last_transfer = stretch.rate().or(self.last_transfer);
            }
            ThroughputSample::Window(stretch) => {
                let Some(rate) = stretch.rate() else { return };
                self.window.push_back(stretch);
                self.forget_old();
                let keep = 0.5f64.powf(stretch.took.as_secs_f64() / EWMA_HALF_LIFE);
                let fresh = rate.bytes_per_second();
                self.mean = Some(self.mean.map_or(fresh, |mean| keep * mean + (1.0 - keep) * fresh));
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
    pub fn rate(&self) -> Option<ByteRate> {
        match self.kind {
            EstimatorKind::LastChunk => self.last_transfer,
            EstimatorKind::Harmonic => self.harmonic(),
            EstimatorKind::Ewma => self.mean.and_then(ByteRate::new),
            EstimatorKind::Conservative => {
                let mut sorted: Vec<f64> = self.rates().collect();
                sorted.sort_by(f64::total_cmp);
                let index = (QUANTILE * sorted.len() as f64).ceil() as usize;
                let quantile = ByteRate::new(*sorted.get(index.saturating_sub(1))?)?;
                self.harmonic().map(|mean| if mean < quantile { mean } else { quantile })
            }
        }
    }

    fn rates(&self) -> impl Iterator<Item = f64> {
        self.window.iter().filter_map(|s| s.rate()).map(ByteRate::bytes_per_second)
    }

    fn harmonic(&self) -> Option<ByteRate> {
        ByteRate::new(self.window.len() as f64 / self.rates().map(f64::recip).sum::<f64>())
    }
}

#[cfg(test)]
#[path = "estimator_tests.rs"]
mod tests;
