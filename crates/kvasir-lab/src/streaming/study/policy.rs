//! The policies of a study.

use std::time::Duration;

use kvasir_client::tuning::{
    CacheGen, ChunkStatus, EstimatorKind, Fixed, Neighbours, Policy, PolicyStep, PolicyView, Progressive,
    TextMode,
};
use kvasir_types::Level;

use crate::streaming::{Foresight, Ladder, LinkRate};

/// Requests in flight of `cachegen-pipelined`.
const DEPTH: usize = 3;
/// How far `progressive-foresight` sees.
const FORESIGHT: Duration = Duration::from_millis(100);

/// A policy of a study, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StudyPolicy {
    /// Everything computed from text, nothing loaded.
    Text,
    /// 8 bits, always, no fall-back: the papers' baseline.
    Int8,
    /// The ladder's second-finest level, always.
    Fixed,
    /// Algorithm 1 with the last chunk's throughput (A).
    CacheGen,
    /// Algorithm 1 with as many requests in flight as Kvasir's policy uses when round trips are long, and the
    /// harmonic mean (B).
    CacheGenPipelined,
    /// Algorithm 1 with the harmonic mean of 20 samples (B).
    CacheGenHarmonic,
    /// The rule of CacheGen's own simulation, which knows each chunk's bandwidth beforehand
    /// ([`published_rule`](crate::streaming::published_rule)).
    CacheGenPublished,
    /// Kvasir's.
    Progressive,
    /// Kvasir's policy for loads that do not know what the others lack: none leaves the link to another.
    ProgressiveUnaware,
    /// Kvasir's policy for a GPU shared with others: computes only what the deadline requires.
    ProgressiveSparing,
    /// Kvasir's policy with the true mean rate of the link over the next 100 ms before each decision: the
    /// value of a perfect short-term estimator.
    ProgressiveForesight,
    /// Knows the future.
    Oracle,
}

impl StudyPolicy {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Text,
        Self::Int8,
        Self::Fixed,
        Self::CacheGen,
        Self::CacheGenPipelined,
        Self::CacheGenHarmonic,
        Self::CacheGenPublished,
        Self::Progressive,
        Self::ProgressiveUnaware,
        Self::ProgressiveSparing,
        Self::ProgressiveForesight,
        Self::Oracle,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Int8 => "int8",
            Self::Fixed => "fixed",
            Self::CacheGen => "cachegen",
            Self::CacheGenPipelined => "cachegen-pipelined",
            Self::CacheGenHarmonic => "cachegen-harmonic",
            Self::CacheGenPublished => "cachegen-published",
            Self::Progressive => "progressive",
            Self::ProgressiveUnaware => "progressive-unaware",
            Self::ProgressiveSparing => "progressive-sparing",
            Self::ProgressiveForesight => "progressive-foresight",
            Self::Oracle => "oracle",
        }
    }

    /// Whether requests wait for others to be served with.
    pub(super) const fn is_batched(self) -> bool {
        matches!(self, Self::CacheGen | Self::CacheGenPipelined | Self::CacheGenHarmonic)
    }

    /// The policies of an argument: `all` or names separated by commas.
    pub fn parse(text: &str) -> Option<Vec<Self>> {
        if text == "all" {
            return Some(Self::ALL.to_vec());
        }
        text.split(',').map(|name| Self::ALL.into_iter().find(|p| p.name() == name.trim())).collect()
    }

    /// The policy and its estimator. `sharing` is the batch's N_c per chunk index. The published policies
    /// never give up. `link` is for policies that look at it.
    pub(super) fn build(
        self,
        ladder: &Ladder,
        sharing: Vec<u32>,
        link: &LinkRate,
    ) -> (Box<dyn Policy>, EstimatorKind) {
        let second_finest = Level(ladder.bits.len().saturating_sub(2) as u8);
        let cachegen = |sharing| CacheGen::batched(sharing).without_giving_up();
        match self {
            Self::Text => (Box::new(AllText), EstimatorKind::Harmonic),
            Self::Int8 => (Box::new(Fixed::new(Level(0)).without_giving_up()), EstimatorKind::Harmonic),
            Self::Fixed => (Box::new(Fixed::new(second_finest).without_giving_up()), EstimatorKind::Harmonic),
            Self::CacheGen => (Box::new(cachegen(sharing)), EstimatorKind::LastChunk),
            // Requests in flight share the link: the last chunk's throughput is a third of it. The samples of the
            // harmonic mean are of the whole link.
            Self::CacheGenPipelined => {
                (Box::new(cachegen(sharing).pipelined(DEPTH)), EstimatorKind::Harmonic)
            }
            Self::CacheGenHarmonic => (Box::new(cachegen(sharing)), EstimatorKind::Harmonic),
            Self::ProgressiveUnaware => (Box::new(Unaware(Progressive::new())), EstimatorKind::Harmonic),
            Self::ProgressiveSparing => (Box::new(Progressive::sparing()), EstimatorKind::Harmonic),
            Self::ProgressiveForesight => {
                let policy = Foresight::new(Box::new(Progressive::new()), link.clone(), FORESIGHT);
                (Box::new(policy), EstimatorKind::Harmonic)
            }
            // The last two do not run on the core; see `StreamStudy`.
            Self::Progressive | Self::CacheGenPublished | Self::Oracle => {
                (Box::new(Progressive::new()), EstimatorKind::Harmonic)
            }
        }
    }
}

