//! Multipart uploads, as S3 clients send large objects: parts are kept in the store, so that any replica can
//! receive any of them, and become an object on completion.
//!
//! An upload is only an id. A part's name contains its size and its digest, which the client returns at the
//! end as the part's ETag, so the service keeps no state. Parts that are never completed are collected with
//! direct uploads.

use std::{collections::BTreeSet, fmt, str::FromStr, sync::Arc};

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use kvasir_api::StoredObject;
use kvasir_store::{
    StoreError,
    layout::{Key, PartKey},
    trace::carry,
};
use kvasir_types::{Name, ObjectDigest};
use object_store::{GetOptions, path::Path};
use uuid::Uuid;

use super::{Ingest, PutObject, digest::AlignedDigest, limited, sent};
use crate::{
    changes::{ledger::Reservation, path_digest},
    error::{ObjectError, PutError},
    transitions::Transition,
};

/// A part to store.
#[derive(Debug, Clone)]
pub struct PutPart {
    /// The tenant.
    pub tenant: Name,
    /// Its upload.
    pub upload_id: Uuid,
    /// Its position in the object.
    pub number: u16,
    /// Size of the body.
    pub bytes: u64,
    /// The quota reserved for it, until it is stored or given up.
    pub reservation: Option<Arc<Reservation>>,
}

/// A part of an upload in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredPart {
    /// Its position in the object: parts are ordered by number.
    pub number: u16,
    /// Its content.
    pub content: PartContent,
}

/// Size and digest of a part. As text, it is the ETag that a client keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartContent {
    bytes: u64,
    digest: ObjectDigest,
}

impl PartContent {
    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl fmt::Display for PartContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.digest, self.bytes)
    }
}

impl FromStr for PartContent {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (digest, bytes) = text.split_once('-').ok_or(())?;
        Ok(Self { digest: digest.parse().map_err(drop)?, bytes: bytes.parse().map_err(drop)? })
    }
}

impl Ingest {
    /// Stores a part. The same part may be sent again, with different bytes as well: completion names the one
    /// that counts.
    ///
    /// Continues if the caller disconnects after its last byte.
    ///
    /// # Errors
    /// As [`put_object`](Self::put_object).
    pub async fn put_part<E: fmt::Display>(
        self: &Arc<Self>,
        put: PutPart,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
    ) -> Result<PartContent, PutError> {
        let PutPart { tenant, upload_id, number, bytes, reservation } = put;
        if bytes > self.chunk_bytes_max {
            return Err(PutError::TooLarge { limit: self.chunk_bytes_max });
        }
        let mut spool = self.spools.spool(self.bucket.seals(&tenant));
        let mut digest = AlignedDigest::default();
        let mut body = std::pin::pin!(limited(sent(body), bytes));
        while let Some(part) = body.next().await {
            let part = part?;
            digest.update(&part);
            spool.push(&part).await.map_err(PutError::Spool)?;
        }
        if spool.bytes() < bytes {
            let reason = format!("{bytes} bytes were announced");
            return Err(PutError::Body { bytes: spool.bytes(), reason });
        }
        let content = PartContent { bytes, digest: digest.finalize().into() };
        let path = self.part_path(&tenant, upload_id, StoredPart { number, content });
        let this = Arc::clone(self);
        let sending = tokio::spawn(carry(async move {
            let _reservation = reservation;
            let is_new = spool.send(this.bucket.objects(), &path, false).await?;
            this.bucket.reached(Transition::PartStaged);
            // Its bytes may stay there until they are collected, completed or not. One that is sent again is the same object.
            if is_new {
                this.changes.note_stored(&tenant, path_digest(&path), bytes);
            }
            Ok::<_, PutError>(content)
        }));
        sending.await.map_err(StoreError::from)?
    }

    /// Builds an object from parts, in order; `put.bytes` is their total size. Deletes the parts afterwards.
    ///
    /// # Errors
    /// As [`put_object`](Self::put_object). [`PutError::UnknownPart`] for a missing part. The parts of a completion that fails
    /// stay.
    pub async fn complete_parts(
        self: &Arc<Self>,
        upload_id: Uuid,
        put: PutObject,
        parts: Vec<StoredPart>,
    ) -> Result<StoredObject, ObjectError> {
        let tenant = put.tenant.clone();
        let paths: Vec<_> = parts.iter().map(|part| self.part_path(&tenant, upload_id, *part)).collect();
        let there = self.parts_of(&tenant, upload_id).await?;
        if let Some((part, _)) = parts.iter().zip(&paths).find(|(_, path)| !there.contains(path)) {
            return Err(PutError::UnknownPart { number: part.number }.into());
        }
        let this = Arc::clone(self);
        let opened = stream::iter(parts.into_iter().zip(paths.clone())).then(move |(part, path)| {
            let this = Arc::clone(&this);
            async move { this.open_part(&path, part).await }
        });
        let stored = self.put_payload(put, opened.try_flatten().boxed()).await?;
        self.delete_parts(&paths).await;
        Ok(stored)
    }

    /// Deletes the parts of an upload.
    ///
    /// # Errors
    /// [`StoreError::Request`]; the request may be sent again.
    pub async fn abort_parts(&self, tenant: &Name, upload_id: Uuid) -> Result<(), StoreError> {
        for path in self.parts_of(tenant, upload_id).await? {
            self.delete_part(&path).await?;
        }
        Ok(())
    }

    /// The paths of an upload's parts.
    async fn parts_of(&self, tenant: &Name, upload_id: Uuid) -> Result<BTreeSet<Path>, StoreError> {
        let prefix = self.bucket.layout().upload_prefix(tenant, upload_id);
        let listed = self.bucket.list(&prefix, "listing an upload's parts");
        let paths = listed
            .try_filter_map(async |(key, meta)| Ok(matches!(key, Key::Part(_)).then_some(meta.location)));
        paths.try_collect().await
    }

    /// A part's bytes, verified against its name at the end.
    async fn open_part(
        &self,
        path: &Path,
        part: StoredPart,
    ) -> Result<impl Stream<Item = Result<Bytes, PutError>> + Send + use<>, PutError> {
        const READING: &str = "reading a part";
        let found = self.bucket.open_object(path, GetOptions::default(), READING).await?;
        let bytes = found.ok_or(PutError::UnknownPart { number: part.number })?.into_stream();
        let start = (bytes.boxed(), AlignedDigest::default());
        Ok(stream::try_unfold(start, move |(mut bytes, mut digest)| async move {
            if let Some(next) = bytes.try_next().await.map_err(StoreError::request(READING))? {
                digest.update(&next);
                return Ok(Some((next, (bytes, digest))));
            }
            if digest.finalize() == *part.content.digest.as_bytes() {
                return Ok(None);
            }
            Err(StoreError::own(READING, "its bytes differ from those sent").into())
        }))
    }

    async fn delete_parts(&self, paths: &[Path]) {
        for path in paths {
            // If it stays, it will be collected.
            if let Err(error) = self.delete_part(path).await {
                tracing::warn!(%error, "a part of a completed upload could not be deleted; the collector will delete it");
            }
        }
    }

    async fn delete_part(&self, path: &Path) -> Result<(), StoreError> {
        self.bucket.delete(path).await?;
        self.bucket.reached(Transition::StagedPartDeleted);
        Ok(())
    }

    fn part_path(&self, tenant: &Name, upload_id: Uuid, part: StoredPart) -> Path {
        let (tenant, PartContent { bytes, digest }) = (tenant.clone(), part.content);
        self.bucket.path(&Key::Part(PartKey { tenant, upload_id, number: part.number, bytes, digest }))
    }
}
