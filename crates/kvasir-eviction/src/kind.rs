//! Policies by name.

use std::{fmt, str::FromStr};

use super::{Adaptive, EntryKey, EvictionPolicy, Lru};

/// The policies that a tier can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyKind {
    /// [`Adaptive`].
    Adaptive,
    /// [`Lru`].
    Lru,
}

impl PolicyKind {
    /// The policy with the best mean hit ratio in the measurements (kvasir-lab's EVICTION.md).
    pub const DEFAULT: Self = Self::Adaptive;

    /// Every policy, [`DEFAULT`](Self::DEFAULT) first.
    pub const ALL: [Self; 2] = [Self::Adaptive, Self::Lru];

    /// The name in configuration, on the command line and in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::Lru => "lru",
        }
    }

    /// A new policy, for a tier of any capacity.
    pub fn build<K: EntryKey>(self) -> Box<dyn EvictionPolicy<K>> {
        match self {
            Self::Adaptive => Box::new(Adaptive::default()),
            Self::Lru => Box::new(Lru::default()),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name is not that of a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no policy is called {found:?}; there are adaptive and lru")]
pub struct ParsePolicyError {
    /// The name.
    pub found: String,
}

impl FromStr for PolicyKind {
    type Err = ParsePolicyError;

    fn from_str(s: &str) -> Result<Self, ParsePolicyError> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == s);
        found.ok_or_else(|| ParsePolicyError { found: s.to_owned() })
    }
}
