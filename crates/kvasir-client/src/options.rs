//! What an engine asks of a load.

use std::time::Duration;

use tokio::time::Instant;

use crate::limits::DEADLINE_NONE;

/// When the first token is due. The time goes on from when this is made, so it covers lookup and load together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline(Instant);

impl Deadline {
    /// `time` from now.
    pub fn within(time: Duration) -> Self {
        Self(Instant::now() + time.min(DEADLINE_NONE))
    }

    /// At an instant.
    pub fn at(at: std::time::Instant) -> Self {
        Self(at.into())
    }

    /// No deadline: an hour.
    pub fn none() -> Self {
        Self::within(DEADLINE_NONE)
    }

    pub(crate) const fn instant(&self) -> Instant {
        self.0
    }

    /// Time that is left.
    pub fn left(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// The worst quality that loads may bring. Quality is the profile's predicted logit KL of a level, plus that of the prefix that
/// a chunk was computed over, in nats a token.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub enum Quality {
    /// Whatever the deadline allows: the finest level where there is time, a coarser one where there is not.
    #[default]
    Adaptive,
    /// At most this predicted KL. What is stored beneath that quality is computed, whatever the deadline. Chunks of a profile
    /// whose KL is not known are computed, too.
    KlAtMost(f64),
}

impl Quality {
    /// The bound, in nats a token.
    pub(crate) const fn kl_max(self) -> f64 {
        match self {
            Self::Adaptive => f64::INFINITY,
            Self::KlAtMost(nats) => nats,
        }
    }
}
