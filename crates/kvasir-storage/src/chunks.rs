//! Storing chunk objects: a body is verified as it streams in and becomes visible only as a whole.

use std::{collections::HashSet, sync::Arc};

use bytes::Bytes;
use futures::{Stream, StreamExt};
use kvasir_api::StoredChunk;
use kvasir_container::{ChunkHeader, Head, ObjectVerifier};
use kvasir_types::{Level, ModelId, Name, ObjectDigest, SeqHash};

use crate::{
    Storage, StorageError,
    hot::RequestHint,
    index::{IndexEntry, IndexRow, Scope},
    journal::JournalEntry,
    layout::{ChunkKey, Key},
    ledger::Stored,
    limits,
    spool::Spool,
    trace::carry,
    transitions::Transition,
};

/// What the index keeps of a verified head.
pub(crate) fn entry_of(head: &Head, object_digest: ObjectDigest) -> IndexEntry {
    let header = &head.header;
    let levels = (0..header.level_count).map(Level);
    IndexEntry {
        parent_hash: header.parent_hash,
        blocks: IndexEntry::short_blocks(head.block_hashes.iter().map(|hash| &hash[..])),
        row: Arc::new(IndexRow {
            seq_hash: header.seq_hash,
            object_digest,
            profile_hash: header.profile_hash,
            first_position: header.first_position,
            token_count: header.token_count,
            kl_beneath: header.kl_beneath,
            head_bytes: u32::try_from(header.head_bytes()).unwrap_or(u32::MAX),
            object_bytes: header.object_bytes(),
            level_bytes: levels.filter_map(|level| head.level_bytes(level)).collect(),
        }),
    }
}

/// A verified body on its way to a name.
struct Upload {
    key: ChunkKey,
    entry: Arc<IndexEntry>,
    spool: Spool,
    /// How often its name was taken.
    incarnation: u16,
}

impl Storage {
    /// Stores the chunk `seq_hash` of a model. Everything about the body is verified before any of it is visible:
    /// header, directory, checksums, lengths, and that its tokens hash to `seq_hash`. Idempotent.
    ///
    /// Runs on when the caller goes away after its last byte: an upload is finished or aborted, not left.
    ///
    /// # Errors
    /// [`StorageError::InvalidChunk`], [`ChunkMismatch`](StorageError::ChunkMismatch),
    /// [`TooLarge`](StorageError::TooLarge), [`UnknownModel`](StorageError::UnknownModel),
    /// [`UnknownProfile`](StorageError::UnknownProfile), [`Body`](StorageError::Body): nothing is stored.
    /// [`Store`](StorageError::Store): may be stored; the same request may be sent again.
    pub async fn put_chunk<E: std::fmt::Display>(
        self: &Arc<Self>,
        tenant: &Name,
        model_id: &ModelId,
        seq_hash: &SeqHash,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
    ) -> Result<StoredChunk, StorageError> {
        self.put_chunk_for(tenant, model_id, seq_hash, body, RequestHint::default()).await
    }

    /// As [`put_chunk`](Self::put_chunk), by a caller who says what its request is.
    ///
    /// # Errors
    /// As [`put_chunk`](Self::put_chunk).
    pub async fn put_chunk_for<E: std::fmt::Display>(
        self: &Arc<Self>,
        tenant: &Name,
        model_id: &ModelId,
        seq_hash: &SeqHash,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
        hint: RequestHint,
    ) -> Result<StoredChunk, StorageError> {
        self.model(tenant, model_id).await?;
        let received = self.receive(tenant, model_id, seq_hash, body).await;
        let (head, object_digest, spool) =
            received.inspect_err(|error| self.refuse(tenant, model_id, seq_hash, error))?;
        let key =
            ChunkKey { tenant: tenant.clone(), model_id: *model_id, seq_hash: *seq_hash, object_digest };
        let entry = Arc::new(entry_of(&head, object_digest));
        let upload = Upload { key, entry, spool, incarnation: 0 };
        let this = Arc::clone(self);
        let block_hashes = head.block_hashes;
        tokio::spawn(carry(async move { this.commit(upload, block_hashes, &hint).await })).await?
    }

    async fn receive<E: std::fmt::Display>(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        seq_hash: &SeqHash,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
    ) -> Result<(Head, ObjectDigest, Spool), StorageError> {
        let mut spool = self.spools.spool(self.store.seals(tenant));
        let mut verifier = ObjectVerifier::new();
        let mut digest = blake3::Hasher::new();
        let mut header_checked = false;
        let limit = self.settings.chunk_bytes_max;
        let mut body = std::pin::pin!(body);
        while let Some(part) = body.next().await {
            let part =
                part.map_err(|e| StorageError::Body { bytes: spool.bytes(), reason: e.to_string() })?;
            if spool.bytes() + part.len() as u64 > limit {
                return Err(StorageError::TooLarge { limit });
            }
            verifier.push(&part)?;
            if let (false, Some(header)) = (header_checked, verifier.header()) {
                self.check_header(tenant, model_id, seq_hash, header).await?;
                header_checked = true;
            }
            digest.update(&part);
            spool.push(&part).await?;
        }
        let head = verifier.finish()?;
        head.verify_chain()?;
        Ok((head, (*digest.finalize().as_bytes()).into(), spool))
    }

