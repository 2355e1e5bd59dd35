//! The paper's other figures, as curves: bandwidth and context sweeps, violations against quality, the gain over
//! bandwidth and GPU share, and storing against recomputing.

use std::time::Duration;

use serde::Serialize;

use super::{Bandwidth, StreamRow, StreamStudy, StudyPolicy};
use kvasir_replay::link::BandwidthSeries;

use crate::streaming::{Engine, Ladder};

/// Techniques that the sweeps compare.
const SWEPT: [StudyPolicy; 5] = [
    StudyPolicy::Text,
    StudyPolicy::Int8,
    StudyPolicy::Fixed,
    StudyPolicy::CacheGen,
    StudyPolicy::Progressive,
];
/// Fig. 11.
const SWEEP_GBPS: [f64; 10] = [0.4, 1.0, 2.0, 4.0, 8.0, 15.0, 40.0, 100.0, 200.0, 400.0];
/// Fig. 12, left; chunks of 1,536 tokens.
const SWEEP_TOKENS: [u64; 8] = [100, 500, 1_000, 2_000, 4_000, 8_000, 12_000, 15_000];
/// Fig. 12, right.
const SWEEP_REQUESTS: [usize; 5] = [1, 2, 4, 6, 8];
/// Fig. 13.
const SWEEP_SLO_MS: [u64; 6] = [250, 500, 750, 1_000, 1_500, 2_000];
/// Fig. 19.
const HEAT_GBPS: [f64; 7] = [0.5, 1.0, 3.0, 6.0, 12.0, 25.0, 50.0];
/// Fig. 19: the share of the GPU that the request gets.
const HEAT_SHARE: [f64; 5] = [1.0, 0.5, 0.33, 0.2, 0.1];
/// The link of the sweeps over other things, as in the paper.
const LINK_GBPS: f64 = 3.0;

/// A technique over one variable.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// The technique.
    pub policy: String,
    /// The variable, and the result for it.
    pub points: Vec<(f64, StreamRow)>,
}

/// One cell of the heat map.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct HeatCell {
    /// Gb/s.
    pub gbps: f64,
    /// Share of the GPU.
    pub gpu_share: f64,
    /// TTFT of the better of text and 8 bits over ours.
    pub gain: f64,
}

/// Storing against recomputing.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Cost {
    /// Storing one context of 9.4 K tokens, all levels of the ladder nested, US$ per month.
    pub store_month: f64,
    /// The same as separate versions, one a level (CacheGen's).
    pub store_versions_month: f64,
    /// Recomputing it once, US$.
    pub recompute: f64,
}

impl Cost {
    /// Object storage, US$ a GB and month (list price of large providers' standard class).
    pub const STORE_GB_MONTH: f64 = 0.023;
    /// One A40-class GPU, US$ an hour (typical on-demand price).
    pub const GPU_HOUR: f64 = 0.79;

    /// From the paper's sizes and the engine's prefill time.
    pub fn of(engine: &Engine) -> Self {
        let plan = |ladder: &Ladder| engine.plan(ladder, 9_400, 1_536, Duration::from_secs(1));
        let ladder = Ladder::paper();
        let gigabytes = |levels: usize| -> f64 {
            let chunk_bytes = |c: &kvasir_client::tuning::PlannedChunk| -> u64 {
                c.level_bytes.iter().rev().take(levels).sum()
            };
            plan(&ladder).chunks.iter().map(chunk_bytes).sum::<u64>() as f64 / 1e9
        };
        let range = kvasir_types::TokenRange { start: 0, end: 9_400 };
        Self {
            store_month: gigabytes(1) * Self::STORE_GB_MONTH,
            store_versions_month: gigabytes(ladder.bits.len()) * Self::STORE_GB_MONTH,
            recompute: engine.recompute.predict(range).as_secs_f64() / 3_600.0 * Self::GPU_HOUR,
        }
    }

    /// Reuses per month from which storing is cheaper.
    pub fn break_even(&self) -> f64 {
        self.store_month / self.recompute
    }
}

/// One point of a curve.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SweepRow {
    /// The curve's figure: `bandwidth`, `context`, `requests` or `slo`.
    pub figure: &'static str,
    /// The variable: Gb/s, tokens, requests or milliseconds.
    pub x: f64,
    /// The result.
    #[serde(flatten)]
    pub row: StreamRow,
}

