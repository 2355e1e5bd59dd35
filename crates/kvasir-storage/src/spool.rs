//! Where an upload waits until all of it has been verified: in memory while it is small and memory is free, else in
//! an unnamed temporary file, which the system deletes with the process.

use std::{path::PathBuf, sync::Arc};

use bytes::{Bytes, BytesMut};
use kvasir_container::{HEADER_BYTES, mark_header};
use kvasir_types::ObjectDigest;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutPayload, path::Path};
use tokio::{
    io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt, BufWriter},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
};

use crate::{
    Settings, StorageError, limits,
    trace::carry,
    transitions::{Transition, Witness},
};

/// Bytes of one permit of the memory budget.
const PERMIT_BYTES: usize = 4096;
/// Bytes gathered before they go to the file.
const FILE_BUFFER_BYTES: usize = 256 << 10;

/// What all spools of a process share.
#[derive(Debug)]
pub(crate) struct SpoolPool {
    directory: PathBuf,
    memory: Arc<Semaphore>,
    parts: Arc<Semaphore>,
    witness: Arc<dyn Witness>,
}

impl SpoolPool {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            directory: settings.spool_directory.clone(),
            memory: Arc::new(Semaphore::new(settings.spool_memory_bytes / PERMIT_BYTES)),
            witness: Arc::clone(&settings.witness),
            parts: Arc::new(Semaphore::new(limits::UPLOADS_SENDING_MAX)),
        }
    }

    pub(crate) fn spool(self: &Arc<Self>) -> Spool {
        Spool { pool: Arc::clone(self), held: Held::Memory(Vec::new(), Vec::new()), bytes: 0 }
    }
}

/// One upload's bytes.
#[derive(Debug)]
pub(crate) struct Spool {
    pool: Arc<SpoolPool>,
    held: Held,
    bytes: u64,
}

#[derive(Debug)]
enum Held {
    Memory(Vec<Bytes>, Vec<OwnedSemaphorePermit>),
    File(BufWriter<tokio::fs::File>),
}

impl Spool {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes the next bytes.
    pub(crate) async fn push(&mut self, bytes: Bytes) -> std::io::Result<()> {
        self.bytes += bytes.len() as u64;
        if let Held::Memory(parts, permits) = &mut self.held {
            let wanted = bytes.len().div_ceil(PERMIT_BYTES) as u32;
            let fits = self.bytes <= limits::SPOOL_MEMORY_BYTES as u64;
            if let (true, Ok(permit)) = (fits, Arc::clone(&self.pool.memory).try_acquire_many_owned(wanted)) {
                parts.push(bytes);
                permits.push(permit);
                return Ok(());
            }
            let directory = self.pool.directory.clone();
            let file = tokio::task::spawn_blocking(move || {
                std::fs::create_dir_all(&directory)?;
                tempfile::tempfile_in(&directory)
            });
            let mut file =
                BufWriter::with_capacity(FILE_BUFFER_BYTES, tokio::fs::File::from_std(file.await??));
            for part in parts.drain(..) {
                file.write_all(&part).await?;
            }
            self.held = Held::File(file);
        }
        if let Held::File(file) = &mut self.held {
            file.write_all(&bytes).await?;
        }
        Ok(())
    }

    /// Marks the chunk object's header and gives the object's new digest.
    pub(crate) async fn mark(&mut self, mark: u16) -> Result<ObjectDigest, StorageError> {
        let mut digest = blake3::Hasher::new();
        match &mut self.held {
            Held::Memory(parts, _) => {
                let mut whole = std::mem::take(parts).concat();
                mark_front(&mut whole, mark)?;
                digest.update(&whole);
                parts.push(whole.into());
            }
            Held::File(file) => {
                file.flush().await?;
                let file = file.get_mut();
                file.rewind().await?;
                let mut header = [0; HEADER_BYTES];
                file.read_exact(&mut header).await?;
                mark_header(&mut header, mark)?;
                file.rewind().await?;
                file.write_all(&header).await?;
                file.flush().await?;
                file.rewind().await?;
                loop {
                    let part = read_part(file).await?;
                    if part.is_empty() {
                        break;
                    }
                    digest.update(&part);
                }
            }
        }
        Ok((*digest.finalize().as_bytes()).into())
    }

