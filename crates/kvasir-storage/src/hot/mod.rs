//! The hot tier: RAM and local disk in front of the object store.
//!
//! It keeps *frames*: runs of whole pieces of one level of one object, of about
//! [`HOT_FRAME_BYTES`](crate::limits::HOT_FRAME_BYTES). A frame depends on the previous frame, as decoding
//! does, so the eviction policy keeps base frames of many contexts rather than all levels of few. Objects
//! are named by the digest of their bytes, so nothing here can be stale. Every frame is checked against the
//! directory of its object when it is read from the store and when it is read from disk, so nothing torn or
//! wrong is kept. All of it may be deleted at any time.
//!
//! ```text
//! read ──► RAM ──► fetch in progress? join it ──► disk ──► object store (one request for a batch of frames)
//!           ▲ └ victims ──► disk (if its policy wants them) └ victims ──► gone
//!           └──────────────── filled, promoted ◄────────────────────────┘
//! ```
//!
//! A frame is charged to one budget, the configured memory, while anything holds it: while it is kept, being
//! fetched, waiting for the disk, or being sent to a slow reader. When the budget is used up, reads bypass
//! the tier, in the parts that the store sends.
//!
//! Each tenant has a separate [`EvictionPolicy`](kvasir_eviction::EvictionPolicy). When a medium is full, the
//! tenant that holds most loses a frame, so no tenant can push another below its equal share.
//!
//! Why not foyer (0.22): its memory caches choose from a closed list of algorithms, and its disk engine evicts
//! whole blocks of many entries through an `EvictionPicker`, so neither half can follow our policy at the
//! granularity of frames.

mod cache;
mod context;
mod disk;
mod eviction_log;
mod frame_lookup;
mod frame_record;
mod frames;
mod object_read;
mod observe;
mod pending;
mod prefetch_buffer;
mod requests;
mod residency;
mod shared_fetch;
mod tier;
mod tier_state;
mod write_back;

use std::{
    fmt::Debug,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Instant,
};

pub use cache::HotCache;
pub use context::{HotContext, RangeReader};
#[cfg(any(test, fuzzing))]
pub(crate) use disk::fuzz_name;
pub use eviction_log::FrameEviction;
pub use frames::{FrameKey, HotObject};
pub use observe::{EvictReason, HotObserver, HotTenantUsage, HotUsage, NoHotObserver};
pub use requests::{RequestHint, RequestLog};
pub use tier::HotTier;

use kvasir_eviction::{Moment, PolicyKind};
use kvasir_store::seal::KeyService;

/// Settings of the tier.
#[derive(Debug, Clone)]
pub struct HotSettings {
    /// Bytes of frames in memory.
    pub ram_bytes: u64,
    /// Bytes of frames on disk; 0 for none.
    pub disk_bytes: u64,
    /// Folder of the frames on disk.
    pub directory: PathBuf,
    /// Eviction policy.
    pub policy: PolicyKind,
    /// Largest share of either medium that one tenant may use, 0 to 1.
    pub tenant_share_max: f64,
    /// Number of chunks to read ahead of a read; 0 for none.
    pub read_ahead_chunks: usize,
    /// Keys of tenants whose objects are sealed: their frames on disk are sealed as well.
    pub keys: Option<Arc<dyn KeyService>>,
}

/// The tier's source of time: only eviction policies use it.
pub trait HotClock: Debug + Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Moment;
}

/// Time since the process's first query.
#[derive(Debug, Clone, Copy, Default)]
pub struct MonotonicClock;

impl HotClock for MonotonicClock {
    fn now(&self) -> Moment {
        static ORIGIN: OnceLock<Instant> = OnceLock::new();
        let micros = ORIGIN.get_or_init(Instant::now).elapsed().as_micros();
        Moment::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests;
