//! Storing opaque objects: bytes under a key that is never overwritten.
//!
//! Nothing in a bucket decides between two writers of one key, so they find each other: whoever has written his object lists
//! the key's objects, and is acknowledged where his is the only one. Of two that were acknowledged, the later one listed after
//! both had written, and would have seen the other. Where writers meet, all but the one with the smallest name give way at once;
//! that one waits for them, and gives way to an object that stays. A writer that ends before it gave way leaves an object that
//! nobody was promised: the key is a miss until the collector has removed both.

use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use kvasir_api::StoredObject;
use kvasir_container::{Head, OpaqueHead};
use kvasir_store::{
    StoreError,
    layout::{ChunkKey, Key},
    trace::carry,
};
use kvasir_types::{ModelId, Name, ObjectKey};

use super::{
    Ingest,
    chunks::{PutChunk, Upload},
    limited, sent,
    spool::Sent,
};
use crate::{
    error::{ChunkError, ObjectError, PutError},
    hot::RequestHint,
    index::Scope,
    limits,
    read::opaque_chunk,
    removal::Removal,
    transitions::Transition,
};

/// Under which key a body is stored, and for whom.
#[derive(Debug, Clone)]
pub struct PutObject {
    /// Whose.
    pub tenant: Name,
    /// The key's namespace.
    pub namespace: Name,
    /// The key.
    pub key: ObjectKey,
    /// Bytes of the body.
    pub bytes: u64,
    /// What the request is.
    pub hint: RequestHint,
}

impl Ingest {
    /// Stores an opaque object. The same bytes under the same key may be stored again, others may not.
    ///
    /// Runs on when the caller goes away after its last byte.
    ///
    /// # Errors
    /// [`ObjectError::Exists`]; [`PutError::TooLarge`], [`Body`](PutError::Body), [`InvalidChunk`](PutError::InvalidChunk) for a
    /// body of another length than was said: nothing is stored. [`PutError::Store`]: may be stored; the same request may be sent
    /// again.
    pub async fn put_object<E: std::fmt::Display>(
        self: &Arc<Self>,
        put: PutObject,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
    ) -> Result<StoredObject, ObjectError> {
        let PutObject { tenant, namespace, key, bytes, hint } = put;
        if bytes > self.chunk_bytes_max {
            return Err(PutError::TooLarge { limit: self.chunk_bytes_max }.into());
        }
        let root = self.catalog.open_namespace(&tenant, &namespace, &ModelId::OPAQUE).await?;
        let mut head = OpaqueHead::new(root.chain_key(), &key, bytes)?;
        let mut spool = self.spools.spool(self.bucket.seals(&tenant));
        // Its place: what it says follows from the bytes behind it.
        spool.push(&vec![0; head.head_bytes()]).await.map_err(PutError::Spool)?;
        let mut body = std::pin::pin!(limited(sent(body), bytes));
        while let Some(part) = body.next().await {
            let part = part?;
            head.push(&part)?;
            spool.push(&part).await.map_err(PutError::Spool)?;
        }
        let head = head.finish()?;
        let object_digest = spool.overwrite_prefix(head.clone()).await?;
        let head = Head::parse(&head)?;
        let put = PutChunk {
            tenant,
            model_id: ModelId::OPAQUE,
            seq_hash: head.header.seq_hash,
            namespace: Some(namespace),
            hint,
        };
        let mut upload = Upload::new(put, (head, object_digest, spool));
        let (this, of_key) = (Arc::clone(self), key.clone());
        let storing = tokio::spawn(carry(async move {
            let created = this.commit_opaque(&mut upload, &of_key).await?;
            if created && let Err(error) = this.offer_base(upload).await {
                tracing::warn!(%error, "a stored object could not be read back from the spool for the hot tier");
            }
            Ok::<_, ObjectError>(created)
        }));
        let created = storing.await.map_err(StoreError::Task)??;
        Ok(StoredObject { key, bytes, created })
    }

