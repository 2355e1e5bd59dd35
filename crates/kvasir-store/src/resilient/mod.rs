//! The only layer that retries: a decorator between the storage core and any backend.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, path::Path,
};

use crate::{
    body::resumed,
    config::StoreConfig,
    error_class::{ErrorClass, is_not_implemented},
    limits,
    observe::{StoreEvent, StoreObserver},
    request_executor::{CallResult, RequestExecutor, RequestSide, Retries},
    upload::{BoundedUpload, PartRetries},
};

/// Marks a write that must not be repeated.
#[derive(Debug, Clone, Copy)]
struct Once;

/// Options of a write that is attempted once: for objects that must be dated only once.
pub fn once() -> PutOptions {
    let mut options = PutOptions::default();
    options.extensions.insert(Once);
    options
}

/// Bounds every call in time, number and concurrency, and resolves the uncertainty after a lost response:
///
/// - a call has a deadline for each attempt and one for all, retries with jittered pauses, and a budget of
///   retries;
/// - a conditional write that is refused after an attempt of unknown outcome is read back: equal bytes were
///   ours;
/// - a store that does not implement conditional creates gets plain ones, after a check for an existing
///   object;
/// - a body that is interrupted, stalls or ends early resumes where it stopped, from the same object;
/// - if a store fails every request, a breaker pauses requests, and closes with the first response;
/// - calls that cannot be served soon are rejected, and can be retried.
#[derive(Debug)]
pub struct ResilientStore<T> {
    inner: Arc<T>,
    executor: Arc<RequestExecutor>,
    /// Whether listings are in the order of keys, so that one can resume after its last item.
    ordered: bool,
    plain_creates: Arc<AtomicBool>,
}

impl<T: ObjectStore> ResilientStore<T> {
    /// Around `inner`, whose own retries must be disabled.
    pub fn new(inner: T, config: &StoreConfig, ordered: bool, observer: Arc<dyn StoreObserver>) -> Self {
        let (inner, executor) = (Arc::new(inner), Arc::new(RequestExecutor::new(config, observer)));
        Self { inner, executor, ordered, plain_creates: Arc::default() }
    }

    /// Executes its calls.
    pub(crate) fn executor(&self) -> Arc<RequestExecutor> {
        Arc::clone(&self.executor)
    }

    /// Becomes true once the store has refused a conditional create as not implemented.
    pub(crate) fn plain_creates(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.plain_creates)
    }

    /// A create without its condition: as on a store that ignores conditions, several concurrent ones may all
    /// succeed.
    async fn plain_create(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        match self.head(location).await {
            Ok(_) => {
                let source = "it already exists".into();
                Err(Error::AlreadyExists { path: location.to_string(), source })
            }
            Err(Error::NotFound { .. }) => {
                self.put_opts(location, payload, PutOptions { mode: PutMode::Overwrite, ..opts }).await
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the stored object equals the one being written.
    async fn read_back(&self, location: &Path, payload: &PutPayload) -> Option<PutResult> {
        self.executor.observer().event(StoreEvent::ReadBack);
        let found = self.get_opts(location, GetOptions::default()).await.ok()?;
        if found.meta.size != payload.content_length() as u64 {
            return None;
        }
        let (e_tag, version) = (found.meta.e_tag.clone(), found.meta.version.clone());
        let mut ours = payload.iter().flat_map(|part| part.iter());
        let mut theirs = found.into_stream();
        while let Some(part) = theirs.try_next().await.ok()? {
            if !part.iter().all(|byte| ours.next() == Some(byte)) {
                return None;
            }
        }
        Some(PutResult { e_tag, version, extensions: Default::default() })
    }

    /// A listing that is bounded in time per page and restarted after a fault, if that repeats nothing.
    fn listing(&self, prefix: Option<Path>, offset: Option<Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let listing = Listing {
            inner: Arc::clone(&self.inner),
            executor: Arc::clone(&self.executor),
            prefix,
            last: offset,
            stream: None,
            fresh: true,
            ordered: self.ordered,
        };
        futures::stream::try_unfold(listing, |mut listing| async move {
            Ok(listing.next().await?.map(|meta| (meta, listing)))
        })
        .boxed()
    }
}

struct Listing<T> {
    inner: Arc<T>,
    executor: Arc<RequestExecutor>,
    prefix: Option<Path>,
    last: Option<Path>,
    stream: Option<BoxStream<'static, Result<ObjectMeta>>>,
    /// Whether no item was returned yet.
    fresh: bool,
    ordered: bool,
}

impl<T: ObjectStore> Listing<T> {
    async fn next(&mut self) -> Result<Option<ObjectMeta>> {
        let executor = Arc::clone(&self.executor);
        let (mut retries, mut failed) = (None, None);
        loop {
            let entered = executor.enter(RequestSide::Read).await;
            let (permit, breaker_permit) = entered.map_err(|error| failed.take().unwrap_or(error))?;
            let stream = self.stream.get_or_insert_with(|| match &self.last {
                Some(last) => self.inner.list_with_offset(self.prefix.as_ref(), last),
                None => self.inner.list(self.prefix.as_ref()),
            });
            let item = executor.with_deadline(stream.try_next()).await.and_then(|item| item);
            drop(permit);
            let class = ErrorClass::of(&item);
            executor.settle(RequestSide::Read, breaker_permit, class);
            if let Ok(Some(meta)) = &item {
                self.last = Some(meta.location.clone()).filter(|_| self.ordered).or(self.last.take());
                self.fresh = false;
            }
            if class == ErrorClass::Definitive || !(self.fresh || self.ordered) {
                return item;
            }
            if !retries.get_or_insert_with(|| Retries::new(&executor)).next().await {
                return item;
            }
            failed = item.err();
            self.stream = None;
        }
    }
}

impl<T: fmt::Display> fmt::Display for ResilientStore<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resilient({})", self.inner)
    }
}

