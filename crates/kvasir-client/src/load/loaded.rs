//! Loads as an engine sees them.

use std::time::Duration;

use kvasir_types::{Loss, TokenRange};

use super::{DriverEvent, LayerReady, LoadReport, Running, token_ranges::remove_range};

/// A load under way, which goes on by itself. Dropping it cancels it: its requests are given up at once, and when `drop` returns
/// nothing is written to the tables any more, even if their pages are the next request's in the same moment. Every await point may
/// be left for good.
#[derive(Debug)]
#[must_use = "dropping a load cancels it"]
pub struct Load {
    running: Running,
    /// Whether nothing of what is matched has to be computed so far.
    is_whole: bool,
}

impl Load {
    pub(crate) const fn new(running: Running) -> Self {
        Self { running, is_whole: true }
    }

    /// The next layers that are in their pages; `None` when the load is over. For engines that start a suffix on the first layers
    /// while later ones are decoded; others wait for [`finish`](Self::finish) alone. As soon as a part of what is matched has to
    /// be computed, no layer is complete any more: [`Loaded::missing`] says which, and a suffix that was begun is begun again.
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
                // Nothing is computed while the load goes on, so nothing is withdrawn.
                DriverEvent::Withdrawn { .. } | DriverEvent::Done { .. } => {}
            }
        }
    }

    /// Waits for the end.
    pub async fn finish(self) -> Loaded {
        self.running.finish().await
    }
}

/// What a load left in the pages.
#[derive(Debug)]
#[must_use = "what is `missing` has to be computed"]
pub struct Loaded {
    /// Leading tokens that the engine had.
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

    /// Every token of the session that is not in place, in order, neighbours joined: not stored, failed, too coarse, cheaper to
    /// compute, or in pages that were reassigned meanwhile. The last token of a prompt is always missing, because no cache holds
    /// its logits.
    pub fn missing(&self) -> &[TokenRange] {
        &self.missing
    }

    /// Tokens that were loaded and are in place; those that the engine [had](crate::tuning::LoadOptions::present) are left out.
    pub fn loaded_tokens(&self) -> u64 {
        self.tokens - self.present - self.missing.iter().map(|range| range.len()).sum::<u64>()
    }

    /// Leading tokens that are in place, those that the engine had among them.
    pub fn prefix_tokens(&self) -> u64 {
        self.missing.first().map_or(self.tokens, |range| range.start)
    }

    /// The worst of what is in place has lost this. The session knows it: what it saves carries it.
    pub fn loss(&self) -> Loss {
        self.losses().map(|(_, loss)| loss).fold(Loss::NONE, Loss::worst)
    }

    /// Leading tokens up to the first whose predicted KL is above `kl_max` nats a token: as many as an engine may share with
    /// other requests that ask for this quality. Tokens that are [missing](Self::missing) count as exact.
    pub fn tokens_within(&self, kl_max: f64) -> u64 {
        self.losses()
            .filter(|(_, loss)| loss.kl > kl_max)
            .map(|(range, _)| range.start)
            .min()
            .unwrap_or(self.tokens)
    }

    /// Ranges in place that are not exact, and what they have lost. An engine that keeps pages for other requests keeps this with
    /// them, for [`Session::reused`](crate::Session::reused).
    pub fn losses(&self) -> impl Iterator<Item = (TokenRange, Loss)> {
        self.lossy.iter().flat_map(|(range, loss)| {
            let mut left = vec![*range];
            for missing in &self.missing {
                remove_range(&mut left, *missing);
            }
            left.into_iter().map(|range| (range, *loss))
        })
    }

    /// How long the load took; zero for a miss.
    pub fn elapsed(&self) -> Duration {
        self.report.as_ref().map_or(Duration::ZERO, |report| report.elapsed)
    }

    /// What the load did, in detail; `None` for a miss.
    pub fn report(&self) -> Option<&LoadReport> {
        self.report.as_deref()
    }

    /// As [`report`](Self::report), to keep.
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
