//! How late a request of unknown outcome may take effect: where requests are slow, as on a busy machine, it may stay with the
//! store for as long as those beside it took.

use std::time::Duration;

use super::Interval;

/// The longest that a store has a request that it may still execute: one call, by the service's default.
const LATE_MAX: Duration = Duration::from_secs(30);

/// The longest that one of `requests` took that ran within a time. What still runs has taken until `now`.
pub fn slowest(requests: &[Interval], within: Interval, now: Duration) -> Duration {
    let ran = requests.iter().filter(|one| one.begun <= within.ended && one.ended >= within.begun);
    ran.map(|one| one.ended.min(now).saturating_sub(one.begun)).max().unwrap_or_default()
}

/// Moves the time until which each request may take effect, of those that may after their end.
pub(super) fn settle<'a>(
    all: impl Iterator<Item = (Interval, &'a mut Duration)>,
    requests: &[Interval],
    now: Duration,
) {
    for (at, settled) in all.filter(|(at, settled)| at.ended < **settled) {
        loop {
            let within = Interval { begun: at.begun, ended: *settled };
            let later = at.ended + slowest(requests, within, now).min(LATE_MAX);
            if later <= *settled {
                break;
            }
            // Then it may have met others, which took still longer.
            *settled = later;
        }
    }
}