    /// Remembers for `explain` that a chunk was sent and not taken.
    pub(crate) fn refuse(&self, tenant: &Name, model_id: &ModelId, seq_hash: &SeqHash, error: &StorageError) {
        // An outage or a broken connection says nothing of the chunk.
        if !error.code().is_retryable() && !matches!(error, StorageError::Body { .. }) {
            self.refused.insert((Scope::new(tenant, model_id), *seq_hash), error.to_string().into());
        }
    }

    /// Refuses early what could only be refused later.
    pub(crate) async fn check_header(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        seq_hash: &SeqHash,
        header: &ChunkHeader,
    ) -> Result<(), StorageError> {
        let limit = self.settings.chunk_bytes_max;
        if header.object_bytes() > limit {
            return Err(StorageError::TooLarge { limit });
        }
        let differs = |field, found: String, expected: String| {
            if found == expected {
                Ok(())
            } else {
                Err(StorageError::ChunkMismatch { field, found, expected })
            }
        };
        differs("model_id", header.model_id.to_string(), model_id.to_string())?;
        differs("seq_hash", header.seq_hash.to_string(), seq_hash.to_string())?;
        self.profile_exists(tenant, model_id, &header.profile_hash).await
    }

    /// Finds an object name without a tombstone. While the name has one, the object is reissued under the next incarnation
    /// number in its header, which gives it another digest and so another name.
    async fn unreserved_name(
        &self,
        upload: &mut Upload,
        removed: &HashSet<ObjectDigest>,
    ) -> Result<(), StorageError> {
        while removed.contains(&upload.key.object_digest) && upload.incarnation < u16::MAX {
            upload.incarnation += 1;
            let object_digest = upload.spool.reissue(upload.incarnation).await?;
            upload.key.object_digest = object_digest;
            let row = IndexRow { object_digest, ..IndexRow::clone(&upload.entry.row) };
            upload.entry = Arc::new(IndexEntry { row: Arc::new(row), ..IndexEntry::clone(&upload.entry) });
        }
        Ok(())
    }

    /// Stores a verified upload and acknowledges it under a name that has no tombstone after its last byte is durable.
    async fn commit(
        &self,
        mut upload: Upload,
        block_hashes: Vec<[u8; 8]>,
        hint: &RequestHint,
    ) -> Result<StoredChunk, StorageError> {
        self.reached(Transition::UploadVerified);
        let mut removed = self.removed_beside(&upload.key).await?;
        for _ in 0..limits::PUT_ATTEMPTS_MAX {
            self.unreserved_name(&mut upload, &removed).await?;
            let Upload { key, entry, spool, .. } = &mut upload;
            let scope = Scope::new(&key.tenant, &key.model_id);
            // What a read found broken is written again, whatever the store says of it.
            let broken = self.dead.contains(&(scope, key.object_digest));
            let path = self.store.layout.path(&Key::Chunk(key.clone()));
            let created = spool.send(&self.store.store, &path, broken).await?;
            self.reached(Transition::ObjectWritten);
            self.indexed(scope, entry);
            removed = self.removed_beside(key).await?;
            if removed.contains(&key.object_digest) {
                self.forget(scope, key.object_digest);
                continue;
            }
            if let Err(error) = self.offer_base(key, &entry.row, spool, hint).await {
                // It is stored; that it is not hot is no failure.
                tracing::warn!(%error, "a stored chunk could not be read back from the spool for the hot tier");
            }
            let Upload { key, entry, spool, .. } = upload;
            drop(spool);
            return Ok(self.acknowledged(key, &entry, block_hashes, created).await);
        }
        Err(StorageError::removed_meanwhile())
    }

    /// The objects of this object's chunk that have tombstones.
    async fn removed_beside(&self, key: &ChunkKey) -> Result<HashSet<ObjectDigest>, StorageError> {
        self.removed_objects(&key.tenant, &key.model_id, &key.seq_hash).await
    }

    /// Takes note of an object that is in the store, before its tombstone is looked for a last time: a removal that comes
    /// later then finds the row and takes it out.
    pub(crate) fn indexed(&self, scope: Scope, entry: &Arc<IndexEntry>) {
        self.dead.remove(&(scope, entry.row.object_digest));
        self.remember(scope, entry);
        self.reached(Transition::IndexWritten);
    }

    /// Takes note of an object that is durable and [`indexed`](Self::indexed) and has no tombstone: journal, events.
    pub(crate) async fn acknowledged(
        &self,
        key: ChunkKey,
        entry: &Arc<IndexEntry>,
        block_hashes: Vec<[u8; 8]>,
        created: bool,
    ) -> StoredChunk {
        let ChunkKey { tenant, model_id, seq_hash, object_digest } = key;
        let scope = Scope::new(&tenant, &model_id);
        self.refused.remove(&(scope, seq_hash));
        if created {
            let tenant_of = tenant.clone();
            let stored = JournalEntry::Stored { tenant, model_id, entry: Arc::clone(entry), block_hashes };
            self.announce(&stored, &self.journal.replica).await;
            let n = self.journal.push(stored);
            let one = Stored::one(entry.row.object_bytes);
            self.ledger.note(&tenant_of, *object_digest.as_bytes(), one, &self.journal.replica, n);
        }
        StoredChunk { seq_hash, object_digest, bytes: entry.row.object_bytes, created }
    }
}
