use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;
use futures::stream::BoxStream;
use kvasir_store::Synced;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, ObjectMeta, PutMultipartOptions, PutOptions, PutResult,
    UploadPart, memory::InMemory,
};

use super::*;

/// Uploads at once whose bodies are many times the memory: some of them in blocks, all others in files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_uploads_hold_no_more_than_their_memory() {
    let directory = tempfile::tempdir().expect("a directory");
    let total = 24 << 20;
    let settings = Settings { spool_memory_bytes: total, ..Settings::new(directory.path().join("spool")) };
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

/// A store whose uploads in parts are refused at their end, whether that took effect or not. As over a directory where a
/// sync fails, an object may have a name that a power failure takes.
#[derive(Debug)]
pub(in crate::ingest) struct RefusesCompletion {
    inner: InMemory,
    takes_effect: bool,
    is_synced: AtomicBool,
}

impl RefusesCompletion {
    pub(in crate::ingest) fn new(inner: InMemory, takes_effect: bool) -> Arc<Self> {
        Arc::new(Self { inner, takes_effect, is_synced: AtomicBool::new(false) })
    }

    /// Whether a read has made an object durable.
    pub(in crate::ingest) fn is_synced(&self) -> bool {
        self.is_synced.load(Ordering::Relaxed)
    }
}

impl fmt::Display for RefusesCompletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RefusesCompletion")
    }
}

#[derive(Debug)]
struct RefusedUpload {
    inner: Box<dyn MultipartUpload>,
    takes_effect: bool,
}

#[async_trait]
impl MultipartUpload for RefusedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.inner.put_part(data)
    }

    async fn complete(&mut self) -> object_store::Result<PutResult> {
        if self.takes_effect {
            self.inner.complete().await?;
        }
        Err(object_store::Error::Generic { store: "test", source: "no answer".into() })
    }

    async fn abort(&mut self) -> object_store::Result<()> {
        self.inner.abort().await
    }
}

#[async_trait]
impl ObjectStore for RefusesCompletion {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> object_store::Result<PutResult> {
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        let inner = self.inner.put_multipart_opts(location, opts).await?;
        Ok(Box::new(RefusedUpload { inner, takes_effect: self.takes_effect }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        let is_synced = options.extensions.get::<Synced>().is_some();
        let found = self.inner.get_opts(location, options).await?;
        self.is_synced.fetch_or(is_synced, Ordering::Relaxed);
        Ok(found)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> object_store::Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// Whoever is told that his object is stored may rest on it: one of its length that stood there is not it.
#[tokio::test]
async fn a_completion_without_an_answer_counts_by_what_is_there() {
    let directory = tempfile::tempdir().expect("a directory");
    // No memory for bodies: it goes to a file, and from there in parts.
    let settings = Settings { spool_memory_bytes: 0, ..Settings::new(directory.path().join("spool")) };
    let pool = Arc::new(SpoolPool::new(&settings));
    let body: Vec<u8> = (0..9_000_000u32).map(|i| (i >> 3) as u8).collect();
    let mut damaged = body.clone();
    damaged[8_500_000] ^= 1;
    let path = Path::from("object");
    for takes_effect in [true, false] {
        for before in [None, Some(&damaged), Some(&body)] {
            let inner = InMemory::new();
            if let Some(before) = before {
                inner.put(&path, before.clone().into()).await.expect("writes");
            }
            let store = RefusesCompletion::new(inner, takes_effect);
            let objects: Arc<dyn ObjectStore> = Arc::<RefusesCompletion>::clone(&store);
            let mut spool = pool.spool(false);
            spool.push(&body).await.expect("takes it");
            let sent = spool.send(&objects, &path, false).await;
            let is_there = match store.get(&path).await {
                Ok(stored) => stored.bytes().await.expect("reads") == body,
                Err(_) => false,
            };
            assert_eq!(sent.is_ok(), is_there, "takes effect: {takes_effect}, {sent:?}");
            assert!(sent.is_err() || store.is_synced(), "a power failure would take it");
        }
    }
}
