//! Reading chunk objects: whole, by range, by level, by URL; and their heads.

mod direct;
mod listing;
mod objects;
mod opaque;
mod sample;
mod select;
mod tiered;
mod tombstones;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

pub(crate) use self::{direct::DirectPath, tombstones::Tombstones};
pub use self::{
    direct::DirectReads,
    listing::{KeyListing, KeyPage, ListedObject},
    objects::ObjectStatus,
    opaque::OpaqueObject,
    select::Selection,
};
use crate::{bucket::Bucket, catalog::Catalog, error::ChunkError, hot::HotCache, index::PrefixIndex};

/// Reads of chunk objects: from the hot tier, otherwise from the store; their findings correct the index.
#[derive(Debug)]
pub struct Reads {
    bucket: Arc<Bucket>,
    catalog: Arc<Catalog>,
    index: Arc<PrefixIndex>,
    tombstones: Arc<Tombstones>,
    tier: Option<Arc<HotCache>>,
    /// How long the row of a removal is kept: until the object's name may be used again.
    removals_kept: Duration,
    corrupt_reads: AtomicU64,
}

impl Reads {
    pub(crate) fn new(
        bucket: Arc<Bucket>,
        catalog: Arc<Catalog>,
        index: Arc<PrefixIndex>,
        tombstones: Arc<Tombstones>,
        tier: Option<Arc<HotCache>>,
        removals_kept: Duration,
    ) -> Self {
        Self { bucket, catalog, index, tombstones, tier, removals_kept, corrupt_reads: AtomicU64::new(0) }
    }

    /// How often reads found other bytes in the store than were stored, since the last call.
    pub fn take_corrupt_reads(&self) -> u64 {
        self.corrupt_reads.swap(0, Ordering::Relaxed)
    }

    fn found_corrupt(&self, error: &ChunkError) {
        self.corrupt_reads.fetch_add(1, Ordering::Relaxed);
        tracing::error!(%error, "a read found other bytes than were stored");
    }

    pub(crate) fn index(&self) -> &PrefixIndex {
        &self.index
    }

    pub(crate) fn tombstones(&self) -> &Tombstones {
        &self.tombstones
    }
}
