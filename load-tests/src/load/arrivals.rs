//! When requests arrive, whatever the service does: an open loop.

use std::time::Duration;

use kvasir_tests::faulty::Dice;
use serde::{Deserialize, Serialize};

/// A process of arrivals.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Arrivals {
    /// So many a second, independent of each other.
    Poisson(f64),
    /// Poisson, at a share of what a closed loop reaches just before: the peak.
    ShareOfPeak(f64),
    /// One every so many seconds.
    Every(f64),
    /// So many at once, every so many seconds.
    Bursts {
        /// Requests of a burst.
        size: usize,
        /// Seconds from one to the next.
        every: f64,
    },
    /// As the trace says, so many times as fast.
    Trace {
        /// 1 is real time.
        speed: f64,
    },
}

impl Arrivals {
    /// The same at another rate.
    pub(crate) fn times(self, factor: f64) -> Self {
        match self {
            Self::Poisson(rate) => Self::Poisson(rate * factor),
            Self::ShareOfPeak(share) => Self::ShareOfPeak(share),
            Self::Every(seconds) => Self::Every(seconds / factor),
            Self::Bursts { size, every } => {
                Self::Bursts { size: (size as f64 * factor).ceil() as usize, every: every / factor }
            }
            Self::Trace { speed } => Self::Trace { speed },
        }
    }

    /// Moments of arrival within `seconds`. `peak` is what a closed loop reached, in requests a second.
    pub(crate) fn moments(self, seconds: f64, seed: u64, peak: f64) -> Vec<Duration> {
        match self {
            Self::Poisson(rate) => poisson(rate, seconds, seed),
            Self::ShareOfPeak(share) => poisson(peak * share, seconds, seed),
            Self::Every(pause) => regular(pause, seconds, 1),
            Self::Bursts { size, every } => regular(every, seconds, size),
            // A trace brings its own.
            Self::Trace { .. } => Vec::new(),
        }
    }
}

fn regular(pause: f64, seconds: f64, size: usize) -> Vec<Duration> {
    let times = (seconds / pause.max(1e-6)).ceil() as usize;
    let moments = (0..times).map(|i| Duration::from_secs_f64(i as f64 * pause));
    moments.flat_map(|moment| std::iter::repeat_n(moment, size)).collect()
}

fn poisson(rate: f64, seconds: f64, seed: u64) -> Vec<Duration> {
    let mut dice = Dice::new(seed);
    let (mut at, mut moments) = (0.0, Vec::new());
    if rate <= 0.0 {
        return moments;
    }
    loop {
        at -= (1.0 - uniform(&mut dice)).ln() / rate;
        if at >= seconds {
            return moments;
        }
        moments.push(Duration::from_secs_f64(at));
    }
}

/// A number in 0..1.
pub(crate) fn uniform(dice: &mut Dice) -> f64 {
    (dice.number() >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poisson_has_its_rate_and_its_spread() {
        let moments = Arrivals::Poisson(200.0).moments(100.0, 7, 0.0);
        let count = moments.len() as f64;
        // 20,000 are expected with a standard deviation of 141.
        assert!((count - 20_000.0).abs() < 5.0 * 141.0, "{count}");
        let gaps: Vec<f64> = moments.windows(2).map(|w| (w[1] - w[0]).as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        // An exponential's deviation is its mean; regular arrivals would have none.
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.05, "{} {mean}", variance.sqrt());
        assert_eq!(moments, Arrivals::ShareOfPeak(0.5).moments(100.0, 7, 400.0));
    }

    #[test]
    fn bursts_arrive_together() {
        let moments = Arrivals::Bursts { size: 3, every: 0.5 }.moments(1.0, 1, 0.0);
        assert_eq!(moments.iter().map(Duration::as_millis).collect::<Vec<_>>(), [0, 0, 0, 500, 500, 500]);
    }
}
