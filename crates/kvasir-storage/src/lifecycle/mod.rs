//! The end of chunk objects, and the maintenance of the others: removal, collection, scrubbing, rebuilding
//! the index.

pub mod gc;
mod progress;
mod rebuild;
mod removals;
mod scrub;
mod seal_tenant;
mod work_share;

use std::sync::Arc;

pub use self::{
    progress::ProgressAnswer, rebuild::RebuildProgress, scrub::ScrubReport, seal_tenant::SealReport,
    work_share::WorkShare,
};
use kvasir_store::cache::BoundedMap;
use kvasir_types::{ModelId, Name, ObjectDigest, SeqHash};
use parking_lot::Mutex;

use crate::{
    bucket::Bucket,
    catalog::{Catalog, Salt},
    changes::Changes,
    contexts::Contexts,
    index::Scope,
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
    /// Models of tenants, for an hour.
    models: BoundedMap<Name, Arc<[ModelId]>>,
    /// Expired salts whose chunks this replica has marked deleted.
    swept: BoundedMap<(Name, Name, Salt), ()>,
    /// When this replica last began to collect its share.
    last_pass: Mutex<Option<gc::StoreTime>>,
    /// The last candidate that it verified of the tails in the units of others.
    last_known_tail: Mutex<Option<(Scope, SeqHash, ObjectDigest)>>,
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
        let models = BoundedMap::new(limits::MODELS_CACHED_MAX, Some(limits::WORK_MODELS_AGE_MAX));
        let swept = BoundedMap::new(limits::MODELS_CACHED_MAX, None);
        Self {
            bucket,
            catalog,
            reads,
            changes,
            contexts,
            uploads,
            models,
            swept,
            last_pass: Mutex::default(),
            last_known_tail: Mutex::default(),
        }
    }
}
