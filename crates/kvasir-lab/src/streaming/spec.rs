//! The inputs and results of a simulation.

use std::time::Duration;

use kvasir_client::tuning::{
    ByteRate, DecodeModel, FetchPlan, FetcherConfig, Policy, RecomputeModel, TextMode,
};
use kvasir_types::Level;

use kvasir_replay::link::BandwidthSeries;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// Bytes are delivered in pieces of about this long on the wire.
const PIECE: Duration = Duration::from_millis(2);
/// Smallest and largest piece.
const PIECE_BYTES: (u64, u64) = (4 << 10, 8 << 20);

/// How long a client has measured the link that knows it before a load.
const BEFORE: Duration = Duration::from_secs(1);
/// The same where each chunk has a rate: this many chunks' rates.
const OTHERS: usize = 8;

/// How fast the link is.
#[derive(Debug, Clone, PartialEq)]
pub enum LinkRate {
    /// A bandwidth over time.
    Series(BandwidthSeries),
    /// One rate per chunk index, in megabits per second, whichever request carries its bytes: the paper's
    /// setting, which draws a new bandwidth for every chunk's transfer. Repeats past its end.
    PerChunk(Vec<f64>),
}

impl LinkRate {
    /// When `bytes` of `chunk` that start at `now` have arrived.
    pub fn time_after(&self, now: Duration, chunk: usize, bytes: u64) -> Duration {
        match self {
            Self::Series(series) => series.time_after(now, bytes),
            Self::PerChunk(rates) => {
                let mbps = rates.get(chunk % rates.len().max(1)).copied().unwrap_or(1.0).max(1e-3);
                now + Duration::from_secs_f64(bytes as f64 * 8.0 / (mbps * 1e6))
            }
        }
    }

    /// What a client measured that used the link in the second before `now`: of a series the mean, else the mean of rates
    /// that were drawn for other chunks.
    pub fn rate_before(&self, now: Duration) -> Option<ByteRate> {
        match self {
            Self::Series(series) => {
                // A series repeats, so the time before it is as that before any repetition.
                let period = Duration::from_secs_f64(series.period());
                let now = now + period.mul_f64((BEFORE.as_secs_f64() / series.period()).ceil());
                ByteRate::of(series.bytes_between(now.saturating_sub(BEFORE), now), BEFORE)
            }
            Self::PerChunk(rates) => {
                let others = rates.iter().rev().take(OTHERS);
                let (count, inverse) =
                    others.fold((0.0, 0.0), |(n, sum), mbps| (n + 1.0, sum + mbps.recip()));
                ByteRate::from_mbps(count / inverse)
            }
        }
    }

    /// The same link with every rate times `factor`.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        match self {
            Self::Series(series) => Self::Series(series.scaled(factor)),
            Self::PerChunk(rates) => Self::PerChunk(rates.into_iter().map(|rate| rate * factor).collect()),
        }
    }

    pub(super) fn piece_bytes(&self, now: Duration, chunk: usize) -> u64 {
        let probe = 1 << 20;
        let took = self.time_after(now, chunk, probe).saturating_sub(now).as_secs_f64().max(1e-9);
        let bytes = probe as f64 * PIECE.as_secs_f64() / took;
        (bytes as u64).clamp(PIECE_BYTES.0, PIECE_BYTES.1)
    }
}

/// The settings common to all loads.
#[derive(Debug, Clone)]
pub struct SimulationConfig {
    /// The link.
    pub link: LinkRate,
    /// From the request to its first byte on an idle link.
    pub first_byte: Duration,
    /// True prefill times (the loads' models are only predictions).
    pub recompute: RecomputeModel,
    /// True decode times.
    pub decode: DecodeModel,
    /// How loads share the link.
    pub sharing: Sharing,
    /// When text chunks are computed.
    pub text_mode: TextMode,
    /// How far the machine deviates from the assumed one.
    pub noise: Noise,
}

/// Random deviations of computing times and wake-up times. The same seed gives the same sequence.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Noise {
    /// Standard deviation of the logarithm of true prefill and decode times; each is drawn separately.
    pub gpu: f64,
    /// Decodes and wake-ups are late by up to this, uniformly.
    pub late: Duration,
    /// The seed.
    pub seed: u64,
}

impl Noise {
    /// How long a prefill or a decode takes that takes `mean` on an even GPU: log-normal; the sum of twelve
    /// uniform draws is the normal one.
    pub(super) fn draw(&self, mean: Duration, dice: &mut ChaCha8Rng) -> Duration {
        let normal = (0..12).map(|_| dice.random_range(0.0..1.0)).sum::<f64>() - 6.0;
        mean.mul_f64((self.gpu * normal).exp())
    }
}

/// How the bytes of several loads take turns on the link, whatever the loads leave to each other.
///
/// None of them goes by layer: a piece belongs to a chunk, which has all layers of its tokens and is decoded when
/// the whole prefix of a level is there, and the suffix is computed after the last chunk. A layer that came first
/// would end no load sooner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharing {
    /// Piece by piece in turn, as TCP flows of equal round trip do.
    #[default]
    RoundRobin,
    /// The load with the least time to its deadline first among those that can still make it.
    LeastSlack,
}

impl Sharing {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "equal",
            Self::LeastSlack => "slack",
        }
    }

    /// The sharing with this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::RoundRobin, Self::LeastSlack].into_iter().find(|sharing| sharing.name() == name)
    }
}

/// One load of a run.
#[derive(Debug)]
pub struct LoadSpec {
    /// When it begins.
    pub arrival: Duration,
    /// The plan to load.
    pub plan: FetchPlan,
    /// By which policy.
    pub policy: Box<dyn Policy>,
    /// With which models.
    pub config: FetcherConfig,
}

/// The result of a load.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Time to first token.
    pub ttft: Duration,
    /// Whether that is within the SLO.
    pub met: bool,
    /// Mean over tokens of 1 − loss; text loses nothing.
    pub quality: f64,
    /// Bytes on the wire.
    pub bytes: u64,
    /// Level per chunk; `None` for text.
    pub levels: Vec<Option<Level>>,
}

/// Mean over tokens of 1 − loss.
pub(super) fn quality(plan: &FetchPlan, levels: &[Option<Level>]) -> f64 {
    let tokens: u64 = plan.chunks.iter().map(|c| c.tokens.len()).sum();
    let lost: f64 = plan
        .chunks
        .iter()
        .zip(levels)
        .map(|(chunk, level)| level.map_or(0.0, |l| chunk.loss_at(l)) * chunk.tokens.len() as f64)
        .sum();
    1.0 - lost / (tokens.max(1) as f64)
}
