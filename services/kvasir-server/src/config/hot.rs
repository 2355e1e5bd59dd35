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
use kvasir_store::{StoreKind, seal::KeyService};

/// Default memory for frames: the bases of several hundred chunks of an 8B model.
const MEMORY_BYTES: u64 = 256 << 20;
/// Default disk for frames, unless the store itself is a directory.
const DISK_BYTES: u64 = 4 << 30;

/// The hot tier: memory and local disk in front of the store.
#[derive(Debug, Clone)]
pub struct HotConfig {
    /// Bytes in memory.
    pub memory_bytes: u64,
    /// Bytes on disk, if set. Default over a directory: none, because each frame would be written to disk
    /// twice. If memory is 0 as well, there is no hot tier.
    pub disk_bytes: Option<u64>,
    /// Directory of frames on disk; below the cache directory if `None`.
    pub directory: Option<PathBuf>,
    /// Eviction policy.
    pub policy: PolicyKind,
    /// Largest share of either medium that one tenant may use, in per cent.
    pub tenant_share_percent: u8,
    /// Number of chunks to read ahead of a read.
    pub read_ahead_chunks: usize,
    /// Clock of the eviction policy. Not a setting: tests replay hours in seconds.
    pub clock: Arc<dyn HotClock>,
}

impl Default for HotConfig {
    fn default() -> Self {
        Self {
            memory_bytes: MEMORY_BYTES,
            disk_bytes: None,
            directory: None,
            policy: PolicyKind::DEFAULT,
            tenant_share_percent: 100,
            read_ahead_chunks: limits::HOT_READ_AHEAD_CHUNKS,
            clock: Arc::new(MonotonicClock),
        }
    }
}

impl HotConfig {
    /// Settings of the tier over a store, if there is one; `cache` is the cache directory.
    pub(crate) fn settings(
        &self,
        store: StoreKind,
        cache: &Path,
        keys: Option<Arc<dyn KeyService>>,
    ) -> Option<HotSettings> {
        let disk_bytes = self.disk_bytes.unwrap_or(if store == StoreKind::File { 0 } else { DISK_BYTES });
        (self.memory_bytes > 0 || disk_bytes > 0).then(|| HotSettings {
            ram_bytes: self.memory_bytes,
            disk_bytes,
            directory: self.directory.clone().unwrap_or_else(|| cache.join("hot")),
            policy: self.policy,
            tenant_share_max: f64::from(self.tenant_share_percent) / 100.0,
            read_ahead_chunks: self.read_ahead_chunks,
            keys,
        })
    }
}
