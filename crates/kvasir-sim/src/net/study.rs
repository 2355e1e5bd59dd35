//! `kvasir sim stream`: every policy over the same contexts, links and ladders.

use std::time::Duration;

use kvasir_client::fetcher::{
    CacheGen, DecodeModel, EstimatorKind, FetcherConfig, Fixed, Policy, Progressive, TextMode,
};
use kvasir_types::{CHUNK_TOKENS_DEFAULT, Level};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use super::{Engine, Ladder, LinkRate, LoadSpec, Outcome, Sharing, World, WorldConfig, oracle};
use crate::link::BandwidthSeries;

/// LongChat's context lengths in the paper (9.2–9.6 K tokens).
pub const LONGCHAT_TOKENS: (u64, u64) = (9_200, 9_600);
/// Means that recorded series are scaled to, in Gb/s.
pub const SERIES_MEAN_GBPS: (f64, f64) = (0.2, 10.0);

/// Where the links come from.
#[derive(Debug, Clone, PartialEq)]
pub enum Bandwidth {
    /// The rate of every chunk's transfer is drawn uniformly from this range in Gb/s (the paper's setting).
    Random(f64, f64),
    /// Series: one is drawn for each context with a random start, scaled to a mean drawn (log-uniformly) from
    /// this range in Gb/s when one is given.
    Series(Vec<BandwidthSeries>, Option<(f64, f64)>),
}

/// A bandwidth argument that is no range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no bandwidth range: write random:LO-HI in Gb/s, e.g. random:0.1-10, with 0 < LO <= HI")]
pub struct BadRange {
    /// What was given.
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

    fn sets(&self) -> Vec<String> {
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

    fn draw(&self, set: &str, rng: &mut ChaCha8Rng) -> LinkRate {
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

/// A policy of a study, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StudyPolicy {
    /// 8 bits, always, no fall-back: the papers' baseline.
    Int8,
    /// The ladder's second-finest level, always.
    Fixed,
    /// Algorithm 1 with the last chunk's throughput (A).
    CacheGen,
    /// Algorithm 1 with the harmonic mean of 20 samples (B).
    CacheGenHarmonic,
    /// Kvasir's.
    Progressive,
    /// Knows the future.
    Oracle,
}

impl StudyPolicy {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Int8, Self::Fixed, Self::CacheGen, Self::CacheGenHarmonic, Self::Progressive, Self::Oracle];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Fixed => "fixed",
            Self::CacheGen => "cachegen",
            Self::CacheGenHarmonic => "cachegen-harmonic",
            Self::Progressive => "progressive",
            Self::Oracle => "oracle",
        }
    }

    /// The policies of an argument: `all` or names separated by commas.
    pub fn parse(text: &str) -> Option<Vec<Self>> {
        if text == "all" {
            return Some(Self::ALL.to_vec());
        }
        text.split(',').map(|name| Self::ALL.into_iter().find(|p| p.name() == name.trim())).collect()
    }

    fn build(self, ladder: &Ladder, sharing: Vec<u32>) -> (Box<dyn Policy>, EstimatorKind) {
        let second_finest = Level(ladder.bits.len().saturating_sub(2) as u8);
        match self {
            Self::Int8 => (Box::new(Fixed::new(Level(0)).without_giving_up()), EstimatorKind::Harmonic),
            Self::Fixed => (Box::new(Fixed::new(second_finest).without_giving_up()), EstimatorKind::Harmonic),
            Self::CacheGen => (Box::new(CacheGen::batched(sharing).without_giving_up()), EstimatorKind::LastChunk),
            Self::CacheGenHarmonic => (Box::new(CacheGen::batched(sharing).without_giving_up()), EstimatorKind::Harmonic),
            Self::Progressive | Self::Oracle => (Box::new(Progressive::new()), EstimatorKind::Harmonic),
        }
    }
}

/// A study's settings.
#[derive(Debug, Clone)]
pub struct StreamStudy {
    /// The links.
    pub bandwidth: Bandwidth,
    /// Contexts per set (each is run under every policy, ladder and SLO).
    pub contexts: usize,
    /// The SLOs.
    pub slos: Vec<Duration>,
    /// The policies.
    pub policies: Vec<StudyPolicy>,
    /// The ladders.
    pub ladders: Vec<Ladder>,
    /// The engine.
    pub engine: Engine,
    /// Context lengths, drawn uniformly.
    pub tokens: (u64, u64),
    /// Requests that share link and GPU, all arriving together.
    pub concurrent: usize,
    /// From request to first byte.
    pub first_byte: Duration,
    /// How they share the link.
    pub sharing: Sharing,
    /// One seed gives one result.
    pub seed: u64,
}

impl StreamStudy {
    /// The paper's setting on `bandwidth`.
    pub fn paper(bandwidth: Bandwidth, contexts: usize, slos: Vec<Duration>) -> Self {
        Self {
            bandwidth,
            contexts,
            slos,
            policies: StudyPolicy::ALL.to_vec(),
            ladders: vec![Ladder::paper(), Ladder::basis()],
            engine: Engine::mistral_7b_a40(),
            tokens: LONGCHAT_TOKENS,
            concurrent: 1,
            first_byte: Duration::from_millis(2),
            sharing: Sharing::RoundRobin,
            seed: 1,
        }
    }

    /// Runs every policy on every set, SLO and ladder.
    pub fn run(&self) -> StreamReport {
        let mut rows = Vec::new();
        for (s, set) in self.bandwidth.sets().iter().enumerate() {
            for &slo in &self.slos {
                for ladder in &self.ladders {
                    self.run_cell(s, set, slo, ladder, &mut rows);
                }
            }
        }
        StreamReport { rows }
    }

