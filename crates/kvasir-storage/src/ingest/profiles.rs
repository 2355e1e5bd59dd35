//! Storing profiles.

use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use kvasir_store::StoreError;
use kvasir_types::{ModelId, Name, ProfileHash};

use super::{Ingest, limited, sent};
use crate::{error::PutError, index::Scope, transitions::Transition};

impl Ingest {
    /// Stores a profile. Returns whether it was new, and its size.
    ///
    /// # Errors
    /// [`PutError::ProfileMismatch`], [`TooLarge`](PutError::TooLarge), [`Catalog`](PutError::Catalog) for an
    /// unknown model, [`Body`](PutError::Body): nothing is stored. [`Store`](PutError::Store).
    pub async fn put_profile<E: std::fmt::Display>(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        profile_hash: &ProfileHash,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
    ) -> Result<(bool, u64), PutError> {
        self.catalog.model(tenant, model_id).await?;
        let (mut spool, mut hash) = (self.spools.spool(self.bucket.seals(tenant)), blake3::Hasher::new());
        let mut body = std::pin::pin!(limited(sent(body), self.profile_bytes_max));
        while let Some(part) = body.next().await {
            let part = part?;
            hash.update(&part);
            spool.push(&part).await.map_err(PutError::Spool)?;
        }
        let found = ProfileHash::from(*hash.finalize().as_bytes());
        if found != *profile_hash {
            return Err(PutError::ProfileMismatch { found, expected: *profile_hash });
        }
        let path = self.catalog.profile_path(tenant, model_id, profile_hash);
        let (bucket, bytes) = (Arc::clone(&self.bucket), spool.bytes());
        // Continues if the caller disconnects: an upload is either finished or aborted.
        let sending = tokio::spawn(async move { spool.send(bucket.objects(), &path, false).await });
        let created = sending.await.map_err(StoreError::from)??;
        self.bucket.reached(Transition::ProfileWritten);
        if created {
            self.changes.note_stored(tenant, *profile_hash.as_bytes(), bytes);
        }
        self.catalog.remember_profile(Scope::new(tenant, model_id), *profile_hash);
        Ok((created, bytes))
    }
}
