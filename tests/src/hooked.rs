//! A store that notifies a test of the start and end of each write, the start and answer of each read, the start of
//! each deletion, and the end of each listing. A test puts actions between two requests of the service into the hook.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use futures::{
    StreamExt, TryStreamExt,
    future::{BoxFuture, ready},
    stream::{self, BoxStream},
};
use kvasir_store::Synced;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, path::Path,
};

/// A request that the hook is told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hooked {
    /// A whole-object write that begins; the hook's error is its answer.
    Writing,
    /// A whole-object write that has taken effect; the hook's error is its answer.
    Written,
    /// A read that begins; the hook's error is its answer.
    Reading,
    /// A read that has been answered, before its body is taken; the hook's error is its answer.
    Read,
    /// After that, a read that made what it read durable, if the store is a directory; the hook's error is its answer.
    Synced,
    /// A deletion that begins; the hook's error is its answer.
    Deleting,
    /// A listing that has ended, with its prefix; the hook's error follows what was listed.
    Listed,
}

/// The test's action at that moment.
pub type Hook = Arc<dyn Fn(Hooked, Path) -> BoxFuture<'static, Result<()>> + Send + Sync>;

/// A store with a hook.
#[derive(Clone)]
pub struct HookedStore {
    inner: Arc<dyn ObjectStore>,
    hook: Hook,
}

impl HookedStore {
    /// `inner`, with a hook.
    pub fn new(inner: Arc<dyn ObjectStore>, hook: Hook) -> Self {
        Self { inner, hook }
    }
}

impl fmt::Debug for HookedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HookedStore")
    }
}

impl fmt::Display for HookedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HookedStore")
    }
}

#[async_trait]
impl ObjectStore for HookedStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        (self.hook)(Hooked::Writing, location.clone()).await?;
        let written = self.inner.put_opts(location, payload, opts).await?;
        (self.hook)(Hooked::Written, location.clone()).await?;
        Ok(written)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        (self.hook)(Hooked::Reading, location.clone()).await?;
        let is_synced = options.extensions.get::<Synced>().is_some();
        let read = self.inner.get_opts(location, options).await?;
        (self.hook)(Hooked::Read, location.clone()).await?;
        if is_synced {
            (self.hook)(Hooked::Synced, location.clone()).await?;
        }
        Ok(read)
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let hook = Arc::clone(&self.hook);
        let told = locations.and_then(move |path| {
            let told = hook(Hooked::Deleting, path.clone());
            async move { told.await.map(|()| path) }
        });
        self.inner.delete_stream(told.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (hook, listed) = (Arc::clone(&self.hook), prefix.cloned().unwrap_or_default());
        let told = stream::once(async move { hook(Hooked::Listed, listed).await });
        self.inner.list(prefix).chain(told.try_filter_map(|()| ready(Ok(None)))).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
