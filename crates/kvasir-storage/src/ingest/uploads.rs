//! Direct uploads: bytes that never pass through the service.
//!
//! An upload is announced, sent to a staging name with a presigned URL, and committed. The staging name
//! contains the whole announcement, so any replica can commit and the service keeps no state. The signature
//! covers that name, the length in it, and the SHA-256. If the store verifies these, the bytes at the staging
//! name are fixed: header, directory, lengths and chain are checked with ranged reads, and the object is then
//! copied within the store to its own name. If the store does not verify them, the service reads the whole
//! upload, as if it had been sent through it.
//!
//! With a verifying store, the object's name (its BLAKE3) is the uploader's claim, within its own tenant:
//! pieces have checksums that every reader checks, and a scrub verifies the name. Stored objects are never
//! replaced because of that claim.

use std::sync::Arc;

use futures::TryStreamExt;
use kvasir_api::{StoredChunk, UploadRequest, UploadTicket};
use kvasir_container::HEADER_BYTES;
use kvasir_store::{
    StoreError,
    cache::BoundedMap,
    layout::{ChunkKey, Key, UploadKey},
};
use kvasir_types::Name;
use object_store::{ObjectMeta, ObjectStoreExt};
use uuid::Uuid;

use super::{Ingest, PutChunk};
use crate::{
    bucket::Bucket,
    error::{DirectUnavailable, PutError, UploadError},
    index::{IndexEntry, Scope},
    limits,
    read::DirectPath,
    removal::Removal,
};

/// Uploads that clients send to the store and the service commits.
#[derive(Debug)]
pub struct DirectUploads {
    bucket: Arc<Bucket>,
    path: Arc<DirectPath>,
    ingest: Arc<Ingest>,
    /// Uploads announced to this replica, whose bytes it counts.
    announced: BoundedMap<(Name, Uuid), ()>,
    /// Uploads committed by this replica, so that a commit may be repeated.
    committed: BoundedMap<(Name, Uuid), StoredChunk>,
}

impl DirectUploads {
    pub(crate) fn new(bucket: Arc<Bucket>, path: Arc<DirectPath>, ingest: Arc<Ingest>) -> Self {
        let kept = limits::COMMITS_KEPT;
        let (announced, committed) = (BoundedMap::new(kept, None), BoundedMap::new(kept, None));
        Self { bucket, path, ingest, announced, committed }
    }

    /// Announces a direct upload.
    ///
    /// # Errors
    /// [`UploadError::Unavailable`], also if an object of this name is being deleted;
    /// [`Mismatch`](UploadError::Mismatch) for an invalid SHA-256; [`Put`](UploadError::Put) for an unknown
    /// model, or too many bytes.
    pub async fn announce_upload(
        &self,
        tenant: &Name,
        request: &UploadRequest,
    ) -> Result<UploadTicket, UploadError> {
        let presigner = self.path.presigner(tenant)?;
        self.ingest.catalog.model(tenant, &request.model_id).await?;
        let limit = self.ingest.chunk_bytes_max;
        if request.bytes < HEADER_BYTES as u64 {
            let (found, expected) = (request.bytes.to_string(), format!("at least {HEADER_BYTES}"));
            return Err(UploadError::Mismatch { field: "length", found, expected });
        }
        if request.bytes > limit {
            return Err(PutError::TooLarge { limit }.into());
        }
        let sha256 = request.sha256.parse::<kvasir_types::ObjectDigest>();
        let sha256 = sha256.map_err(|e| UploadError::Mismatch {
            field: "sha256",
            found: e.to_string(),
            expected: "64 hex digits".to_owned(),
        })?;
        let chunk = ChunkKey {
            tenant: tenant.clone(),
            model_id: request.model_id,
            seq_hash: request.seq_hash,
            object_digest: request.object_digest,
        };
        if self.ingest.reads.tombstones().has(&chunk).await? {
            return Err(DirectUnavailable { reason: BEING_DELETED }.into());
        }
        let upload_id = Uuid::now_v7();
        let key = UploadKey { chunk, upload_id, bytes: request.bytes, sha256: *sha256.as_bytes() };
        let path = self.bucket.path(&Key::Upload(key));
        let life = self.path.url_ttl();
        let signed = presigner.put(&path, sha256.as_bytes(), life).await;
        let (url, headers) = signed.map_err(StoreError::request("signing a URL"))?;
        // Its bytes may stay there until they are collected, committed or not.
        self.ingest.changes.note_stored(
            tenant,
            *blake3::hash(upload_id.as_bytes()).as_bytes(),
            request.bytes,
        );
        self.announced.insert((tenant.clone(), upload_id), ());
        Ok(UploadTicket { upload_id, url: url.into(), headers, expires_in_s: life.as_secs() })
    }

