//! Storing chunk objects: a body is verified as it streams in and becomes visible only as a whole.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use futures::{Stream, StreamExt};
use kvasir_api::StoredChunk;
use kvasir_container::{ChunkHeader, Head, ObjectVerifier};
use kvasir_store::{
    StoreError,
    layout::{ChunkKey, Key},
    trace::carry,
};
use kvasir_types::{ModelId, Name, ObjectDigest, SeqHash};
use tokio::sync::oneshot;

use super::{Ingest, digest::AlignedDigest, limited, sent, spool::Spool, streamed::AnnouncedBody};
use crate::{
    changes::ledger::Reservation,
    error::{ChunkMismatch, PutError},
    hot::RequestHint,
    index::{IndexEntry, IndexRow, Scope},
    limits,
    removal::Removal,
    transitions::Transition,
};

/// The chunk that a body claims to be, and its tenant.
#[derive(Debug, Clone)]
pub struct PutChunk {
    /// The tenant.
    pub tenant: Name,
    /// The model.
    pub model_id: ModelId,
    /// The chunk.
    pub seq_hash: SeqHash,
    /// The namespace of its chain, if the writer names it; a label of events.
    pub namespace: Option<Name>,
    /// The request's description.
    pub hint: RequestHint,
    /// The writer's announcement before the first byte of the body.
    pub announced: Option<AnnouncedBody>,
    /// The quota reserved for it, until it is stored or given up.
    pub reservation: Option<Arc<Reservation>>,
}

impl PutChunk {
    /// A chunk without further data.
    pub fn new(tenant: &Name, model_id: &ModelId, seq_hash: &SeqHash) -> Self {
        let (tenant, model_id, seq_hash) = (tenant.clone(), *model_id, *seq_hash);
        let hint = RequestHint::default();
        Self { tenant, model_id, seq_hash, namespace: None, hint, announced: None, reservation: None }
    }

    pub(super) fn scope(&self) -> Scope {
        Scope::new(&self.tenant, &self.model_id)
    }

    /// The object of the chunk with a digest.
    pub(super) fn key(&self, object_digest: ObjectDigest) -> ChunkKey {
        let Self { tenant, model_id, seq_hash, .. } = self;
        ChunkKey { tenant: tenant.clone(), model_id: *model_id, seq_hash: *seq_hash, object_digest }
    }
}

/// Receives a body while it arrives.
pub(super) trait BodySink {
    /// Takes the next bytes; `head` is the object's, once it has arrived.
    fn push(
        &mut self,
        bytes: &[u8],
        head: Option<&Head>,
    ) -> impl Future<Output = Result<(), PutError>> + Send;

    /// BLAKE3 of all bytes so far.
    fn digest(&self) -> ObjectDigest;
}

/// Keeps a body, and hashes it.
struct SpoolSink {
    spool: Spool,
    digest: AlignedDigest,
}

impl BodySink for SpoolSink {
    async fn push(&mut self, bytes: &[u8], _: Option<&Head>) -> Result<(), PutError> {
        self.digest.update(bytes);
        self.spool.push(bytes).await.map_err(PutError::Spool)
    }

    fn digest(&self) -> ObjectDigest {
        self.digest.finalize().into()
    }
}

/// A verified body: its head, the digest of all its bytes, and the bytes.
pub(super) type Received = (Head, ObjectDigest, Spool);

/// A verified body before it has a name.
pub(super) struct Upload {
    pub(super) put: PutChunk,
    pub(super) head: Head,
    pub(super) entry: Arc<IndexEntry>,
    pub(super) spool: Spool,
}

impl Upload {
    pub(super) fn new(put: PutChunk, (head, object_digest, spool): Received) -> Self {
        let entry = Arc::new(IndexEntry::of_head(&head, object_digest));
        Self { put, head, entry, spool }
    }

    pub(super) fn key(&self) -> ChunkKey {
        self.put.key(self.entry.row.object_digest)
    }

    /// Finds an object name without a tombstone. While the name has one, the object is reissued under the
    /// next incarnation number in its header, which gives it another digest and thus another name.
    pub(super) async fn avoid(&mut self, removed: &BTreeSet<ObjectDigest>) -> Result<(), PutError> {
        while removed.contains(&self.entry.row.object_digest)
            && let Some(next) = self.head.header.incarnation().checked_add(1)
        {
            self.reissue(next).await?;
        }
        Ok(())
    }

