//! Storing opaque objects: bytes under a key that is never overwritten.
//!
//! A writer lists the key's objects first, and is refused if they have another payload. The bucket does not
//! decide between writers that both find none, so they detect each other: after writing its object, a writer
//! lists the key's objects again, and is acknowledged if none has another payload. Of two acknowledged
//! writers, the later one listed after both had written, and would have seen the other. If writers collide,
//! all except the one with the smallest name give way at once; that one waits for them, and gives way to an
//! object that stays. Each writes a separate object, distinguished by a number, even for the same bytes: so
//! no writer depends on an object whose writer may give way. A writer whose requests fail gives way as well.
//! A writer that ends, among concurrent ones, before it has given way leaves an object that was never
//! acknowledged: the key is a miss until the collector has removed all of them.

use std::sync::{Arc, atomic::Ordering};

use bytes::Bytes;
use futures::{Stream, StreamExt};
use kvasir_api::StoredObject;
use kvasir_container::{Head, OpaqueHead};
use kvasir_store::{
    StoreError, StoreKind,
    layout::{ChunkKey, Key, ListedKey},
    synced,
    trace::carry,
};
use kvasir_types::{ModelId, Name, ObjectDigest, ObjectKey, SeqHash};
use object_store::GetOptions;

use super::{
    Ingest,
    chunks::{PutChunk, Upload},
    digest::AlignedDigest,
    limited, sent,
};
use crate::{
    changes::ledger::Reservation,
    error::{ChunkError, ObjectError, PutError},
    hot::RequestHint,
    index::Scope,
    limits,
    removal::Removal,
    transitions::Transition,
};

/// The key of a body, and its tenant.
#[derive(Debug, Clone)]
pub struct PutObject {
    /// The tenant.
    pub tenant: Name,
    /// The key's namespace.
    pub namespace: Name,
    /// The key.
    pub key: ObjectKey,
    /// Size of the body.
    pub bytes: u64,
    /// The request's description.
    pub hint: RequestHint,
    /// Whether lists of the namespace's keys include it. Sealed tenants have no lists: they would reveal
    /// keys.
    pub listed: bool,
    /// The quota reserved for it, and for a new namespace's record, until it is stored or given up.
    pub reservation: Option<Arc<Reservation>>,
}

impl Ingest {
    /// Stores an opaque object. Storing the same bytes under the same key again succeeds; other bytes are
    /// refused.
    ///
    /// Continues if the caller disconnects after its last byte.
    ///
    /// # Errors
    /// [`ObjectError::Exists`]; [`PutError::TooLarge`], [`Body`](PutError::Body),
    /// [`InvalidChunk`](PutError::InvalidChunk) for a body whose length differs from the declared one:
    /// nothing is stored. [`PutError::Store`]: may be stored; the same request may be sent again.
    pub fn put_object<E: std::fmt::Display>(
        self: &Arc<Self>,
        put: PutObject,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
    ) -> impl Future<Output = Result<StoredObject, ObjectError>> {
        self.put_payload(put, sent(body))
    }

