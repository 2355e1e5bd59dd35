//! One context of a study, and the result of each policy on it.

use std::time::Duration;

use kvasir_client::tuning::{DecodeModel, FetchPlan, FetcherConfig, RecomputeModel};
use kvasir_types::{CHUNK_TOKENS_DEFAULT, TokenRange};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{StreamStudy, StudyPolicy};
use crate::streaming::{
    Batch, Batcher, Ladder, LoadSpec, Noise, Outcome, Simulation, SimulationConfig, Trace, oracle,
    published_rule,
};

/// Seed offset, so that the prefills observed before a load differ from those during it.
const PREFILLS_SEED: u64 = 0x5eed;
/// Seed offset, so that the GPU's noise is not drawn with the link's numbers.
const NOISE_SEED: u64 = 0x6e_6f69_7365;

/// A link, and the contexts that are loaded over it at the same time. Drawn once, and the same for every policy,
/// ladder and SLO.
#[derive(Debug, Clone)]
pub struct Case {
    /// Link, GPU and decoder.
    pub simulation: SimulationConfig,
    /// Tokens of each context.
    pub lengths: Vec<u64>,
    /// When each is requested, in order.
    pub arrivals: Vec<Duration>,
}

impl StreamStudy {
    /// The `context`-th case of a set, named by its index and name.
    pub fn case(&self, (index, set): (usize, &str), context: usize) -> Case {
        let seed = self.seed ^ (index as u64) << 40 ^ (context as u64) << 8;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let simulation = SimulationConfig {
            link: self.bandwidth.draw(set, &mut rng),
            first_byte: self.first_byte,
            recompute: self.engine.recompute.clone().with_gpu_speed(self.gpu_truth),
            decode: DecodeModel::from_seconds(self.engine.decode_per_token / self.decode_truth, 0.0),
            sharing: self.sharing,
            text_mode: self.text_mode,
            noise: Noise { gpu: self.gpu_jitter, late: self.late, seed: seed ^ NOISE_SEED },
        };
        let mut length = || rng.random_range(self.tokens.0..=self.tokens.1);
        let lengths = (0..self.concurrent).map(|_| length()).collect();
        let mut arrivals = vec![Duration::ZERO; self.concurrent];
        if !self.spread.is_zero() {
            arrivals.iter_mut().for_each(|at| *at = self.spread.mul_f64(rng.random_range(0.0..1.0)));
            arrivals.sort();
        }
        Case { simulation, lengths, arrivals }
    }

    /// The load of a context. Its client has just waited for the answer to a lookup, so it knows the time to a first byte.
    pub fn plan(&self, ladder: &Ladder, tokens: u64, slo: Duration) -> FetchPlan {
        let plan = self.engine.plan(ladder, tokens, CHUNK_TOKENS_DEFAULT as u64, slo);
        FetchPlan { first_byte: Some(self.first_byte), ..plan }
    }

    /// The oracle's result for each context. With several contexts, each is treated as if it had its fair
    /// share of the link and the GPU, which all of them can have.
    pub fn possible(&self, case: &Case, ladder: &Ladder, slo: Duration) -> Vec<Outcome> {
        let mut simulation = case.simulation.clone();
        if self.concurrent > 1 {
            let share = 1.0 / self.concurrent as f64;
            simulation.link = simulation.link.scaled(share);
            simulation.recompute = simulation.recompute.with_gpu_speed(share);
        }
        let requests = case.lengths.iter().zip(&case.arrivals);
        requests.map(|(&tokens, &at)| oracle(&self.plan(ladder, tokens, slo), &simulation, at)).collect()
    }

    /// A policy's results, and its decisions.
    pub fn simulate(
        &self,
        policy: StudyPolicy,
        case: &Case,
        ladder: &Ladder,
        slo: Duration,
    ) -> (Vec<Outcome>, Trace) {
        if policy == StudyPolicy::CacheGenPublished {
            let plans = case.lengths.iter().map(|&n| self.plan(ladder, n, slo));
            return (plans.map(|plan| published_rule(&plan, &case.simulation.link)).collect(), Trace::new());
        }
        let eight_bits = Ladder::int8();
        let ladder = if policy == StudyPolicy::Int8 { &eight_bits } else { ladder };
        let starts = self.starts(policy, case);
        let (recompute, decode) = self.believed(case);
        let loads =
            starts.iter().zip(&case.lengths).zip(&case.arrivals).map(|((start, &tokens), &arrival)| {
                let (built, estimator) = policy.build(ladder, start.sharing.clone(), &case.simulation.link);
                let mut plan = self.plan(ladder, tokens, slo);
                plan.slo = slo.saturating_sub(start.at - arrival);
                plan.prior_rate = case.simulation.link.rate_before(start.at).filter(|_| self.known_link);
                LoadSpec {
                    arrival: start.at,
                    plan,
                    policy: built,
                    config: FetcherConfig {
                        estimator,
                        recompute: recompute.clone(),
                        decode: decode.clone(),
                        text_mode: self.text_mode,
                        decodes_on_gpu: false,
                    },
                }
            });
        let (mut outcomes, trace) =
            Simulation::run(case.simulation.clone(), loads.collect()).unwrap_or_default();
        for ((outcome, start), &arrival) in outcomes.iter_mut().zip(&starts).zip(&case.arrivals) {
            outcome.ttft += start.at - arrival;
        }
        (outcomes, trace)
    }

