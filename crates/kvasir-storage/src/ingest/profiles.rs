//! Storing profiles.

use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use kvasir_store::{StoreError, trace::carry};
use kvasir_types::{ModelId, Name, ProfileHash};

use super::{Ingest, limited, sent};
use crate::{changes::ledger::Reservation, error::PutError, index::Scope, transitions::Transition};

impl Ingest {
    /// Stores a profile. Returns whether it was new, and its size. `reservation` is the quota reserved for it.
    ///
    /// # Errors
    /// [`PutError::ProfileMismatch`], [`TooLarge`](PutError::TooLarge), [`Catalog`](PutError::Catalog) for an
    /// unknown model, [`Body`](PutError::Body): nothing is stored. [`Store`](PutError::Store).
    pub async fn put_profile<E: std::fmt::Display>(
        self: &Arc<Self>,
        tenant: &Name,
        model_id: &ModelId,
        profile_hash: &ProfileHash,
        reservation: Option<Arc<Reservation>>,
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
        let (this, tenant, model_id, profile_hash) =
            (Arc::clone(self), tenant.clone(), *model_id, *profile_hash);
        // Continues if the caller disconnects: an upload is either finished and counted, or aborted.
        let sending = tokio::spawn(carry(async move {
            let _reservation = reservation;
            let (created, bytes) = (spool.send(this.bucket.objects(), &path, false).await?, spool.bytes());
            this.bucket.reached(Transition::ProfileWritten);
            if created {
                this.changes.note_stored(&tenant, *profile_hash.as_bytes(), bytes);
                this.changes.tell_profile(&tenant, model_id, Some(profile_hash), "stored");
            }
            this.catalog.remember_profile(Scope::new(&tenant, &model_id), profile_hash);
            Ok::<_, PutError>((created, bytes))
        }));
        sending.await.map_err(StoreError::from)?
    }
}
