//! Buffers an upload until all of it has been verified: in memory while it is small and memory is free,
//! otherwise in an unnamed temporary file, which the system deletes with the process. For tenants whose
//! objects are sealed in the store, the file is sealed as well, under its own key that only exists in this
//! process' memory.

mod file;
mod memory;

use std::{ops::Range, path::PathBuf, sync::Arc};

use bytes::Bytes;
use futures::StreamExt;
use kvasir_container::{HEADER_BYTES, reissue_header};
use kvasir_store::{StoreError, seal::SealError, synced, trace::carry};
use kvasir_types::ObjectDigest;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutPayload, path::Path};
use tokio::{sync::Semaphore, task::JoinSet, time::Instant};

use self::{file::SpoolFile, memory::Blocks};
use crate::{
    Settings,
    error::PutError,
    limits,
    memory::{Lease, MemoryBudget, Region},
    transitions::{CrashPointObserver, Transition},
};

/// State shared by all spools of a process.
///
/// Half of the memory is for parts being sent to the store. Uploads queue for these while they hold nothing
/// else; there is always at least one part. The other half is for bodies: blocks and buffers. Uploads do not
/// wait for these, because their holders may wait for clients.
#[derive(Debug)]
pub(crate) struct SpoolPool {
    directory: PathBuf,
    memory: Arc<MemoryBudget>,
    parts: Arc<Semaphore>,
    /// As much as all parts together.
    part_memory: Arc<MemoryBudget>,
    crash_points: Arc<dyn CrashPointObserver>,
}

impl SpoolPool {
    pub(crate) fn new(settings: &Settings) -> Self {
        let parts = (settings.spool_memory_bytes / 2 / limits::MULTIPART_PART_BYTES).max(1);
        let of_parts = (parts * limits::MULTIPART_PART_BYTES).min(settings.spool_memory_bytes / 2);
        let bodies = settings.spool_memory_bytes - of_parts;
        Self {
            directory: settings.spool_directory.clone(),
            memory: MemoryBudget::with_spare(bodies as u64, bodies as u64),
            crash_points: Arc::clone(&settings.crash_points),
            parts: Arc::new(Semaphore::new(parts)),
            part_memory: MemoryBudget::with_spare(of_parts as u64, of_parts as u64),
        }
    }

    /// A new spool; `sealed`: its data must not be on disk unencrypted.
    pub(crate) fn spool(self: &Arc<Self>, sealed: bool) -> Spool {
        let content = SpoolContent::Memory(Blocks::default());
        Spool { pool: Arc::clone(self), content, bytes: 0, sealed, visible_since: None }
    }

    /// Memory for a body without waiting, if enough stays free for others beyond their blocks.
    pub(crate) fn lease(&self, bytes: u64) -> Option<Lease> {
        self.memory.lease_leaving(bytes, self.memory.total() / limits::SPOOL_BUFFERS_DIVISOR)
    }

    /// The memory budget of bodies.
    pub(crate) fn memory(&self) -> &Arc<MemoryBudget> {
        &self.memory
    }

    /// The part of a file that begins at `at`. Whoever asks has a permit of `parts`.
    async fn read_part(&self, file: &SpoolFile, at: u64, bytes: u64) -> std::io::Result<Bytes> {
        self.read(file, at..bytes.min(at + limits::MULTIPART_PART_BYTES as u64)).await
    }

    async fn read(&self, file: &SpoolFile, range: Range<u64>) -> std::io::Result<Bytes> {
        let bytes = (range.end - range.start) as usize;
        // A client of a store may hold a part for a moment after its answer: then nobody pays for this one.
        let space = Region::new(bytes, self.part_memory.lease(bytes as u64));
        Ok(file.fill(range.start, space).await?.freeze(bytes))
    }
}

/// One upload's bytes.
#[derive(Debug)]
pub(crate) struct Spool {
    pool: Arc<SpoolPool>,
    content: SpoolContent,
    bytes: u64,
    sealed: bool,
    visible_since: Option<Instant>,
}

#[derive(Debug)]
enum SpoolContent {
    Memory(Blocks),
    File(SpoolFile),
}

impl Spool {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes the next bytes.
    pub(crate) async fn push(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.bytes += bytes.len() as u64;
        let mut bytes = bytes;
        if let SpoolContent::Memory(blocks) = &mut self.content {
            let left = self.pool.memory.total() / limits::SPOOL_BUFFERS_DIVISOR;
            bytes = blocks.take(bytes, &self.pool.memory, left);
            if bytes.is_empty() {
                return Ok(());
            }
            let lease = self.pool.memory.lease(2 * limits::SPOOL_BUFFER_BYTES as u64);
            let mut file = SpoolFile::create(self.pool.directory.clone(), self.sealed, lease).await?;
            for part in blocks.parts() {
                file.write(part).await?;
            }
            self.content = SpoolContent::File(file);
        }
        if let SpoolContent::File(file) = &mut self.content {
            file.write(bytes).await?;
        }
        Ok(())
    }