    /// The client's estimate of the GPU after the prefills and decodes that it observed: chunks of one context, from
    /// the start, repeatedly.
    fn believed(&self, case: &Case) -> (RecomputeModel, DecodeModel) {
        let (truth, noise) = (&case.simulation, case.simulation.noise);
        let mut recompute = self.engine.recompute.clone();
        let mut decode = DecodeModel::from_seconds(self.engine.decode_per_token, 0.0);
        let mut dice = ChaCha8Rng::seed_from_u64(noise.seed ^ PREFILLS_SEED);
        let size = CHUNK_TOKENS_DEFAULT as u64;
        let chunks = (self.tokens.0 / size).max(1);
        for start in (0..chunks).cycle().take(self.prefills).map(|i| i * size) {
            let tokens = TokenRange { start, end: start + size };
            recompute.observe(tokens, noise.draw(truth.recompute.predict(tokens), &mut dice));
            decode.observe(size, 0, noise.draw(truth.decode.predict(size, 0), &mut dice));
        }
        (recompute, decode)
    }

    /// When each request starts: immediately or, with CacheGen's policies, with its batch.
    fn starts(&self, policy: StudyPolicy, case: &Case) -> Vec<Start> {
        if !policy.is_batched() {
            return case.arrivals.iter().map(|&at| Start { at, sharing: Vec::new() }).collect();
        }
        let mut batcher = Batcher::new(self.batch.0, self.batch.1);
        let mut starts = Vec::new();
        let mut begin = |batch: Option<Batch<()>>, at: Duration| {
            let Some(Batch { requests, sharing }) = batch else { return };
            starts.extend(requests.iter().map(|()| Start { at, sharing: sharing.clone() }));
        };
        for (&tokens, &at) in case.lengths.iter().zip(&case.arrivals) {
            if let Some(closes) = batcher.closes_at().filter(|&closes| closes <= at) {
                begin(batcher.due(closes), closes);
            }
            let chunks = tokens.div_ceil(CHUNK_TOKENS_DEFAULT as u64) as usize;
            begin(batcher.arrive((), chunks, at), at);
        }
        // If no further request can arrive, the last batch does not wait.
        let last = case.arrivals.last().copied().unwrap_or_default();
        let closes = batcher.closes_at().unwrap_or(last);
        begin(batcher.due(closes), if self.spread.is_zero() { last } else { closes });
        starts
    }
}

/// When a request starts, and with which others.
struct Start {
    at: Duration,
    /// N_c of its batch.
    sharing: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::streaming::study::Bandwidth;

    #[test]
    fn the_noise_is_not_drawn_with_the_numbers_of_the_link() {
        let study = StreamStudy::paper(Bandwidth::Random(0.1, 10.0), 1, vec![Duration::from_secs(1)]);
        let simulation = study.case((0, "random:0.1-10"), 0).simulation;
        let mut dice = ChaCha8Rng::seed_from_u64(simulation.noise.seed);
        assert_ne!(study.bandwidth.draw("random:0.1-10", &mut dice), simulation.link);
    }

    #[test]
    fn a_slower_decoder_is_believed_once_it_was_observed() {
        let links = Bandwidth::Random(1.0, 2.0);
        let mut study =
            StreamStudy { decode_truth: 0.1, ..StreamStudy::paper(links, 1, vec![Duration::from_secs(1)]) };
        let case = study.case((0, "random:1-2"), 0);
        let chunk = |model: &DecodeModel| model.predict(1536, 0).as_secs_f64() * 1e3;
        assert!((chunk(&case.simulation.decode) - 20.0).abs() < 1e-3);
        assert!((chunk(&study.believed(&case).1) - 2.0).abs() < 1e-3);
        study.prefills = 30;
        assert!((chunk(&study.believed(&case).1) - 20.0).abs() < 0.1);
    }
}