    /// As [`put_object`](Self::put_object), of a body whose errors keep their kind: parts in the store may be unreadable
    /// without any fault of the caller.
    pub(super) async fn put_payload(
        self: &Arc<Self>,
        put: PutObject,
        body: impl Stream<Item = Result<Bytes, PutError>> + Send,
    ) -> Result<StoredObject, ObjectError> {
        let PutObject { tenant, namespace, key, bytes, hint, listed, reservation } = put;
        if bytes > self.chunk_bytes_max {
            return Err(PutError::TooLarge { limit: self.chunk_bytes_max }.into());
        }
        let (root, older_roots) = self.catalog.roots(&tenant, &namespace, &ModelId::OPAQUE).await?;
        let older_names: Vec<_> = older_roots.iter().map(|root| root.chain_key().object(&key)).collect();
        let mut head = OpaqueHead::new(root.chain_key(), &key, bytes)?;
        let mut spool = self.spools.spool(self.bucket.seals(&tenant));
        // Reserve space for the head, which depends on the bytes after it.
        spool.push(&vec![0; head.head_bytes()]).await.map_err(PutError::Spool)?;
        let mut payload_digest = AlignedDigest::default();
        let mut body = std::pin::pin!(limited(body, bytes));
        while let Some(part) = body.next().await {
            let part = part?;
            head.push(&part)?;
            payload_digest.update(&part);
            spool.push(&part).await.map_err(PutError::Spool)?;
        }
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        // Hashed, so that writers with close numbers never collide.
        let nonce = blake3::hash(&[self.writer.to_le_bytes(), number.to_le_bytes()].concat());
        let nonce = u64::from_le_bytes(nonce.as_bytes().first_chunk().copied().unwrap_or_default());
        let written_ms = self.bucket.now_ms().map_or(0, i64::cast_unsigned);
        let head = head.finish(payload_digest.finalize(), written_ms, nonce)?;
        let object_digest = spool.overwrite_prefix(head.clone()).await?;
        let head = Head::parse(&head)?;
        let put = PutChunk {
            tenant,
            model_id: ModelId::OPAQUE,
            seq_hash: head.header.seq_hash,
            namespace: Some(namespace.clone()),
            hint,
            announced: None,
            reservation,
        };
        let mut upload = Upload::new(put, (head, object_digest, spool));
        let (this, of_key) = (Arc::clone(self), key.clone());
        let storing = carry(async move {
            let tenant = upload.put.tenant.clone();
            // Of a body that was refused, nothing is left.
            let root_now = this.catalog.root(&tenant, &namespace, &ModelId::OPAQUE).await?;
            if root_now != root {
                let reason = "the salt of its namespace was rotated while its body arrived";
                return Err(StoreError::own("storing an object", reason).into());
            }
            this.record_namespace(&tenant, &namespace).await?;
            let (created, object_digest) = this.commit_opaque(&mut upload, &of_key, &older_names).await?;
            // Also if nothing was created, and `If-None-Match: *` refuses the request for it: an earlier one may have
            // ended between the object and this.
            if listed && !this.bucket.seals(&tenant) {
                let listed = ListedKey { tenant, namespace, key: of_key, object_digest };
                this.bucket.write_listed(listed).await?;
            }
            if created && let Err(error) = this.offer_base(upload).await {
                tracing::warn!(%error, "a stored object could not be read back from the spool for the hot tier");
            }
            Ok::<_, ObjectError>(created)
        });
        let created = self.bucket.open().run("storing an object", bytes, storing).await??;
        Ok(StoredObject { key, bytes, created })
    }

    /// Stores a body under its key, or finds that the same bytes are stored. Returns whether it is new, and
    /// the object that counts. `older_names` are the key's names under earlier salts that readers still search.
    async fn commit_opaque(
        &self,
        upload: &mut Upload,
        key: &ObjectKey,
        older_names: &[SeqHash],
    ) -> Result<(bool, ObjectDigest), ObjectError> {
        self.bucket.reached(Transition::UploadVerified);
        let ChunkKey { tenant, model_id, seq_hash: name, .. } = upload.key();
        let scope = Scope::new(&tenant, &model_id);
        let exists = || ObjectError::Exists { key: key.clone() };
        let payload = upload.head.opaque().map(|opaque| *opaque.payload_digest());
        let mut was_there = false;
        for older in older_names {
            match self.find_value(&tenant, older, payload).await? {
                Found::Same(_) => was_there = true,
                Found::Other => return Err(exists()),
                Found::Undecided => {}
            }
        }
        for attempt in 0..limits::PUT_ATTEMPTS_MAX {
            match self.find_value(&tenant, &name, payload).await? {
                Found::Same(object_digest) => {
                    self.sync(&upload.put.key(object_digest)).await?;
                    return Ok((false, object_digest));
                }
                Found::Other => return Err(exists()),
                Found::Undecided => {}
            }
            // The number makes the first name unique.
            if attempt > 0 {
                let removed = self.reads.tombstones().of_chunk(&tenant, &model_id, &name).await?;
                upload.avoid(&removed).await?;
            }
            let mine = upload.key();
            let standing = match self.write_and_settle(upload, &mine, payload).await {
                Ok(standing) => standing,
                Err(error) => {
                    // It may be stored.
                    if let Err(error) = self.retract(upload, &mine).await {
                        tracing::warn!(tenant = %mine.tenant, name = %mine.seq_hash, %error, "an object whose PUT failed could not be removed; if another value is stored under its key, the key may count as a miss until garbage collection");
                    }
                    return Err(error);
                }
            };
            match standing {
                Standing::Alone { equal, before, since_ms } => {
                    self.indexed(scope, &upload.entry, before);
                    self.reads.index().note_acknowledged(scope, mine.object_digest);
                    let block_hashes = std::mem::take(&mut upload.head.block_hashes);
                    let namespace = upload.put.namespace.take();
                    let object_digest = mine.object_digest;
                    self.stored(mine, &upload.entry, block_hashes, namespace, since_ms, true);
                    for other in &equal {
                        self.index_equal(scope, other, before).await;
                    }
                    return Ok((equal.is_empty() && !was_there, object_digest));
                }
                Standing::Contested => {
                    self.retract(upload, &mine).await?;
                    return Err(exists());
                }
                Standing::Removed => self.reads.forget_removed(scope, mine.object_digest, Removal::Removed),
            }
        }
        Err(StoreError::own("storing an object", "it was removed after each attempt to store it").into())
    }

