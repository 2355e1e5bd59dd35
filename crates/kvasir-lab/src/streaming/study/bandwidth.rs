//! The links of a study.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use kvasir_replay::link::BandwidthSeries;

use crate::streaming::LinkRate;

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
