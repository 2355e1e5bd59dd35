//! The rate of one transfer, and the expected rate of transfers that have not begun.

use std::time::Duration;

use super::byte_rate::ByteRate;

/// Link time in the window of a transfer's own rate: when it is full, half of it is forgotten.
const OWN_TIME: Duration = Duration::from_millis(100);
/// Own rates older than this say nothing about the next transfer if there are younger ones.
const AGE_MAX: Duration = Duration::from_secs(2);
/// Standard deviations above the mean time per byte at which deadlines are planned.
const CAUTION: f64 = 1.0;
/// Assumed spread of the time per byte before the first measurement: as much as its mean ...
const SPREAD_PRIOR: f64 = 1.0;
/// ... with the weight of this many transfers.
const SPREAD_PRIOR_WEIGHT: f64 = 2.0;

/// The progress of one transfer on a shared link.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TransferProgress {
    bytes: u64,
    /// Time on the link that its bytes took, as far as arrivals show: since the previous arrival of any
    /// transfer.
    on_link: Duration,
    /// Time since its first byte, each stretch divided by the transfers that shared the link then.
    fair: Duration,
    /// Number of transfers on the link when its last bytes came.
    sharing: u32,
}

impl TransferProgress {
    /// `bytes` came `since_any` after the last arrival of any transfer and `since_own` after this one's last;
    /// `sharing` transfers use the link now.
    pub(super) fn add(&mut self, bytes: u64, since_any: Duration, since_own: Duration, sharing: u32) {
        if self.on_link > OWN_TIME || self.fair > OWN_TIME {
            (self.bytes, self.on_link, self.fair) = (self.bytes / 2, self.on_link / 2, self.fair / 2);
        }
        self.bytes += bytes;
        self.on_link += since_any;
        self.fair += since_own / self.sharing.max(sharing).max(1);
        self.sharing = sharing;
    }

    /// Its rate if it had the link to itself: the smaller of its bytes over their link time and its rate at a
    /// fair share. A slow peer shows in the second, a slow link in both.
    pub(super) fn rate(&self) -> Option<ByteRate> {
        let on_link = ByteRate::of(self.bytes, self.on_link)?;
        let got = ByteRate::of(self.bytes, self.fair)?;
        Some(if got < on_link { got } else { on_link })
    }
}

/// The rate to expect of a transfer that has not begun, and its uncertainty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ExpectedRate {
    /// Harmonic mean over recently seen chunks, but at most the best active one's rate: if chunks differ
    /// (replicas, paths), the mean counts; if the link slowed down, all did.
    pub(super) rate: Option<ByteRate>,
    /// Factor by which a transfer may exceed its time at `rate`: one standard deviation. The spread is the
    /// observed one, shrunk towards an assumed one while there are few transfers.
    pub(super) caution: f64,
}

/// From each chunk's own rate, its time, and whether it is active at `now`.
pub(super) fn expect(
    seen: impl Iterator<Item = (ByteRate, Duration, bool)> + Clone,
    prior: Option<ByteRate>,
    now: Duration,
) -> ExpectedRate {
    let young = seen.clone().filter(|(_, at, _)| now.saturating_sub(*at) <= AGE_MAX);
    let enough = young.clone().count() >= 2;
    let counted = seen.filter(|(_, at, _)| !enough || now.saturating_sub(*at) <= AGE_MAX);
    let inverse: Vec<f64> = counted
        .clone()
        .map(|(rate, ..)| rate.bytes_per_second().recip())
        .chain(prior.map(|p| p.bytes_per_second().recip()))
        .collect();
    let mean = inverse.iter().sum::<f64>() / inverse.len().max(1) as f64;
    let flowing = counted.filter(|(.., flows)| *flows).map(|(rate, ..)| rate);
    let best = flowing.reduce(|a, b| if a > b { a } else { b });
    let mean = ByteRate::new(mean.recip());
    let rate = match (mean, best) {
        (Some(mean), Some(best)) if best < mean => Some(best),
        (mean, _) => mean,
    };
    ExpectedRate { rate, caution: caution(inverse.into_iter()) }
}

