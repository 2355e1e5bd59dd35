//! Reading chunk objects: whole, by range, by level, by URL; and their heads.

mod direct;
mod objects;
mod select;
mod tiered;
mod tombstones;

use std::sync::Arc;

pub(crate) use self::{direct::DirectPath, tombstones::Tombstones};
pub use self::{direct::DirectReads, select::Selection};
use crate::{catalog::Catalog, hot::HotCache, index::PrefixIndex, store::Bucket};

/// Reads of chunk objects: from the hot tier, else from the store; what they find out corrects the index.
#[derive(Debug)]
pub struct Reads {
    bucket: Arc<Bucket>,
    catalog: Arc<Catalog>,
    index: Arc<PrefixIndex>,
    tombstones: Arc<Tombstones>,
    tier: Option<Arc<HotCache>>,
}

impl Reads {
    pub(crate) fn new(
        bucket: Arc<Bucket>,
        catalog: Arc<Catalog>,
        index: Arc<PrefixIndex>,
        tombstones: Arc<Tombstones>,
        tier: Option<Arc<HotCache>>,
    ) -> Self {
        Self { bucket, catalog, index, tombstones, tier }
    }

    pub(crate) fn index(&self) -> &PrefixIndex {
        &self.index
    }

    pub(crate) fn tombstones(&self) -> &Tombstones {
        &self.tombstones
    }
}