    /// Gives the object the name for an incarnation number.
    pub(super) async fn reissue(&mut self, incarnation: u16) -> Result<(), PutError> {
        let object_digest = self.spool.reissue(incarnation).await?;
        let flags = &mut self.head.header.flags;
        *flags = *flags & 0xffff | u32::from(incarnation) << 16;
        let row = IndexRow { object_digest, ..IndexRow::clone(&self.entry.row) };
        self.entry = Arc::new(IndexEntry { row: Arc::new(row), ..IndexEntry::clone(&self.entry) });
        Ok(())
    }
}

impl Ingest {
    /// Stores a chunk object. The whole body is verified before any of it is visible: header, directory,
    /// checksums, lengths, and that its tokens hash to the chunk's `seq_hash`. Idempotent.
    ///
    /// Continues if the caller disconnects after its last byte: an upload is either finished or aborted.
    ///
    /// # Errors
    /// [`PutError::Removed`]: the same request may be sent again. [`PutError::InvalidChunk`],
    /// [`ChunkMismatch`](PutError::ChunkMismatch), [`TooLarge`](PutError::TooLarge),
    /// [`Body`](PutError::Body), [`Catalog`](PutError::Catalog) for an unknown model or profile: nothing is
    /// stored. [`Store`](PutError::Store): may be stored; the same request may be sent again.
    pub async fn put_chunk<E: std::fmt::Display>(
        self: &Arc<Self>,
        put: PutChunk,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
    ) -> Result<StoredChunk, PutError> {
        self.catalog.model(&put.tenant, &put.model_id).await?;
        let (scope, seq_hash) = (put.scope(), put.seq_hash);
        // On the heap: it would make the callers' futures too large.
        let stored = Box::pin(self.put_body(put, sent(body))).await;
        stored.inspect_err(|error| self.note_refusal(scope, seq_hash, error.code(), error))
    }

    async fn put_body(
        self: &Arc<Self>,
        put: PutChunk,
        body: impl Stream<Item = Result<Bytes, PutError>> + Send,
    ) -> Result<StoredChunk, PutError> {
        if let Some(announced) = put.announced
            && let Some(object) = self.begin_streamed(&put, announced).await?
        {
            return self.put_streamed(put, object, body).await;
        }
        let received = self.receive_whole(&put, body).await?;
        if let Some(announced) = put.announced {
            announced.check(received.1, &received.0)?;
        }
        self.store(put, received).await
    }

    /// Stores a verified body.
    pub(super) async fn store(
        self: &Arc<Self>,
        put: PutChunk,
        received: Received,
    ) -> Result<StoredChunk, PutError> {
        let mut upload = Upload::new(put, received);
        let this = Arc::clone(self);
        let (ack, acknowledged) = oneshot::channel();
        let storing = tokio::spawn(carry(async move {
            let stored = this.commit(&mut upload).await;
            let is_stored = stored.is_ok();
            // It is in the ledger now, and its writer may send the next one at once.
            upload.put.reservation = None;
            // The caller may be gone.
            let _ = ack.send(stored);
            if is_stored && let Err(error) = this.offer_base(upload).await {
                tracing::warn!(%error, "a stored chunk could not be read back from the spool for the hot tier");
            }
        }));
        match acknowledged.await {
            Ok(stored) => stored,
            Err(_) => Err(storing.await.map_or_else(StoreError::Task, |()| {
                StoreError::own("storing an object", "its task ended without an answer")
            }))?,
        }
    }

    /// Verifies a body while it arrives, and keeps it.
    pub(super) async fn receive_whole(
        &self,
        put: &PutChunk,
        body: impl Stream<Item = Result<Bytes, PutError>> + Send,
    ) -> Result<Received, PutError> {
        let spool = self.spools.spool(self.bucket.seals(&put.tenant));
        let mut sink = SpoolSink { spool, digest: AlignedDigest::default() };
        let (head, object_digest) = self.receive(put, body, &mut sink).await?;
        Ok((head, object_digest, sink.spool))
    }

    /// Verifies a body while it arrives and passes it on to be hashed: each part is read while it is in the
    /// CPU's caches.
    pub(super) async fn receive(
        &self,
        put: &PutChunk,
        body: impl Stream<Item = Result<Bytes, PutError>> + Send,
        sink: &mut impl BodySink,
    ) -> Result<(Head, ObjectDigest), PutError> {
        let mut verifier = ObjectVerifier::new();
        let mut header_checked = false;
        let mut body = std::pin::pin!(limited(body, self.chunk_bytes_max));
        while let Some(part) = body.next().await {
            let part = part?;
            verifier.push(&part)?;
            if let (false, Some(header)) = (header_checked, verifier.header()) {
                self.check_header(&put.tenant, &put.model_id, &put.seq_hash, header).await?;
                header_checked = true;
            }
            sink.push(&part, verifier.head()).await?;
        }
        let head = verifier.finish()?;
        head.verify_chain()?;
        Ok((head, sink.digest()))
    }