    /// Makes an object durable that another writer may not have synced. Only a directory shows such ones.
    async fn sync(&self, there: &ChunkKey) -> Result<(), StoreError> {
        const SYNCING: &str = "syncing an object";
        if self.bucket.open().kind() != StoreKind::File {
            return Ok(());
        }
        let path = self.bucket.path(&Key::Chunk(there.clone()));
        let head = GetOptions { head: true, ..synced() };
        let found = self.bucket.open_object(&path, head, SYNCING).await?;
        found.map(drop).ok_or_else(|| StoreError::own(SYNCING, "it was removed meanwhile"))
    }

    /// Compares the value of the key that the store holds, whatever this replica knows of it, with `payload`.
    async fn find_value(
        &self,
        tenant: &Name,
        name: &SeqHash,
        payload: Option<[u8; 32]>,
    ) -> Result<Found, ObjectError> {
        let scope = Scope::new(tenant, &ModelId::OPAQUE);
        let offered = self.reads.offered(tenant, &ModelId::OPAQUE, name).await?;
        // What is removed is no value for this replica either, once another one is stored.
        for row in self.reads.index().opaque_objects(scope, name) {
            if !offered.iter().any(|(there, _)| there.object_digest == row.object_digest) {
                self.reads.forget(scope, row.object_digest);
            }
        }
        let (mut has_equal, mut has_other) = (false, false);
        for (there, meta) in offered {
            let found = self.reads.payload_digest(&there).await?;
            if found != payload {
                has_other |= found.is_some() && self.sound_payload(&there, found, payload).await?.is_some();
                continue;
            }
            has_equal = true;
            // Its writer no longer gives way. But another writer's remains may be present as well.
            let stays = self.reads.is_settled(&meta)
                || self.reads.index().is_acknowledged(scope, there.object_digest);
            match if stays { self.kept_payload(scope, &there).await? } else { None } {
                Some(kept) if Some(kept) != payload => return Ok(Found::Other),
                Some(_) => match self.settle(&there, payload).await? {
                    Standing::Alone { before, .. } => {
                        self.index_equal(scope, &there, before).await;
                        return Ok(Found::Same(there.object_digest));
                    }
                    Standing::Contested => return Ok(Found::Other),
                    Standing::Removed => {}
                },
                None => {}
            }
        }
        // If both are there, writers collide: those of other payloads may give way.
        Ok(if has_other && !has_equal { Found::Other } else { Found::Undecided })
    }

    async fn write_and_settle(
        &self,
        upload: &mut Upload,
        mine: &ChunkKey,
        payload: Option<[u8; 32]>,
    ) -> Result<Standing, ObjectError> {
        let path = self.bucket.path(&Key::Chunk(mine.clone()));
        // A writer's names are its own.
        upload.spool.send_new(self.bucket.objects(), &path).await?;
        self.bucket.reached(Transition::ObjectWritten);
        self.settle(mine, payload).await
    }

    /// Removes an object that was not acknowledged. No other writer was acknowledged for it: two writers
    /// never share an object. But after a while readers depend on it.
    async fn retract(&self, upload: &Upload, mine: &ChunkKey) -> Result<(), ObjectError> {
        let since = upload.spool.visible_since();
        if since.is_some_and(|since| since.elapsed() < limits::OPAQUE_RETRACT_MAX) {
            self.changes.write_tombstone(mine, Removal::Duplicate).await?;
        }
        Ok(())
    }