/// Factor by which a transfer may exceed the mean of these times per byte.
pub(super) fn caution(inverse: impl Iterator<Item = f64> + Clone) -> f64 {
    let count = inverse.clone().count() as f64;
    let mean = inverse.clone().sum::<f64>() / count.max(1.0);
    let relative = inverse.map(|i| (i / mean - 1.0).powi(2)).sum::<f64>();
    let relative = if relative.is_finite() { relative } else { 0.0 };
    let spread =
        (relative + SPREAD_PRIOR_WEIGHT * SPREAD_PRIOR * SPREAD_PRIOR) / (count + SPREAD_PRIOR_WEIGHT);
    1.0 + CAUTION * spread.sqrt()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seen(rates: &[f64]) -> Vec<(ByteRate, Duration, bool)> {
        rates.iter().map(|&r| (ByteRate::new(r).unwrap(), Duration::from_secs(1), false)).collect()
    }

    fn expected(rates: &[f64]) -> ExpectedRate {
        expect(seen(rates).into_iter(), None, Duration::from_secs(1))
    }

    proptest! {
        /// Caution is never below the mean, grows with variation, and falls with steady evidence.
        #[test]
        fn caution_follows_the_spread(rate in 1e6f64..1e9, spread in 3.0f64..50.0) {
            let caution = |pair: [f64; 2], count: usize| {
                expected(&(0..count).map(|i| pair[i % 2]).collect::<Vec<_>>()).caution
            };
            let (unknown, steady) = (caution([rate, rate], 0), caution([rate, rate], 20));
            prop_assert!(steady >= 1.0 && steady < caution([rate, rate], 3) && caution([rate, rate], 3) < unknown);
            prop_assert!(caution([rate, rate * spread], 20) > steady);
        }

        /// The mean is harmonic; a link that slowed down under every active transfer lowers it at once; old
        /// samples are forgotten.
        #[test]
        fn the_rate_is_the_mean_unless_the_link_fell(rates in prop::collection::vec(1e6f64..1e9, 1..12), fall in 2.0f64..100.0) {
            let harmonic = rates.len() as f64 / rates.iter().map(|r| r.recip()).sum::<f64>();
            let found = expected(&rates).rate.unwrap().bytes_per_second();
            prop_assert!((found / harmonic - 1.0).abs() < 1e-9);

            let low = rates.iter().copied().fold(f64::MAX, f64::min) / fall;
            let mut fallen = seen(&rates);
            fallen.push((ByteRate::new(low).unwrap(), Duration::from_secs(1), true));
            let found = expect(fallen.clone().into_iter(), None, Duration::from_secs(1)).rate.unwrap();
            prop_assert!((found.bytes_per_second() / low - 1.0).abs() < 1e-9);

            let later = Duration::from_secs(9);
            let mut renewed = seen(&rates);
            renewed.extend([(ByteRate::new(5e6).unwrap(), later, false); 2]);
            let found = expect(renewed.into_iter(), None, later).rate.unwrap();
            prop_assert!((found.bytes_per_second() / 5e6 - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn a_slow_peer_shows_beside_a_fast_one_and_on_its_own() {
        let ms = Duration::from_millis;
        let (mut slow, mut fast) = (TransferProgress::default(), TransferProgress::default());
        for _ in 0..20 {
            fast.add(100_000, ms(1), ms(2), 2); // in turn: 1 ms each
            slow.add(1_000, ms(1), ms(2), 2);
        }
        assert!((fast.rate().unwrap().bytes_per_second() / 1e8 - 1.0).abs() < 0.01);
        assert!((slow.rate().unwrap().bytes_per_second() / 1e6 - 1.0).abs() < 0.01);
        // Its bytes come quickly after the other's, but rarely: the time in between counts.
        let mut seldom = TransferProgress::default();
        for _ in 0..20 {
            seldom.add(1_000, Duration::from_micros(10), ms(10), 2);
        }
        assert!(seldom.rate().unwrap().bytes_per_second() < 2.1e5);
    }
}
