//! A sliding window of reuse times and an exponential fitted to it: [`Workload`](super::Workload)'s data per
//! class.

use kvasir_eviction::{Moment, limits::REUSE_WINDOW_SECONDS};

use super::limits;

/// Parts into which a window is cut; it forgets one part at a time.
const PARTS: usize = 12;

/// An exponential distribution of reuse times, fitted by maximum likelihood.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExponentialFit {
    /// Reuses per second of waiting: the inverse of the mean reuse time.
    pub rate: f64,
    /// Number of samples in the fit.
    pub samples: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct WindowPart {
    epoch: u64,
    count: u64,
    reuse_seconds: f64,
    life_seconds: f64,
}

/// Reuse times and lifespans of the last [`REUSE_WINDOW_SECONDS`], in constant memory: the fit of an
/// exponential needs only their count and sum.
#[derive(Debug, Clone, Default)]
pub struct ReuseWindow {
    parts: [WindowPart; PARTS],
}

impl ReuseWindow {
    fn epoch(now: Moment) -> u64 {
        (now.seconds_since(Moment::default()) / (REUSE_WINDOW_SECONDS / PARTS as f64)) as u64
    }

    /// Notes that an entry was used again `reuse_seconds` after its last use, `life_seconds` after its first.
    pub fn record(&mut self, now: Moment, reuse_seconds: f64, life_seconds: f64) {
        let epoch = Self::epoch(now);
        let part = &mut self.parts[(epoch % PARTS as u64) as usize];
        if part.epoch != epoch {
            *part = WindowPart { epoch, ..WindowPart::default() };
        }
        part.count += 1;
        part.reuse_seconds += reuse_seconds;
        part.life_seconds += life_seconds;
    }

    fn sum(&self, now: Moment) -> WindowPart {
        let newest = Self::epoch(now);
        let mut total = WindowPart::default();
        for part in &self.parts {
            if newest.abs_diff(part.epoch) < PARTS as u64 {
                total.count += part.count;
                total.reuse_seconds += part.reuse_seconds;
                total.life_seconds += part.life_seconds;
            }
        }
        total
    }

    /// The exponential that fits the window best; `None` without samples.
    pub fn fit(&self, now: Moment) -> Option<ExponentialFit> {
        let total = self.sum(now);
        let mean = (total.reuse_seconds / total.count.max(1) as f64).max(limits::REUSE_SECONDS_MIN);
        (total.count > 0).then(|| ExponentialFit { rate: 1.0 / mean, samples: total.count })
    }

    /// Mean time from first to latest use, over the window's reuses; `None` without samples.
    pub fn life_seconds(&self, now: Moment) -> Option<f64> {
        let total = self.sum(now);
        (total.count > 0).then(|| total.life_seconds / total.count as f64)
    }
}
