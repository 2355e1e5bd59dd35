//! Reading chunk objects: whole, by range, by level; and their heads.

use std::{ops::Range, os::unix::fs::FileExt, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use kvasir_container::{ChunkHeader, HEADER_BYTES, Head};
use kvasir_types::{Level, ModelId, Name, SeqHash};
use object_store::{GetOptions, GetRange, GetResult, GetResultPayload, ObjectStoreExt};

use crate::{
    Storage, StorageError,
    blocking::blocking,
    chunks::entry_of,
    hot::RequestHint,
    index::{IndexEntry, IndexRow, Scope, prefer},
    layout::{ChunkKey, Key},
    limits,
    seal::SealError,
};

/// Which bytes of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteRange {
    /// All.
    Whole,
    /// From the first to the last, both included; an end past the object's is cut.
    Bounded(u64, u64),
    /// From an offset on.
    From(u64),
    /// The last so many.
    Suffix(u64),
}

impl ByteRange {
    /// As offsets into an object of that size; `None` where it holds none of its bytes.
    pub fn resolve(self, object_bytes: u64) -> Option<Range<u64>> {
        let range = match self {
            Self::Whole => return Some(0..object_bytes),
            Self::Bounded(first, last) => first..last.saturating_add(1).min(object_bytes),
            Self::From(first) => first..object_bytes,
            Self::Suffix(count) => object_bytes.saturating_sub(count)..object_bytes,
        };
        (range.start < range.end).then_some(range)
    }
}

/// An open read.
pub struct ObjectRead {
    /// The bytes that follow, as offsets into the object.
    pub range: Range<u64>,
    /// Size of the whole object.
    pub object_bytes: u64,
    /// The bytes; exactly as many as the range has, or an error.
    pub bytes: BoxStream<'static, Result<Bytes, StorageError>>,
}

impl ObjectRead {
    /// Says what would be read, and reads nothing.
    pub fn empty(range: Range<u64>, object_bytes: u64) -> Self {
        Self { range, object_bytes, bytes: futures::stream::empty().boxed() }
    }

    pub(crate) fn whole(result: GetResult) -> Self {
        let object_bytes = result.meta.size;
        let failed = StorageError::store("reading an object");
        Self { range: 0..object_bytes, object_bytes, bytes: exactly(result, 0..object_bytes, failed) }
    }
}

impl std::fmt::Debug for ObjectRead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ObjectRead({:?} of {})", self.range, self.object_bytes)
    }
}

impl Storage {
    /// Opens a read of one object. A missing one corrects the index.
    ///
    /// # Errors
    /// [`StorageError::UnknownChunk`], [`Range`](StorageError::Range), [`Store`](StorageError::Store).
    pub async fn read(&self, key: &ChunkKey, range: ByteRange) -> Result<ObjectRead, StorageError> {
        self.read_for(key, range, &RequestHint::default()).await
    }

    /// As [`read`](Self::read), by a caller who says what its request is.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`StorageError::Corrupt`] where a hot tier finds it out.
    pub async fn read_for(
        &self,
        key: &ChunkKey,
        range: ByteRange,
        hint: &RequestHint,
    ) -> Result<ObjectRead, StorageError> {
        self.used(Scope::new(&key.tenant, &key.model_id), key.object_digest, None);
        match &self.hot {
            Some(hot) => self.read_hot(hot, key, range, hint).await,
            None => self.read_store(key, range).await,
        }
    }