    /// Rejects early what could otherwise only be rejected later.
    pub(super) async fn check_header(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        seq_hash: &SeqHash,
        header: &ChunkHeader,
    ) -> Result<(), PutError> {
        let limit = self.chunk_bytes_max;
        if header.object_bytes() > limit {
            return Err(PutError::TooLarge { limit });
        }
        ChunkMismatch::check(header, model_id, seq_hash)?;
        Ok(self.catalog.profile_exists(tenant, model_id, &header.profile_hash).await?)
    }

    /// Stores a verified upload under a name that has no tombstone after its last byte is durable. Then it is
    /// in the index, in the ledger and on its way to the other replicas; only memory operations lie between
    /// durability and acknowledgement.
    async fn commit(&self, upload: &mut Upload) -> Result<StoredChunk, PutError> {
        self.bucket.reached(Transition::UploadVerified);
        let PutChunk { tenant, model_id, seq_hash, .. } = upload.put.clone();
        let scope = upload.put.scope();
        let tombstones = self.reads.tombstones();
        let mut removed = tombstones.of_chunk(&tenant, &model_id, &seq_hash).await?;
        for _ in 0..limits::PUT_ATTEMPTS_MAX {
            upload.avoid(&removed).await?;
            let key = upload.key();
            let path = self.bucket.path(&Key::Chunk(key.clone()));
            // An object that a read found damaged is written again, whatever the store reports about it.
            let is_broken = self.reads.index().is_gone(scope, key.object_digest);
            let created = upload.spool.send(self.bucket.objects(), &path, is_broken).await?;
            self.bucket.reached(Transition::ObjectWritten);
            let (before, since_ms) = (self.reads.index().removals(), self.bucket.now_ms());
            removed = tombstones.of_chunk(&tenant, &model_id, &seq_hash).await?;
            if removed.contains(&key.object_digest) {
                self.reads.forget_removed(scope, key.object_digest, Removal::Removed);
                continue;
            }
            self.indexed(scope, &upload.entry, before);
            let block_hashes = std::mem::take(&mut upload.head.block_hashes);
            let namespace = upload.put.namespace.take();
            return Ok(self.stored(key, &upload.entry, block_hashes, namespace, since_ms, created));
        }
        Err(StoreError::own("storing an object", "the chunk was removed after each attempt to store it")
            .into())
    }

    /// Records an object that is in the store and had no tombstone when it was checked. The check began when
    /// the index counted `before` removals; a removal heard of since then is kept. Not called earlier: that
    /// would delete the row of a known removal, and a process that ends then would offer the object again.
    pub(super) fn indexed(&self, scope: Scope, entry: &Arc<IndexEntry>, before: u64) {
        self.reads.index().insert_listed(scope, entry, before);
        self.bucket.reached(Transition::IndexWritten);
    }

    /// Records an object that is durable, existed at `since_ms` and has no tombstone.
    pub(super) fn stored(
        &self,
        key: ChunkKey,
        entry: &Arc<IndexEntry>,
        block_hashes: Vec<[u8; 8]>,
        namespace: Option<Name>,
        since_ms: Option<i64>,
        created: bool,
    ) -> StoredChunk {
        let ChunkKey { tenant, model_id, seq_hash, object_digest } = key;
        self.refused.remove(&(Scope::new(&tenant, &model_id), seq_hash));
        if created {
            self.changes.publish_stored(tenant, model_id, entry, block_hashes, namespace, since_ms);
        }
        StoredChunk { seq_hash, object_digest, bytes: entry.row.object_bytes, created }
    }

    /// Offers the base of a stored object to the hot tier, frame by frame, as far as memory allows.
    pub(super) async fn offer_base(&self, mut upload: Upload) -> std::io::Result<()> {
        let base = self.reads.offered_bytes(&upload.entry.row.level_bytes);
        let Some(hot) = self.reads.tier().filter(|_| base > 0 && !upload.put.hint.transient) else {
            return Ok(());
        };
        upload.spool.settle().await?;
        let object = hot.register_object(&upload.key(), &upload.head);
        let context = hot.requests().context(&object, &upload.put.hint, hot.tier().now());
        for frame in (0..object.frames()).take_while(|frame| object.range(*frame).end <= base) {
            let Some(space) = hot.tier().space(&object, frame) else { break };
            let bytes = upload.spool.fill(object.range(frame).start, space).await?;
            hot.tier().offer(&object, frame, context, bytes);
        }
        Ok(())
    }
}
