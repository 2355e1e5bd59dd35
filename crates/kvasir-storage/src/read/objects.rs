//! Reads of objects and their heads, from the store if the hot tier does not have them.

use std::{ops::Range, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::TryStreamExt;
use kvasir_container::{ChunkHeader, HEADER_BYTES, Head, ObjectVerifier};
use kvasir_store::{
    StoreError,
    layout::{ChunkKey, Key},
    of_tenant,
    seal::SealError,
};
use kvasir_types::{Level, ModelId, Name, ObjectDigest, SeqHash};
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStoreExt, path::Path};

use super::Reads;
use crate::{
    error::{ChunkError, ChunkMismatch, PutError},
    hot::RequestHint,
    index::{IndexEntry, IndexRow, RemovedRow, Scope, prefer},
    limits,
    object_read::{ByteRange, ObjectRead},
    removal::Removal,
};

/// When an object was stored, and how this replica used it.
#[derive(Debug, Clone, Copy)]
pub struct ObjectStatus {
    /// When it was stored, in milliseconds since 1970 by the store's clock.
    pub stored_at_ms: u64,
    /// Time since its last use and number of uses, if uses are recorded and there was one.
    pub last_use: Option<(Duration, u32)>,
}

impl Reads {
    /// Opens a read of one object, through the hot tier if there is one. A missing object corrects the index.
    ///
    /// # Errors
    /// [`ChunkError::Unknown`], [`Range`](ChunkError::Range), [`Corrupt`](ChunkError::Corrupt),
    /// [`Store`](ChunkError::Store).
    pub async fn read(
        self: &Arc<Self>,
        key: &ChunkKey,
        range: ByteRange,
        hint: &RequestHint,
    ) -> Result<ObjectRead, ChunkError> {
        self.refuse_removed(key).await?;
        self.read_on(key, range, hint).await
    }

    /// Like [`read`](Self::read), for a response that has begun: a concurrent removal does not cut it off.
    pub(super) async fn read_on(
        self: &Arc<Self>,
        key: &ChunkKey,
        range: ByteRange,
        hint: &RequestHint,
    ) -> Result<ObjectRead, ChunkError> {
        let scope = Scope::new(&key.tenant, &key.model_id);
        self.index.note_use(scope, key.object_digest, None);
        match &self.tier {
            // Other replicas keep it: what is here already is served, and nothing is taken in.
            Some(hot) if !hint.transient || hot.object(scope, key.object_digest).is_some() => {
                self.read_hot(hot, key, range, hint).await
            }
            Some(_) | None => self.read_store_with(key, range, of_tenant(&key.tenant)).await,
        }
    }

