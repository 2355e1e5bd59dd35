//! Opaque objects: the value of a key.
//!
//! A key has one value. Writers of the same bytes each write an object, and any of them is the value.
//! Concurrent writers of different bytes leave differing objects for a moment; if one of them ended midway,
//! until they are collected: then it is unknown which one was acknowledged, and the key is a miss.

use std::{ops::Range, sync::Arc, time::Duration};

use bytes::BytesMut;
use futures::{Stream, StreamExt, TryStreamExt, future, stream};
use kvasir_container::OPAQUE_PIECE_BYTES;
use kvasir_store::{StoreError, layout::ChunkKey};
use kvasir_types::{ModelId, Name, ObjectDigest, ObjectKey, SeqHash};
use object_store::ObjectMeta;
use tokio::time::Instant;

use super::Reads;
use crate::{
    error::{ChunkError, ObjectError},
    hot::RequestHint,
    index::{IndexRow, Scope},
    limits,
    object_read::{ByteRange, ObjectRead},
};

/// A stored opaque object.
#[derive(Debug, Clone)]
pub struct OpaqueObject {
    chunk: ChunkKey,
    /// Position of its payload in the stored object.
    payload: Range<u64>,
}

impl OpaqueObject {
    fn new(chunk: ChunkKey, row: &IndexRow) -> Self {
        Self { chunk, payload: row.head_bytes.into()..row.object_bytes }
    }

    /// Identifies its bytes: another value of the key has another ETag.
    pub fn etag(&self) -> String {
        format!("\"{}\"", self.chunk.object_digest)
    }

    /// Identifies the stored object.
    pub(crate) fn digest(&self) -> ObjectDigest {
        self.chunk.object_digest
    }

    /// Size of its payload.
    pub fn bytes(&self) -> u64 {
        self.payload.end - self.payload.start
    }
}

impl Reads {
    /// The object under a key.
    ///
    /// # Errors
    /// [`ObjectError::Unknown`], [`Chunk`](ObjectError::Chunk) if it cannot be read.
    pub async fn opaque(
        self: &Arc<Self>,
        tenant: &Name,
        namespace: &Name,
        key: &ObjectKey,
    ) -> Result<OpaqueObject, ObjectError> {
        for name in self.catalog.object_names(tenant, namespace, key).await? {
            if let Some(found) = self.opaque_named(tenant, &name).await? {
                return Ok(found);
            }
        }
        Err(ObjectError::Unknown { key: key.clone() })
    }

    /// The objects of the leading `keys`, up to the first that is not stored. The hot tier treats them as a
    /// context, in the order of the keys.
    ///
    /// # Errors
    /// [`ObjectError::Chunk`] if the store cannot be asked for one.
    pub async fn opaque_run(
        self: &Arc<Self>,
        tenant: &Name,
        namespace: &Name,
        keys: &[ObjectKey],
        parallel: usize,
        hint: &RequestHint,
    ) -> Result<Vec<OpaqueObject>, ObjectError> {
        let found = self.opaque_each(tenant, namespace, keys, parallel);
        let found: Vec<OpaqueObject> = found
            .try_take_while(|object| future::ok(object.is_some()))
            .try_filter_map(future::ok)
            .try_collect()
            .await?;
        if let Some(hot) = &self.tier {
            let chunks: Vec<_> = found.iter().map(|object| object.chunk.clone()).collect();
            hot.requests().record_run(tenant, hint, &chunks, hot.tier().now());
        }
        Ok(found)
    }

    /// The object of each of `keys`, in order, if it is stored.
    ///
    /// # Errors
    /// As [`opaque_run`](Self::opaque_run).
    pub fn opaque_each(
        self: &Arc<Self>,
        tenant: &Name,
        namespace: &Name,
        keys: &[ObjectKey],
        parallel: usize,
    ) -> impl Stream<Item = Result<Option<OpaqueObject>, ObjectError>> {
        let found: Vec<_> = keys.iter().map(|key| self.opaque(tenant, namespace, key)).collect();
        stream::iter(found).buffered(parallel.max(1)).map(|found| match found {
            Ok(object) => Ok(Some(object)),
            Err(ObjectError::Unknown { .. }) => Ok(None),
            Err(error) => Err(error),
        })
    }