    /// Writes an incarnation number into the object's header. Returns the object's new digest.
    pub(crate) async fn reissue(&mut self, incarnation: u16) -> Result<ObjectDigest, PutError> {
        self.settle().await.map_err(PutError::Spool)?;
        let header = self.fill(0, Region::new(HEADER_BYTES, None)).await.map_err(PutError::Spool)?;
        let mut header = header.to_vec();
        set_incarnation(&mut header, incarnation)?;
        self.overwrite_prefix(header).await
    }

    /// Replaces the first bytes. Returns the digest of the whole content.
    pub(crate) async fn overwrite_prefix(&mut self, prefix: Vec<u8>) -> Result<ObjectDigest, PutError> {
        let mut digest = blake3::Hasher::new();
        match &mut self.content {
            SpoolContent::Memory(blocks) => {
                blocks.overwrite_prefix(&prefix);
                for part in blocks.parts() {
                    digest.update(part);
                }
            }
            SpoolContent::File(file) => {
                file.flush().await.map_err(PutError::Spool)?;
                file.overwrite_prefix(prefix);
                let (mut at, _turn) = (0, self.pool.parts.acquire().await);
                while at < self.bytes {
                    let part = self.pool.read_part(file, at, self.bytes).await.map_err(PutError::Spool)?;
                    at += part.len() as u64;
                    digest.update(&part);
                }
            }
        }
        Ok((*digest.finalize().as_bytes()).into())
    }

    /// Waits until all of it can be read.
    pub(crate) async fn settle(&mut self) -> std::io::Result<()> {
        match &mut self.content {
            SpoolContent::Memory(_) => Ok(()),
            SpoolContent::File(file) => file.flush().await,
        }
    }

    /// Fills `space` from byte `start` on; call [`settle`](Self::settle) first.
    pub(crate) async fn fill(&self, start: u64, mut space: Region) -> std::io::Result<Region> {
        match &self.content {
            SpoolContent::Memory(blocks) => {
                let (mut at, mut filled) = (0, 0);
                for part in blocks.parts() {
                    let from = (start.saturating_sub(at) as usize).min(part.len());
                    let wanted = (part.len() - from).min(space.len() - filled);
                    space[filled..filled + wanted].copy_from_slice(&part[from..from + wanted]);
                    (at, filled) = (at + part.len() as u64, filled + wanted);
                }
                if filled == space.len() { Ok(space) } else { Err(std::io::ErrorKind::UnexpectedEof.into()) }
            }
            SpoolContent::File(file) => file.fill(start, space).await,
        }
    }

    /// Writes everything to `path`. Returns true if it did not exist before.
    ///
    /// Names are digests, so another writer's object is these same bytes, and losing the race is a success.
    /// The store's copy is compared and made durable nevertheless, because an acknowledged writer depends on
    /// it. An object that differs, or that is sealed and does not open, is overwritten.
    pub(crate) async fn send(
        &mut self,
        store: &Arc<dyn ObjectStore>,
        path: &Path,
        overwrite: bool,
    ) -> Result<bool, PutError> {
        self.visible_since = None;
        let existing = match store.head(path).await {
            Ok(meta) => Some(meta.size),
            Err(object_store::Error::NotFound { .. }) => None,
            Err(error) => return Err(StoreError::request("storing an object")(error).into()),
        };
        self.settle().await.map_err(PutError::Spool)?;
        if existing == Some(self.bytes) && !overwrite && self.is_at(store, path).await? {
            return Ok(false);
        }
        self.write(store, path, existing.is_some()).await
    }

    /// Writes everything to a name that only this writer uses: the store is not asked for it first.
    pub(crate) async fn send_new(
        &mut self,
        store: &Arc<dyn ObjectStore>,
        path: &Path,
    ) -> Result<(), PutError> {
        self.visible_since = None;
        self.settle().await.map_err(PutError::Spool)?;
        self.write(store, path, false).await.map(drop)
    }

    /// Writes everything, over an object that `exists`. Returns true if there was none.
    async fn write(
        &mut self,
        store: &Arc<dyn ObjectStore>,
        path: &Path,
        exists: bool,
    ) -> Result<bool, PutError> {
        let failed = StoreError::request("storing an object");
        match &mut self.content {
            SpoolContent::File(_) if self.bytes > limits::MULTIPART_PART_BYTES as u64 => {
                self.send_parts(store, path).await?;
                self.pool.crash_points.reached(Transition::PartsCompleted);
                Ok(!exists)
            }
            SpoolContent::File(file) => {
                let _permit = self.pool.parts.acquire().await;
                let payload = self.pool.read(file, 0..self.bytes).await.map_err(PutError::Spool)?.into();
                self.visible_since = Some(Instant::now());
                put(store, path, payload, exists).await.map_err(|e| failed(e).into())
            }
            SpoolContent::Memory(blocks) => {
                let payload = blocks.payload();
                self.visible_since = Some(Instant::now());
                put(store, path, payload, exists).await.map_err(|e| failed(e).into())
            }
        }
    }

