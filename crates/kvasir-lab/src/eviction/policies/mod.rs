//! All eviction policies that a replay compares: those that a tier can use, and those that exist only for
//! comparison.

mod arc;
mod draws;
mod fifo;
mod gdsf;
mod lecar;
mod lfu;
mod lhd;
pub mod limits;
mod newcomer;
mod reuse_window;
mod s3fifo;
mod sieve;
mod ttl;
mod workload;

use std::{fmt, str::FromStr};

use kvasir_eviction::{Adaptive, EntryKey, EvictionPolicy, Lru, PolicyKind};

pub use arc::Arc;
pub use fifo::Fifo;
pub use gdsf::Gdsf;
pub use lecar::LeCar;
pub use lfu::Lfu;
pub use lhd::Lhd;
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
    /// [`Adaptive`], where a block is worth the seconds that its request's blocks take to recompute, in the mean.
    AdaptiveCost,
    /// [`Workload`] with all terms.
    Workload,
    /// [`Workload`] without life and offset (ablation).
    WorkloadDistribution,
    /// [`Workload`] without offset (ablation).
    WorkloadLife,
    /// [`Fifo`].
    Fifo,
    /// [`Ttl`] of [`limits::TTL_SECONDS_DEFAULT`].
    Ttl,
    /// A baseline that uses a request's blocks from the first to the last.
    FrontFirst(Baseline),
    /// The same baseline from the last to the first, as engines free them (vLLM, SGLang): leaves go first. A request's
    /// blocks are held while it runs.
    LeafFirst(Baseline),
}

/// Policies without knowledge of prefixes: the order in which a request uses its blocks decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Baseline {
    /// [`Lru`].
    Lru,
    /// [`Lfu`].
    Lfu,
    /// [`S3Fifo`].
    S3Fifo,
    /// [`Sieve`].
    Sieve,
    /// [`Gdsf`].
    Gdsf,
    /// [`Arc`].
    Arc,
    /// [`LeCar`].
    LeCar,
    /// [`Lhd`].
    Lhd,
}

impl Baseline {
    fn build<K: EntryKey>(self, capacity: u64) -> Box<dyn EvictionPolicy<K>> {
        match self {
            Self::Lru => Box::new(Lru::default()),
            Self::Lfu => Box::new(Lfu::default()),
            Self::S3Fifo => Box::new(S3Fifo::new(capacity)),
            Self::Sieve => Box::new(Sieve::default()),
            Self::Gdsf => Box::new(Gdsf::default()),
            Self::Arc => Box::new(Arc::new(capacity)),
            Self::LeCar => Box::new(LeCar::new(capacity)),
            Self::Lhd => Box::new(Lhd::default()),
        }
    }
}

impl ComparedPolicy {
    /// The lower end of the gap to Belady's MIN.
    pub const REFERENCE: Self = Self::LeafFirst(Baseline::Lru);

    /// Every policy, in the order of the tables.
    pub const ALL: [Self; 23] = [
        Self::Shipped(PolicyKind::Adaptive),
        Self::AdaptiveCost,
        Self::Workload,
        Self::WorkloadDistribution,
        Self::WorkloadLife,
        Self::Fifo,
        Self::Ttl,
        Self::Shipped(PolicyKind::Lru),
        Self::FrontFirst(Baseline::Lfu),
        Self::FrontFirst(Baseline::S3Fifo),
        Self::FrontFirst(Baseline::Sieve),
        Self::FrontFirst(Baseline::Gdsf),
        Self::FrontFirst(Baseline::Arc),
        Self::FrontFirst(Baseline::LeCar),
        Self::FrontFirst(Baseline::Lhd),
        Self::LeafFirst(Baseline::Lru),
        Self::LeafFirst(Baseline::Lfu),
        Self::LeafFirst(Baseline::S3Fifo),
        Self::LeafFirst(Baseline::Sieve),
        Self::LeafFirst(Baseline::Gdsf),
        Self::LeafFirst(Baseline::Arc),
        Self::LeafFirst(Baseline::LeCar),
        Self::LeafFirst(Baseline::Lhd),
    ];

    /// The name on the command line and in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shipped(kind) => kind.name(),
            Self::AdaptiveCost => "adaptive-cost",
            Self::Workload => "workload",
            Self::WorkloadDistribution => "workload-distribution",
            Self::WorkloadLife => "workload-life",
            Self::Fifo => "fifo",
            Self::Ttl => "ttl",
            Self::FrontFirst(Baseline::Lru) => "lru",
            Self::FrontFirst(Baseline::Lfu) => "lfu",
            Self::FrontFirst(Baseline::S3Fifo) => "s3-fifo",
            Self::FrontFirst(Baseline::Sieve) => "sieve",
            Self::FrontFirst(Baseline::Gdsf) => "gdsf",
            Self::FrontFirst(Baseline::Arc) => "arc",
            Self::FrontFirst(Baseline::LeCar) => "lecar",
            Self::FrontFirst(Baseline::Lhd) => "lhd",
            Self::LeafFirst(Baseline::Lru) => "leaf-lru",
            Self::LeafFirst(Baseline::Lfu) => "leaf-lfu",
            Self::LeafFirst(Baseline::S3Fifo) => "leaf-s3-fifo",
            Self::LeafFirst(Baseline::Sieve) => "leaf-sieve",
            Self::LeafFirst(Baseline::Gdsf) => "leaf-gdsf",
            Self::LeafFirst(Baseline::Arc) => "leaf-arc",
            Self::LeafFirst(Baseline::LeCar) => "leaf-lecar",
            Self::LeafFirst(Baseline::Lhd) => "leaf-lhd",
        }
    }

    /// A new policy for a tier of `capacity` bytes. The policy of [`Self::Ttl`] does not expire entries
    /// automatically; call [`Ttl::expire`].
    pub fn build<K: EntryKey>(self, capacity: u64) -> Box<dyn EvictionPolicy<K>> {
        let distribution = WorkloadTerms { life: false, offset: false };
        let life = WorkloadTerms { life: true, offset: false };
        match self {
            Self::Shipped(kind) => kind.build(),
            Self::AdaptiveCost => Box::new(Adaptive::default()),
            Self::Workload => Box::new(Workload::new(WorkloadTerms::FULL)),
            Self::WorkloadDistribution => Box::new(Workload::new(distribution)),
            Self::WorkloadLife => Box::new(Workload::new(life)),
            Self::Fifo => Box::new(Fifo::default()),
            Self::Ttl => Box::new(Ttl::new(limits::TTL_SECONDS_DEFAULT)),
            Self::FrontFirst(baseline) | Self::LeafFirst(baseline) => baseline.build(capacity),
        }
    }

    /// Whether blocks are worth what they take to recompute, instead of all the same.
    pub const fn weighs_cost(self) -> bool {
        matches!(
            self,
            Self::AdaptiveCost | Self::FrontFirst(Baseline::Gdsf) | Self::LeafFirst(Baseline::Gdsf)
        )
    }

    /// Whether a request's blocks are used from the last to the first.
    pub const fn is_leaf_first(self) -> bool {
        matches!(self, Self::LeafFirst(_))
    }
}

impl fmt::Display for ComparedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name is not that of a policy.
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