    /// Adds an object that stays, with the payload of a PUT, to the index: this replica finds it from now on,
    /// and names the same one of several as the others do, the smallest.
    async fn index_equal(&self, scope: Scope, other: &ChunkKey, before: u64) {
        if let Ok(entry) = self.reads.entry(other).await {
            self.reads.index().insert_listed(scope, &entry, before);
            self.reads.index().note_acknowledged(scope, other.object_digest);
        }
    }

    /// The payload of an object that stays, if the store still has it intact. Otherwise drops it from the
    /// index.
    async fn kept_payload(&self, scope: Scope, there: &ChunkKey) -> Result<Option<[u8; 32]>, ObjectError> {
        match self.reads.sound_head(there).await {
            Ok(Some(head)) => Ok(head.opaque().map(|opaque| *opaque.payload_digest())),
            Ok(None) => {
                self.reads.forget(scope, there.object_digest);
                Ok(None)
            }
            Err(ChunkError::Unknown { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Looks for objects of the key with another payload after `mine` was written; waits for those that must
    /// give way.
    async fn settle(&self, mine: &ChunkKey, payload: Option<[u8; 32]>) -> Result<Standing, ObjectError> {
        let mut wait = limits::OPAQUE_CONTEST_WAIT;
        loop {
            let (before, since_ms) = (self.reads.index().removals(), self.bucket.now_ms());
            let offered = self.reads.offered_objects(&mine.tenant, &mine.model_id, &mine.seq_hash).await?;
            let (mut alike, mut others) = (Vec::new(), Vec::new());
            for other in offered.iter().filter(|other| *other != mine) {
                let found = self.reads.payload_digest(other).await?;
                if found == payload {
                    alike.push(other);
                } else if self.sound_payload(other, found, payload).await?.is_some() {
                    others.push(other);
                }
            }
            // To read them whole takes long, and decides nothing where another payload is.
            let mut equal = Vec::new();
            for other in alike {
                if !others.is_empty() {
                    break;
                }
                // The store may have answered with the head of another object of the key.
                match self.sound_payload(other, payload, payload).await? {
                    Some(found) if Some(found) == payload => equal.push(other.clone()),
                    Some(_) => others.push(other),
                    None => {}
                }
            }
            // More than the listing covers.
            let is_full = offered.len() >= limits::OPAQUE_OBJECTS_MAX;
            if !offered.contains(mine) && !is_full {
                return Ok(Standing::Removed);
            }
            if others.is_empty() && !is_full {
                return Ok(Standing::Alone { equal, before, since_ms });
            }
            let waits = others.iter().all(|other| mine.object_digest < other.object_digest) && !is_full;
            if !waits || wait > limits::OPAQUE_CONTEST_WAIT_MAX {
                return Ok(Standing::Contested);
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
    }

    /// The payload of an object that counts, of which the head says `payload`. A head is only trusted to show
    /// that it differs from `mine`. If it is the same, or the head is damaged, or this replica has found the
    /// object damaged before, the object is read whole, and quarantined if it is damaged: it would block its
    /// key.
    async fn sound_payload(
        &self,
        other: &ChunkKey,
        payload: Option<[u8; 32]>,
        mine: Option<[u8; 32]>,
    ) -> Result<Option<[u8; 32]>, ObjectError> {
        let scope = Scope::new(&other.tenant, &other.model_id);
        let was_broken = self.reads.index().is_gone(scope, other.object_digest);
        if payload.is_some() && payload != mine && !was_broken {
            return Ok(payload);
        }
        for _ in 0..limits::OPAQUE_READS {
            match self.reads.sound_head(other).await {
                Ok(Some(head)) => return Ok(head.opaque().map(|opaque| *opaque.payload_digest())),
                Ok(None) => {}
                Err(ChunkError::Unknown { .. }) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        self.changes.write_tombstone(other, Removal::Corrupt).await?;
        Ok(None)
    }
}

/// What a key holds before a payload is written.
enum Found {
    /// The payload, in an object that stays.
    Same(ObjectDigest),
    /// Another payload.
    Other,
    /// Nothing, or objects whose writers may still give way.
    Undecided,
}

/// An object's standing among those of its key.
enum Standing {
    /// No object has another payload. Also: those with the same payload, how many removals this replica knew
    /// of before it checked, and the store's time then.
    Alone { equal: Vec<ChunkKey>, before: u64, since_ms: Option<i64> },
    /// Others exist.
    Contested,
    /// It has a tombstone.
    Removed,
}
