//! Configuration of the hot tier.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use kvasir_eviction::PolicyKind;
use kvasir_storage::{
    hot::{HotClock, HotSettings, MonotonicClock},
    limits,
};
use kvasir_store::seal::KeyService;

/// Memory for frames unless told otherwise: bases of some hundred chunks of an 8B model.
const MEMORY_BYTES: u64 = 256 << 20;
/// Disk for frames unless told otherwise.
const DISK_BYTES: u64 = 4 << 30;

/// The hot tier: memory and local disk in front of the store.
#[derive(Debug, Clone)]
pub struct HotConfig {
    /// Bytes in memory.
    pub memory_bytes: u64,
    /// Bytes on disk; with none in memory either there is no hot tier.
    pub disk_bytes: u64,
    /// Where frames lie on disk; below the cache's directory if `None`.
    pub directory: Option<PathBuf>,
    /// What goes first.
    pub policy: PolicyKind,
    /// Largest share of either medium that one tenant may hold, in per cent.
    pub tenant_share_percent: u8,
    /// Chunks that are read ahead of one that is read.
    pub read_ahead_chunks: usize,
    /// Where eviction gets its time from. Not a setting: tests replay hours in seconds.
    pub clock: Arc<dyn HotClock>,
}

impl Default for HotConfig {
    fn default() -> Self {
        Self {
            memory_bytes: MEMORY_BYTES,
            disk_bytes: DISK_BYTES,
            directory: None,
            // `PolicyKind::DEFAULT`, knowing what a byte of each level is worth.
            policy: PolicyKind::AdaptiveCost,
            tenant_share_percent: 100,
            read_ahead_chunks: limits::HOT_READ_AHEAD_CHUNKS,
            clock: Arc::new(MonotonicClock),
        }
    }
}

impl HotConfig {
    /// Whether there is a tier at all.
    pub(crate) fn is_on(&self) -> bool {
        self.memory_bytes > 0 || self.disk_bytes > 0
    }

    /// What the tier is told, with `cache` as the cache's directory.
    pub(crate) fn settings(&self, cache: &Path, keys: Option<Arc<dyn KeyService>>) -> HotSettings {
        HotSettings {
            ram_bytes: self.memory_bytes,
            disk_bytes: self.disk_bytes,
            directory: self.directory.clone().unwrap_or_else(|| cache.join("hot")),
            policy: self.policy,
            tenant_share_max: f64::from(self.tenant_share_percent) / 100.0,
            read_ahead_chunks: self.read_ahead_chunks,
            keys,
        }
    }
}