    fn run_cell(
        &self,
        set_index: usize,
        set: &str,
        slo: Duration,
        ladder: &Ladder,
        rows: &mut Vec<StreamRow>,
    ) {
        let mut columns: Vec<Vec<Outcome>> = vec![Vec::new(); self.policies.len()];
        let mut possible = Vec::new();
        for context in 0..self.contexts {
            let seed = self.seed ^ (set_index as u64) << 40 ^ (context as u64) << 8;
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let world = self.world(self.bandwidth.draw(set, &mut rng));
            let lengths: Vec<u64> =
                (0..self.concurrent).map(|_| rng.random_range(self.tokens.0..=self.tokens.1)).collect();
            let best: Vec<Outcome> = lengths.iter().map(|&n| self.oracle(&world, ladder, n, slo)).collect();
            possible.extend(best.iter().map(|o| o.met));
            for (policy, column) in self.policies.iter().zip(&mut columns) {
                match policy {
                    StudyPolicy::Oracle => column.extend(best.iter().cloned()),
                    _ => column.extend(self.simulate(*policy, &world, ladder, &lengths, slo)),
                }
            }
        }
        for (policy, outcomes) in self.policies.iter().zip(columns) {
            rows.push(StreamRow::of(policy.name(), set, ladder.name, slo, &outcomes, &possible));
        }
    }

    fn world(&self, link: LinkRate) -> WorldConfig {
        WorldConfig {
            link,
            first_byte: self.first_byte,
            recompute: self.engine.recompute.clone(),
            decode: DecodeModel::from_seconds(self.engine.decode_per_token, 0.0),
            sharing: self.sharing,
        }
    }

    /// With several requests: as if each had the link and the GPU to itself, hence a bound on each.
    fn oracle(&self, world: &WorldConfig, ladder: &Ladder, tokens: u64, slo: Duration) -> Outcome {
        let plan = self.engine.plan(ladder, tokens, CHUNK_TOKENS_DEFAULT as u64, slo);
        oracle(&plan, world, Duration::ZERO)
    }

    fn simulate(
        &self,
        policy: StudyPolicy,
        world: &WorldConfig,
        ladder: &Ladder,
        lengths: &[u64],
        slo: Duration,
    ) -> Vec<Outcome> {
        let eight_bits = Ladder::int8();
        let ladder = if policy == StudyPolicy::Int8 { &eight_bits } else { ladder };
        let loads = lengths.iter().map(|&tokens| {
            let (built, estimator) = policy.build(ladder, vec![lengths.len() as u32; 64]);
            LoadSpec {
                arrival: Duration::ZERO,
                plan: self.engine.plan(ladder, tokens, CHUNK_TOKENS_DEFAULT as u64, slo),
                policy: built,
                config: FetcherConfig {
                    estimator,
                    recompute: self.engine.recompute.clone(),
                    decode: world.decode.clone(),
                    text_mode: TextMode::Overlapped,
                },
            }
        });
        World::run(world.clone(), loads.collect()).map(|(outcomes, _)| outcomes).unwrap_or_default()
    }
}

/// What `--json` prints.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StreamReport {
    /// One row per policy, set, ladder and SLO.
    pub rows: Vec<StreamRow>,
}

/// One policy on one set of links.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StreamRow {
    /// The policy.
    pub policy: String,
    /// The set of links.
    pub set: String,
    /// The size ladder (the `int8` policy has its own sizes in any).
    pub ladder: String,
    /// The SLO in milliseconds.
    pub slo_ms: f64,
    /// Requests run.
    pub requests: usize,
    /// Share that missed the SLO.
    pub violation_rate: f64,
    /// Share that missed it although the oracle meets it.
    pub avoidable_violation_rate: f64,
    /// Median TTFT in milliseconds.
    pub ttft_ms_p50: f64,
    /// 95th percentile of the TTFT in milliseconds.
    pub ttft_ms_p95: f64,
    /// Mean over requests of the token mean of 1 − loss.
    pub quality: f64,
    /// Mean bytes on the wire a request.
    pub bytes: f64,
}

impl StreamRow {
    fn of(
        policy: &str,
        set: &str,
        ladder: &str,
        slo: Duration,
        outcomes: &[Outcome],
        possible: &[bool],
    ) -> Self {
        let count = outcomes.len().max(1) as f64;
        let mut ttfts: Vec<f64> = outcomes.iter().map(|o| o.ttft.as_secs_f64() * 1e3).collect();
        ttfts.sort_by(f64::total_cmp);
        let quantile = |q: f64| {
            let rank = (q * ttfts.len() as f64).ceil() as usize;
            ttfts.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
        };
        let missed = outcomes.iter().filter(|o| !o.met).count();
        let avoidable = outcomes.iter().zip(possible).filter(|(o, possible)| !o.met && **possible).count();
        Self {
            policy: policy.to_owned(),
            set: set.to_owned(),
            ladder: ladder.to_owned(),
            slo_ms: slo.as_secs_f64() * 1e3,
            requests: outcomes.len(),
            violation_rate: missed as f64 / count,
            avoidable_violation_rate: avoidable as f64 / count,
            ttft_ms_p50: quantile(0.5),
            ttft_ms_p95: quantile(0.95),
            quality: outcomes.iter().map(|o| o.quality).sum::<f64>() / count,
            bytes: outcomes.iter().map(|o| o.bytes as f64).sum::<f64>() / count,
        }
    }
}
