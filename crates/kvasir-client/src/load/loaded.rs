//! Loads as the engine uses them.

use std::time::Duration;

use kvasir_types::{Loss, TokenRange};

use super::{DriverEvent, LayerReady, LoadReport, Running, token_ranges::remove_range};

/// A running load. It proceeds without being polled. Dropping it cancels it: its requests are abandoned at
/// once, and after `drop` returns nothing writes to the tables, even if their pages already belong to the
/// next request. Every await point is cancel-safe. Into pages on a device `drop` waits for what is being decoded there for
/// this load, at most two launches, and for their turn.
#[derive(Debug)]
#[must_use = "dropping a load cancels it"]
pub struct Load {
    running: Running,
    /// Whether no matched token has had to be computed so far.
    is_whole: bool,
}

impl Load {
    pub(crate) const fn new(running: Running) -> Self {
        Self { running, is_whole: true }
    }

    /// The next layers that are in their pages; `None` when the load has ended. For engines that start a
    /// suffix on the first layers while later ones are decoded; others only wait for
    /// [`finish`](Self::finish). Once a part of the match has to be computed, no further layer counts as
    /// complete: [`Loaded::missing`] lists the part, and a suffix already started must be started again.
    pub async fn next_layers(&mut self) -> Option<LayerReady> {
        loop {
            match self.running.next().await? {
                DriverEvent::Ready(ready) => {
                    let layers_complete = if self.is_whole { ready.layers_complete } else { 0 };
                    return Some(LayerReady { layers_complete, ..ready });
                }
                DriverEvent::Recompute { range, .. } => {
                    self.is_whole &= range.start >= self.running.matched_tokens();
                }
                // Nothing is computed during the load, so nothing is withdrawn.
                DriverEvent::Withdrawn { .. } | DriverEvent::Done { .. } => {}
            }
        }
    }

    /// Waits for the load to end.
    pub async fn finish(self) -> Loaded {
        self.running.finish().await
    }
}

/// The result of a load.
#[derive(Debug)]
#[must_use = "the engine must compute the `missing` tokens"]
pub struct Loaded {
    /// Leading tokens that the engine already had.
    present: u64,
    tokens: u64,
    missing: Vec<TokenRange>,
    lossy: Vec<(TokenRange, Loss)>,
    report: Option<Box<LoadReport>>,
}

impl Loaded {
    pub(super) const fn new(
        (present, tokens): (u64, u64),
        missing: Vec<TokenRange>,
        lossy: Vec<(TokenRange, Loss)>,
        report: Option<Box<LoadReport>>,
    ) -> Self {
        Self { present, tokens, missing, lossy, report }
    }

    /// Every token of the session that is not in place, in order, adjacent ranges joined: not stored, failed,
    /// too coarse, cheaper to compute, or in pages that were reassigned. The last token of a prompt is always
    /// missing, because no cache holds its logits.
    pub fn missing(&self) -> &[TokenRange] {
        &self.missing
    }

    /// Tokens that were loaded and are in place, without those that the engine [already
    /// had](crate::tuning::LoadOptions::present).
    pub fn loaded_tokens(&self) -> u64 {
        self.tokens - self.present - self.missing.iter().map(|range| range.len()).sum::<u64>()
    }

    /// Leading tokens that are in place, including those that the engine already had.
    pub fn prefix_tokens(&self) -> u64 {
        self.missing.first().map_or(self.tokens, |range| range.start)
    }

    /// The largest loss of any part in place. The session records it, and its saves carry it.
    pub fn loss(&self) -> Loss {
        self.losses().map(|(_, loss)| loss).fold(Loss::NONE, Loss::worst)
    }

    /// Leading tokens up to the first whose predicted KL is unknown or above `kl_max` nats per token: an engine may
    /// share these with other requests for this quality. [Missing](Self::missing) tokens count as exact.
    pub fn tokens_within(&self, kl_max: f64) -> u64 {
        self.losses()
            .filter(|(_, loss)| !loss.is_within_kl(kl_max))
            .map(|(range, _)| range.start)
            .min()
            .unwrap_or(self.tokens)
    }

    /// Ranges in place that are not exact, and their loss. An engine that keeps pages for other requests
    /// stores this with them, for [`Session::reused`](crate::Session::reused).
    pub fn losses(&self) -> impl Iterator<Item = (TokenRange, Loss)> {
        self.lossy.iter().flat_map(|(range, loss)| {
            let mut left = vec![*range];
            for missing in &self.missing {
                remove_range(&mut left, *missing);
            }
            left.into_iter().map(|range| (range, *loss))
        })
    }

    /// Duration of the load; zero for a miss.
    pub fn elapsed(&self) -> Duration {
        self.report.as_ref().map_or(Duration::ZERO, |report| report.elapsed)
    }

    /// A detailed report of the load; `None` for a miss.
    pub fn report(&self) -> Option<&LoadReport> {
        self.report.as_deref()
    }

    /// Like [`report`](Self::report), but owned.
    pub fn into_report(self) -> Option<LoadReport> {
        self.report.map(|report| *report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> TokenRange {
        TokenRange { start, end }
    }

    #[test]
    fn what_is_missing_is_neither_loaded_nor_lossy() {
        let kl = |kl| Loss { kl, ..Loss::NONE };
        let lossy = vec![(range(0, 64), kl(0.01)), (range(64, 128), kl(0.2)), (range(128, 160), kl(0.05))];
        let loaded = Loaded::new((0, 200), vec![range(64, 128), range(160, 200)], lossy.clone(), None);
        assert_eq!((loaded.loaded_tokens(), loaded.prefix_tokens(), loaded.loss().kl), (96, 64, 0.05));
        assert_eq!([0.001, 0.01, 0.1].map(|kl| loaded.tokens_within(kl)), [0, 128, 200]);
        let loaded = Loaded::new((16, 200), vec![range(100, 128)], lossy, None);
        assert_eq!((loaded.loss().kl, loaded.tokens_within(0.1)), (0.2, 64));
        assert_eq!((loaded.loaded_tokens(), loaded.prefix_tokens()), (156, 100));
    }
}