    /// When the last [`send`](Self::send) or [`send_new`](Self::send_new) may have made the object visible: the
    /// start of the request that does so. None before that.
    pub(crate) fn visible_since(&self) -> Option<Instant> {
        self.visible_since
    }

    /// Sends a verified file as a multipart upload: nothing is visible before its completion, and a failure aborts it.
    async fn send_parts(&mut self, store: &Arc<dyn ObjectStore>, path: &Path) -> Result<(), PutError> {
        let failed = StoreError::request("storing an object in parts");
        let mut upload = store.put_multipart(path).await.map_err(&failed)?;
        self.pool.crash_points.reached(Transition::PartsBegun);
        let sent = match self.send_each(&mut *upload).await {
            Ok(()) => {
                self.visible_since = Some(Instant::now());
                match upload.complete().await {
                    Ok(_) => return Ok(()),
                    // It may have taken effect. What stood there before may have the same length and be damaged.
                    Err(_) if self.is_at(store, path).await.unwrap_or(false) => return Ok(()),
                    Err(error) => failed(error).into(),
                }
            }
            Err(error) => error,
        };
        // GC takes what even this leaves behind.
        let _ = upload.abort().await;
        Err(sent)
    }

    async fn send_each(&self, upload: &mut dyn MultipartUpload) -> Result<(), PutError> {
        let SpoolContent::File(file) = &self.content else { return Ok(()) };
        let failed = StoreError::request("storing a part");
        let (mut sending, mut at) = (JoinSet::new(), 0);
        while at < self.bytes {
            let permit = Arc::clone(&self.pool.parts).acquire_owned().await;
            let part = self.pool.read_part(file, at, self.bytes).await.map_err(PutError::Spool)?;
            at += part.len() as u64;
            let (request, crash_points) = (upload.put_part(part.into()), Arc::clone(&self.pool.crash_points));
            sending.spawn(carry(async move {
                let _permit = permit;
                request.await.inspect(|()| crash_points.reached(Transition::PartWritten))
            }));
            while let Some(done) = sending.try_join_next() {
                done.map_err(StoreError::from)?.map_err(&failed)?;
            }
        }
        while let Some(done) = sending.join_next().await {
            done.map_err(StoreError::from)?.map_err(&failed)?;
        }
        Ok(())
    }

    /// Whether the object at `path` has the same bytes, durably; [`settle`](Self::settle) comes before.
    async fn is_at(&self, store: &Arc<dyn ObjectStore>, path: &Path) -> Result<bool, PutError> {
        let mut theirs = match store.get_opts(path, synced()).await {
            Ok(found) => found.into_stream(),
            Err(error) => return Ok(differs(error)?),
        };
        let mut at = 0;
        while let Some(part) = theirs.next().await {
            let part = match part {
                Ok(part) => part,
                Err(error) => return Ok(differs(error)?),
            };
            let end = at + part.len() as u64;
            if end > self.bytes {
                return Ok(false);
            }
            let ours = self.fill(at, Region::new(part.len(), None)).await.map_err(PutError::Spool)?;
            if ours[..] != part[..] {
                return Ok(false);
            }
            at = end;
        }
        Ok(at == self.bytes)
    }
}

/// An object that no longer exists, or does not open, differs from the one to store.
fn differs(error: object_store::Error) -> Result<bool, StoreError> {
    match error {
        object_store::Error::NotFound { .. } => Ok(false),
        error if SealError::of(&error).is_some_and(|error| !error.is_lost_key()) => Ok(false),
        error => Err(StoreError::request("comparing a stored object")(error)),
    }
}

fn set_incarnation(object: &mut [u8], incarnation: u16) -> Result<(), PutError> {
    match object.first_chunk_mut::<HEADER_BYTES>() {
        Some(header) => Ok(reissue_header(header, incarnation)?),
        // Unreachable: the object was verified. An all-zero header yields the error.
        None => Ok(reissue_header(&mut [0; HEADER_BYTES], incarnation)?),
    }
}

async fn put(
    store: &Arc<dyn ObjectStore>,
    path: &Path,
    payload: PutPayload,
    overwrite: bool,
) -> object_store::Result<bool> {
    let mode = if overwrite { PutMode::Overwrite } else { PutMode::Create };
    match store.put_opts(path, payload.clone(), mode.into()).await {
        Ok(_) => Ok(!overwrite),
        // Another writer of the same bytes, or our own first attempt whose response was lost: these bytes are
        // known to be right.
        Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
            store.put(path, payload).await?;
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
pub(super) mod tests;
