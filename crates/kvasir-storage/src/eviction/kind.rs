//! Policies by name.

use std::{fmt, str::FromStr};

use super::{
    Adaptive, EntryKey, EvictionPolicy, Fifo, Gdsf, Lfu, Lru, S3Fifo, Sieve, Ttl, Workload, WorkloadTerms,
    limits,
};

/// The policies a tier or the simulator can be told to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyKind {
    /// [`Adaptive`], the default.
    Adaptive,
    /// [`Adaptive`], weighing reuse by recompute seconds per byte.
    AdaptiveCost,
    /// [`Workload`] with all terms.
    Workload,
    /// [`Workload`] without life and offset (ablation).
    WorkloadDistribution,
    /// [`Workload`] without offset (ablation).
    WorkloadLife,
    /// [`Lru`].
    Lru,
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

impl PolicyKind {
    /// What a tier uses unless told otherwise: the winner of the measurements (kvasir-sim's EVICTION.md).
    pub const DEFAULT: Self = Self::Adaptive;

    /// Every policy, the default first.
    pub const ALL: [Self; 12] = [
        Self::Adaptive,
        Self::AdaptiveCost,
        Self::Workload,
        Self::WorkloadDistribution,
        Self::WorkloadLife,
        Self::Lru,
        Self::Lfu,
        Self::Fifo,
        Self::S3Fifo,
        Self::Sieve,
        Self::Gdsf,
        Self::Ttl,
    ];

    /// The name in configuration, on the command line and in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::AdaptiveCost => "adaptive-cost",
            Self::Workload => "workload",
            Self::WorkloadDistribution => "workload-distribution",
            Self::WorkloadLife => "workload-life",
            Self::Lru => "lru",
            Self::Lfu => "lfu",
            Self::Fifo => "fifo",
            Self::S3Fifo => "s3-fifo",
            Self::Sieve => "sieve",
            Self::Gdsf => "gdsf",
            Self::Ttl => "ttl",
        }
    }

    /// A new policy for a tier of `capacity` bytes.
    pub fn build<K: EntryKey>(self, capacity: u64) -> Box<dyn EvictionPolicy<K>> {
        let distribution = WorkloadTerms { life: false, offset: false };
        let life = WorkloadTerms { life: true, offset: false };
        match self {
            Self::Adaptive => Box::new(Adaptive::new(false)),
            Self::AdaptiveCost => Box::new(Adaptive::new(true)),
            Self::Workload => Box::new(Workload::new(WorkloadTerms::FULL)),
            Self::WorkloadDistribution => Box::new(Workload::new(distribution)),
            Self::WorkloadLife => Box::new(Workload::new(life)),
            Self::Lru => Box::new(Lru::default()),
            Self::Lfu => Box::new(Lfu::default()),
            Self::Fifo => Box::new(Fifo::default()),
            Self::S3Fifo => Box::new(S3Fifo::new(capacity)),
            Self::Sieve => Box::new(Sieve::default()),
            Self::Gdsf => Box::new(Gdsf::default()),
            Self::Ttl => Box::new(Ttl::new(limits::TTL_SECONDS_DEFAULT)),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no policy's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no policy is called {found:?}; there are adaptive, adaptive-cost, workload, workload-distribution, workload-life, lru, lfu, fifo, s3-fifo, sieve, gdsf and ttl"
)]
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
