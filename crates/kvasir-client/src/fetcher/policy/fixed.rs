//! Every chunk at one level.

use kvasir_types::Level;

use super::{ChunkStatus, Policy, PolicyStep, PolicyView, TextMode, finish_held};

/// Requests in flight: the next one's round trip hides behind the bytes of the one before.
const DEPTH: usize = 2;

/// Every chunk at the same level, in order, regardless of the network: the behaviour of uniform quantisation.
#[derive(Debug, Clone, Copy)]
pub struct Fixed {
    level: Level,
    may_give_up: bool,
}

impl Fixed {
    /// All chunks at `level` (clamped to what each object has).
    pub const fn new(level: Level) -> Self {
        Self { level, may_give_up: true }
    }

    /// The baseline of the papers: it never falls back to text.
    #[must_use]
    pub const fn without_giving_up(mut self) -> Self {
        self.may_give_up = false;
        self
    }
}

impl Policy for Fixed {
    fn name(&self) -> &'static str {
        "fixed"
    }

    fn next(&mut self, view: &PolicyView<'_>) -> PolicyStep {
        if let Some(step) = finish_held(view) {
            return step;
        }
        let idle = view.open().find(|(_, state, _)| state.status == ChunkStatus::Idle);
        match idle {
            Some((chunk, _, plan)) if view.in_flight < DEPTH => {
                PolicyStep::Fetch { chunk, level: self.level.min(plan.top_level()) }
            }
            _ => PolicyStep::Wait { until: None },
        }
    }

    fn may_give_up(&self, _: TextMode) -> bool {
        self.may_give_up
    }
}
