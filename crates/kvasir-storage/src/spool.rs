//! Where an upload waits until all of it has been verified: in memory while it is small and memory is free, else in
//! an unnamed temporary file, which the system deletes with the process. Of tenants whose objects are sealed in the store
//! the file is sealed too, under a key of its own that is nowhere but in this process' memory.

mod file;
mod memory;

use std::{path::PathBuf, sync::Arc};

use bytes::{Bytes, BytesMut};
use kvasir_container::{HEADER_BYTES, mark_header};
use kvasir_types::ObjectDigest;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutPayload, path::Path};
use tokio::{sync::Semaphore, task::JoinSet};

use self::{
    file::SpoolFile,
    memory::{Blocks, PERMIT_BYTES},
};
use crate::{
    Settings, StorageError, limits,
    trace::carry,
    transitions::{Transition, Witness},
};

/// What all spools of a process share.
#[derive(Debug)]
pub(crate) struct SpoolPool {
    directory: PathBuf,
    memory: Arc<Semaphore>,
    parts: Arc<Semaphore>,
    fronts: Semaphore,
    witness: Arc<dyn Witness>,
}

impl SpoolPool {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            directory: settings.spool_directory.clone(),
            memory: Arc::new(Semaphore::new(settings.spool_memory_bytes / PERMIT_BYTES)),
            witness: Arc::clone(&settings.witness),
            parts: Arc::new(Semaphore::new(limits::UPLOADS_SENDING_MAX)),
            fronts: Semaphore::new(limits::UPLOAD_FRONTS_MAX),
        }
    }

    /// A new spool; `sealed`: nothing of it is to be on the disk in the clear.
    pub(crate) fn spool(self: &Arc<Self>, sealed: bool) -> Spool {
        Spool { pool: Arc::clone(self), held: Held::Memory(Blocks::default()), bytes: 0, sealed }
    }
}

/// One upload's bytes.
#[derive(Debug)]
pub(crate) struct Spool {
    pool: Arc<SpoolPool>,
    held: Held,
    bytes: u64,
    sealed: bool,
}

#[derive(Debug)]
enum Held {
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
        if let Held::Memory(blocks) = &mut self.held {
            bytes = blocks.take(bytes, &self.pool.memory);
            if bytes.is_empty() {
                return Ok(());
            }
            let mut file = SpoolFile::create(self.pool.directory.clone(), self.sealed).await?;
            for part in blocks.parts() {
                file.write(part).await?;
            }
            self.held = Held::File(file);
        }
        if let Held::File(file) = &mut self.held {
            file.write(bytes).await?;
        }
        Ok(())
    }

    /// Marks the chunk object's header and gives the object's new digest.
    pub(crate) async fn mark(&mut self, mark: u16) -> Result<ObjectDigest, StorageError> {
        let mut digest = blake3::Hasher::new();
        match &mut self.held {
            Held::Memory(blocks) => {
                mark_front(blocks.front_mut(), mark)?;
                for part in blocks.parts() {
                    digest.update(part);
                }
            }
            Held::File(file) => {
                file.flush().await?;
                let mut header = file.read(0..HEADER_BYTES as u64).await?.to_vec();
                mark_front(&mut header, mark)?;
                file.overwrite_front(header);
                let mut at = 0;
                while at < self.bytes {
                    let part = read_part(file, at, self.bytes).await?;
                    at += part.len() as u64;
                    digest.update(&part);
                }
            }
        }
        Ok((*digest.finalize().as_bytes()).into())
    }

    /// Shows `seen` the first `bytes` of the upload. Uploads wait for each other: few fronts are in memory at once.
    pub(crate) async fn with_front(&mut self, bytes: u64, seen: impl FnOnce(&Bytes)) -> std::io::Result<()> {
        if bytes > 0 {
            let pool = Arc::clone(&self.pool);
            let _turn = pool.fronts.acquire().await;
            seen(&self.front(bytes.min(self.bytes)).await?);
        }
        Ok(())
    }

    async fn front(&mut self, bytes: u64) -> std::io::Result<Bytes> {
        match &mut self.held {
            Held::Memory(blocks) => {
                let mut front = BytesMut::with_capacity(bytes as usize);
                for part in blocks.parts() {
                    let wanted = part.len().min(bytes as usize - front.len());
                    front.extend_from_slice(&part[..wanted]);
                }
                Ok(front.freeze())
            }
            Held::File(file) => {
                file.flush().await?;
                file.read(0..bytes).await
            }
        }
    }

    /// Writes everything to `path`. True when it was not there before.
    ///
    /// Whoever wrote there before wrote these very bytes, because names are digests; so a lost race is a success. An
    /// object of another length is what a broken store left, and is overwritten.
    pub(crate) async fn send(
        &mut self,
        store: &Arc<dyn ObjectStore>,
        path: &Path,
        overwrite: bool,
    ) -> Result<bool, StorageError> {
        let failed = StorageError::store("storing an object");
        let bytes = self.bytes;
        let existing = match store.head(path).await {
            Ok(meta) => Some(meta.size),
            Err(object_store::Error::NotFound { .. }) => None,
            Err(error) => return Err(failed(error)),
        };
        if existing == Some(bytes) && !overwrite {
            return Ok(false);
        }
        match &mut self.held {
            Held::File(file) if bytes > limits::MULTIPART_PART_BYTES as u64 => {
                file.flush().await?;
                send_parts(file, &self.pool, store, path, bytes).await?;
                self.pool.witness.passed(Transition::PartsCompleted);
                Ok(existing.is_none())
            }
            Held::File(file) => {
                let _permit = self.pool.parts.acquire().await;
                file.flush().await?;
                let payload = file.read(0..bytes).await?.into();
                put(store, path, payload, existing.is_some(), bytes).await.map_err(failed)
            }
            Held::Memory(blocks) => {
                let payload = blocks.payload();
                put(store, path, payload, existing.is_some(), bytes).await.map_err(failed)
            }
        }
    }
}