#[async_trait]
impl<T: ObjectStore> ObjectStore for ResilientStore<T> {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        if opts.extensions.get::<Once>().is_some() {
            return self
                .executor
                .once(RequestSide::Write, self.inner.put_opts(location, payload, opts))
                .await;
        }
        let creates = matches!(opts.mode, PutMode::Create);
        if creates && self.plain_creates.load(Ordering::Relaxed) {
            return self.plain_create(location, payload, opts).await;
        }
        let conditional = !matches!(opts.mode, PutMode::Overwrite);
        let write = || self.inner.put_opts(location, payload.clone(), opts.clone());
        let CallResult { result, attempts } = self.executor.call(RequestSide::Write, write).await;
        match result {
            Err(refused @ (Error::AlreadyExists { .. } | Error::Precondition { .. }))
                if conditional && attempts > 1 =>
            {
                self.read_back(location, &payload).await.ok_or(refused)
            }
            Err(error) if creates && is_not_implemented(&error) => {
                if !self.plain_creates.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%error, "the store does not implement conditional creates; using plain ones from now on");
                }
                self.plain_create(location, payload, opts).await
            }
            result => result,
        }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let opts = opts.with_retry_policy(Arc::new(PartRetries(Arc::clone(&self.executor))));
        let start = || self.inner.put_multipart_opts(location, opts.clone());
        let inner = self.executor.ask(RequestSide::Write, start).await?;
        Ok(Box::new(BoundedUpload { inner, executor: Arc::clone(&self.executor) }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let read = || self.inner.get_opts(location, options.clone());
        let result = self.executor.ask(RequestSide::Read, read).await?;
        if options.head {
            return Ok(result);
        }
        resumed(&self.inner, &self.executor, location, options, result).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (inner, executor) = (Arc::clone(&self.inner), Arc::clone(&self.executor));
        let deletions = locations.map(move |location| {
            let (inner, executor) = (Arc::clone(&inner), Arc::clone(&executor));
            async move {
                let location = location?;
                let CallResult { result, attempts } =
                    executor.call(RequestSide::Write, || inner.delete(&location)).await;
                match result {
                    // Deleted by an attempt whose response was lost.
                    Err(Error::NotFound { .. }) if attempts > 1 => Ok(location),
                    result => result.map(|()| location),
                }
            }
        });
        deletions.buffered(limits::STORE_DELETES_AT_ONCE).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listing(prefix.cloned(), None)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listing(prefix.cloned(), Some(offset.clone()))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.executor.ask(RequestSide::Read, || self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.executor.ask(RequestSide::Write, || self.inner.copy_opts(from, to, options.clone())).await
    }
}

#[cfg(test)]
mod tests;
