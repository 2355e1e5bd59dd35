//! A directory as a store. Long payloads bypass the page cache: they are written once, frequently read parts
//! are in the hot tier, and a page of memory for each page of the payload would cost several times as much as
//! the write. Each write syncs what its durability needs and no more: `object_store` would sync a new folder
//! twice, and a folder before its last change.

use std::{
    fmt, io,
    path::{Path as FilePath, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use futures::{FutureExt, stream::BoxStream};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart, local::LocalFileSystem,
    path::Path,
};

use crate::{
    file_folders::{Folders, create_file},
    file_list,
    file_staged::{StagedFile, named, sync_named},
    file_thread::blocking,
};

/// Marks a read that makes what it reads durable.
#[derive(Debug, Clone, Copy)]
pub struct Synced;

/// Options of a read that makes what it reads durable: for a writer that is acknowledged for bytes which another one
/// wrote. Over a directory these can be read before their name is synced. Other stores ignore it.
pub fn synced() -> GetOptions {
    let mut options = GetOptions::default();
    options.extensions.insert(Synced);
    options
}

/// `object_store`'s directory, with its own writes.
#[derive(Debug)]
pub(crate) struct FileStore {
    files: LocalFileSystem,
    folders: Arc<Folders>,
}

impl FileStore {
    /// Objects under the existing `directory`.
    pub(crate) fn new(directory: &FilePath) -> Result<Self> {
        let files = LocalFileSystem::new_with_prefix(directory)?.with_fsync(true);
        // As it is spelt in the paths of files.
        let mut root = files.path_to_filesystem(&Path::from("object"))?;
        root.pop();
        Ok(Self { files, folders: Arc::new(Folders::new(root)) })
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
        let (folders, replace) = (Arc::clone(&self.folders), matches!(opts.mode, PutMode::Overwrite));
        blocking(move || write_whole(&folders, place, &payload, replace)).await?
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
        let folders = Arc::clone(&self.folders);
        let file = blocking(move || StagedFile::create(&folders, place)).await??;
        Ok(Box::new(FileUpload { file: Some(Arc::new(file)), end: 0 }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let is_synced = options.extensions.get::<Synced>().is_some();
        let found = self.files.get_opts(location, options).await?;
        if is_synced {
            // After it was opened: what replaces it from then on was synced before it got the name. A file system
            // that became read-only through an error refuses the sync, and the read fails with it: a file that is
            // still shown may be in memory alone, and gone after the next mount. One that an operator remounted
            // read-only does not refuse it.
            let (folders, place) = (Arc::clone(&self.folders), self.files.path_to_filesystem(location)?);
            blocking(move || sync_named(&folders, &place)).await??;
        }
        Ok(found)
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
            blocking(move || file.write(at, &data)).await?
        };
        write.boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let file = self.file.take().ok_or_else(ended)?;
        blocking(move || file.publish(true)).await?
    }

    async fn abort(&mut self) -> Result<()> {
        let file = self.file.take().ok_or_else(ended)?;
        Ok(blocking(move || drop(file)).await?)
    }
}

fn ended() -> Error {
    Error::Generic { store: "LocalFileSystem", source: "the upload has ended".into() }
}

/// Writes an object. An empty one is whole as soon as it has a name: it gets its own at once, so that its folder does not
/// change again after the file was synced.
fn write_whole(
    folders: &Arc<Folders>,
    place: PathBuf,
    payload: &PutPayload,
    replace: bool,
) -> Result<PutResult> {
    if payload.content_length() == 0 {
        let created = create_file(&place);
        let is_taken = created.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists);
        if !(is_taken && replace) {
            let synced = created.and_then(|file| {
                file.sync_all()?;
                folders.sync_above(&place)
            });
            return named(folders, &place, synced);
        }
    }
    let staged = StagedFile::create(folders, place)?;
    staged.write(0, payload)?;
    staged.publish(replace)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use futures::{TryStreamExt, future::join_all};
    use object_store::ObjectStoreExt;

    use super::*;
    use crate::{file_staged::SECTOR_BYTES, limits};

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
            store.put(&path, PutPayload::new()).await.expect("replaces");
            is_there(&store, &path, b"").await;
            let folder = directory.path().join(format!("a/{length}"));
            assert_eq!(fs::read_dir(folder).expect("lists").count(), 1);
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
        assert_eq!((listed.len(), fs::read_dir(directory.path()).expect("lists").count()), (4, 4));
    }

    #[tokio::test]
    async fn of_those_that_create_one_object_one_wins_and_the_others_may_rely_on_it() {
        let directory = tempfile::tempdir().expect("a directory");
        for bytes in [&b""[..], b"bytes"] {
            let store = FileStore::new(directory.path()).expect("opens");
            let path = Path::from(format!("{}/object", bytes.len()));
            let create = || store.put_opts(&path, payload(bytes), PutMode::Create.into());
            let created = join_all((0..8).map(|_| create())).await;
            assert_eq!(created.iter().filter(|created| created.is_ok()).count(), 1);
            // Another process does not know what the first one has synced.
            let other = FileStore::new(directory.path()).expect("opens");
            let place = other.files.path_to_filesystem(&path).expect("a place");
            let folder = place.parent().expect("it is in one");
            assert!(!other.folders.is_durable(folder));
            let refused = other.put_opts(&path, payload(bytes), PutMode::Create.into()).await;
            assert!(matches!(refused, Err(Error::AlreadyExists { .. })), "{refused:?}");
            assert!(other.folders.is_durable(folder));
            // Nor does one that finds the object before it writes.
            let finder = FileStore::new(directory.path()).expect("opens");
            finder.get(&path).await.expect("is there");
            assert!(!finder.folders.is_durable(folder), "a read costs no sync");
            finder.get_opts(&path, synced()).await.expect("is there");
            assert!(finder.folders.is_durable(folder));
        }
    }

    #[tokio::test]
    async fn a_directory_that_refuses_says_which() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = FileStore::new(directory.path()).expect("opens");
        fs::write(directory.path().join("file"), b"").expect("writes");
        let long = payload(&content(limits::STORE_UNBUFFERED_WRITE_BYTES_MIN));
        let error = store.put(&Path::from("file/object"), long).await.expect_err("a file is no folder");
        assert!(matches!(&error, Error::Generic { store: "LocalFileSystem", .. }), "{error:?}");
        assert!(error.to_string().contains("file/object"), "{error}");
    }
}