    /// Checks an upload and makes it visible. May be repeated.
    ///
    /// # Errors
    /// [`UploadError::Unknown`]; [`Mismatch`](UploadError::Mismatch);
    /// [`Unavailable`](UploadError::Unavailable) if another object has the name, or one with it is being
    /// deleted; [`Put`](UploadError::Put) if the chunk is refused: nothing is stored, and the upload is
    /// deleted. If the store failed, the upload is kept: repeat the commit.
    pub async fn commit_upload(&self, tenant: &Name, upload_id: Uuid) -> Result<StoredChunk, UploadError> {
        let presigner = self.path.presigner(tenant)?;
        let again = (tenant.clone(), upload_id);
        if let Some(stored) = self.committed.get(&again) {
            return Ok(StoredChunk { created: false, ..stored });
        }
        let (upload, meta) = self.find_upload(tenant, upload_id).await?;
        let checked = if presigner.has_checksums() {
            self.adopt(&upload, &meta).await
        } else {
            self.read_in(&upload, &meta).await
        };
        let final_refusal = |error: &UploadError| !error.code().is_retryable();
        if let Err(error) = &checked
            && final_refusal(error)
        {
            let scope = Scope::new(tenant, &upload.chunk.model_id);
            self.ingest.note_refusal(scope, upload.chunk.seq_hash, error.code(), error);
        }
        if checked.as_ref().err().is_none_or(final_refusal) {
            // If it stays, it will be collected.
            if let Err(error) = self.bucket.delete(&meta.location).await {
                tracing::warn!(%error, "a committed upload's staging object could not be deleted; the collector will delete it");
            }
        }
        let stored = checked?;
        self.committed.insert(again, stored.clone());
        Ok(stored)
    }

    /// Bytes of an upload that this replica does not count yet: those of one announced to another replica,
    /// until the commit.
    ///
    /// # Errors
    /// [`UploadError::Unknown`], and the store's.
    pub async fn uncounted_bytes(&self, tenant: &Name, upload_id: Uuid) -> Result<u64, UploadError> {
        let key = (tenant.clone(), upload_id);
        if self.announced.contains(&key) || self.committed.contains(&key) {
            return Ok(0);
        }
        Ok(self.find_upload(tenant, upload_id).await?.0.bytes)
    }

    async fn find_upload(
        &self,
        tenant: &Name,
        upload_id: Uuid,
    ) -> Result<(UploadKey, ObjectMeta), UploadError> {
        let prefix = self.bucket.layout().upload_prefix(tenant, upload_id);
        let mut listing = self.bucket.list(&prefix, "looking for an upload");
        while let Some((key, meta)) = listing.try_next().await? {
            if let Key::Upload(upload) = key {
                return Ok((upload, meta));
            }
        }
        Err(UploadError::Unknown { upload_id })
    }