    /// The first `bytes` of the upload, which has as many.
    pub(crate) async fn front(&mut self, bytes: u64) -> std::io::Result<Bytes> {
        let bytes = bytes.min(self.bytes);
        match &mut self.held {
            Held::Memory(parts, _) => {
                let mut front = BytesMut::with_capacity(bytes as usize);
                for part in parts {
                    let wanted = part.len().min(bytes as usize - front.len());
                    front.extend_from_slice(&part[..wanted]);
                }
                Ok(front.freeze())
            }
            Held::File(_) if bytes == 0 => Ok(Bytes::new()),
            Held::File(file) => {
                file.flush().await?;
                let file = file.get_mut();
                file.rewind().await?;
                let mut front = vec![0; bytes as usize];
                file.read_exact(&mut front).await?;
                Ok(front.into())
            }
        }
    }

    /// Writes everything to `path`. True when it was not there before.
    ///
    /// Whoever wrote there before wrote these very bytes, because names are digests; so a lost race is a success. An
    /// object of another length is what a broken store left, and is overwritten.
    pub(crate) async fn send(
        self,
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
        match self.held {
            Held::File(file) if bytes > limits::MULTIPART_PART_BYTES as u64 => {
                send_parts(file, &self.pool, store, path, bytes).await?;
                self.pool.witness.passed(Transition::PartsCompleted);
                Ok(existing.is_none())
            }
            Held::File(file) => {
                let _permit = self.pool.parts.acquire().await;
                let mut file = rewound(file).await?;
                let payload = read_part(&mut file).await?.into();
                put(store, path, payload, existing.is_some(), bytes).await.map_err(failed)
            }
            Held::Memory(parts, _permits) => {
                put(store, path, parts.into_iter().collect(), existing.is_some(), bytes).await.map_err(failed)
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

async fn rewound(mut file: BufWriter<tokio::fs::File>) -> std::io::Result<tokio::fs::File> {
    file.flush().await?;
    let mut file = file.into_inner();
    file.rewind().await?;
    file.set_max_buf_size(FILE_BUFFER_BYTES);
    Ok(file)
}

/// The next part of the file; empty at its end.
async fn read_part(file: &mut tokio::fs::File) -> std::io::Result<Bytes> {
    let mut part = BytesMut::with_capacity(limits::MULTIPART_PART_BYTES);
    while part.len() < limits::MULTIPART_PART_BYTES {
        let room = (limits::MULTIPART_PART_BYTES - part.len()) as u64;
        if (&mut *file).take(room).read_buf(&mut part).await? == 0 {
            break;
        }
    }
    Ok(part.freeze())
}

/// Sends a verified file as a multipart upload: nothing is visible before its completion, and a failure aborts it.
async fn send_parts(
    file: BufWriter<tokio::fs::File>,
    pool: &SpoolPool,
    store: &Arc<dyn ObjectStore>,
    path: &Path,
    bytes: u64,
) -> Result<(), StorageError> {
    let failed = StorageError::store("storing an object in parts");
    let mut file = rewound(file).await?;
    let mut upload = store.put_multipart(path).await.map_err(&failed)?;
    pool.witness.passed(Transition::PartsBegun);
    let sent = match send_each(&mut file, pool, &mut *upload).await {
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
    file: &mut tokio::fs::File,
    pool: &SpoolPool,
    upload: &mut dyn MultipartUpload,
) -> Result<(), StorageError> {
    let failed = StorageError::store("storing a part");
    let mut sending = JoinSet::new();
    loop {
        let permit = Arc::clone(&pool.parts).acquire_owned().await;
        let part = read_part(file).await?;
        if part.is_empty() {
            break;
        }
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
