//! Admission policy of the save queue.

use std::collections::BTreeSet;

use kvasir_types::{LevelError, Loss, Name, Quality};

use crate::limits::{HOPS_MAX, STORE_TOKENS_MIN};

/// Selects the saves that a queue accepts: only contexts that are likely to be requested again.
#[derive(Debug, Clone, PartialEq)]
pub struct AdmissionPolicy {
    /// Fewest tokens of a context; shorter ones are recomputed in less time than a lookup takes.
    pub tokens_min: usize,
    /// Types of request to store; `None` for all. A session without a type matches no type.
    pub classes: Option<BTreeSet<Name>>,
    /// Largest predicted KL beneath stored KV, in nats per token: errors compound over turns. Default: twice
    /// that of the profile's finest level. If that is unknown, KV is stored if it was computed over loads of
    /// quality [`Transparent`](kvasir_types::Quality::Transparent), at most two in a chain.
    pub kl_beneath_max: Option<f64>,
}

impl Default for AdmissionPolicy {
    fn default() -> Self {
        Self { tokens_min: STORE_TOKENS_MIN, classes: None, kl_beneath_max: None }
    }
}

/// Why a save is refused.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SaveRefusal {
    /// Too short to be worth storing.
    #[error("{tokens} tokens are fewer than the minimum of {tokens_min} for storing")]
    TooShort {
        /// Tokens offered.
        tokens: usize,
        /// Minimum number of tokens.
        tokens_min: usize,
    },
    /// This type of request is not stored.
    #[error("requests of this type are not stored")]
    Class,
    /// Computed over a prefix that was loaded too coarsely.
    #[error(
        "its prefix has a predicted KL of {kl_beneath:.1e} nats per token, above {kl_beneath_max:.1e}: \
         load it at a finer level, or compute it"
    )]
    KlBeneath {
        /// Predicted KL beneath it.
        kl_beneath: f64,
        /// Maximum.
        kl_beneath_max: f64,
    },
    /// Computed over a prefix that was loaded too coarsely, or over too long a chain of loads, by the
    /// measured errors; or nobody measured them.
    #[error(
        "the error of its prefix, relative to the bound of `transparent`, is {error} after {hops} lossy loads; at most 1 and \
         {HOPS_MAX} are stored: load it at `transparent` or better, or compute it"
    )]
    Beneath {
        /// Error beneath it.
        error: LevelError,
        /// Length of the chain of lossy loads beneath it.
        hops: u8,
    },
    /// No room in the queue.
    #[error("the save queue is full")]
    QueueFull,
    /// The queue was closed.
    #[error("the save queue is closed")]
    Closed,
    /// The root of the namespace of the session's salt or adapter could not be fetched.
    #[error("the namespace of the session's salt or adapter is not known")]
    NotConnected,
}

impl AdmissionPolicy {
    /// Whether a context of `tokens` tokens of a class, over a prefix with the loss `beneath`, is accepted.
    /// `kl_beneath_max` is the profile's.
    ///
    /// # Errors
    /// The reason for refusal.
    pub(crate) fn check(
        &self,
        tokens: usize,
        class: Option<&Name>,
        beneath: Loss,
        kl_beneath_max: Option<f64>,
    ) -> Result<(), SaveRefusal> {
        if tokens < self.tokens_min {
            return Err(SaveRefusal::TooShort { tokens, tokens_min: self.tokens_min });
        }
        if self.classes.as_ref().is_some_and(|classes| !class.is_some_and(|class| classes.contains(class))) {
            return Err(SaveRefusal::Class);
        }
        check_beneath(beneath, self.kl_beneath_max.or(kl_beneath_max))
    }
}

/// Whether KV over a prefix with the loss `beneath` is stored: by the predicted KL, at most `kl_beneath_max`
/// nats per token, if that is known; otherwise by the measured errors.
pub(super) fn check_beneath(beneath: Loss, kl_beneath_max: Option<f64>) -> Result<(), SaveRefusal> {
    let Loss { kl: kl_beneath, error, hops } = beneath;
    match kl_beneath_max {
        Some(kl_beneath_max) if kl_beneath > kl_beneath_max => {
            Err(SaveRefusal::KlBeneath { kl_beneath, kl_beneath_max })
        }
        Some(kl_beneath_max) if beneath.is_within_kl(kl_beneath_max) => Ok(()),
        // An unknown error is the greatest.
        _ if hops > HOPS_MAX || error > Quality::Transparent.error_max() => {
            Err(SaveRefusal::Beneath { error, hops })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kv_over_loads_without_measurements_is_refused_unless_their_kl_is_known() {
        let unknown = Loss { error: LevelError::UNKNOWN, ..Loss::NONE };
        for kl_beneath_max in [None, Some(0.0), Some(1e-3)] {
            let refusal = SaveRefusal::Beneath { error: LevelError::UNKNOWN, hops: 0 };
            assert_eq!(check_beneath(unknown, kl_beneath_max), Err(refusal), "{kl_beneath_max:?}");
            assert_eq!(check_beneath(Loss::NONE, kl_beneath_max), Ok(()), "{kl_beneath_max:?}");
        }
        assert_eq!(check_beneath(Loss { kl: 1e-3, ..unknown }, Some(2e-3)), Ok(()));
    }
}
