//! The links of a study.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use kvasir_replay::link::BandwidthSeries;

use super::SERIES_MEAN_GBPS;
use crate::streaming::LinkRate;

/// Sets of switching links, and the seconds between two switches.
const SWITCHING: [(&str, f64); 2] = [("switch-200ms", 0.2), ("switch-1s", 1.0)];

/// Source of the links.
#[derive(Debug, Clone, PartialEq)]
pub enum Bandwidth {
    /// The rate of every chunk's transfer is drawn uniformly from this range in Gb/s (the paper's setting).
    Random(f64, f64),
    /// Series: one is drawn for each context with a random start, scaled to a mean drawn (log-uniformly) from
    /// this range in Gb/s when one is given.
    Series(Vec<BandwidthSeries>, Option<(f64, f64)>),
}

/// The bandwidth argument is not a range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a bandwidth range; use random:LO-HI in Gb/s with 0 < LO <= HI, e.g. random:0.1-10")]
pub struct BadRange {
    /// The argument.
    pub text: String,
}

impl Bandwidth {
    /// Reads `random:LO-HI` (Gb/s).
    ///
    /// # Errors
    /// [`BadRange`] for anything else.
    pub fn parse_random(text: &str) -> Result<Self, BadRange> {
        let range = || -> Option<(f64, f64)> {
            let (low, high) = text.strip_prefix("random:")?.split_once('-')?;
            let (low, high): (f64, f64) = (low.parse().ok()?, high.parse().ok()?);
            (low > 0.0 && low <= high && high.is_finite()).then_some((low, high))
        };
        range().map(|(low, high)| Self::Random(low, high)).ok_or_else(|| BadRange { text: text.to_owned() })
    }

    /// Links that fall to a tenth of their rate and come back, as between Wi-Fi and a cellular network: every
    /// 200 ms in one set, every second in the other. Each load begins anywhere between two switches.
    pub fn switching() -> Self {
        let series = SWITCHING.iter().filter_map(|(set, seconds)| {
            BandwidthSeries::steps(set, "a tenth", *seconds, &[1_000.0, 100.0]).ok()
        });
        Self::Series(series.collect(), Some(SERIES_MEAN_GBPS))
    }

    pub(super) fn sets(&self) -> Vec<String> {
        match self {
            Self::Random(low, high) => vec![format!("random:{low}-{high}")],
            Self::Series(series, _) => {
                let mut sets: Vec<String> = series.iter().map(|s| s.set().to_owned()).collect();
                sets.sort();
                sets.dedup();
                sets
            }
        }
    }

    pub(super) fn draw(&self, set: &str, rng: &mut ChaCha8Rng) -> LinkRate {
        match self {
            Self::Random(low, high) => {
                LinkRate::PerChunk((0..64).map(|_| rng.random_range(*low..=*high) * 1e3).collect())
            }
            Self::Series(all, means) => {
                let of_set: Vec<_> = all.iter().filter(|s| s.set() == set).collect();
                let series = of_set[rng.random_range(0..of_set.len())].clone();
                let offset = rng.random_range(0.0..series.period());
                let mean = means.map(|(low, high)| rng.random_range(low.ln()..=high.ln()).exp() * 1e3);
                let series = mean.map_or(series.clone(), |mbps| series.scaled_to_mean(mbps));
                LinkRate::Series(series.starting_at(offset))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rand::SeedableRng;

    use super::*;

    #[test]
    fn switching_links_have_the_means_and_the_switches_that_they_state() {
        let links = Bandwidth::switching();
        let Bandwidth::Series(series, means) = &links else { panic!("they are series") };
        assert_eq!(*means, Some(SERIES_MEAN_GBPS));
        assert_eq!(links.sets(), ["switch-1s", "switch-200ms"]);
        for (one, step) in series.iter().zip([200, 1_000]) {
            assert!((one.mean_mbps() - 550.0).abs() < 1e-6, "{}", one.mean_mbps());
            for (number, mbps) in (0..6).zip([1_000.0, 100.0].into_iter().cycle()) {
                for ms in [number * step + 1, (number + 1) * step - 1] {
                    let found = one.mbps_at(Duration::from_millis(ms));
                    assert!((found - mbps).abs() < 1e-6, "{} at {ms} ms: {found}", one.name());
                }
            }
        }
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for _ in 0..20 {
            let LinkRate::Series(drawn) = links.draw("switch-1s", &mut rng) else { panic!("it is a series") };
            assert!((199.0..10_001.0).contains(&drawn.mean_mbps()), "{}", drawn.mean_mbps());
            let rates: Vec<f64> = (0..=1_000).map(|ms| drawn.mbps_at(Duration::from_millis(ms))).collect();
            let switches = rates.windows(2).filter(|pair| (pair[0] / pair[1] - 1.0).abs() > 0.5).count();
            assert_eq!(switches, 1, "every load of a second has one");
        }
    }
}