    /// Stores a body under its key, or finds that the same bytes are there. Says whether it was new.
    async fn commit_opaque(&self, upload: &mut Upload, key: &ObjectKey) -> Result<bool, ObjectError> {
        self.bucket.reached(Transition::UploadVerified);
        let ChunkKey { tenant, model_id, seq_hash: name, .. } = upload.key();
        let scope = Scope::new(&tenant, &model_id);
        let exists = || ObjectError::Exists { key: key.clone() };
        let tombstones = self.reads.tombstones();
        for _ in 0..limits::PUT_ATTEMPTS_MAX {
            let removed = tombstones.of_chunk(&tenant, &model_id, &name).await?;
            // What this replica knows of spares a write that would have to give way.
            for row in self.reads.index().opaque_objects(scope, &name) {
                let there = opaque_chunk(&tenant, &name, &row);
                if !removed.contains(&row.object_digest) && self.differs(upload, &there).await? {
                    return Err(exists());
                }
            }
            upload.avoid(&removed).await?;
            let mine = upload.key();
            let path = self.bucket.path(&Key::Chunk(mine.clone()));
            // What a read found broken is written again, whatever the store says of it.
            let is_broken = self.reads.index().is_gone(scope, mine.object_digest);
            let sent = upload.spool.send(self.bucket.objects(), &path, is_broken).await?;
            self.bucket.reached(Transition::ObjectWritten);
            match self.settle(&mine).await? {
                Standing::Alone { before, since_ms } => {
                    self.reads.index().insert_listed(scope, &upload.entry, before);
                    self.bucket.reached(Transition::IndexWritten);
                    let block_hashes = std::mem::take(&mut upload.head.block_hashes);
                    let namespace = upload.put.namespace.take();
                    self.stored(mine, &upload.entry, block_hashes, namespace, since_ms, sent.created());
                    return Ok(sent.created());
                }
                Standing::Contested => {
                    // What was there before is somebody else's.
                    if sent != Sent::Known {
                        self.changes.write_tombstone(&mine, Removal::Duplicate).await?;
                    }
                    return Err(exists());
                }
                Standing::Removed => self.reads.forget_removed(scope, mine.object_digest, Removal::Removed),
            }
        }
        Err(StoreError::own("storing an object", "it was removed each time it was stored").into())
    }

    /// Whether an object under the same key has other bytes. Where it has the same, the upload gets its name.
    async fn differs(&self, upload: &mut Upload, there: &ChunkKey) -> Result<bool, ObjectError> {
        let own = upload.head.header.incarnation();
        if upload.entry.row.object_digest == there.object_digest {
            return Ok(false);
        }
        let head = match self.reads.head(there).await {
            Ok(head) => head,
            // It is not there any more, or of no use.
            Err(ChunkError::Unknown { .. } | ChunkError::Corrupt { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        // The checksums of all pieces lie under that of the directory.
        let is_alike = head.header.directory_crc == upload.head.header.directory_crc
            && head.header.object_bytes == upload.head.header.object_bytes;
        if is_alike {
            upload.reissue(head.header.incarnation()).await?;
            if upload.entry.row.object_digest == there.object_digest {
                return Ok(false);
            }
            upload.reissue(own).await?;
        }
        Ok(true)
    }

    /// Looks for other objects of the key after `mine` was written; waits for them to give way where that is theirs to do.
    async fn settle(&self, mine: &ChunkKey) -> Result<Standing, ObjectError> {
        let mut wait = limits::OPAQUE_CONTEST_WAIT;
        loop {
            let (before, since_ms) = (self.reads.index().removals(), self.bucket.now_ms());
            let offered = self.reads.offered_objects(&mine.tenant, &mine.model_id, &mine.seq_hash).await?;
            let mut others = Vec::new();
            for other in &offered {
                if other != mine && self.is_sound(other).await? {
                    others.push(other);
                }
            }
            // So many that the others are not even listed.
            let is_full = offered.len() >= limits::OBJECTS_PER_SEQ_MAX;
            if !offered.contains(mine) && !is_full {
                return Ok(Standing::Removed);
            }
            if others.is_empty() {
                return Ok(Standing::Alone { before, since_ms });
            }
            let is_first = others.iter().all(|other| mine.object_digest < other.object_digest);
            if !is_first || wait > limits::OPAQUE_CONTEST_WAIT_MAX {
                return Ok(Standing::Contested);
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
    }

    /// Whether an object counts. One whose head is broken, or that this replica has found broken before, is read whole, and
    /// quarantined where it is: it would be in the way of its key.
    async fn is_sound(&self, other: &ChunkKey) -> Result<bool, ObjectError> {
        let scope = Scope::new(&other.tenant, &other.model_id);
        let was_broken = self.reads.index().is_gone(scope, other.object_digest);
        match self.reads.row(other).await {
            Ok(_) if !was_broken => return Ok(true),
            Ok(_) | Err(ChunkError::Corrupt { .. }) => {}
            Err(ChunkError::Unknown { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        match self.reads.is_what_it_is_called(other).await {
            Ok(true) => Ok(true),
            Ok(false) => {
                self.changes.write_tombstone(other, Removal::Corrupt).await?;
                Ok(false)
            }
            Err(ChunkError::Unknown { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// How an object stands under its key.
enum Standing {
    /// It is the only one. With it, how many removals this replica had heard of before it looked, and the store's time then.
    Alone { before: u64, since_ms: Option<i64> },
    /// There are others.
    Contested,
    /// It has a tombstone.
    Removed,
}
