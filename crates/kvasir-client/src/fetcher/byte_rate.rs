//! Throughput as a type.

use std::time::Duration;

/// Bytes per second; finite and positive.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct ByteRate(f64);

/// Longest predicted time, so that a dead link yields a number and not an overflow.
const TIME_MAX: Duration = Duration::from_secs(86_400);

impl ByteRate {
    /// A rate of `bytes_per_second`, or `None` if that is not positive and finite.
    pub fn new(bytes_per_second: f64) -> Option<Self> {
        (bytes_per_second.is_finite() && bytes_per_second > 0.0).then_some(Self(bytes_per_second))
    }

    /// `bytes` in `took`; `None` when either is zero.
    pub fn of(bytes: u64, took: Duration) -> Option<Self> {
        (bytes > 0 && !took.is_zero()).then(|| Self(bytes as f64 / took.as_secs_f64()))
    }

    /// From megabits per second, the unit of bandwidth series.
    pub fn from_mbps(mbps: f64) -> Option<Self> {
        Self::new(mbps * 1e6 / 8.0)
    }

    /// Bytes per second.
    pub const fn bytes_per_second(self) -> f64 {
        self.0
    }

    /// Megabits per second.
    pub const fn mbps(self) -> f64 {
        self.0 * 8.0 / 1e6
    }

    /// This rate times a positive factor.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self::new(self.0 * factor).unwrap_or(self)
    }

    /// Time to transfer `bytes`, at most a day.
    pub fn time_for(self, bytes: u64) -> Duration {
        Duration::try_from_secs_f64(bytes as f64 / self.0).map_or(TIME_MAX, |t| t.min(TIME_MAX))
    }
}
