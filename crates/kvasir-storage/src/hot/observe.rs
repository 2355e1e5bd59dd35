//! What metrics learn of the tier.

use std::fmt::Debug;

use kvasir_types::{Medium, Name};

use kvasir_eviction::ClassId;

/// Why a frame was evicted from a medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EvictReason {
    /// Its place was worth more to another.
    Capacity,
    /// It was worth less than everything there, and not taken in.
    NotAdmitted,
    /// Its checksum or length was wrong.
    Corrupt,
    /// Its object was deleted.
    Removed,
}

impl EvictReason {
    /// All reasons, for tables.
    pub const ALL: [Self; 4] = [Self::Capacity, Self::NotAdmitted, Self::Corrupt, Self::Removed];

    /// As a metric label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Capacity => "capacity",
            Self::NotAdmitted => "not_admitted",
            Self::Corrupt => "corrupt",
            Self::Removed => "removed",
        }
    }
}

/// Takes reports. Called on the request's path: must be cheap.
pub trait HotObserver: Debug + Send + Sync + 'static {
    /// A frame of `bytes` was served from `medium` ([`Medium::Object`] is a miss) to a request of `class`.
    fn served(&self, medium: Medium, class: ClassId, bytes: u64);

    /// A frame was evicted from `medium`, `age_seconds` after it came and `idle_seconds` after its last use.
    fn evicted(&self, medium: Medium, reason: EvictReason, age_seconds: f64, idle_seconds: f64);
}

/// Drops all reports.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHotObserver;

impl HotObserver for NoHotObserver {
    fn served(&self, _: Medium, _: ClassId, _: u64) {}
    fn evicted(&self, _: Medium, _: EvictReason, _: f64, _: f64) {}
}

/// What the tier holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HotUsage {
    /// Bytes in memory: the policy's and those read ahead.
    pub ram_bytes: u64,
    /// Bytes in memory that wait to be written to disk.
    pub writing_bytes: u64,
    /// Bytes on disk, checksums not counted.
    pub disk_bytes: u64,
    /// Frames in memory.
    pub ram_frames: usize,
    /// Frames on disk.
    pub disk_frames: usize,
    /// Bytes in memory by level, what waits for the disk or for its reader not counted.
    pub ram_level_bytes: Vec<u64>,
    /// Bytes on disk by level.
    pub disk_level_bytes: Vec<u64>,
}

/// What the tier holds of one tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HotTenantUsage {
    /// The tenant.
    pub tenant: Name,
    /// Bytes in memory, those read ahead not counted.
    pub ram_bytes: u64,
    /// Bytes on disk.
    pub disk_bytes: u64,
}
