//! A policy that knows the link's future rate.

use std::time::Duration;

use kvasir_client::tuning::{ByteRate, Policy, PolicyStep, PolicyView, TextMode};

use super::LinkRate;

/// Bytes that a rate is probed with, so small that they take no time.
const PROBE_BYTES: u64 = 1 << 10;

/// A policy whose estimates are replaced by the link's true mean rate over the next period. Its remaining
/// losses are not caused by the estimator.
#[derive(Debug)]
pub struct Foresight {
    inner: Box<dyn Policy>,
    link: LinkRate,
    horizon: Duration,
    own_rates: Vec<Option<ByteRate>>,
}

impl Foresight {
    /// `inner`, for a load that begins when the link does, seeing `horizon` ahead.
    pub const fn new(inner: Box<dyn Policy>, link: LinkRate, horizon: Duration) -> Self {
        Self { inner, link, horizon, own_rates: Vec::new() }
    }

    /// Mean rate of `chunk`'s bytes over the horizon from `now` on.
    fn rate(&self, now: Duration, chunk: usize) -> Option<ByteRate> {
        match &self.link {
            LinkRate::Series(series) => {
                let bytes = series.bytes_between(now, now + self.horizon);
                ByteRate::of(bytes.max(1), self.horizon)
            }
            LinkRate::PerChunk(_) => {
                let took = self.link.time_after(now, chunk, PROBE_BYTES).saturating_sub(now);
                ByteRate::of(PROBE_BYTES, took)
            }
        }
    }
}

impl Policy for Foresight {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn next(&mut self, view: &PolicyView<'_>) -> PolicyStep {
        let chunks = view.chunks.len();
        self.own_rates = (0..chunks).map(|chunk| self.rate(view.now, chunk)).collect();
        let inverse = self.own_rates.iter().flatten().map(|rate| rate.bytes_per_second().recip());
        let rate = ByteRate::new(chunks as f64 / inverse.sum::<f64>());
        let told = PolicyView { rate, chunk_rate: rate, caution: 1.0, own_rates: &self.own_rates, ..*view };
        self.inner.next(&told)
    }

    fn may_give_up(&self, text_mode: TextMode) -> bool {
        self.inner.may_give_up(text_mode)
    }
}
