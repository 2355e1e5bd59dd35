//! Reads of objects with presigned URLs: the store serves the bytes, not the service.

use std::{sync::Arc, time::Duration};

use kvasir_api::Via;
use kvasir_store::{
    Presigner, StoreError,
    cache::BoundedMap,
    layout::{ChunkKey, Key},
};
use kvasir_types::{Name, ObjectDigest};

use super::Reads;
use crate::{
    DirectSettings,
    bucket::Bucket,
    error::{ChunkError, DirectUnavailable, UrlError},
    index::Scope,
    limits,
};

/// Whether clients may access the store directly, and for how long.
#[derive(Debug)]
pub(crate) struct DirectPath {
    bucket: Arc<Bucket>,
    settings: DirectSettings,
}

impl DirectPath {
    pub(crate) fn new(bucket: Arc<Bucket>, settings: DirectSettings) -> Self {
        Self { bucket, settings }
    }

    pub(crate) fn url_ttl(&self) -> Duration {
        self.settings.url_ttl
    }

    pub(crate) fn upload_ttl(&self) -> Duration {
        self.settings.upload_ttl
    }

    /// The signer of URLs for `tenant`.
    pub(crate) fn presigner(&self, tenant: &Name) -> Result<&Presigner, DirectUnavailable> {
        let reason = match self.bucket.open().presigner() {
            // Clients have no keys.
            _ if self.bucket.seals(tenant) => "the tenant's objects are encrypted at rest",
            _ if !self.settings.enabled => "direct access is disabled (direct.enabled)",
            None => "this kind of store does not support presigned URLs",
            Some(presigner) => return Ok(presigner),
        };
        Err(DirectUnavailable { reason })
    }
}

/// Reads with presigned URLs.
#[derive(Debug)]
pub struct DirectReads {
    path: Arc<DirectPath>,
    bucket: Arc<Bucket>,
    reads: Arc<Reads>,
    /// Objects whose URL was requested once.
    seen: BoundedMap<(Scope, ObjectDigest), ()>,
}

impl DirectReads {
    pub(crate) fn new(path: Arc<DirectPath>, bucket: Arc<Bucket>, reads: Arc<Reads>) -> Self {
        Self { path, bucket, reads, seen: BoundedMap::new(limits::DIRECT_SEEN_MAX, None) }
    }

    /// Whether clients may access the store directly.
    pub fn is_direct(&self, tenant: &Name) -> bool {
        self.path.presigner(tenant).is_ok()
    }

    /// Whether the store verifies uploads against their signed checksum.
    pub fn has_checksums(&self) -> bool {
        self.bucket.open().presigner().is_some_and(Presigner::has_checksums)
    }

    /// A presigned URL of an object that exists and is not being deleted, and its lifetime in seconds.
    ///
    /// # Errors
    /// [`UrlError::Chunk`], [`Unavailable`](UrlError::Unavailable).
    pub async fn object_url(&self, key: &ChunkKey) -> Result<(String, u64), UrlError> {
        self.reads.object_bytes(key).await?;
        if self.reads.tombstones().has(key).await? {
            let (seq_hash, object_digest) = (key.seq_hash, Some(key.object_digest));
            return Err(ChunkError::Unknown { seq_hash, object_digest }.into());
        }
        self.sign(key).await
    }

    /// How to read an object: with a URL if possible, otherwise through the service.
    pub async fn via(&self, key: &ChunkKey, direct: bool) -> Via {
        if !direct {
            return Via::Proxy;
        }
        match self.sign(key).await {
            Ok((url, expires_in_s)) => Via::Direct { url, expires_in_s },
            Err(UrlError::Unavailable(_)) => Via::Proxy,
            Err(error) => {
                tracing::warn!(%error, "a URL could not be signed; the object is read through the service");
                Via::Proxy
            }
        }
    }

    async fn sign(&self, key: &ChunkKey) -> Result<(String, u64), UrlError> {
        let life = self.path.url_ttl();
        let path = self.bucket.path(&Key::Chunk(key.clone()));
        let url = self.path.presigner(&key.tenant)?.get(&path, life).await;
        let url = url.map_err(StoreError::request("signing a URL"))?;
        // One URL does not show that the object is read repeatedly. From the second on, the tier caches the
        // base.
        let object = (Scope::new(&key.tenant, &key.model_id), key.object_digest);
        if self.seen.contains(&object) {
            self.reads.prefetch_base(key);
        } else {
            self.seen.insert(object, ());
        }
        Ok((url.into(), life.as_secs()))
    }
}
