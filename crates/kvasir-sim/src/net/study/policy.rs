//! The policies of a study.

use kvasir_client::fetcher::{
    CacheGen, EstimatorKind, Fixed, Policy, Progressive, Status, Step, TextMode, View,
};
use kvasir_types::Level;

use crate::net::Ladder;

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
    /// Algorithm 1 with the harmonic mean of 20 samples (B).
    CacheGenHarmonic,
    /// The rule of CacheGen's own simulation, which knows each chunk's bandwidth beforehand
    /// ([`published_rule`](crate::net::published_rule)).
    CacheGenPublished,
    /// Kvasir's.
    Progressive,
    /// Kvasir's where the GPU is for others too: computes only what the deadline needs.
    ProgressiveSparing,
    /// Knows the future.
    Oracle,
}

impl StudyPolicy {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Text,
        Self::Int8,
        Self::Fixed,
        Self::CacheGen,
        Self::CacheGenHarmonic,
        Self::CacheGenPublished,
        Self::Progressive,
        Self::ProgressiveSparing,
        Self::Oracle,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Int8 => "int8",
            Self::Fixed => "fixed",
            Self::CacheGen => "cachegen",
            Self::CacheGenHarmonic => "cachegen-harmonic",
            Self::CacheGenPublished => "cachegen-published",
            Self::Progressive => "progressive",
            Self::ProgressiveSparing => "progressive-sparing",
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

    /// The policy and its estimator. `sharing` is the batch's N_c per chunk index. The published ones never give up.
    pub(super) fn build(self, ladder: &Ladder, sharing: Vec<u32>) -> (Box<dyn Policy>, EstimatorKind) {
        let second_finest = Level(ladder.bits.len().saturating_sub(2) as u8);
        let cachegen = |sharing| Box::new(CacheGen::batched(sharing).without_giving_up());
        match self {
            Self::Text => (Box::new(AllText), EstimatorKind::Harmonic),
            Self::Int8 => (Box::new(Fixed::new(Level(0)).without_giving_up()), EstimatorKind::Harmonic),
            Self::Fixed => (Box::new(Fixed::new(second_finest).without_giving_up()), EstimatorKind::Harmonic),
            Self::CacheGen => (cachegen(sharing), EstimatorKind::LastChunk),
            Self::CacheGenHarmonic => (cachegen(sharing), EstimatorKind::Harmonic),
            Self::ProgressiveSparing => (Box::new(Progressive::sparing()), EstimatorKind::Harmonic),
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

    fn next(&mut self, view: &View<'_>) -> Step {
        let open = view.open().find(|(_, state, _)| state.status == Status::Idle);
        open.map_or(Step::Wait { until: None }, |(chunk, ..)| Step::Text { chunk })
    }

    fn may_give_up(&self, _: TextMode) -> bool {
        false
    }
}
