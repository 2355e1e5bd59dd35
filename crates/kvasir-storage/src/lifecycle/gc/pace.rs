//! The rate limit of a pass.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::GcPass;

/// When the next action may begin, for all that are under way together. What a pass left unused is kept for a second: no more
/// than its batches take, or an hour without actions would allow thousands at once.
#[derive(Debug)]
pub(super) struct Pace {
    /// `None`: no limit.
    interval: Option<Duration>,
    last_due: Mutex<Instant>,
}

impl Pace {
    /// A pace that begins now; zero: no limit.
    pub(super) fn new(actions_per_second: u32) -> Self {
        let interval = (actions_per_second > 0).then(|| Duration::from_secs(1) / actions_per_second);
        Self { interval, last_due: Mutex::new(Instant::now()) }
    }

    async fn wait(&self) {
        let Some(interval) = self.interval else { return };
        let due = {
            let (now, mut last_due) = (Instant::now(), self.last_due.lock());
            let earliest = now.checked_sub(Duration::from_secs(1)).unwrap_or(now);
            *last_due = earliest.max(*last_due) + interval;
            *last_due
        };
        tokio::time::sleep_until(due).await;
    }
}

impl GcPass<'_> {
    /// Waits as long as the rate limit requires.
    pub(super) async fn pace(&self) {
        self.pace.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_hour_without_actions_allows_those_of_a_second_at_once() {
        let pace = Pace::new(10);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let begun = Instant::now();
        for _ in 0..30 {
            pace.wait().await;
        }
        let took = begun.elapsed().as_millis();
        assert!((2_000..2_100).contains(&took), "30 actions at 10 a second in {took} ms");
    }
}
