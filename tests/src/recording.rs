//! A store and an index that record their requests, with every id replaced by its kind. Two requests that
//! differ only in ids must leave the same record; otherwise a client could distinguish them.

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use futures::{StreamExt, stream::BoxStream};
use kvasir_storage::index::{HotIndex, IndexError, MemoryIndex, Visit};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, memory::InMemory, path::Path,
};

/// The requests, in order. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Record(Arc<Mutex<Vec<String>>>);

impl Record {
    fn note(&self, line: String) {
        self.0.lock().expect("not poisoned").push(line);
    }

    /// The requests since the last call.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().expect("not poisoned"))
    }
}

/// The path with ids replaced by their kinds.
fn kinds(path: &Path) -> String {
    let kind = |part: &str| {
        let stem = part.split('.').next().unwrap_or_default();
        let is_hex = |text: &str| text.bytes().all(|b| b.is_ascii_hexdigit());
        match stem.len() {
            64 if is_hex(stem) => part.replace(stem, "HASH"),
            36 if is_hex(&stem.replace('-', "")) => part.replace(stem, "UUID"),
            _ => part.to_owned(),
        }
    };
    path.parts().map(|part| kind(part.as_ref())).collect::<Vec<_>>().join("/")
}

/// A store in memory that writes down its requests.
#[derive(Debug, Clone)]
pub struct RecordingStore {
    inner: Arc<InMemory>,
    record: Record,
}

impl RecordingStore {
    /// Over `inner`, which others may share.
    pub fn new(inner: Arc<InMemory>, record: Record) -> Self {
        Self { inner, record }
    }

    fn note(&self, op: &str, path: &Path, more: impl fmt::Debug) {
        self.record.note(format!("store {op} {} {more:?}", kinds(path)));
    }
}

impl fmt::Display for RecordingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("recording")
    }
}

#[async_trait]
impl ObjectStore for RecordingStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.note("put", location, payload.content_length());
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.note("multipart", location, ());
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.note(if options.head { "head" } else { "get" }, location, &options.range);
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        let noted = locations.inspect(move |location| {
            if let Ok(location) = location {
                this.note("delete", location, ());
            }
        });
        self.inner.delete_stream(noted.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.note("list", prefix.unwrap_or(&Path::default()), ());
        self.inner.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.note("list", prefix.unwrap_or(&Path::default()), kinds(offset));
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.note("list folders", prefix.unwrap_or(&Path::default()), ());
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.note("copy", from, kinds(to));
        self.inner.copy_opts(from, to, options).await
    }
}

/// An index in memory that writes down its requests: the operation, the kind of row and the length of the key.
#[derive(Debug, Default)]
pub struct RecordingIndex {
    inner: MemoryIndex,
    record: Record,
}

impl RecordingIndex {
    /// An empty one.
    pub fn new(record: Record) -> Self {
        Self { inner: MemoryIndex::default(), record }
    }

    fn note(&self, op: &str, key: &[u8]) {
        let kind = key.first().map_or('-', |kind| char::from(*kind));
        self.record.note(format!("index {op} {kind} {}", key.len()));
    }
}

impl HotIndex for RecordingIndex {
    fn put(&self, key: &[u8], value: &[u8]) -> std::result::Result<(), IndexError> {
        self.note("put", key);
        self.inner.put(key, value)
    }

    fn remove(&self, key: &[u8]) -> std::result::Result<(), IndexError> {
        self.note("remove", key);
        self.inner.remove(key)
    }

    fn get(&self, key: &[u8]) -> std::result::Result<Option<Vec<u8>>, IndexError> {
        self.note("get", key);
        self.inner.get(key)
    }

    fn below(&self, key: &[u8]) -> std::result::Result<Option<(Vec<u8>, Vec<u8>)>, IndexError> {
        self.note("below", key);
        self.inner.below(key)
    }

    fn at_or_above(&self, key: &[u8]) -> std::result::Result<Option<(Vec<u8>, Vec<u8>)>, IndexError> {
        self.note("at or above", key);
        self.inner.at_or_above(key)
    }

    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> std::result::Result<(), IndexError> {
        self.note("scan", from);
        self.inner.scan(from, visit)
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn clear(&self) -> std::result::Result<(), IndexError> {
        self.inner.clear()
    }

    fn flush(&self) -> std::result::Result<(), IndexError> {
        self.inner.flush()
    }
}