/// Loads nothing.
#[derive(Debug)]
struct AllText;

impl Policy for AllText {
    fn name(&self) -> &'static str {
        "text"
    }

    fn next(&mut self, view: &PolicyView<'_>) -> PolicyStep {
        let open = view.open().find(|(_, state, _)| state.status == ChunkStatus::Idle);
        open.map_or(PolicyStep::Wait { until: None }, |(chunk, ..)| PolicyStep::Text { chunk })
    }

    fn may_give_up(&self, _: TextMode) -> bool {
        false
    }
}

/// Knows how many other loads there are, since they share the GPU, but not the bytes that they lack.
#[derive(Debug)]
struct Unaware(Progressive);

impl Policy for Unaware {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn next(&mut self, view: &PolicyView<'_>) -> PolicyStep {
        let neighbours = Neighbours { loads: view.neighbours.loads, ..Neighbours::default() };
        self.0.next(&PolicyView { neighbours, ..*view })
    }

    fn may_give_up(&self, text_mode: TextMode) -> bool {
        self.0.may_give_up(text_mode)
    }
}

#[cfg(test)]
mod tests {
    use kvasir_client::tuning::{ByteRate, ChunkFetchState, DecodeModel};

    use super::*;
    use crate::streaming::Engine;

    /// A load with seconds to spare, and one with less that lacks bases: the bases of both take one second.
    #[test]
    fn only_a_load_that_knows_of_others_lets_them_go_first() {
        let engine = Engine::mistral_7b_a40_data_sheet();
        let plan = engine.plan(&Ladder::paper(), 9_216, 1536, Duration::from_secs(5));
        let rate = ByteRate::new(1.875e8);
        let view = PolicyView {
            now: Duration::ZERO,
            plan: &plan,
            chunks: &vec![ChunkFetchState::default(); plan.chunks.len()],
            rate,
            chunk_rate: rate,
            caution: 1.0,
            own_rates: &vec![None; plan.chunks.len()],
            first_byte: Duration::from_millis(2),
            first_due: Duration::ZERO,
            in_flight: 0,
            in_flight_bytes: 0,
            text_backlog: Duration::ZERO,
            overdue: 1.0,
            jitter: Duration::ZERO,
            text_mode: TextMode::Overlapped,
            decodes_on_gpu: false,
            // So many that the GPU cannot compute the context in time.
            neighbours: Neighbours { loads: 4, missing_bytes: 100_000_000, urgent_bytes: 100_000_000 },
            recompute: &engine.recompute,
            decode: &DecodeModel::from_seconds(engine.decode_per_token, 0.0),
        };
        let aware = Progressive::sparing().next(&view);
        assert!(matches!(aware, PolicyStep::Wait { .. }), "{aware:?}");
        let unaware = Unaware(Progressive::sparing()).next(&view);
        assert!(matches!(unaware, PolicyStep::Fetch { .. }), "{unaware:?}");
    }
}
