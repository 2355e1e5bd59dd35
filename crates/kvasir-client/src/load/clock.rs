//! Time since a load began, and its core's next wake-up.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The clock of one load. It never runs backwards, although events may be handled out of order.
#[derive(Debug)]
pub(super) struct LoadClock {
    started: Instant,
    now: Duration,
    wake: Option<Instant>,
}

impl LoadClock {
    pub(super) const fn new(started: Instant) -> Self {
        Self { started, now: Duration::ZERO, wake: None }
    }

    /// Time since the load began, as of the latest event.
    pub(super) const fn now(&self) -> Duration {
        self.now
    }

    /// An event happened at `at`.
    pub(super) fn advance(&mut self, at: Instant) {
        self.now = self.now.max(at.saturating_duration_since(self.started));
    }

    /// Replaces the wake-up.
    pub(super) fn wake_at(&mut self, at: Duration) {
        self.wake = Some(self.started + at);
    }

    /// Waits for the wake-up and clears it; forever if none is set. Cancel-safe.
    pub(super) async fn wake(&mut self) {
        match self.wake {
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
        self.wake = None;
        self.advance(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn it_never_goes_back_and_wakes_once() {
        let started = Instant::now();
        let mut clock = LoadClock::new(started);
        clock.advance(started + 7 * MS);
        clock.advance(started + 3 * MS);
        assert_eq!(clock.now(), 7 * MS);
        clock.wake_at(50 * MS);
        clock.wake_at(20 * MS);
        assert!(tokio::time::timeout(10 * MS, clock.wake()).await.is_err(), "it is not time yet");
        clock.wake().await;
        assert_eq!(clock.now(), 20 * MS);
        assert!(tokio::time::timeout(100 * MS, clock.wake()).await.is_err(), "nothing else was asked for");
    }
}
