//! Which saves a queue accepts.

use kvasir_types::{LevelError, Loss, Quality};

use crate::limits::{HOPS_MAX, STORE_TOKENS_MIN};

/// Why a save is refused.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SaveRefusal {
    /// Too short to be worth storing.
    #[error("{tokens} tokens are fewer than the minimum of {STORE_TOKENS_MIN} for storing")]
    TooShort {
        /// Tokens offered.
        tokens: usize,
    },
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

/// Whether a context of `tokens` tokens, over a prefix with the loss `beneath`, is accepted.
///
/// # Errors
/// The reason for refusal.
pub(super) fn check(tokens: usize, beneath: Loss, kl_beneath_max: Option<f64>) -> Result<(), SaveRefusal> {
    if tokens < STORE_TOKENS_MIN {
        return Err(SaveRefusal::TooShort { tokens });
    }
    check_beneath(beneath, kl_beneath_max)
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