    /// When an object was written, in milliseconds since 1970 by the store's clock.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn opaque_written_ms(self: &Arc<Self>, object: &OpaqueObject) -> Result<u64, ChunkError> {
        let head = self.head(&object.chunk).await?;
        Ok(head.opaque().map_or(0, |opaque| opaque.written_ms()))
    }

    /// Opens a read of an object's payload.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_opaque(
        self: &Arc<Self>,
        object: &OpaqueObject,
        range: ByteRange,
        hint: &RequestHint,
    ) -> Result<ObjectRead, ChunkError> {
        let bytes = object.bytes();
        let wanted = range.resolve(bytes).ok_or(ChunkError::Range { object_bytes: bytes })?;
        self.read_opaque_range(object, wanted, hint).await
    }

    /// Opens a read of these bytes of an object's payload, which has them all. They may be none: a removed object is refused all
    /// the same.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_opaque_range(
        self: &Arc<Self>,
        object: &OpaqueObject,
        wanted: Range<u64>,
        hint: &RequestHint,
    ) -> Result<ObjectRead, ChunkError> {
        let bytes = object.bytes();
        if wanted.is_empty() {
            self.refuse_removed(&object.chunk).await?;
            return Ok(ObjectRead::empty(wanted, bytes));
        }
        let start = object.payload.start;
        let stored = start + wanted.start..start + wanted.end;
        let read = if self.tier.is_some() {
            // Its frames are verified when they enter the tier.
            self.read(&object.chunk, ByteRange::Bounded(stored.start, stored.end - 1), hint).await?
        } else {
            self.read_checked(&object.chunk, stored, hint).await?
        };
        Ok(ObjectRead { range: wanted, object_bytes: bytes, ..read })
    }

    /// Reads a range of the payload in whole pieces and verifies their checksums: a reader by key has none to
    /// compare with.
    async fn read_checked(
        self: &Arc<Self>,
        chunk: &ChunkKey,
        wanted: Range<u64>,
        hint: &RequestHint,
    ) -> Result<ObjectRead, ChunkError> {
        let head = self.head(chunk).await?;
        let (payload, piece) = (head.header.head_bytes(), u64::from(OPAQUE_PIECE_BYTES));
        let first = (wanted.start - payload) / piece;
        let whole = payload + first * piece..payload + (wanted.end - payload).next_multiple_of(piece);
        let range = ByteRange::Bounded(whole.start, whole.end - 1);
        let ObjectRead { object_bytes, bytes, .. } = self.read(chunk, range, hint).await?;
        let (this, key, answer) = (Arc::clone(self), chunk.clone(), wanted.clone());
        let pieces = (head, BytesMut::new(), bytes, first as usize);
        let checked = stream::try_unfold(pieces, move |(head, mut held, mut bytes, section)| {
            let (this, key, wanted) = (Arc::clone(&this), key.clone(), wanted.clone());
            async move {
                let piece = head.piece(section, 0).filter(|piece| piece.range.start < wanted.end);
                let Some(piece) = piece else { return Ok(None) };
                let length = (piece.range.end - piece.range.start) as usize;
                while held.len() < length {
                    let early = || StoreError::own("reading an object", "the store's response ended early");
                    held.extend_from_slice(&bytes.try_next().await?.ok_or_else(early)?);
                }
                let part = held.split_to(length).freeze();
                head.check_piece(section, 0, &part).map_err(|error| this.corrupt(&key, error.to_string()))?;
                let inside =
                    |at: u64| (at.clamp(piece.range.start, piece.range.end) - piece.range.start) as usize;
                let part = part.slice(inside(wanted.start)..inside(wanted.end));
                Ok(Some((part, (head, held, bytes, section + 1))))
            }
        });
        Ok(ObjectRead { range: answer, object_bytes, bytes: checked.boxed() })
    }

    /// The object under one name; `None` if there is none, or several that contradict each other.
    async fn opaque_named(
        self: &Arc<Self>,
        tenant: &Name,
        name: &SeqHash,
    ) -> Result<Option<OpaqueObject>, ChunkError> {
        let scope = Scope::new(tenant, &ModelId::OPAQUE);
        let rows = self.index.opaque_objects(scope, name);
        // Objects whose writers were acknowledged are equal, and stay.
        let is_settled = rows.iter().all(|row| self.index.is_acknowledged(scope, row.object_digest));
        if let Some(row) = rows.iter().min_by_key(|row| row.object_digest).filter(|_| is_settled) {
            self.index.note_row(scope, &Arc::new(row.clone()));
            return Ok(Some(OpaqueObject::new(opaque_chunk(tenant, name, row), row)));
        }
        if rows.is_empty() && self.index.is_missing(scope, *name) {
            return Ok(None);
        }
        let (since, before) = (Instant::now(), self.index.removals());
        let offered = self.offered(tenant, &ModelId::OPAQUE, name).await?;
        if offered.is_empty() {
            self.index.note_missing(scope, *name, since);
            return Ok(None);
        }
        let keys: Vec<ChunkKey> = offered.iter().map(|(chunk, _)| chunk.clone()).collect();
        let Some(chunk) = self.one_of_alike(&keys).await? else {
            tracing::warn!(%tenant, %name, objects = keys.len(), "a key has no readable object, or objects that differ; it counts as a miss");
            return Ok(None);
        };
        let entry = match self.entry(&chunk).await {
            Ok(entry) => entry,
            // An unreadable object is a miss.
            Err(ChunkError::Unknown { .. } | ChunkError::Corrupt { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        self.index.insert_listed(scope, &entry, before);
        // A young one may still give way: ask the store again.
        if offered.iter().any(|(listed, meta)| *listed == chunk && self.is_settled(meta)) {
            self.index.note_acknowledged(scope, chunk.object_digest);
        }
        Ok(Some(OpaqueObject::new(chunk, &entry.row)))
    }

    /// Whether an object is so old that its writer, acknowledged or not, no longer withdraws it.
    pub(crate) fn is_settled(&self, meta: &ObjectMeta) -> bool {
        let age = self.bucket.now_ms().map(|now| now.saturating_sub(meta.last_modified.timestamp_millis()));
        age.is_some_and(|age| age >= i64::try_from(settled_after(meta.size).as_millis()).unwrap_or(i64::MAX))
    }

    /// The first of a key's objects, if all have the same payload: writers of the same bytes each write one.
    async fn one_of_alike(&self, objects: &[ChunkKey]) -> Result<Option<ChunkKey>, ChunkError> {
        let mut first: Option<(ChunkKey, [u8; 32])> = None;
        for chunk in objects {
            let Some(payload) = self.payload_digest(chunk).await? else { continue };
            match &first {
                Some((_, before)) if *before != payload => return Ok(None),
                Some(_) => {}
                None => first = Some((chunk.clone(), payload)),
            }
        }
        Ok(first.map(|(chunk, _)| chunk))
    }

    /// Whether a key's readable objects have the same payload.
    pub(crate) async fn are_alike(&self, objects: &[ChunkKey]) -> Result<bool, StoreError> {
        match self.one_of_alike(objects).await {
            Ok(one) => Ok(one.is_some()),
            // Unknown.
            Err(error) => error.only_this_object().map(|()| true),
        }
    }

    /// The hash of an opaque object's payload; `None` if the object does not exist or is damaged. A single
    /// bad read may be a transfer error, and a damaged object does not count against others, so it is read
    /// several times.
    pub(crate) async fn payload_digest(&self, chunk: &ChunkKey) -> Result<Option<[u8; 32]>, ChunkError> {
        for _ in 0..limits::OPAQUE_READS {
            match self.head(chunk).await {
                Ok(head) => return Ok(head.opaque().map(|opaque| *opaque.payload_digest())),
                Err(ChunkError::Unknown { .. }) => return Ok(None),
                Err(ChunkError::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

/// Age at which no writer withdraws an object of `bytes`. S3 dates one that was sent in parts by the beginning of its
/// upload.
fn settled_after(bytes: u64) -> Duration {
    let is_in_parts = bytes > limits::MULTIPART_PART_BYTES as u64;
    let upload = if is_in_parts { limits::OPAQUE_PARTS_TIME_MAX } else { Duration::ZERO };
    limits::OPAQUE_SETTLED_AFTER + upload
}

/// The stored object of a row.
fn opaque_chunk(tenant: &Name, name: &SeqHash, row: &IndexRow) -> ChunkKey {
    let (tenant, model_id, object_digest) = (tenant.clone(), ModelId::OPAQUE, row.object_digest);
    ChunkKey { tenant, model_id, seq_hash: *name, object_digest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_may_have_been_sent_in_parts_is_settled_later() {
        let part = limits::MULTIPART_PART_BYTES as u64;
        assert_eq!(settled_after(part), limits::OPAQUE_SETTLED_AFTER);
        assert!(settled_after(part + 1) > limits::OPAQUE_PARTS_TIME_MAX);
    }
}
