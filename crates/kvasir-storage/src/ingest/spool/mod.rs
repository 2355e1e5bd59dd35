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
use kvasir_store::{StoreError, seal::SealError, trace::carry};
use kvasir_types::ObjectDigest;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutPayload, path::Path};
use tokio::{sync::Semaphore, task::JoinSet};

use self::{
    file::SpoolFile,
    memory::{BLOCK_BYTES_MAX, Blocks},
};
use crate::{
    Settings,
    error::PutError,
    limits,
    memory::{Lease, MemoryBudget, Region, RegionPool},
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
    blocks: Arc<RegionPool>,
    parts: Arc<Semaphore>,
    crash_points: Arc<dyn CrashPointObserver>,
}

impl SpoolPool {
    pub(crate) fn new(settings: &Settings) -> Self {
        let parts = (settings.spool_memory_bytes / 2 / limits::MULTIPART_PART_BYTES).max(1);
        let of_parts = (parts * limits::MULTIPART_PART_BYTES).min(settings.spool_memory_bytes / 2);
        let bodies = settings.spool_memory_bytes - of_parts;
        let memory = MemoryBudget::new(bodies as u64);
        Self {
            directory: settings.spool_directory.clone(),
            blocks: RegionPool::new(Arc::clone(&memory), BLOCK_BYTES_MAX),
            memory,
            crash_points: Arc::clone(&settings.crash_points),
            parts: Arc::new(Semaphore::new(parts)),
        }
    }

    /// A new spool; `sealed`: its data must not be on disk unencrypted.
    pub(crate) fn spool(self: &Arc<Self>, sealed: bool) -> Spool {
        Spool { pool: Arc::clone(self), content: SpoolContent::Memory(Blocks::default()), bytes: 0, sealed }
    }

    /// Memory for a body without waiting, if enough stays free for others beyond their blocks.
    pub(crate) fn lease(&self, bytes: u64) -> Option<Lease> {
        self.blocks.lease(bytes, self.memory.total() / limits::SPOOL_BUFFERS_DIVISOR)
    }

    /// The memory budget of bodies.
    pub(crate) fn memory(&self) -> &Arc<MemoryBudget> {
        &self.memory
    }
}

/// One upload's bytes.
#[derive(Debug)]
pub(crate) struct Spool {
    pool: Arc<SpoolPool>,
    content: SpoolContent,
    bytes: u64,
    sealed: bool,
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
            bytes = blocks.take(bytes, &self.pool.blocks, left);
            if bytes.is_empty() {
                return Ok(());
            }
            let lease = self.pool.blocks.lease(2 * limits::SPOOL_BUFFER_BYTES as u64, 0);
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
                    let part = read_part(file, at, self.bytes).await.map_err(PutError::Spool)?;
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
    /// The store's copy is compared nevertheless, because an acknowledged writer depends on it. An object
    /// that differs, or that is sealed and does not open, is overwritten.
    pub(crate) async fn send(
        &mut self,
        store: &Arc<dyn ObjectStore>,
        path: &Path,
        overwrite: bool,
    ) -> Result<bool, PutError> {
        let failed = StoreError::request("storing an object");
        let bytes = self.bytes;
        let existing = match store.head(path).await {
            Ok(meta) => Some(meta.size),
            Err(object_store::Error::NotFound { .. }) => None,
            Err(error) => return Err(failed(error).into()),
        };
        if existing == Some(bytes) && !overwrite && self.is_at(store, path).await? {
            return Ok(false);
        }
        match &mut self.content {
            SpoolContent::File(file) if bytes > limits::MULTIPART_PART_BYTES as u64 => {
                file.flush().await.map_err(PutError::Spool)?;
                send_parts(file, &self.pool, store, path, bytes).await?;
                self.pool.crash_points.reached(Transition::PartsCompleted);
                Ok(existing.is_none())
            }
            SpoolContent::File(file) => {
                let _permit = self.pool.parts.acquire().await;
                file.flush().await.map_err(PutError::Spool)?;
                let payload = read(file, 0..bytes).await.map_err(PutError::Spool)?.into();
                put(store, path, payload, existing.is_some()).await.map_err(|e| failed(e).into())
            }
            SpoolContent::Memory(blocks) => {
                let payload = blocks.payload();
                put(store, path, payload, existing.is_some()).await.map_err(|e| failed(e).into())
            }
        }
    }

