//! The tier's interface to metrics.

use std::fmt::Debug;

use kvasir_types::{Medium, Name};

use kvasir_eviction::ClassId;

/// Why a frame was evicted from a medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EvictReason {
    /// Another frame was worth more.
    Capacity,
    /// It was worth less than all cached frames, and was not admitted.
    NotAdmitted,
    /// Its checksum or length was wrong.
    Corrupt,
    /// Its object was deleted.
    Removed,
}

impl EvictReason {
    /// All reasons, for tables.
    pub const ALL: [Self; 4] = [Self::Capacity, Self::NotAdmitted, Self::Corrupt, Self::Removed];

    /// The metric label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Capacity => "capacity",
            Self::NotAdmitted => "not_admitted",
            Self::Corrupt => "corrupt",
            Self::Removed => "removed",
        }
    }
}

/// Receives reports. Called while serving requests: must be cheap.
pub trait HotObserver: Debug + Send + Sync + 'static {
    /// A frame of `bytes` was served from `medium` ([`Medium::Object`] is a miss) to a request of `class`.
    fn served(&self, medium: Medium, class: ClassId, bytes: u64);

    /// A frame was evicted from `medium`, `age_seconds` after it arrived and `idle_seconds` after its last
    /// use.
    fn evicted(&self, medium: Medium, reason: EvictReason, age_seconds: f64, idle_seconds: f64);
}

/// Drops all reports.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHotObserver;

impl HotObserver for NoHotObserver {
    fn served(&self, _: Medium, _: ClassId, _: u64) {}
    fn evicted(&self, _: Medium, _: EvictReason, _: f64, _: f64) {}
}

/// The contents of the tier.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HotUsage {
    /// Bytes in memory: cached by the policy, and prefetched.
    pub ram_bytes: u64,
    /// Bytes in memory waiting to be written to disk.
    pub writing_bytes: u64,
    /// Bytes on disk, excluding checksums.
    pub disk_bytes: u64,
    /// Frames in memory.
    pub ram_frames: usize,
    /// Frames on disk.
    pub disk_frames: usize,
    /// Bytes in memory by level, excluding those waiting for the disk or for their reader.
    pub ram_level_bytes: Vec<u64>,
    /// Bytes on disk by level.
    pub disk_level_bytes: Vec<u64>,
    /// Bytes in memory last used for a route of which this replica is the first.
    pub ram_first_bytes: u64,
    /// The same on disk.
    pub disk_first_bytes: u64,
}

/// One tenant's data in the tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HotTenantUsage {
    /// The tenant.
    pub tenant: Name,
    /// Bytes in memory, excluding prefetched ones.
    pub ram_bytes: u64,
    /// Bytes on disk.
    pub disk_bytes: u64,
}
