//! `kvasir sim stream`: every policy over the same contexts, links and ladders.

mod bandwidth;
mod case;
mod figures;
mod policy;
mod rows;

use std::time::Duration;

pub use bandwidth::{BadRange, Bandwidth};
pub use case::Case;
pub use figures::{Cost, Curve, Figures, HeatCell, SweepRow};
pub use policy::StudyPolicy;
pub use rows::{StreamReport, StreamRow, Summary};

use kvasir_client::tuning::TextMode;

use super::{Engine, Ladder, Outcome, Sharing};

/// LongChat's context lengths in the paper (9.2–9.6 K tokens).
pub const LONGCHAT_TOKENS: (u64, u64) = (9_200, 9_600);
/// Means that recorded series are scaled to, in Gb/s.
pub const SERIES_MEAN_GBPS: (f64, f64) = (0.2, 10.0);

/// Defaults of CacheGen's T and B: a fiftieth of a second, and the number of requests that one GPU server
/// runs at the same time.
pub const BATCH: (Duration, usize) = (Duration::from_millis(20), 8);

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
    /// Requests that share link and GPU.
    pub concurrent: usize,
    /// They arrive within this time of each other, drawn uniformly.
    pub spread: Duration,
    /// CacheGen's T and B: requests that arrive within T of the first are served together, at most B.
    pub batch: (Duration, usize),
    /// From request to first byte.
    pub first_byte: Duration,
    /// True speed of the GPU as a share of the speed that the loads assume at first.
    pub gpu_truth: f64,
    /// True speed of decoding as a share of the speed that the loads assume at first.
    pub decode_truth: f64,
    /// See [`Noise::gpu`](super::Noise::gpu).
    pub gpu_jitter: f64,
    /// Prefills and decodes of a chunk that the client observed before, as it observes those of its engine; 0 for
    /// its first load.
    pub prefills: usize,
    /// Whether the client has measured the link in the second before each load.
    pub known_link: bool,
    /// See [`Noise::late`](super::Noise::late).
    pub late: Duration,
    /// When text chunks are computed.
    pub text_mode: TextMode,
    /// How they share the link; loads by `progressive` also leave it to each other.
    pub sharing: Sharing,
    /// Seed; the same seed gives the same result.
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
            spread: Duration::ZERO,
            batch: BATCH,
            first_byte: Duration::from_millis(2),
            gpu_truth: 1.0,
            decode_truth: 1.0,
            gpu_jitter: 0.0,
            prefills: 0,
            known_link: false,
            late: Duration::ZERO,
            text_mode: TextMode::Overlapped,
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
            let case = self.case((set_index, set), context);
            let best = self.possible(&case, ladder, slo);
            possible.extend(best.iter().map(|o| o.met));
            for (policy, column) in self.policies.iter().zip(&mut columns) {
                match policy {
                    StudyPolicy::Oracle => column.extend(best.iter().cloned()),
                    _ => column.extend(self.simulate(*policy, &case, ladder, slo).0),
                }
            }
        }
        for (policy, outcomes) in self.policies.iter().zip(columns) {
            let row = StreamRow::of(policy.name(), set, ladder.name, self.sharing, slo, &outcomes, &possible);
            rows.push(row);
        }
    }
}