    /// Whether the object at `path` has the same bytes.
    async fn is_at(&mut self, store: &Arc<dyn ObjectStore>, path: &Path) -> Result<bool, PutError> {
        let mut theirs = match store.get(path).await {
            Ok(found) => found.into_stream(),
            Err(error) => return Ok(differs(error)?),
        };
        self.settle().await.map_err(PutError::Spool)?;
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

/// The part of the file that begins at `at`.
async fn read_part(file: &SpoolFile, at: u64, bytes: u64) -> std::io::Result<Bytes> {
    read(file, at..bytes.min(at + limits::MULTIPART_PART_BYTES as u64)).await
}

async fn read(file: &SpoolFile, range: Range<u64>) -> std::io::Result<Bytes> {
    let bytes = (range.end - range.start) as usize;
    Ok(file.fill(range.start, Region::new(bytes, None)).await?.freeze(bytes))
}

/// Sends a verified file as a multipart upload: nothing is visible before its completion, and a failure
/// aborts it.
async fn send_parts(
    file: &SpoolFile,
    pool: &SpoolPool,
    store: &Arc<dyn ObjectStore>,
    path: &Path,
    bytes: u64,
) -> Result<(), PutError> {
    let failed = StoreError::request("storing an object in parts");
    let mut upload = store.put_multipart(path).await.map_err(&failed)?;
    pool.crash_points.reached(Transition::PartsBegun);
    let sent = match send_each(file, bytes, pool, &mut *upload).await {
        Ok(()) => match upload.complete().await {
            Ok(_) => Ok(()),
            // It may have taken effect: names are digests, so a complete object there is ours.
            Err(error) => match store.head(path).await {
                Ok(meta) if meta.size == bytes => return Ok(()),
                _ => Err(failed(error).into()),
            },
        },
        Err(error) => Err(error),
    };
    if sent.is_err() {
        // The collector deletes what even this leaves behind.
        let _ = upload.abort().await;
    }
    sent
}

async fn send_each(
    file: &SpoolFile,
    bytes: u64,
    pool: &SpoolPool,
    upload: &mut dyn MultipartUpload,
) -> Result<(), PutError> {
    let failed = StoreError::request("storing a part");
    let (mut sending, mut at) = (JoinSet::new(), 0);
    while at < bytes {
        let permit = Arc::clone(&pool.parts).acquire_owned().await;
        let part = read_part(file, at, bytes).await.map_err(PutError::Spool)?;
        at += part.len() as u64;
        let (request, crash_points) = (upload.put_part(part.into()), Arc::clone(&pool.crash_points));
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

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    /// Concurrent uploads whose bodies are many times the memory: some in blocks, all others in files.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn many_uploads_hold_no_more_than_their_memory() {
        let directory = tempfile::tempdir().expect("a directory");
        let total = 24 << 20;
        let settings =
            Settings { spool_memory_bytes: total, ..Settings::new(directory.path().join("spool")) };
        let pool = Arc::new(SpoolPool::new(&settings));
        let parts = pool.parts.available_permits() * limits::MULTIPART_PART_BYTES;
        assert_eq!(pool.memory.total() as usize + parts, total, "all of it, and no more");
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let body: Arc<Vec<u8>> = Arc::new((0..9_000_000u32).map(|i| (i >> 3) as u8).collect());
        let uploads = (0..24).map(|n| {
            let (pool, store, body) = (Arc::clone(&pool), Arc::clone(&store), Arc::clone(&body));
            tokio::spawn(async move {
                let mut spool = pool.spool(n % 2 == 0);
                for part in body.chunks(48 << 10) {
                    spool.push(part).await?;
                    tokio::task::yield_now().await;
                }
                let in_memory = matches!(spool.content, SpoolContent::Memory(_));
                let path = Path::from(format!("object-{n}"));
                spool.send(&store, &path, false).await.map_err(std::io::Error::other)?;
                spool.settle().await?;
                let prefix = spool.fill(700_000, Region::new(1_000_000, None)).await?;
                assert_eq!(prefix[..], body[700_000..1_700_000]);
                Ok::<_, std::io::Error>(in_memory)
            })
        });
        let done = futures::future::join_all(uploads).await;
        let in_memory = done.into_iter().filter(|done| matches!(done, Ok(Ok(true)))).count();
        assert!(in_memory <= 1, "{in_memory}: bodies have 8 MiB, and a third of it is for buffers");
        for n in 0..24 {
            let stored = store.get(&Path::from(format!("object-{n}"))).await.expect("is there");
            assert!(stored.bytes().await.expect("reads") == body[..]);
        }
        assert!(pool.memory.peak() <= pool.memory.total());
        assert!(pool.memory.peak() > 1 << 20, "it is used");
        assert_eq!(pool.parts.available_permits() * limits::MULTIPART_PART_BYTES, parts);
    }
}
