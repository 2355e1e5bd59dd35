//! A directory as a store. Long payloads bypass the page cache: they are written once, frequently read parts
//! are in the hot tier, and a page of memory for each page of the payload would cost several times as much as
//! the write. Each write syncs what its durability needs and no more: `object_store` would sync a new folder
//! twice.

use std::{
    ffi::OsString,
    fmt,
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path as FilePath, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use futures::{FutureExt, stream::BoxStream};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart, local::LocalFileSystem,
    path::Path,
};
use parking_lot::Mutex;

use crate::{file_list, limits};

/// Alignment of addresses, offsets and lengths of unbuffered writes: the longest sector in use.
const SECTOR_BYTES: usize = 4096;

/// `object_store`'s directory, with its own writes.
#[derive(Debug)]
pub(crate) struct FileStore {
    files: LocalFileSystem,
}

impl FileStore {
    /// Objects under the existing `directory`.
    pub(crate) fn new(directory: &FilePath) -> Result<Self> {
        Ok(Self { files: LocalFileSystem::new_with_prefix(directory)?.with_fsync(true) })
    }
}

impl fmt::Display for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for FileStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let is_plain = opts.attributes.is_empty() && !matches!(opts.mode, PutMode::Update(_));
        if !is_plain {
            return self.files.put_opts(location, payload, opts).await;
        }
        let place = self.files.path_to_filesystem(location)?;
        let replace = matches!(opts.mode, PutMode::Overwrite);
        blocking(move || {
            let staged = StagedFile::create(place)?;
            staged.write(0, &payload)?;
            staged.publish(replace)
        })
        .await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        if !opts.attributes.is_empty() {
            return self.files.put_multipart_opts(location, opts).await;
        }
        let place = self.files.path_to_filesystem(location)?;
        let file = Some(Arc::new(blocking(move || StagedFile::create(place)).await?));
        Ok(Box::new(FileUpload { file, end: 0 }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.files.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.files.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        file_list::objects(&self.files, prefix, None)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        file_list::objects(&self.files, prefix, Some(offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.files.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.files.copy_opts(from, to, options).await
    }
}

/// A multipart upload: each part's position is fixed when it is handed over.
#[derive(Debug)]
struct FileUpload {
    /// `None` once it was completed or aborted.
    file: Option<Arc<StagedFile>>,
    end: u64,
}

#[async_trait]
impl MultipartUpload for FileUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (at, file) = (self.end, self.file.clone());
        self.end += data.content_length() as u64;
        let write = async move {
            let file = file.ok_or_else(ended)?;
            blocking(move || file.write(at, &data)).await
        };
        write.boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let file = self.file.take().ok_or_else(ended)?;
        blocking(move || file.publish(true)).await
    }

    async fn abort(&mut self) -> Result<()> {
        let file = self.file.take().ok_or_else(ended)?;
        blocking(move || {
            drop(file);
            Ok(())
        })
        .await
    }
}

fn ended() -> Error {
    Error::Generic { store: "LocalFileSystem", source: "the upload has ended".into() }
}

/// A file under a unique name, `{name}#{number}`, which listings do not show. Deleted when dropped; the
/// collector deletes those of killed processes.
#[derive(Debug)]
struct StagedFile {
    place: PathBuf,
    staging: PathBuf,
    file: File,
    /// The same file, bypassing the page cache, if the file system supports it: opened for the first long write.
    /// The writer holds the buffer.
    unbuffered: OnceLock<Option<(File, Mutex<AlignedBuffer>)>>,
    /// Whether it was renamed: from then on its staging name may be another writer's.
    is_renamed: AtomicBool,
}

