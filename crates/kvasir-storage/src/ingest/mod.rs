//! What is stored: bodies through the service, and uploads that clients sent to the store directly.

mod chunks;
mod profiles;
pub(crate) mod spool;
mod uploads;

use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use kvasir_types::SeqHash;

use self::spool::SpoolPool;
pub use self::{chunks::PutChunk, uploads::DirectUploads};
use crate::{
    Settings, StorageError, cache::BoundedMap, catalog::Catalog, changes::Changes, index::Scope, limits,
    memory::MemoryBudget, read::Reads, store::Bucket,
};

/// Takes chunk objects and profiles in: verified as they stream, visible only as a whole.
#[derive(Debug)]
pub struct Ingest {
    bucket: Arc<Bucket>,
    catalog: Arc<Catalog>,
    reads: Arc<Reads>,
    changes: Arc<Changes>,
    spools: Arc<SpoolPool>,
    chunk_bytes_max: u64,
    profile_bytes_max: u64,
    /// Chunks that were sent and not taken, and why.
    refused: BoundedMap<(Scope, SeqHash), Arc<str>>,
}

impl Ingest {
    pub(crate) fn new(
        bucket: Arc<Bucket>,
        catalog: Arc<Catalog>,
        reads: Arc<Reads>,
        changes: Arc<Changes>,
        settings: &Settings,
    ) -> Self {
        Self {
            bucket,
            catalog,
            reads,
            changes,
            spools: Arc::new(SpoolPool::new(settings)),
            chunk_bytes_max: settings.chunk_bytes_max,
            profile_bytes_max: settings.profile_bytes_max,
            refused: BoundedMap::new(limits::REFUSALS_MAX, Some(limits::REFUSALS_KEPT)),
        }
    }

    /// What bodies of unfinished uploads may hold in memory, and do; parts on their way to the store are beside it.
    pub fn upload_memory(&self) -> &Arc<MemoryBudget> {
        self.spools.memory()
    }

    /// Why a chunk was sent lately and not taken.
    pub(crate) fn refusal(&self, scope: Scope, seq_hash: SeqHash) -> Option<Arc<str>> {
        self.refused.get(&(scope, seq_hash))
    }

    /// Remembers for `explain` that a chunk was sent and not taken.
    fn note_refusal(&self, scope: Scope, seq_hash: SeqHash, error: &StorageError) {
        // An outage or a broken connection says nothing of the chunk.
        if !error.code().is_retryable() && !matches!(error, StorageError::Body { .. }) {
            self.refused.insert((scope, seq_hash), error.to_string().into());
        }
    }
}

/// A body whose errors name how far it came, and that ends with an error behind `limit` bytes.
fn limited<E: std::fmt::Display>(
    body: impl Stream<Item = Result<Bytes, E>>,
    limit: u64,
) -> impl Stream<Item = Result<Bytes, StorageError>> {
    let mut bytes = 0;
    body.map(move |part| {
        let part = part.map_err(|e| StorageError::Body { bytes, reason: e.to_string() })?;
        bytes += part.len() as u64;
        if bytes > limit { Err(StorageError::TooLarge { limit }) } else { Ok(part) }
    })
}
