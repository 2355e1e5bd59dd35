//! `kvasir sim stream`: every policy over the same contexts, links and ladders.

mod bandwidth;
mod figures;
mod policy;
mod rows;

use std::time::Duration;

pub use bandwidth::{BadRange, Bandwidth};
pub use figures::{Cost, Curve, Figures, HeatCell};
use kvasir_client::fetcher::{DecodeModel, FetchPlan, FetcherConfig, TextMode};
use kvasir_types::CHUNK_TOKENS_DEFAULT;
pub use policy::StudyPolicy;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
pub use rows::{COUNTED_VIOLATIONS, StreamReport, StreamRow, Summary};

use super::{
    Engine, Ladder, LinkRate, LoadSpec, Outcome, Sharing, World, WorldConfig, oracle, published_rule,
};

/// LongChat's context lengths in the paper (9.2–9.6 K tokens).
pub const LONGCHAT_TOKENS: (u64, u64) = (9_200, 9_600);
/// Means that recorded series are scaled to, in Gb/s.
pub const SERIES_MEAN_GBPS: (f64, f64) = (0.2, 10.0);

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
        StreamReport::new(rows)
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

    fn plan(&self, ladder: &Ladder, tokens: u64, slo: Duration) -> FetchPlan {
        self.engine.plan(ladder, tokens, CHUNK_TOKENS_DEFAULT as u64, slo)
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

    /// With several requests: as if each had its fair share of the link and the GPU, which all of them can have.
    fn oracle(&self, world: &WorldConfig, ladder: &Ladder, tokens: u64, slo: Duration) -> Outcome {
        let plan = self.plan(ladder, tokens, slo);
        if self.concurrent <= 1 {
            return oracle(&plan, world, Duration::ZERO);
        }
        let share = 1.0 / self.concurrent as f64;
        let mut fair = world.clone();
        fair.link = fair.link.scaled(share);
        fair.recompute = fair.recompute.with_gpu_share(share);
        oracle(&plan, &fair, Duration::ZERO)
    }

    fn simulate(
        &self,
        policy: StudyPolicy,
        world: &WorldConfig,
        ladder: &Ladder,
        lengths: &[u64],
        slo: Duration,
    ) -> Vec<Outcome> {
        if policy == StudyPolicy::CacheGenPublished {
            let plans = lengths.iter().map(|&n| self.plan(ladder, n, slo));
            return plans.map(|plan| published_rule(&plan, &world.link)).collect();
        }
        let eight_bits = Ladder::int8();
        let ladder = if policy == StudyPolicy::Int8 { &eight_bits } else { ladder };
        let chunks = |tokens: u64| tokens.div_ceil(CHUNK_TOKENS_DEFAULT as u64);
        let longest = lengths.iter().copied().map(chunks).max().unwrap_or(0);
        let contain = |c: u64| lengths.iter().filter(|&&tokens| chunks(tokens) > c).count() as u32;
        let sharing: Vec<u32> = (0..longest).map(contain).collect();
        let loads = lengths.iter().map(|&tokens| {
            let (built, estimator) = policy.build(ladder, sharing.clone());
            LoadSpec {
                arrival: Duration::ZERO,
                plan: self.plan(ladder, tokens, slo),
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