    /// The store has verified the bytes against the signature: ranged reads, and a copy within the store.
    async fn adopt(&self, upload: &UploadKey, meta: &ObjectMeta) -> Result<StoredChunk, UploadError> {
        same_length(upload, meta.size)?;
        let key = &upload.chunk;
        let (reads, ingest) = (&self.ingest.reads, &self.ingest);
        let failed = StoreError::request("reading an object's head");
        let (head, _) = reads.head_at(&meta.location, key).await.map_err(&failed)??;
        ingest.check_header(&key.tenant, &key.model_id, &key.seq_hash, &head.header).await?;
        same_length(upload, head.header.object_bytes())?;
        if reads.tombstones().has(key).await? {
            return Err(DirectUnavailable { reason: BEING_DELETED }.into());
        }
        let path = self.bucket.path(&Key::Chunk(key.clone()));
        let there = self.bucket.head(&path, "asking for an object").await?;
        if let Some(there) = &there {
            let is_same = match reads.head_at(&path, key).await.map_err(&failed)? {
                // The directory has the checksum of every piece.
                Ok((stored, _)) => there.size == meta.size && stored == head,
                Err(_) => false,
            };
            if !is_same {
                // Also if that one is damaged: the service only replaces it with bytes that it has read
                // itself.
                return Err(DirectUnavailable { reason: NAME_TAKEN }.into());
            }
            // The bytes behind an equal head may be damaged: then those of the upload are written over them.
            if !reads.is_what_it_is_called(key).await.unwrap_or(false) {
                return Box::pin(self.read_in(upload, meta)).await;
            }
        } else {
            let copied = self.bucket.objects().copy(&meta.location, &path).await;
            copied.map_err(StoreError::request("copying an upload to its name"))?;
        }
        let entry = Arc::new(IndexEntry::of_head(&head, key.object_digest));
        let scope = Scope::new(&key.tenant, &key.model_id);
        let (before, since_ms) = (reads.index().removals(), self.bucket.now_ms());
        if reads.tombstones().has(key).await? {
            reads.forget_removed(scope, key.object_digest, Removal::Removed);
            return Err(DirectUnavailable { reason: BEING_DELETED }.into());
        }
        ingest.indexed(scope, &entry, before);
        Ok(ingest.stored(key.clone(), &entry, head.block_hashes, None, since_ms, there.is_none()))
    }

    /// The store may hold any bytes: the service reads, verifies and stores all of them.
    async fn read_in(&self, upload: &UploadKey, meta: &ObjectMeta) -> Result<StoredChunk, UploadError> {
        same_length(upload, meta.size)?;
        let key = &upload.chunk;
        let failed = StoreError::request("reading an upload");
        let body = self.bucket.objects().get(&meta.location).await.map_err(&failed)?.into_stream();
        let put = PutChunk::new(&key.tenant, &key.model_id, &key.seq_hash);
        let received =
            self.ingest.receive_whole(&put, body.map_err(move |error| failed(error).into())).await?;
        let (found, expected) = (received.1, key.object_digest);
        if found != expected {
            let (found, expected) = (found.to_string(), expected.to_string());
            return Err(UploadError::Mismatch { field: "BLAKE3", found, expected });
        }
        Ok(self.ingest.store(put, received).await?)
    }

    /// Deletes uploads that were not committed in time, and parts of those that were not completed. Returns
    /// their number.
    ///
    /// # Errors
    /// [`StoreError::Request`]; deletions already done are final.
    pub(crate) async fn collect_uploads(&self, now_ms: i64, dry_run: bool) -> Result<u64, StoreError> {
        let life = i64::try_from(self.path.upload_ttl().as_millis()).unwrap_or(i64::MAX);
        let mut collected = 0;
        for tenant in self.ingest.catalog.tenants().await? {
            let prefix = self.bucket.layout().uploads_prefix(&tenant);
            let mut listing = self.bucket.list(&prefix, "collecting uploads");
            while let Some((key, meta)) = listing.try_next().await? {
                let age = now_ms.saturating_sub(meta.last_modified.timestamp_millis());
                if !matches!(key, Key::Upload(_) | Key::Part(_)) || age < life {
                    continue;
                }
                collected += 1;
                if !dry_run {
                    self.bucket.delete(&meta.location).await?;
                }
            }
        }
        Ok(collected)
    }
}

const NAME_TAKEN: &str = "another object is stored under this name";
const BEING_DELETED: &str = "an object of this name is being deleted";

fn same_length(upload: &UploadKey, bytes: u64) -> Result<(), UploadError> {
    if bytes == upload.bytes {
        return Ok(());
    }
    let (found, expected) = (bytes.to_string(), upload.bytes.to_string());
    Err(UploadError::Mismatch { field: "length", found, expected })
}