    /// Opens a read of the store itself, for no client: its body is not one of the tenant's.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_store(
        self: &Arc<Self>,
        key: &ChunkKey,
        range: ByteRange,
    ) -> Result<ObjectRead, ChunkError> {
        self.read_store_with(key, range, GetOptions::default()).await
    }

    async fn read_store_with(
        self: &Arc<Self>,
        key: &ChunkKey,
        range: ByteRange,
        options: GetOptions,
    ) -> Result<ObjectRead, ChunkError> {
        let scope = Scope::new(&key.tenant, &key.model_id);
        let known = self.index.row(scope, key.object_digest).map(|row| row.object_bytes);
        let object_bytes = match (known, range) {
            (Some(bytes), _) => Some(bytes),
            // Stores differ in their responses to suffixes and to ranges beyond the end: ask for the size
            // first.
            (None, ByteRange::Suffix(_) | ByteRange::From(_) | ByteRange::Bounded(..)) => {
                let meta = self.stored_meta(key).await?;
                self.refuse_forgotten(key, meta.last_modified.timestamp_millis()).await?;
                Some(meta.size)
            }
            (None, ByteRange::Whole) => None,
        };
        let wanted = match object_bytes {
            Some(bytes) => Some(range.resolve(bytes).ok_or(ChunkError::Range { object_bytes: bytes })?),
            None => None,
        };
        self.open(key, wanted, object_bytes, options).await
    }

    /// Reads `wanted`, or all, of an object in the store, whose size may be known.
    pub(super) async fn open(
        self: &Arc<Self>,
        key: &ChunkKey,
        wanted: Option<Range<u64>>,
        object_bytes: Option<u64>,
        options: GetOptions,
    ) -> Result<ObjectRead, ChunkError> {
        let whole = wanted.as_ref().is_none_or(|w| w.start == 0 && Some(w.end) == object_bytes);
        let options =
            GetOptions { range: wanted.clone().filter(|_| !whole).map(GetRange::Bounded), ..options };
        let path = self.bucket.path(&Key::Chunk(key.clone()));
        let start = wanted.as_ref().map_or(0, |wanted| wanted.start);
        let result = match self.bucket.objects().get_opts(&path, options).await {
            Err(error) if self.ends_at(&path, start, &error).await => {
                return Err(self.corrupt(key, format!("it ends before byte {start}")));
            }
            result => result.map_err(|e| self.read_failed(key, "reading an object", e))?,
        };
        if object_bytes.is_none() {
            self.refuse_forgotten(key, result.meta.last_modified.timestamp_millis()).await?;
        }
        let object_bytes = object_bytes.unwrap_or(result.meta.size);
        let wanted = wanted.unwrap_or(0..object_bytes);
        if result.meta.size != object_bytes || result.range != wanted {
            return Err(self.corrupt(key, format!("{} bytes instead of {object_bytes}", result.meta.size)));
        }
        let (this, key) = (Arc::clone(self), key.clone());
        let failed = move |error| this.read_failed(&key, "reading an object", error);
        Ok(ObjectRead::of(result, wanted, object_bytes, failed))
    }

    /// An object removed by request is not served, although its bytes stay for the grace. One removed by the
    /// collector is served until its bytes are deleted: a reader that was offered it a moment ago can finish.
    pub(super) async fn refuse_removed(&self, key: &ChunkKey) -> Result<(), ChunkError> {
        let scope = Scope::new(&key.tenant, &key.model_id);
        let is_removed = self.index.is_removed_by_request(scope, &key.object_digest);
        if is_removed || (self.may_miss_removals() && self.tombstones.has(key).await?) {
            let (seq_hash, object_digest) = (key.seq_hash, Some(key.object_digest));
            return Err(ChunkError::Unknown { seq_hash, object_digest });
        }
        Ok(())
    }

    /// Refuses an object without a row whose removal by a request may be forgotten: removals are remembered for
    /// a limited time, and a late collector may not have deleted its bytes by then.
    async fn refuse_forgotten(&self, key: &ChunkKey, stored_ms: i64) -> Result<(), ChunkError> {
        let kept = i64::try_from(self.removals_kept.as_millis()).unwrap_or(i64::MAX);
        if self.bucket.now_ms().is_some_and(|now| now.saturating_sub(stored_ms) < kept) {
            return Ok(());
        }
        match self.tombstones.reason(key).await? {
            Some(reason) if !reason.is_the_collectors() => {
                self.forget_removed(Scope::new(&key.tenant, &key.model_id), key.object_digest, reason);
                let (seq_hash, object_digest) = (key.seq_hash, Some(key.object_digest));
                Err(ChunkError::Unknown { seq_hash, object_digest })
            }
            _ => Ok(()),
        }
    }

    /// Whether the index may lack a removal, because a batch of removals was unreadable: then the store is asked
    /// for tombstones.
    pub(crate) fn may_miss_removals(&self) -> bool {
        let until = self.index.index().missed_until();
        until.is_some_and(|until| self.bucket.now_ms().is_none_or(|now| now < until))
    }

    /// Size of an object.
    ///
    /// # Errors
    /// [`ChunkError::Unknown`], [`Store`](ChunkError::Store).
    pub async fn object_bytes(&self, key: &ChunkKey) -> Result<u64, ChunkError> {
        self.refuse_removed(key).await?;
        self.stored_bytes(key).await
    }

    /// Like [`object_bytes`](Self::object_bytes), for one that may be removed but not deleted yet.
    pub(crate) async fn stored_bytes(&self, key: &ChunkKey) -> Result<u64, ChunkError> {
        Ok(self.stored_meta(key).await?.size)
    }

    async fn stored_meta(&self, key: &ChunkKey) -> Result<ObjectMeta, ChunkError> {
        let meta = self.bucket.objects().head(&self.bucket.path(&Key::Chunk(key.clone()))).await;
        meta.map_err(|e| self.read_failed(key, "asking for an object", e))
    }

    /// When an object was stored and how it was used here. Asks the store; is not a use itself.
    ///
    /// # Errors
    /// [`ChunkError::Unknown`], [`Store`](ChunkError::Store).
    pub async fn status(&self, key: &ChunkKey) -> Result<ObjectStatus, ChunkError> {
        self.refuse_removed(key).await?;
        let stored_at_ms = self.stored_meta(key).await?.last_modified.timestamp_millis();
        let last_use = self.index.last_use(Scope::new(&key.tenant, &key.model_id), key.object_digest);
        Ok(ObjectStatus {
            stored_at_ms: u64::try_from(stored_at_ms).unwrap_or(0),
            last_use: last_use.map(|last| (last.at.elapsed(), last.uses)),
        })
    }

    /// Length of the object's prefix that decodes to `level`.
    ///
    /// # Errors
    /// [`ChunkError::UnknownLevel`], and as [`row`](Self::row).
    pub async fn level_bytes(&self, key: &ChunkKey, level: Level) -> Result<u64, ChunkError> {
        self.refuse_removed(key).await?;
        let row = self.row(key).await?;
        let unknown = ChunkError::UnknownLevel { level, levels: row.level_bytes.len() };
        row.level_bytes.get(level.index()).copied().ok_or(unknown)
    }

    /// A chunk object's row, from the cache or from its head.
    ///
    /// # Errors
    /// [`ChunkError::Unknown`], [`Corrupt`](ChunkError::Corrupt), [`Store`](ChunkError::Store).
    pub async fn row(&self, key: &ChunkKey) -> Result<Arc<IndexRow>, ChunkError> {
        let scope = Scope::new(&key.tenant, &key.model_id);
        match self.index.row(scope, key.object_digest) {
            Some(row) => is_of(key, &row).map(|()| row),
            None => Ok(Arc::clone(&self.entry(key).await?.row)),
        }
    }

    /// Like [`row`](Self::row), with the chunk's parent.
    pub(crate) async fn entry(&self, key: &ChunkKey) -> Result<Arc<IndexEntry>, ChunkError> {
        let scope = Scope::new(&key.tenant, &key.model_id);
        if let Some(entry) = self.index.entry(scope, key.object_digest) {
            return is_of(key, &entry.row).map(|()| entry);
        }
        let entry = Arc::new(IndexEntry::of_head(&self.head(key).await?, key.object_digest));
        self.index.insert_unless_gone(scope, &entry);
        self.index.note_row(scope, &entry.row);
        Ok(entry)
    }

    /// Reads and verifies a head: header, directory, tokens, chain, and that it belongs to the chunk named by
    /// its key.
    pub(crate) async fn read_head(&self, key: &ChunkKey) -> Result<Head, ChunkError> {
        let path = self.bucket.path(&Key::Chunk(key.clone()));
        let head = self.head_at(&path, key).await;
        let head = head.map_err(|error| self.read_failed(key, "reading an object's head", error))?;
        let (head, stored_ms) = head.map_err(|error| self.corrupt(key, error.to_string()))?;
        self.refuse_forgotten(key, stored_ms).await?;
        Ok(head)
    }

    /// Like [`read_head`](Self::read_head), for an object at another path, with the store's time in ms at which it was written:
    /// the store's failure, or what is wrong with the head.
    pub(crate) async fn head_at(
        &self,
        path: &Path,
        key: &ChunkKey,
    ) -> object_store::Result<Result<(Head, i64), PutError>> {
        let front = async |bytes: u64| {
            let range = Some(GetRange::Bounded(0..bytes.max(HEADER_BYTES as u64)));
            let found =
                self.bucket.objects().get_opts(path, GetOptions { range, ..GetOptions::default() }).await?;
            let stored_ms = found.meta.last_modified.timestamp_millis();
            Ok((found.bytes().await?, stored_ms))
        };
        let (first, stored_ms) = match front(limits::HEAD_GUESS_BYTES).await {
            Err(error) if self.ends_at(path, 0, &error).await => (Bytes::new(), 0),
            first => first?,
        };
        let head_bytes = match ChunkHeader::parse(&first) {
            Ok(header) => header.head_bytes(),
            Err(error) => return Ok(Err(error.into())),
        };
        let bytes = if head_bytes <= first.len() as u64 { first } else { front(head_bytes).await?.0 };
        Ok(verified_head(&bytes, key).map(|head| (head, stored_ms)))
    }

    /// Whether a read failed because there is no byte at `start`: stores report such a range in different
    /// ways.
    async fn ends_at(&self, path: &Path, start: u64, error: &object_store::Error) -> bool {
        !matches!(error, object_store::Error::NotFound { .. })
            && self.bucket.objects().head(path).await.is_ok_and(|meta| meta.size <= start)
    }

    /// The object of a chunk that readers prefer: the smallest error beneath, then the smallest digest.
    ///
    /// # Errors
    /// [`ChunkError::Unknown`], [`Store`](ChunkError::Store).
    pub async fn preferred(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        seq_hash: &SeqHash,
    ) -> Result<ChunkKey, ChunkError> {
        let mut best: Option<(ChunkKey, Arc<IndexRow>)> = None;
        let keys = self.offered_objects(tenant, model_id, seq_hash).await?;
        let mut lost_key = None;
        for key in keys {
            match self.row(&key).await {
                Ok(row) if best.as_ref().is_none_or(|(_, other)| prefer(&row, other)) => {
                    best = Some((key, row))
                }
                Err(ChunkError::Store(error @ StoreError::KeyLost { .. })) => lost_key = Some(error.into()),
                Ok(_) | Err(ChunkError::Unknown { .. } | ChunkError::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let none = ChunkError::Unknown { seq_hash: *seq_hash, object_digest: None };
        best.map(|(key, _)| key).ok_or(lost_key.unwrap_or(none))
    }

    /// The objects of a chunk that the store lists and that have no tombstone, in the order of their digests.
    pub(crate) async fn offered_objects(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        seq_hash: &SeqHash,
    ) -> Result<Vec<ChunkKey>, StoreError> {
        let offered = self.offered(tenant, model_id, seq_hash).await?;
        Ok(offered.into_iter().map(|(key, _)| key).collect())
    }

    /// Like [`offered_objects`](Self::offered_objects), each with the store's metadata.
    pub(crate) async fn offered(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        seq_hash: &SeqHash,
    ) -> Result<Vec<(ChunkKey, ObjectMeta)>, StoreError> {
        // Writers of one key each write an object; for a chunk, writers with other profiles and levels do.
        let is_opaque = *model_id == ModelId::OPAQUE;
        let most = if is_opaque { limits::OPAQUE_OBJECTS_MAX } else { limits::OBJECTS_PER_SEQ_MAX };
        let prefix = self.bucket.layout().chunk_prefix(tenant, model_id, seq_hash);
        let mut listing = self.bucket.list(&prefix, "listing a chunk's objects");
        let (mut found, mut removed) = (Vec::new(), None);
        while found.len() < most
            && let Some((key, meta)) = listing.try_next().await?
        {
            let Key::Chunk(key) = key else { continue };
            // Most chunks that are searched do not exist: then their tombstones are not listed.
            if removed.is_none() {
                removed = Some(self.tombstones.of_chunk(tenant, model_id, seq_hash).await?);
            }
            if removed.as_ref().is_none_or(|removed| !removed.contains(&key.object_digest)) {
                found.push((key, meta));
            }
        }
        // An object is listed twice if its plain form exists next to the sealed one: the younger date is that
        // of the form in use.
        found.sort_by(|(a, of_a), (b, of_b)| a.cmp(b).then(of_b.last_modified.cmp(&of_a.last_modified)));
        found.dedup_by(|(key, _), (before, _)| key == before);
        Ok(found)
    }

    fn read_failed(&self, key: &ChunkKey, operation: &'static str, error: object_store::Error) -> ChunkError {
        if let object_store::Error::NotFound { .. } = error {
            self.forget_named(key);
            let (seq_hash, object_digest) = (key.seq_hash, Some(key.object_digest));
            return ChunkError::Unknown { seq_hash, object_digest };
        }
        match SealError::of(&error) {
            Some(SealError::Altered) => self.corrupt(key, SealError::Altered.to_string()),
            _ => StoreError::request(operation)(error).into(),
        }
    }

    /// A corrupt object is treated as gone: hidden from lookups here, and written again when it is stored
    /// again.
    pub(super) fn corrupt(&self, key: &ChunkKey, reason: String) -> ChunkError {
        self.forget_named(key);
        let error = ChunkError::Corrupt { seq_hash: key.seq_hash, object_digest: key.object_digest, reason };
        self.found_corrupt(&error);
        error
    }

    /// Forgets the object under a name. Not the object itself, if it belongs to another chunk: a request may
    /// name it wrongly, and it may have been placed among the objects of this one.
    fn forget_named(&self, key: &ChunkKey) {
        let (scope, object) = (Scope::new(&key.tenant, &key.model_id), key.object_digest);
        let entry = || self.index.entry(scope, object).map(|entry| Arc::clone(&entry.row));
        let known = self.index.row(scope, object).or_else(entry);
        if known.is_none_or(|row| row.seq_hash == key.seq_hash) {
            self.forget(scope, object);
        }
    }

    /// Removes an object that is gone or damaged from the index and the hot tier.
    pub(crate) fn forget(&self, scope: Scope, object: ObjectDigest) {
        self.index.remove(scope, object);
        self.forget_frames(scope, object);
    }

    /// Like [`forget`](Self::forget), for an object that was removed for `reason`. The index remembers it
    /// across restarts, until the object's name may be used again.
    pub(crate) fn forget_removed(&self, scope: Scope, object: ObjectDigest, reason: Removal) {
        self.index.remove_for_good(scope, object, self.removed_row(reason));
        self.forget_frames(scope, object);
    }

    /// Like [`forget_removed`](Self::forget_removed), for a removal that was in the journal when the index
    /// returned `heard`.
    pub(crate) fn forget_heard(&self, scope: Scope, object: ObjectDigest, reason: Removal, heard: u64) {
        self.index.remove_heard(scope, object, self.removed_row(reason), heard);
        self.forget_frames(scope, object);
    }

    fn removed_row(&self, reason: Removal) -> RemovedRow {
        let kept = i64::try_from(self.removals_kept.as_millis()).unwrap_or(i64::MAX);
        let expires_ms = self.bucket.now_ms().map_or(i64::MAX, |now| now.saturating_add(kept));
        RemovedRow { expires_ms, by_request: !reason.is_the_collectors() }
    }

    fn forget_frames(&self, scope: Scope, object: ObjectDigest) {
        if let Some(hot) = &self.tier {
            hot.forget(scope, object);
        }
    }

    /// Reads a whole object, and checks that its name is the hash of its bytes.
    pub(crate) async fn is_what_it_is_called(self: &Arc<Self>, key: &ChunkKey) -> Result<bool, ChunkError> {
        self.reads_as_named(key, |_| {}).await
    }

    /// The head of an object, if its name is the hash of all its bytes: a store may return another object's
    /// bytes, which a head alone does not reveal.
    pub(crate) async fn sound_head(self: &Arc<Self>, key: &ChunkKey) -> Result<Option<Head>, ChunkError> {
        let mut verifier = ObjectVerifier::new();
        let mut is_object = true;
        let is_named =
            self.reads_as_named(key, |part| is_object = is_object && verifier.push(part).is_ok()).await?;
        Ok(verifier.finish().ok().filter(|_| is_named && is_object))
    }

    async fn reads_as_named(
        self: &Arc<Self>,
        key: &ChunkKey,
        mut take: impl FnMut(&[u8]),
    ) -> Result<bool, ChunkError> {
        let digest = async {
            let mut read = self.read_store(key, ByteRange::Whole).await?.bytes;
            let mut digest = blake3::Hasher::new();
            while let Some(part) = read.try_next().await? {
                digest.update(&part);
                take(&part);
            }
            Ok(digest.finalize())
        };
        match digest.await {
            Ok(digest) => Ok(digest == *key.object_digest.as_bytes()),
            Err(ChunkError::Corrupt { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The head of a chunk object, if it belongs to the chunk named by `key`.
fn verified_head(bytes: &[u8], key: &ChunkKey) -> Result<Head, PutError> {
    let head = Head::parse(bytes)?;
    head.verify_chain()?;
    ChunkMismatch::check(&head.header, &key.model_id, &key.seq_hash)?;
    Ok(head)
}

/// An object of another chunk that was placed among the objects of this one does not count.
fn is_of(key: &ChunkKey, row: &IndexRow) -> Result<(), ChunkError> {
    if row.seq_hash == key.seq_hash {
        return Ok(());
    }
    Err(ChunkError::Unknown { seq_hash: key.seq_hash, object_digest: Some(key.object_digest) })
}
