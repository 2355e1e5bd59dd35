#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod adaptive;
mod class;
mod cold;
mod eviction_index;
mod hazard;
mod hit_ratio_curve;
pub mod intrusive_queue;
mod kind;
pub mod limits;
mod lru;
mod member;
mod queue_ends;
pub mod reuse_sampler;
mod route_splits;
pub mod table;
mod turn_index;
mod use_memory;

use std::{fmt::Debug, hash::Hash};

pub use adaptive::Adaptive;
pub use class::{ClassId, ClassTable, RequestClass, TurnBucket};
pub use cold::{ColdObject, victims};
pub use eviction_index::{EvictionIndex, TenantIndex, TenantNumbers};
pub use hit_ratio_curve::{CURVE_SCALES, HitRatioCurve};
pub use kind::{ParsePolicyError, PolicyKind};
pub use lru::Lru;
pub use route_splits::RouteSplits;
pub use turn_index::TurnInference;

/// Identifies an entry: an interned id, a digest, a (digest, section) pair.
pub trait EntryKey: Copy + Eq + Hash + Debug + Send + 'static {}
impl<K: Copy + Eq + Hash + Debug + Send + 'static> EntryKey for K {}

/// Microseconds since an origin that the caller chooses once. May jump: policies only take saturating differences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Moment(u64);

impl Moment {
    /// `micros` after the origin.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// `millis` after the origin.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    /// Microseconds after the origin.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Seconds from `earlier` to this moment; 0 when the clock went backwards.
    pub fn seconds_since(self, earlier: Self) -> f64 {
        self.0.saturating_sub(earlier.0) as f64 * 1e-6
    }
}

/// The facts about one access that a policy receives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Access<K> {
    /// When.
    pub now: Moment,
    /// The request class (tenant × type × turn bucket), interned by a [`ClassTable`].
    pub class: ClassId,
    /// Position of the entry in its request's prefix, in entries from the start.
    pub offset: u32,
    /// Seconds since the previous turn of the conversation, if there is one and it is known. A client that
    /// returned quickly tends to return quickly again.
    pub pace_seconds: Option<f32>,
    /// Size of the entry.
    pub bytes: u64,
    /// What a hit of the entry is worth, in a unit of the tier's own; 0 is not stated. Policies that heed it compare worth
    /// per byte.
    pub worth: f32,
    /// The entry that this one is useless without: the previous block of the prefix, or the section's coarser
    /// level. Policies that know it evict dependants before their parents.
    pub parent: Option<K>,
}

impl<K> Access<K> {
    /// An access of one byte at offset 0 with no parent.
    pub const fn new(now: Moment, class: ClassId) -> Self {
        Self { now, class, offset: 0, pace_seconds: None, bytes: 1, worth: 0.0, parent: None }
    }

    /// The same access of an entry of `bytes`.
    #[must_use]
    pub const fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }

    /// The same access, at `offset` with the parent `parent`.
    #[must_use]
    pub fn at(mut self, offset: u32, parent: Option<K>) -> Self {
        self.offset = offset;
        self.parent = parent;
        self
    }

    /// The same access by a request that follows the conversation's previous one after `pace_seconds`.
    #[must_use]
    pub const fn paced(mut self, pace_seconds: Option<f32>) -> Self {
        self.pace_seconds = pace_seconds;
        self
    }

    /// The same access of an entry of which a hit is worth `worth`.
    #[must_use]
    pub const fn worth(mut self, worth: f32) -> Self {
        self.worth = worth;
        self
    }
}

/// The book a bounded tier keeps about its entries.
///
/// The tier owns bytes and capacity. On a request it reports the entries in prefix order: [`touch`] those it
/// holds, [`insert`] those it takes in, and while [`bytes`] exceeds its capacity it drops what [`evict`] names.
///
/// Guarantees, checked by one property suite over every policy:
/// - [`evict`] only names entries that are present, and they are gone from the book when it returns;
///   it returns `None` exactly when the book is empty.
/// - `len`, `bytes` and `contains` are exact after every call.
/// - Equal sequences of calls give equal victims.
/// - Any values are accepted: zero-byte entries, entries larger than the capacity, times that go backwards or
///   leap, unknown classes, parents that are absent, cyclic or the entry itself.
/// - Memory is bounded by the entries present plus history of at most as many entries (and named limits).
///
/// [`touch`]: EvictionPolicy::touch
/// [`insert`]: EvictionPolicy::insert
/// [`bytes`]: EvictionPolicy::bytes
/// [`evict`]: EvictionPolicy::evict
pub trait EvictionPolicy<K: EntryKey>: Debug + Send {
    /// Takes `key` in. An entry that is already present is touched instead, and its size is updated.
    fn insert(&mut self, key: K, access: &Access<K>);

    /// Notes a use of `key`; `false` when it is not present (nothing changes then).
    fn touch(&mut self, key: &K, access: &Access<K>) -> bool;

    /// Forgets `key` (deleted by its owner, not evicted); `false` when it is not present.
    fn remove(&mut self, key: &K) -> bool;

    /// Removes and returns the entry that is worth least at `now`.
    fn evict(&mut self, now: Moment) -> Option<K>;

    /// Whether `key` is present.
    fn contains(&self, key: &K) -> bool;

    /// Entries present.
    fn len(&self) -> usize;

    /// Whether it has no entries.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sum of the entries' sizes.
    fn bytes(&self) -> u64;
}

#[cfg(test)]
mod tests;
