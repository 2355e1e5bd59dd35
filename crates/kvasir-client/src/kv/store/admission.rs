//! Admission policy of the store queue.

use std::collections::BTreeSet;

use crate::limits::STORE_TOKENS_MIN;

/// Which stores a queue takes: only what is likely to be asked for again.
#[derive(Debug, Clone, PartialEq)]
pub struct AdmissionPolicy {
    /// Fewest tokens of a context; shorter ones are recomputed in less time than a lookup takes.
    pub tokens_min: usize,
    /// Request classes that are stored; all, when absent. A store without a class is of the class `""`.
    pub classes: Option<BTreeSet<String>>,
    /// Most predicted KL beneath what is stored, in nats a token: errors compound over turns. When absent, twice that
    /// of the profile's finest level.
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
pub enum StoreRefusal {
    /// Too short to be worth it.
    #[error("{tokens} tokens are fewer than the {tokens_min} that are worth storing")]
    TooShort {
        /// Tokens offered.
        tokens: usize,
        /// Fewest that are taken.
        tokens_min: usize,
    },
    /// A request class that is not stored.
    #[error("its request class is not stored")]
    Class,
    /// Computed over a prefix that was loaded too coarsely.
    #[error("its prefix has a predicted KL of {kl_beneath:.1e} nats a token, above {kl_beneath_max:.1e}")]
    KlBeneath {
        /// Predicted KL beneath it.
        kl_beneath: f64,
        /// Most that is taken.
        kl_beneath_max: f64,
    },
    /// No room in the queue.
    #[error("the store queue is full")]
    QueueFull,
    /// The queue was closed.
    #[error("the store queue is closed")]
    Closed,
}

impl AdmissionPolicy {
    /// Whether a context of `tokens` tokens of a class, over a prefix of `kl_beneath`, is taken.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn check(
        &self,
        tokens: usize,
        class: &str,
        kl_beneath: f64,
        kl_beneath_max: f64,
    ) -> Result<(), StoreRefusal> {
        if tokens < self.tokens_min {
            return Err(StoreRefusal::TooShort { tokens, tokens_min: self.tokens_min });
        }
        if self.classes.as_ref().is_some_and(|classes| !classes.contains(class)) {
            return Err(StoreRefusal::Class);
        }
        let kl_beneath_max = self.kl_beneath_max.unwrap_or(kl_beneath_max);
        if kl_beneath > kl_beneath_max {
            return Err(StoreRefusal::KlBeneath { kl_beneath, kl_beneath_max });
        }
        Ok(())
    }
}