fn mark_front(object: &mut [u8], mark: u16) -> Result<(), StorageError> {
    match object.first_chunk_mut::<HEADER_BYTES>() {
        Some(header) => Ok(mark_header(header, mark)?),
        // Unreachable: the object was verified. A header of nothing says the rest.
        None => Ok(mark_header(&mut [0; HEADER_BYTES], mark)?),
    }
}

async fn put(
    store: &Arc<dyn ObjectStore>,
    path: &Path,
    payload: PutPayload,
    overwrite: bool,
    bytes: u64,
) -> object_store::Result<bool> {
    let mode = if overwrite { PutMode::Overwrite } else { PutMode::Create };
    match store.put_opts(path, payload.clone(), mode.into()).await {
        Ok(_) => Ok(!overwrite),
        // Another writer of the same bytes, or our own first attempt whose answer was lost.
        Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
            if store.head(path).await?.size != bytes {
                store.put(path, payload).await?;
            }
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// The part of the file that begins at `at`.
async fn read_part(file: &SpoolFile, at: u64, bytes: u64) -> std::io::Result<Bytes> {
    file.read(at..bytes.min(at + limits::MULTIPART_PART_BYTES as u64)).await
}

/// Sends a verified file as a multipart upload: nothing is visible before its completion, and a failure aborts it.
async fn send_parts(
    file: &SpoolFile,
    pool: &SpoolPool,
    store: &Arc<dyn ObjectStore>,
    path: &Path,
    bytes: u64,
) -> Result<(), StorageError> {
    let failed = StorageError::store("storing an object in parts");
    let mut upload = store.put_multipart(path).await.map_err(&failed)?;
    pool.witness.passed(Transition::PartsBegun);
    let sent = match send_each(file, bytes, pool, &mut *upload).await {
        Ok(()) => match upload.complete().await {
            Ok(_) => Ok(()),
            // It may have taken effect: names are digests, so what is there whole is ours.
            Err(error) => match store.head(path).await {
                Ok(meta) if meta.size == bytes => return Ok(()),
                _ => Err(failed(error)),
            },
        },
        Err(error) => Err(error),
    };
    if sent.is_err() {
        // GC takes what even this leaves behind.
        let _ = upload.abort().await;
    }
    sent
}

async fn send_each(
    file: &SpoolFile,
    bytes: u64,
    pool: &SpoolPool,
    upload: &mut dyn MultipartUpload,
) -> Result<(), StorageError> {
    let failed = StorageError::store("storing a part");
    let (mut sending, mut at) = (JoinSet::new(), 0);
    while at < bytes {
        let permit = Arc::clone(&pool.parts).acquire_owned().await;
        let part = read_part(file, at, bytes).await?;
        at += part.len() as u64;
        let (request, witness) = (upload.put_part(part.into()), Arc::clone(&pool.witness));
        sending.spawn(carry(async move {
            let _permit = permit;
            request.await.inspect(|()| witness.passed(Transition::PartWritten))
        }));
        while let Some(done) = sending.try_join_next() {
            done?.map_err(&failed)?;
        }
    }
    while let Some(done) = sending.join_next().await {
        done?.map_err(&failed)?;
    }
    Ok(())
}
