//! When requests arrive, whatever the service does: an open loop.

use std::time::Duration;

use kvasir_tests::faulty::Dice;
use serde::{Deserialize, Serialize};

/// A process of arrivals.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Arrivals {
    /// This many per second, independent of each other.
    Poisson(f64),
    /// Poisson, at a share of the rate that a closed loop reached just before: the peak.
    ShareOfPeak(f64),
    /// At the rate of `ShareOfPeak`, with equal intervals.
    EvenShareOfPeak(f64),
    /// One per interval of this many seconds.
    Every(f64),
    /// Bursts of this many requests per interval of this many seconds.
    Bursts {
        /// Requests of a burst.
        size: usize,
        /// Seconds from one to the next.
        every: f64,
    },
    /// As in the trace, sped up by this factor.
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
            Self::ShareOfPeak(_) | Self::EvenShareOfPeak(_) | Self::Trace { .. } => self,
            Self::Every(seconds) => Self::Every(seconds / factor),
            Self::Bursts { size, every } => {
                Self::Bursts { size: (size as f64 * factor).ceil() as usize, every: every / factor }
            }
        }
    }

    /// Moments of arrival within `seconds`. `peak` is the rate of a closed loop, in requests per second.
    pub(crate) fn moments(self, seconds: f64, seed: u64, peak: f64) -> Vec<Duration> {
        match self {
            Self::Poisson(rate) => poisson(rate, seconds, seed),
            Self::ShareOfPeak(share) => poisson(peak * share, seconds, seed),
            Self::EvenShareOfPeak(share) => regular((peak * share).recip(), seconds, 1),
            Self::Every(pause) => regular(pause, seconds, 1),
            Self::Bursts { size, every } => regular(every, seconds, size),
            // A trace gives the times itself.
            Self::Trace { .. } => Vec::new(),
        }
    }
}

/// The 50th and 99th percentile of a server's response times, as multiples of the time of one request, if
/// every request takes exactly the same time: `cores` at once, in order, at a rate of `peak`. Any excess over
/// this with the same arrivals is not caused by their burstiness.
pub(crate) fn ideal(due: &[Duration], cores: usize, peak: f64) -> (f64, f64) {
    let takes = cores as f64 / peak;
    let mut free = vec![0.0f64; cores];
    let mut times: Vec<f64> = due
        .iter()
        .map(|due| {
            free.sort_by(f64::total_cmp);
            free[0] = free[0].max(due.as_secs_f64()) + takes;
            (free[0] - due.as_secs_f64()) / takes
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN);
    (at(0.5), at(0.99))
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
    fn an_ideal_server_makes_bunches_wait_and_nobody_else() {
        let even = Arrivals::EvenShareOfPeak(0.7).moments(600.0, 1, 100.0);
        let (p50, p99) = ideal(&even, 2, 100.0);
        assert!(even.len().abs_diff(42_000) <= 1, "{}", even.len());
        assert!((p50 - 1.0).abs() < 1e-6 && (p99 - 1.0).abs() < 1e-6, "{p50} {p99}");
        let (p50, p99) = ideal(&Arrivals::ShareOfPeak(0.7).moments(600.0, 1, 100.0), 2, 100.0);
        // M/D/2 at 70 %, from a simulation of 180,000 requests elsewhere: 1.15 and 4.1.
        assert!((p50 - 1.15).abs() < 0.05 && (p99 - 4.1).abs() < 0.4, "{p50} {p99}");
    }

    #[test]
    fn bursts_arrive_together() {
        let moments = Arrivals::Bursts { size: 3, every: 0.5 }.moments(1.0, 1, 0.0);
        assert_eq!(moments.iter().map(Duration::as_millis).collect::<Vec<_>>(), [0, 0, 0, 500, 500, 500]);
    }
}
