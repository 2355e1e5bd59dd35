//! An engine's requirements for a load.

use std::time::Duration;

use kvasir_types::Quality;
use tokio::time::Instant;

use crate::{Error, limits::DEADLINE_NONE};

/// When the first token is due. The clock starts when this value is made, so it covers lookup and load
/// together.
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

    /// Remaining time.
    pub fn left(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// The lowest quality that loads may bring. Chunks stored at a lower quality are computed, whatever the
/// deadline. By default it is [`Quality::Transparent`], so that an object of unknown loss is never used
/// silently.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum QualityFloor {
    /// Whatever the deadline allows: the finest level if there is time, otherwise a coarser one. Its loss may
    /// be unknown.
    Adaptive,
    /// At most this predicted logit KL in nats per token: that of the profile's level plus that of the prefix
    /// that the chunk was computed over. Chunks of a profile with unknown KL are computed.
    KlAtMost(f64),
    /// At least this quality, by the errors that the encoder measured, including those beneath the chunk.
    /// Chunks without measured errors are computed.
    Named(Quality),
}

impl Default for QualityFloor {
    fn default() -> Self {
        Self::Named(Quality::Transparent)
    }
}

impl QualityFloor {
    /// Whether only the cache bit for bit is good enough.
    pub(crate) const fn is_exact(self) -> bool {
        matches!(self, Self::Named(Quality::Exact))
    }

    /// Checks that a load may have this soft floor under the floor.
    ///
    /// # Errors
    /// [`Error::Config`] unless the floor is a quality, and `soft` a lower one.
    pub(crate) fn check_soft(self, soft: Quality) -> Result<(), Error> {
        let what = match self {
            Self::Named(hard) if soft > hard => return Ok(()),
            Self::Named(hard) => {
                format!("a soft floor of {soft} is not below the floor {hard}: give a lower quality, or none")
            }
            Self::Adaptive | Self::KlAtMost(_) => {
                format!("a soft floor of {soft} needs a named floor above it: connect with a quality")
            }
        };
        Err(Error::Config { what })
    }
}

impl From<Quality> for QualityFloor {
    fn from(quality: Quality) -> Self {
        Self::Named(quality)
    }
}
