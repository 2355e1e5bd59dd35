//! The end of chunk objects, and the maintenance of the others: removal, collection, scrubbing, rebuilding
//! the index.

pub mod gc;
mod progress;
mod rebuild;
mod removals;
mod scrub;
mod seal_tenant;

use std::sync::Arc;

pub use self::{
    progress::ProgressAnswer, rebuild::RebuildProgress, scrub::ScrubReport, seal_tenant::SealReport,
};
use kvasir_store::cache::BoundedMap;
use kvasir_types::Name;

use crate::{
    bucket::Bucket,
    catalog::{Catalog, Salt},
    changes::Changes,
    contexts::Contexts,
    ingest::DirectUploads,
    limits,
    read::Reads,
};

/// Removes, collects, scrubs and rebuilds.
#[derive(Debug)]
pub struct Lifecycle {
    bucket: Arc<Bucket>,
    catalog: Arc<Catalog>,
    reads: Arc<Reads>,
    changes: Arc<Changes>,
    contexts: Arc<Contexts>,
    uploads: Arc<DirectUploads>,
    /// Expired salts whose chunks this replica has marked deleted.
    swept: BoundedMap<(Name, Name, Salt), ()>,
}

impl Lifecycle {
    pub(crate) fn new(
        bucket: Arc<Bucket>,
        catalog: Arc<Catalog>,
        reads: Arc<Reads>,
        changes: Arc<Changes>,
        contexts: Arc<Contexts>,
        uploads: Arc<DirectUploads>,
    ) -> Self {
        let swept = BoundedMap::new(limits::MODELS_CACHED_MAX, None);
        Self { bucket, catalog, reads, changes, contexts, uploads, swept }
    }
}