impl StagedFile {
    fn create(place: PathBuf) -> Result<Self> {
        let created = (|| {
            for number in 1u64.. {
                let mut staging = OsString::from(&place);
                staging.push(format!("#{number}"));
                let staging = PathBuf::from(staging);
                let open = || OpenOptions::new().write(true).create_new(true).open(&staging);
                let file = match open() {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        create_folders(&place)?;
                        open()
                    }
                    opened => opened,
                };
                match file {
                    Ok(file) => return Ok((staging, file)),
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(error) => return Err(error),
                }
            }
            Err(io::ErrorKind::AlreadyExists.into())
        })();
        let (staging, file) = created.map_err(|error| failed("creating", &place, &error))?;
        let unbuffered = OnceLock::new();
        Ok(Self { place, staging, file, unbuffered, is_renamed: AtomicBool::new(false) })
    }

    fn unbuffered(&self) -> Option<&(File, Mutex<AlignedBuffer>)> {
        let open = || {
            let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(&self.staging);
            Some((file.ok()?, Mutex::default()))
        };
        self.unbuffered.get_or_init(open).as_ref()
    }

    /// Writes a payload from offset `at` on.
    fn write(&self, at: u64, payload: &PutPayload) -> Result<()> {
        self.try_write(at, payload).map_err(|error| failed("writing", &self.staging, &error))
    }

    fn try_write(&self, mut at: u64, payload: &PutPayload) -> io::Result<()> {
        let is_short = payload.content_length() < limits::STORE_UNBUFFERED_WRITE_BYTES_MIN;
        let is_buffered = is_short || !at.is_multiple_of(SECTOR_BYTES as u64);
        let unbuffered = if is_buffered { None } else { self.unbuffered() };
        let Some((unbuffered, buffer)) = unbuffered else {
            for part in payload {
                self.file.write_all_at(part, at)?;
                at += part.len() as u64;
            }
            return Ok(());
        };
        let mut buffer = buffer.lock();
        // A failed write may have left data.
        buffer.clear();
        for part in payload {
            let mut part = &part[..];
            while !part.is_empty() {
                let whole = part.len() / SECTOR_BYTES * SECTOR_BYTES;
                let is_aligned = part.as_ptr().addr().is_multiple_of(SECTOR_BYTES)
                    && whole >= limits::STORE_UNBUFFERED_WRITE_BYTES_MIN;
                // Short ones go together, long ones as they lie.
                if is_aligned && buffer.bytes().len().is_multiple_of(SECTOR_BYTES) {
                    self.write_sectors(unbuffered, buffer.bytes(), at)?;
                    at += buffer.bytes().len() as u64;
                    buffer.clear();
                    self.write_sectors(unbuffered, &part[..whole], at)?;
                    (at, part) = (at + whole as u64, &part[whole..]);
                    continue;
                }
                part = buffer.take(part);
                if buffer.is_full() {
                    self.write_sectors(unbuffered, buffer.bytes(), at)?;
                    at += buffer.bytes().len() as u64;
                    buffer.clear();
                }
            }
        }
        // The remainder does not fill a sector: no page of it may be written in both ways.
        let (whole, rest) = buffer.bytes().split_at(buffer.bytes().len() / SECTOR_BYTES * SECTOR_BYTES);
        self.write_sectors(unbuffered, whole, at)?;
        self.file.write_all_at(rest, at + whole.len() as u64)
    }

    /// Writes whole sectors past the page cache, or through it if the file system opens files this way but
    /// then refuses to write them.
    fn write_sectors(&self, unbuffered: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        match unbuffered.write_all_at(bytes, at) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => self.file.write_all_at(bytes, at),
            written => written,
        }
    }

    /// Makes it durable under its own name. If it must not replace an existing file, that file stays and this
    /// is an error.
    fn publish(&self, replace: bool) -> Result<PutResult> {
        self.file.sync_all().map_err(|error| failed("writing", &self.staging, &error))?;
        let published = if replace {
            std::fs::rename(&self.staging, &self.place)
                .inspect(|()| self.is_renamed.store(true, Ordering::Relaxed))
        } else {
            std::fs::hard_link(&self.staging, &self.place)
        };
        let synced = published.and_then(|()| sync_folder(self.place.parent()));
        match synced {
            Ok(()) => Ok(PutResult { e_tag: None, version: None, extensions: Default::default() }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let (path, source) = (self.place.display().to_string(), error.into());
                Err(Error::AlreadyExists { path, source })
            }
            Err(error) => Err(failed("naming", &self.place, &error)),
        }
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        if !*self.is_renamed.get_mut() {
            let _ = std::fs::remove_file(&self.staging);
        }
    }
}