/// All of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    /// TTFT over bandwidth in Gb/s (Fig. 11).
    pub bandwidth: Vec<Curve>,
    /// TTFT over context length in tokens at 3 Gb/s (Fig. 12).
    pub context: Vec<Curve>,
    /// TTFT over concurrent requests at 3 Gb/s (Fig. 12).
    pub requests: Vec<Curve>,
    /// Violations and quality per SLO in ms on the study's first set (Fig. 13).
    pub slo: Vec<Curve>,
    /// Gain over bandwidth and GPU share (Fig. 19).
    pub heat: Vec<HeatCell>,
    /// Storing against recomputing (Appendix E).
    pub cost: Cost,
}

impl Figures {
    /// The curves, one row per point.
    pub fn rows(&self) -> Vec<SweepRow> {
        let figures = [
            ("bandwidth", &self.bandwidth),
            ("context", &self.context),
            ("requests", &self.requests),
            ("slo", &self.slo),
        ];
        let points = figures
            .into_iter()
            .flat_map(|(figure, curves)| curves.iter().flat_map(|c| &c.points).map(move |p| (figure, p)));
        points.map(|(figure, (x, row))| SweepRow { figure, x: *x, row: row.clone() }).collect()
    }

    /// Runs them in addition to `study`, with its engine, seed and first ladder.
    pub fn run(study: &StreamStudy) -> Self {
        let constant = |gbps: f64| {
            let series = BandwidthSeries::constant(gbps * 1e3).into_iter().collect();
            Bandwidth::Series(series, None)
        };
        let base = StreamStudy {
            ladders: study.ladders.iter().take(1).cloned().collect(),
            policies: SWEPT.to_vec(),
            contexts: 3,
            slos: vec![Duration::from_secs(1)],
            concurrent: 1,
            ..study.clone()
        };
        let with = |change: &dyn Fn(&mut StreamStudy)| {
            let mut own = base.clone();
            own.bandwidth = constant(LINK_GBPS);
            change(&mut own);
            own.run().rows
        };
        let mut slo_policies = SWEPT.to_vec();
        slo_policies.extend([StudyPolicy::ProgressiveSparing, StudyPolicy::Oracle]);
        let gain = |gbps: f64, gpu_share: f64| {
            let rows = with(&|s| {
                s.bandwidth = constant(gbps);
                s.engine = s.engine.clone().with_gpu_share(gpu_share);
                s.contexts = 1;
            });
            let ttft = |policy: StudyPolicy| {
                rows.iter().find(|r| r.policy == policy.name()).map_or(f64::NAN, |r| r.ttft_ms_p50)
            };
            ttft(StudyPolicy::Text).min(ttft(StudyPolicy::Int8)) / ttft(StudyPolicy::Fixed)
        };
        let cells = HEAT_GBPS.iter().flat_map(|&gbps| HEAT_SHARE.iter().map(move |&share| (gbps, share)));
        Self {
            bandwidth: curves(SWEEP_GBPS.map(|gbps| (gbps, with(&|s| s.bandwidth = constant(gbps))))),
            context: curves(SWEEP_TOKENS.map(|n| (n as f64, with(&|s| s.tokens = (n, n))))),
            requests: curves(SWEEP_REQUESTS.map(|n| (n as f64, with(&|s| s.concurrent = n)))),
            slo: curves(SWEEP_SLO_MS.map(|ms| {
                let rows = with(&|s| {
                    s.bandwidth = study.bandwidth.clone();
                    s.contexts = study.contexts.min(100);
                    s.slos = vec![Duration::from_millis(ms)];
                    s.policies.clone_from(&slo_policies);
                });
                let first = rows.first().map(|r| r.set.clone());
                (ms as f64, rows.into_iter().filter(|r| Some(&r.set) == first.as_ref()).collect())
            })),
            heat: cells
                .map(|(gbps, gpu_share)| HeatCell { gbps, gpu_share, gain: gain(gbps, gpu_share) })
                .collect(),
            cost: Cost::of(&study.engine),
        }
    }
}

fn curves<const N: usize>(points: [(f64, Vec<StreamRow>); N]) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for (x, rows) in points {
        for row in rows {
            match curves.iter_mut().find(|c| c.policy == row.policy) {
                Some(curve) => curve.points.push((x, row)),
                None => curves.push(Curve { policy: row.policy.clone(), points: vec![(x, row)] }),
            }
        }
    }
    curves
}
