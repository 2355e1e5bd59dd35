//! The rates of a load's transfers, and the expected rates of transfers that stopped or have not begun.

use std::time::Duration;

use super::{
    byte_rate::ByteRate,
    meter::Meter,
    transfer_rate::{self, ExpectedRate},
};

/// Transfers seen within this time of each other shared the link.
const TOGETHER: Duration = Duration::from_millis(20);
/// Rates within this factor count as equal.
const ALIKE: f64 = 1.5;

/// The rate of each chunk's transfer, and whether only the link varies or transfers may differ (replicas, paths).
#[derive(Debug)]
pub(super) struct ChunkRates {
    /// The last rate of a chunk's own transfer, and its time.
    own: Vec<Option<(ByteRate, Duration)>>,
    /// The same for stopped transfers, corrected for the link's present rate.
    expected: Vec<Option<ByteRate>>,
    /// Number of link samples that `expected` is based on.
    samples: usize,
    /// Whether two transfers at the same time were equally fast, so that one transfer's rate says nothing
    /// specific about it.
    is_uniform: bool,
}

impl ChunkRates {
    pub(super) fn new(chunks: usize) -> Self {
        Self { own: vec![None; chunks], expected: vec![None; chunks], samples: 0, is_uniform: false }
    }

    /// Per chunk: the rate of its own transfer, or the rate it would have now; `None` if only the link's rate
    /// is known.
    pub(super) fn expected(&self) -> &[Option<ByteRate>] {
        &self.expected
    }

    /// Records that a chunk's transfer has `rate` at `now`.
    pub(super) fn record(&mut self, chunk: usize, rate: ByteRate, now: Duration) {
        let others = self.own.iter().enumerate().filter(|(i, _)| *i != chunk);
        let together =
            others.filter_map(|(_, own)| own.filter(|(_, at)| now.saturating_sub(*at) <= TOGETHER));
        self.is_uniform |= together
            .map(|(other, _)| other)
            .any(|other| rate < other.scaled(ALIKE) && other < rate.scaled(ALIKE));
        self.own[chunk] = Some((rate, now));
        self.expected[chunk] = Some(rate);
    }

    /// Corrects transfers that stopped while the link was slow to the link's present rate. If transfers
    /// differ, the correction is lowered by the caution for unseen transfers, but never below the rate that
    /// was seen.
    pub(super) fn on_link_change(&mut self, meter: &Meter, fetching: impl Fn(usize) -> bool) {
        if meter.samples().len() == self.samples {
            return;
        }
        self.samples = meter.samples().len();
        let caution = self.expectation(meter, None, meter.last_arrival(), &fetching).caution;
        let uniform = self.is_uniform;
        for (chunk, expected) in self.expected.iter_mut().enumerate().filter(|(chunk, _)| !fetching(*chunk)) {
            let Some((own, at)) = self.own[chunk] else { continue };
            let by_link = meter.since(own, at).scaled(1.0 / caution);
            *expected = (!uniform).then_some(if by_link > own { by_link } else { own });
        }
    }

    /// The expected rate of a transfer not yet seen. On a link that is the same for all: the link's present
    /// rate.
    pub(super) fn expectation(
        &self,
        meter: &Meter,
        prior: Option<ByteRate>,
        now: Duration,
        flows: impl Fn(usize) -> bool,
    ) -> ExpectedRate {
        if self.is_uniform
            && let Some(expected) = meter.expectation()
        {
            return expected;
        }
        let seen = self.own.iter().enumerate();
        let seen = seen.filter_map(|(chunk, own)| own.map(|(rate, at)| (rate, at, flows(chunk))));
        transfer_rate::expect(seen, prior, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fetcher::EstimatorKind;

    const MS: Duration = Duration::from_millis(1);

    /// Two transfers with rates that alternate on the link for 100 ms; then only the second continues.
    fn shared(first: f64, second: f64) -> (ChunkRates, Meter) {
        let (mut rates, mut meter) = (ChunkRates::new(3), Meter::new(EstimatorKind::Harmonic, None));
        for t in 1..=100u32 {
            let (chunk, rate) = [(0, first), (1, second)][t as usize % 2];
            meter.on_bytes(MS * t, (rate / 1e3) as u64);
            rates.record(chunk, ByteRate::new(rate).unwrap(), MS * t);
        }
        for t in 101..=130u32 {
            meter.on_bytes(MS * t, (second / 1e3) as u64);
            rates.record(1, ByteRate::new(second).unwrap(), MS * t);
            rates.on_link_change(&meter, |chunk| chunk == 1);
        }
        (rates, meter)
    }

    #[test]
    fn a_link_that_is_the_same_for_all_is_what_counts() {
        let (rates, meter) = shared(1e8, 1.1e8);
        assert!(rates.is_uniform);
        assert_eq!(rates.expected()[0], None, "what stopped goes at what the link does");
        let expected = rates.expectation(&meter, None, 130 * MS, |chunk| chunk == 1);
        let rate = expected.rate.unwrap().bytes_per_second();
        assert!((rate / 1.1e8 - 1.0).abs() < 0.05, "{rate}");
        assert!((1.0..2.0).contains(&expected.caution));
    }

    #[test]
    fn transfers_that_differ_keep_their_own_rates() {
        let (rates, meter) = shared(1e7, 1e8);
        assert!(!rates.is_uniform);
        assert_eq!(rates.expected()[0].unwrap().bytes_per_second(), 1e7);
        let expected = rates.expectation(&meter, None, 130 * MS, |chunk| chunk == 1);
        let mean = 2.0 / (1e-7 + 1e-8);
        let rate = expected.rate.unwrap().bytes_per_second();
        assert!((rate / mean - 1.0).abs() < 1e-9, "the next one may be either: {rate}");
        assert!(expected.caution > 1.5, "and by far: {}", expected.caution);
    }
}