/// Bytes to be written past the page cache that are not aligned; allocates on first use.
#[derive(Debug, Default)]
struct AlignedBuffer {
    memory: Vec<u8>,
    start: usize,
    filled: usize,
}

impl AlignedBuffer {
    /// Takes as much as fits, and returns the rest.
    fn take<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        if self.memory.is_empty() {
            self.memory = vec![0; limits::STORE_UNBUFFERED_WRITE_BYTES + SECTOR_BYTES];
            self.start = self.memory.as_ptr().align_offset(SECTOR_BYTES);
        }
        let free = limits::STORE_UNBUFFERED_WRITE_BYTES - self.filled;
        let (now, later) = bytes.split_at(bytes.len().min(free));
        let at = self.start + self.filled;
        self.memory[at..at + now.len()].copy_from_slice(now);
        self.filled += now.len();
        later
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.filled]
    }

    fn is_full(&self) -> bool {
        self.filled == limits::STORE_UNBUFFERED_WRITE_BYTES
    }

    fn clear(&mut self) {
        self.filled = 0;
    }
}

/// Creates the folders above a file, durably. What is in the innermost one is for the file's writer to make
/// durable.
fn create_folders(place: &FilePath) -> io::Result<()> {
    let mut missing = Vec::new();
    // Mostly only the innermost one is missing.
    for folder in place.ancestors().skip(1) {
        match create_folder(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(folder),
            created => {
                created?;
                break;
            }
        }
    }
    missing.into_iter().rev().try_for_each(create_folder)
}

/// Creates a folder that was missing a moment ago, and syncs its entry: another writer that has just created it
/// may not have done so yet.
fn create_folder(folder: &FilePath) -> io::Result<()> {
    match std::fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => sync_folder(folder.parent()),
    }
}

