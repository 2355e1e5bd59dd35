//! Admission policy of the save queue.

use std::collections::BTreeSet;

use kvasir_types::{LevelError, Loss, Name, Quality};

use crate::limits::{HOPS_MAX, STORE_TOKENS_MIN};

/// Which saves a queue takes: only what is likely to be asked for again.
#[derive(Debug, Clone, PartialEq)]
pub struct AdmissionPolicy {
    /// Fewest tokens of a context; shorter ones are recomputed in less time than a lookup takes.
    pub tokens_min: usize,
    /// Types of request that are stored; all, when absent. A session that names no type is of none of them.
    pub classes: Option<BTreeSet<Name>>,
    /// Most predicted KL beneath what is stored, in nats a token: errors compound over turns. When absent, twice that
    /// of the profile's finest level; where that is not known, KV is stored that was computed over loads of quality
    /// [`Transparent`](kvasir_types::Quality::Transparent), at most two after each other.
    pub kl_beneath_max: Option<f64>,
}

impl Default for AdmissionPolicy {
    fn default() -> Self {
        Self { tokens_min: STORE_TOKENS_MIN, classes: None, kl_beneath_max: None }
    }
}

/// Why something is not stored.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SaveRefusal {
    /// Too short to be worth it.
    #[error("{tokens} tokens are fewer than the {tokens_min} that are worth storing")]
    TooShort {
        /// Tokens offered.
        tokens: usize,
        /// Fewest that are taken.
        tokens_min: usize,
    },
    /// A type of request that is not stored.
    #[error("requests of its type are not stored")]
    Class,
    /// Computed over a prefix that was loaded too coarsely.
    #[error("its prefix has a predicted KL of {kl_beneath:.1e} nats a token, above {kl_beneath_max:.1e}")]
    KlBeneath {
        /// Predicted KL beneath it.
        kl_beneath: f64,
        /// Most that is taken.
        kl_beneath_max: f64,
    },
    /// Computed over a prefix that was loaded too coarsely, or too often over others, by the errors that were measured.
    #[error(
        "its prefix has an error of {error} times what `transparent` allows, after {hops} lossy loads; at most 1 and {HOPS_MAX} are \
         stored"
    )]
    Beneath {
        /// Error beneath it.
        error: LevelError,
        /// Lossy loads beneath it that lie over each other.
        hops: u8,
    },
    /// No room in the queue.
    #[error("the save queue is full")]
    QueueFull,
    /// The queue was closed.
    #[error("the save queue is closed")]
    Closed,
    /// The service could not be asked for the namespace of the session's salt or adapter.
    #[error("the namespace of the session's salt or adapter is not known")]
    NotConnected,
}

impl AdmissionPolicy {
    /// Whether a context of `tokens` tokens of a class, over a prefix that has lost `beneath`, is taken. `kl_beneath_max` is the
    /// profile's.
    ///
    /// # Errors
    /// Why not.
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

/// Whether KV over a prefix that has lost `beneath` is stored, where the predicted KL of loads is known by at most
/// `kl_beneath_max` nats a token, else by what was measured.
pub(super) fn check_beneath(beneath: Loss, kl_beneath_max: Option<f64>) -> Result<(), SaveRefusal> {
    let Loss { kl: kl_beneath, error, hops } = beneath;
    match kl_beneath_max {
        Some(kl_beneath_max) if kl_beneath > kl_beneath_max => {
            Err(SaveRefusal::KlBeneath { kl_beneath, kl_beneath_max })
        }
        Some(_) => Ok(()),
        None if hops > HOPS_MAX || (hops > 0 && error > Quality::Transparent.error_max()) => {
            Err(SaveRefusal::Beneath { error, hops })
        }
        None => Ok(()),
    }
}
