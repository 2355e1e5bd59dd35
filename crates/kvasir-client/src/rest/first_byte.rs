//! Recent times to first byte, and the budget for hedged reads.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use crate::limits::{
    FIRST_BYTE_SAMPLES, FIRST_BYTE_SAMPLES_MIN, HEDGE_AFTER_MIN, HEDGE_BURST, HEDGE_QUANTILE, HEDGE_SHARE,
};

/// The latest times to first byte of all reads of a client.
///
/// A read that waits longer than their 95th percentile is *hedged*: sent once more, by another route if there
/// is one. The budget limits hedges to a twentieth of the reads, so that a service that is slow as a whole
/// gets at most 5 % more load.
#[derive(Debug, Default)]
pub(crate) struct FirstByteLatencies(Mutex<HedgingState>);

/// Recent latencies and the hedges left to spend.
#[derive(Debug, Default)]
struct HedgingState {
    samples: VecDeque<Duration>,
    budget: f64,
}

impl FirstByteLatencies {
    fn with<T>(&self, f: impl FnOnce(&mut HedgingState) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A read's first byte came after `waited`.
    pub(crate) fn observe(&self, waited: Duration) {
        self.with(|state| {
            if state.samples.len() == FIRST_BYTE_SAMPLES {
                state.samples.pop_front();
            }
            state.samples.push_back(waited);
            state.budget = (state.budget + HEDGE_SHARE).min(HEDGE_BURST);
        });
    }

    /// The time that a share `q` of the reads did not exceed; `None` before there are enough.
    pub(crate) fn quantile(&self, q: f64) -> Option<Duration> {
        self.with(|state| {
            let mut sorted: Vec<Duration> = state.samples.iter().copied().collect();
            sorted.sort_unstable();
            let index = (q * sorted.len() as f64).ceil() as usize;
            (sorted.len() >= FIRST_BYTE_SAMPLES_MIN)
                .then(|| sorted.get(index.saturating_sub(1)).copied())
                .flatten()
        })
    }

    /// The shortest of the last times. A connection's first one includes its handshakes.
    pub(crate) fn fastest(&self) -> Option<Duration> {
        self.with(|state| state.samples.iter().min().copied())
    }

    /// How long to wait before a read is sent once more; `None` while there is too little data.
    pub(crate) fn hedge_after(&self) -> Option<Duration> {
        self.quantile(HEDGE_QUANTILE).map(|wait| wait.max(HEDGE_AFTER_MIN))
    }

    /// Takes one hedge from the budget, if one is left.
    pub(crate) fn take_hedge(&self) -> bool {
        self.with(|state| {
            let granted = state.budget >= 1.0;
            state.budget -= if granted { 1.0 } else { 0.0 };
            granted
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rest::{Client, ClientConfig};

    #[test]
    fn the_quantile_is_of_the_last_reads() {
        let times = FirstByteLatencies::default();
        assert_eq!((times.hedge_after(), times.fastest()), (None, None));
        (0..1000).for_each(|_| times.observe(Duration::from_secs(9)));
        (1..=100).for_each(|ms| times.observe(Duration::from_millis(ms)));
        // The ring holds the last 64: 37 ms to 100 ms.
        assert_eq!(times.quantile(0.5), Some(Duration::from_millis(68)));
        assert_eq!(times.fastest(), Some(Duration::from_millis(37)));
        assert_eq!(times.hedge_after(), Some(Duration::from_millis(97)));
    }

    /// Loads that expect that much may read nothing, and so measure nothing.
    #[tokio::test]
    async fn reads_that_were_slow_are_outlived_by_lookups() {
        let client = Client::new("http://127.0.0.1:9".parse().unwrap(), ClientConfig::default()).unwrap();
        assert_eq!(client.expected_first_byte(), None);
        (0..FIRST_BYTE_SAMPLES_MIN)
            .for_each(|_| client.first_byte_latencies.observe(Duration::from_millis(1200)));
        assert_eq!(client.expected_first_byte(), Some(Duration::from_millis(1200)));
        client.lookup_latencies.observe(Duration::from_millis(20));
        assert_eq!(client.expected_first_byte(), Some(Duration::from_millis(20)));
    }

    #[test]
    fn hedges_are_a_twentieth_of_the_reads() {
        let times = FirstByteLatencies::default();
        let mut hedges = 0;
        for _ in 0..1000 {
            times.observe(Duration::from_millis(1));
            hedges += u32::from(times.take_hedge());
        }
        assert!((48..=50).contains(&hedges), "{hedges}");
    }
}