fn sync_folder(folder: Option<&FilePath>) -> io::Result<()> {
    folder.map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

pub(crate) fn failed(what: &str, path: &FilePath, error: &io::Error) -> Error {
    let source = format!("{what} {}: {error}", path.display()).into();
    // As `object_store` names it: a directory refuses the same again.
    Error::Generic { store: "LocalFileSystem", source }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await?
}

#[cfg(test)]
mod tests {
    use futures::TryStreamExt;
    use object_store::ObjectStoreExt;

    use super::*;

    fn content(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| ((at * 31) >> 3) as u8).collect()
    }

    /// Split at unaligned positions.
    fn payload(bytes: &[u8]) -> PutPayload {
        bytes.chunks(70_001).map(bytes::Bytes::copy_from_slice).collect()
    }

    /// As bodies lie in memory: short blocks first, then long ones at the beginnings of pages.
    fn blocks(bytes: &[u8]) -> PutPayload {
        let (short, long) = bytes.split_at(bytes.len().min(16 * SECTOR_BYTES));
        let at_a_page = |block: &[u8]| {
            let mut memory = vec![0; block.len() + SECTOR_BYTES];
            let start = memory.as_ptr().align_offset(SECTOR_BYTES);
            memory[start..start + block.len()].copy_from_slice(block);
            bytes::Bytes::from(memory).slice(start..start + block.len())
        };
        let short = short.chunks(5 * SECTOR_BYTES).map(bytes::Bytes::copy_from_slice);
        short.chain(long.chunks(600_000 / SECTOR_BYTES * SECTOR_BYTES).map(at_a_page)).collect()
    }

    async fn is_there(store: &FileStore, path: &Path, bytes: &[u8]) {
        let read = store.get(path).await.expect("is there").bytes().await.expect("reads");
        assert!(read == bytes, "{path}: {} of {} bytes", read.len(), bytes.len());
    }

    /// A writer renames its file, and before it has ended, another one begins under the same staging name.
    #[test]
    fn a_writer_that_has_finished_leaves_the_files_of_others_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = directory.path().join("object");
        let create = || StagedFile::create(place.clone()).expect("creates");
        let first = create();
        first.write(0, &payload(b"bytes")).expect("writes");
        first.publish(true).expect("is named");
        let second = create();
        drop(first);
        let third = create();
        third.write(0, &payload(b"by")).expect("writes");
        second.write(0, &payload(b"bytes")).expect("writes");
        second.publish(true).expect("its file is there");
        drop(third);
        assert_eq!(std::fs::read(&place).expect("reads"), b"bytes");
    }

    #[tokio::test]
    async fn what_is_written_is_read_whatever_its_length_and_nothing_is_left_beside_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = FileStore::new(directory.path()).expect("opens");
        let least = limits::STORE_UNBUFFERED_WRITE_BYTES_MIN;
        let buffer = limits::STORE_UNBUFFERED_WRITE_BYTES;
        for length in [0, least - 1, least, least + 1, buffer, 2 * buffer + SECTOR_BYTES, 3 * buffer + 77] {
            let (path, bytes) = (Path::from(format!("a/{length}/b")), content(length));
            let create = || store.put_opts(&path, payload(&bytes), PutMode::Create.into());
            create().await.expect("writes");
            is_there(&store, &path, &bytes).await;
            let again = create().await.expect_err("is there");
            assert!(matches!(again, Error::AlreadyExists { .. }), "{again}");
            for (other, payload) in
                [(content(length + 1), payload as fn(&[u8]) -> _), (content(length + 2), blocks)]
            {
                store.put(&path, payload(&other)).await.expect("replaces");
                is_there(&store, &path, &other).await;
            }
            let folder = directory.path().join(format!("a/{length}"));
            assert_eq!(std::fs::read_dir(folder).expect("lists").count(), 1);
        }
    }

    #[tokio::test]
    async fn parts_of_any_length_become_one_object_or_none() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = FileStore::new(directory.path()).expect("opens");
        let bytes = content(5 * limits::STORE_UNBUFFERED_WRITE_BYTES + 7);
        for cut in [100_000, 1 << 20, SECTOR_BYTES * 300, bytes.len()] {
            let path = Path::from(format!("cut-{cut}"));
            let mut upload = store.put_multipart(&path).await.expect("begins");
            // The last ones first: each has its position.
            let mut parts: Vec<_> = bytes.chunks(cut).map(|part| upload.put_part(payload(part))).collect();
            parts.reverse();
            for part in parts {
                part.await.expect("writes");
            }
            assert!(matches!(store.head(&path).await, Err(Error::NotFound { .. })), "nothing is visible");
            upload.complete().await.expect("completes");
            is_there(&store, &path, &bytes).await;
            let mut upload = store.put_multipart(&path).await.expect("begins");
            upload.put_part(payload(b"other")).await.expect("writes");
            upload.abort().await.expect("aborts");
            is_there(&store, &path, &bytes).await;
        }
        let listed: Vec<_> = store.list(None).try_collect().await.expect("lists");
        assert_eq!((listed.len(), std::fs::read_dir(directory.path()).expect("lists").count()), (4, 4));
    }

    #[test]
    fn writers_that_need_the_same_new_folders_all_succeed() {
        let directory = tempfile::tempdir().expect("a directory");
        for round in 0..20 {
            let folder = directory.path().join(format!("{round}/a/b/c"));
            let write = |writer: u8| {
                let staged = StagedFile::create(folder.join(writer.to_string())).expect("creates");
                staged.publish(true).expect("is named");
            };
            std::thread::scope(|threads| {
                for writer in 0..8 {
                    threads.spawn(move || write(writer));
                }
            });
            assert_eq!(std::fs::read_dir(&folder).expect("lists").count(), 8);
        }
    }

    #[tokio::test]
    async fn a_directory_that_refuses_says_which() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = FileStore::new(directory.path()).expect("opens");
        std::fs::write(directory.path().join("file"), b"").expect("writes");
        let long = payload(&content(limits::STORE_UNBUFFERED_WRITE_BYTES_MIN));
        let error = store.put(&Path::from("file/object"), long).await.expect_err("a file is no folder");
        assert!(matches!(&error, Error::Generic { store: "LocalFileSystem", .. }), "{error:?}");
        assert!(error.to_string().contains("file/object"), "{error}");
    }
}