    /// Opens a read of the store itself.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_store(&self, key: &ChunkKey, range: ByteRange) -> Result<ObjectRead, StorageError> {
        let scope = Scope::new(&key.tenant, &key.model_id);
        let known = self.catalog.get(&(scope, key.object_digest)).map(|row| row.object_bytes);
        let object_bytes = match (known, range) {
            (Some(bytes), _) => Some(bytes),
            // Stores differ in what they answer to suffixes and to ranges past the end: ask for the size first.
            (None, ByteRange::Suffix(_) | ByteRange::From(_) | ByteRange::Bounded(..)) => {
                Some(self.object_bytes(key).await?)
            }
            (None, ByteRange::Whole) => None,
        };
        let wanted = match object_bytes {
            Some(bytes) => Some(range.resolve(bytes).ok_or(StorageError::Range { object_bytes: bytes })?),
            None => None,
        };
        self.open(key, wanted, object_bytes).await
    }

    /// Reads `wanted`, or all, of an object in the store, whose size is known or not.
    pub(crate) async fn open(
        &self,
        key: &ChunkKey,
        wanted: Option<Range<u64>>,
        object_bytes: Option<u64>,
    ) -> Result<ObjectRead, StorageError> {
        let whole = wanted.as_ref().is_none_or(|w| w.start == 0 && Some(w.end) == object_bytes);
        let options = GetOptions {
            range: wanted.clone().filter(|_| !whole).map(GetRange::Bounded),
            ..GetOptions::default()
        };
        let path = self.store.layout.path(&Key::Chunk(key.clone()));
        let result = self.store.store.get_opts(&path, options).await;
        let result = result.map_err(|e| self.read_failed(key, "reading an object", e))?;
        let object_bytes = object_bytes.unwrap_or(result.meta.size);
        let wanted = wanted.unwrap_or(0..object_bytes);
        if result.meta.size != object_bytes || result.range != wanted {
            return Err(self.corrupt(key, format!("{} bytes instead of {object_bytes}", result.meta.size)));
        }
        let (this, key) = (self.this.clone(), key.clone());
        let failed = move |error| match this.upgrade() {
            Some(storage) => storage.read_failed(&key, "reading an object", error),
            None => StorageError::store("reading an object")(error),
        };
        Ok(ObjectRead { range: wanted.clone(), object_bytes, bytes: exactly(result, wanted, failed) })
    }

    /// Size of an object.
    ///
    /// # Errors
    /// [`StorageError::UnknownChunk`], [`Store`](StorageError::Store).
    pub async fn object_bytes(&self, key: &ChunkKey) -> Result<u64, StorageError> {
        let path = self.store.layout.path(&Key::Chunk(key.clone()));
        let meta = self.store.store.head(&path).await;
        Ok(meta.map_err(|e| self.read_failed(key, "asking for an object", e))?.size)
    }

    /// Length of the object's prefix that decodes to `level`.
    ///
    /// # Errors
    /// [`StorageError::UnknownLevel`], and as [`row`](Self::row).
    pub async fn level_bytes(&self, key: &ChunkKey, level: Level) -> Result<u64, StorageError> {
        let row = self.row(key).await?;
        let unknown = StorageError::UnknownLevel { level, levels: row.level_bytes.len() };
        row.level_bytes.get(level.index()).copied().ok_or(unknown)
    }

    /// What a chunk object's head says, remembered or read.
    ///
    /// # Errors
    /// [`StorageError::UnknownChunk`], [`Corrupt`](StorageError::Corrupt), [`Store`](StorageError::Store).
    pub async fn row(&self, key: &ChunkKey) -> Result<Arc<IndexRow>, StorageError> {
        let scope = Scope::new(&key.tenant, &key.model_id);
        match self.catalog.get(&(scope, key.object_digest)) {
            Some(row) => Ok(row),
            None => Ok(Arc::clone(&self.entry(key).await?.row)),
        }
    }

    /// As [`row`](Self::row), and what the chunk follows.
    pub(crate) async fn entry(&self, key: &ChunkKey) -> Result<Arc<IndexEntry>, StorageError> {
        let scope = Scope::new(&key.tenant, &key.model_id);
        if let Some(entry) = self.entries.get(&(scope, key.object_digest)) {
            return Ok(entry);
        }
        let head = self.head(key).await?;
        let entry = Arc::new(entry_of(&head, key.object_digest));
        self.remember(scope, &entry);
        Ok(entry)
    }

    /// Reads and verifies a head: header, directory, tokens, chain, and that it is the chunk its key names.
    pub(crate) async fn read_head(&self, key: &ChunkKey) -> Result<Head, StorageError> {
        let path = self.store.layout.path(&Key::Chunk(key.clone()));
        match self.head_at(&path, key).await {
            Err(StorageError::Store { operation, source }) => Err(self.read_failed(key, operation, source)),
            Err(StorageError::InvalidChunk(error)) => Err(self.corrupt(key, error.to_string())),
            Err(error @ StorageError::ChunkMismatch { .. }) => Err(self.corrupt(key, error.to_string())),
            other => other,
        }
    }

    /// As [`read_head`](Self::read_head), of an object that lies elsewhere.
    pub(crate) async fn head_at(
        &self,
        path: &object_store::path::Path,
        key: &ChunkKey,
    ) -> Result<Head, StorageError> {
        let front = async |bytes: u64| {
            let front = self.store.store.get_range(path, 0..bytes.max(HEADER_BYTES as u64)).await;
            front.map_err(StorageError::store("reading an object's head"))
        };
        let first = front(limits::HEAD_GUESS_BYTES).await?;
        let head_bytes = ChunkHeader::parse(&first)?.head_bytes();
        let bytes = if head_bytes <= first.len() as u64 { first } else { front(head_bytes).await? };
        let head = Head::parse(&bytes)?;
        head.verify_chain()?;
        let differs = |field, found: String, expected: String| {
            if found == expected {
                Ok(())
            } else {
                Err(StorageError::ChunkMismatch { field, found, expected })
            }
        };
        differs("model_id", head.header.model_id.to_string(), key.model_id.to_string())?;
        differs("seq_hash", head.header.seq_hash.to_string(), key.seq_hash.to_string())?;
        Ok(head)
    }

    /// The object of a chunk that readers prefer: the smallest error beneath, then the smallest digest.
    ///
    /// # Errors
    /// [`StorageError::UnknownChunk`], [`Store`](StorageError::Store).
    pub async fn preferred(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        seq_hash: &SeqHash,
    ) -> Result<ChunkKey, StorageError> {
        let mut best: Option<(ChunkKey, Arc<IndexRow>)> = None;
        let mut keys = self.offered_objects(tenant, model_id, seq_hash).await?;
        if keys.len() == 1 {
            return keys.pop().ok_or(StorageError::UnknownChunk { seq_hash: *seq_hash, object_digest: None });
        }
        let mut lost_key = None;
        for key in keys {
            match self.row(&key).await {
                Ok(row) if best.as_ref().is_none_or(|(_, other)| prefer(&row, other)) => {
                    best = Some((key, row))
                }
                Err(error @ StorageError::KeyLost { .. }) => lost_key = Some(error),
                Ok(_) | Err(StorageError::UnknownChunk { .. } | StorageError::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let none = StorageError::UnknownChunk { seq_hash: *seq_hash, object_digest: None };
        best.map(|(key, _)| key).ok_or(lost_key.unwrap_or(none))
    }

    /// The objects of a chunk that the store lists and that have no tombstone, in the order of their digests.
    pub(crate) async fn offered_objects(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        seq_hash: &SeqHash,
    ) -> Result<Vec<ChunkKey>, StorageError> {
        let prefix = self.store.layout.chunk_prefix(tenant, model_id, seq_hash);
        let mut listing = self.store.store.list(Some(&prefix));
        let failed = StorageError::store("listing a chunk's objects");
        let (mut keys, mut removed) = (Vec::new(), None);
        while keys.len() < limits::OBJECTS_PER_SEQ_MAX
            && let Some(meta) = listing.try_next().await.map_err(&failed)?
        {
            let Some(Key::Chunk(key)) = self.store.layout.parse(&meta.location) else { continue };
            // Most chunks that are looked for are not there: then nobody asks for tombstones.
            if removed.is_none() {
                removed = Some(self.removed_objects(tenant, model_id, seq_hash).await?);
            }
            if removed.as_ref().is_none_or(|removed| !removed.contains(&key.object_digest)) {
                keys.push(key);
            }
        }
        keys.sort();
        // An object is listed twice where its plain form lies beside the sealed one.
        keys.dedup();
        Ok(keys)
    }

    fn read_failed(
        &self,
        key: &ChunkKey,
        operation: &'static str,
        error: object_store::Error,
    ) -> StorageError {
        if let object_store::Error::NotFound { .. } = error {
            self.forget(Scope::new(&key.tenant, &key.model_id), key.object_digest);
            let (seq_hash, object_digest) = (key.seq_hash, Some(key.object_digest));
            return StorageError::UnknownChunk { seq_hash, object_digest };
        }
        match SealError::of(&error) {
            Some(SealError::Altered) => self.corrupt(key, SealError::Altered.to_string()),
            _ => StorageError::store(operation)(error),
        }
    }

    /// A corrupt object is as good as gone: hidden from lookups here, and written anew when it is stored again.
    fn corrupt(&self, key: &ChunkKey, reason: String) -> StorageError {
        self.forget(Scope::new(&key.tenant, &key.model_id), key.object_digest);
        StorageError::Corrupt { seq_hash: key.seq_hash, object_digest: key.object_digest, reason }
    }
}

/// The bytes of a range and nothing else: too few are an error at the end, too many are an error at once.
fn exactly(
    result: GetResult,
    range: Range<u64>,
    failed: impl Fn(object_store::Error) -> StorageError + Send + 'static,
) -> BoxStream<'static, Result<Bytes, StorageError>> {
    let bytes = match result.payload {
        GetResultPayload::File(file, _) => file_stream(file, range.clone()),
        GetResultPayload::Stream(stream) => stream.boxed(),
    };
    let state = (bytes, range.end - range.start, failed);
    futures::stream::try_unfold(state, |(mut bytes, left, failed)| async move {
        let short = |reason: &str| StorageError::Store {
            operation: "reading an object",
            source: object_store::Error::Generic { store: "kvasir", source: reason.into() },
        };
        match bytes.try_next().await.map_err(&failed)? {
            Some(part) => match left.checked_sub(part.len() as u64) {
                Some(left) => Ok(Some((part, (bytes, left, failed)))),
                None => Err(short("the store sent more bytes than asked for")),
            },
            None if left == 0 => Ok(None),
            None => Err(short("the store's answer ended early")),
        }
    })
    .boxed()
}

/// A local file in pieces large enough that the hop to a blocking thread does not count.
fn file_stream(file: std::fs::File, range: Range<u64>) -> BoxStream<'static, object_store::Result<Bytes>> {
    let state = (Arc::new(file), range);
    futures::stream::try_unfold(state, |(file, range)| async move {
        if range.is_empty() {
            return Ok(None);
        }
        let bytes = limits::PASSED_BYTES.min(range.end - range.start);
        let (reader, start) = (Arc::clone(&file), range.start);
        let part = blocking(move || {
            let mut part = vec![0; bytes as usize];
            reader.read_exact_at(&mut part, start).map(|()| Bytes::from(part))
        });
        let part =
            part.await?.map_err(|e| object_store::Error::Generic { store: "file", source: e.into() })?;
        Ok(Some((part, (file, range.start + bytes..range.end))))
    })
    .boxed()
}
