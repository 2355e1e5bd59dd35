//! All eviction policies that a replay compares: those that a tier can be told to use, and those that exist only to be
//! compared with.

mod fifo;
mod gdsf;
mod lfu;
pub mod limits;
mod newcomer;
mod reuse_window;
mod s3fifo;
mod sieve;
mod ttl;
mod workload;

use std::{fmt, str::FromStr};

use kvasir_eviction::{EntryKey, EvictionPolicy, PolicyKind};

pub use fifo::Fifo;
pub use gdsf::Gdsf;
pub use lfu::Lfu;
pub use reuse_window::{ExponentialFit, ReuseWindow};
pub use s3fifo::S3Fifo;
pub use sieve::Sieve;
pub use ttl::Ttl;
pub use workload::{Workload, WorkloadTerms};

/// An online policy by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ComparedPolicy {
    /// A policy of the product.
    Shipped(PolicyKind),
    /// [`Workload`] with all terms.
    Workload,
    /// [`Workload`] without life and offset (ablation).
    WorkloadDistribution,
    /// [`Workload`] without offset (ablation).
    WorkloadLife,
    /// [`Lfu`].
    Lfu,
    /// [`Fifo`].
    Fifo,
    /// [`S3Fifo`].
    S3Fifo,
    /// [`Sieve`].
    Sieve,
    /// [`Gdsf`].
    Gdsf,
    /// [`Ttl`] of [`limits::TTL_SECONDS_DEFAULT`].
    Ttl,
}

impl ComparedPolicy {
    /// Every policy, in the order of the tables.
    pub const ALL: [Self; 12] = [
        Self::Shipped(PolicyKind::Adaptive),
        Self::Shipped(PolicyKind::AdaptiveCost),
        Self::Workload,
        Self::WorkloadDistribution,
        Self::WorkloadLife,
        Self::Shipped(PolicyKind::Lru),
        Self::Lfu,
        Self::Fifo,
        Self::S3Fifo,
        Self::Sieve,
        Self::Gdsf,
        Self::Ttl,
    ];

    /// The name on the command line and in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shipped(kind) => kind.name(),
            Self::Workload => "workload",
            Self::WorkloadDistribution => "workload-distribution",
            Self::WorkloadLife => "workload-life",
            Self::Lfu => "lfu",
            Self::Fifo => "fifo",
            Self::S3Fifo => "s3-fifo",
            Self::Sieve => "sieve",
            Self::Gdsf => "gdsf",
            Self::Ttl => "ttl",
        }
    }

    /// A new policy for a tier of `capacity` bytes. That of [`Self::Ttl`] does not expire entries by itself:
    /// [`Ttl::expire`] does.
    pub fn build<K: EntryKey>(self, capacity: u64) -> Box<dyn EvictionPolicy<K>> {
        let distribution = WorkloadTerms { life: false, offset: false };
        let life = WorkloadTerms { life: true, offset: false };
        match self {
            Self::Shipped(kind) => kind.build(),
            Self::Workload => Box::new(Workload::new(WorkloadTerms::FULL)),
            Self::WorkloadDistribution => Box::new(Workload::new(distribution)),
            Self::WorkloadLife => Box::new(Workload::new(life)),
            Self::Lfu => Box::new(Lfu::default()),
            Self::Fifo => Box::new(Fifo::default()),
            Self::S3Fifo => Box::new(S3Fifo::new(capacity)),
            Self::Sieve => Box::new(Sieve::default()),
            Self::Gdsf => Box::new(Gdsf::default()),
            Self::Ttl => Box::new(Ttl::new(limits::TTL_SECONDS_DEFAULT)),
        }
    }
}

impl fmt::Display for ComparedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no policy's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no policy is called {found:?}; there are {}", ComparedPolicy::ALL.map(ComparedPolicy::name).join(", "))]
pub struct ParseComparedPolicyError {
    /// The name.
    pub found: String,
}

impl FromStr for ComparedPolicy {
    type Err = ParseComparedPolicyError;

    fn from_str(s: &str) -> Result<Self, ParseComparedPolicyError> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == s);
        found.ok_or_else(|| ParseComparedPolicyError { found: s.to_owned() })
    }
}

#[cfg(test)]
mod tests;
