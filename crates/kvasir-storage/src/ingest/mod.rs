//! Writes: bodies through the service, and uploads that clients sent directly to the store.

mod chunks;
mod digest;
mod multipart;
mod opaque;
mod profiles;
mod records;
pub(crate) mod spool;
mod streamed;
mod uploads;

use std::{
    fmt::Display,
    sync::{Arc, atomic::AtomicU64},
};

use bytes::Bytes;
use futures::{Stream, StreamExt};
use kvasir_api::ErrorCode;
use kvasir_store::cache::BoundedMap;
use kvasir_types::SeqHash;

use self::spool::SpoolPool;
pub use self::{
    chunks::PutChunk,
    multipart::{PartContent, PutPart, StoredPart},
    opaque::PutObject,
    streamed::AnnouncedBody,
    uploads::DirectUploads,
};
use crate::{
    Settings, bucket::Bucket, catalog::Catalog, changes::Changes, error::PutError, index::Scope, limits,
    memory::MemoryBudget, read::Reads,
};

/// Stores chunk objects and profiles, verified as they stream in and visible only as a whole, and records of models and
/// namespaces.
#[derive(Debug)]
pub struct Ingest {
    bucket: Arc<Bucket>,
    catalog: Arc<Catalog>,
    reads: Arc<Reads>,
    changes: Arc<Changes>,
    spools: Arc<SpoolPool>,
    chunk_bytes_max: u64,
    profile_bytes_max: u64,
    writer: u64,
    /// Number of opaque objects written by this replica.
    written: AtomicU64,
    /// Refused chunks, and the reasons.
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
            writer: settings.writer,
            written: AtomicU64::new(0),
            refused: BoundedMap::new(limits::REFUSALS_MAX, Some(limits::REFUSALS_KEPT)),
        }
    }

    /// The memory budget of unfinished uploads' bodies; parts being sent to the store are separate.
    pub fn upload_memory(&self) -> &Arc<MemoryBudget> {
        self.spools.memory()
    }

    /// Why a chunk was recently refused.
    pub(crate) fn refusal(&self, scope: Scope, seq_hash: SeqHash) -> Option<Arc<str>> {
        self.refused.get(&(scope, seq_hash))
    }

    /// Records for `explain` that a chunk was refused.
    fn note_refusal(&self, scope: Scope, seq_hash: SeqHash, code: ErrorCode, error: &impl Display) {
        // An outage or an incomplete body says nothing about the chunk.
        if !code.is_retryable() && code != ErrorCode::BadRequest {
            self.refused.insert((scope, seq_hash), error.to_string().into());
        }
    }
}

/// A caller's body: its errors state how many bytes arrived.
fn sent<E: Display>(
    body: impl Stream<Item = Result<Bytes, E>>,
) -> impl Stream<Item = Result<Bytes, PutError>> {
    let mut bytes = 0;
    body.map(move |part| match part {
        Ok(part) => {
            bytes += part.len() as u64;
            Ok(part)
        }
        Err(error) => Err(PutError::Body { bytes, reason: error.to_string() }),
    })
}

/// A body that ends with an error after `limit` bytes.
fn limited(
    body: impl Stream<Item = Result<Bytes, PutError>>,
    limit: u64,
) -> impl Stream<Item = Result<Bytes, PutError>> {
    let mut bytes = 0;
    body.map(move |part| {
        let part = part?;
        bytes += part.len() as u64;
        if bytes > limit { Err(PutError::TooLarge { limit }) } else { Ok(part) }
    })
}
