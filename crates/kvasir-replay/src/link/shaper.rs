//! The pacing of one link, computed on times only.

use std::time::Duration;

use super::BandwidthSeries;

/// How long a link may fall behind its schedule and still catch up: the size of the token bucket in time. It
/// covers a timer's granularity (1 ms) and scheduling hiccups, and is short against any level decision.
const CATCH_UP: Duration = Duration::from_millis(4);

/// A link's transmit queue: bytes leave in order, each as fast as the series allows at that time.
#[derive(Debug, Clone)]
pub struct Shaper {
    series: BandwidthSeries,
    free_at: Duration,
    sent: u64,
}

impl Shaper {
    /// An idle link whose series starts at time zero.
    pub const fn new(series: BandwidthSeries) -> Self {
        Self { series, free_at: Duration::ZERO, sent: 0 }
    }

    /// Queues `bytes` at `now` and returns when the last of them has left.
    pub fn reserve(&mut self, now: Duration, bytes: u64) -> Duration {
        let start = self.free_at.max(now.saturating_sub(CATCH_UP));
        self.free_at = self.series.time_after(start, bytes);
        self.sent += bytes;
        self.free_at
    }

    /// Bytes queued so far.
    pub const fn sent(&self) -> u64 {
        self.sent
    }

    /// The series.
    pub const fn series(&self) -> &BandwidthSeries {
        &self.series
    }
}
