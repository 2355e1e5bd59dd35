//! A decorator that reports every request to the store, for metrics and tests.

use std::{
    fmt,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart, path::Path,
};

/// Kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreOp {
    /// Read or head of an object.
    Get,
    /// Whole-object write.
    Put,
    /// Start, part, completion or abort of a multipart write.
    Multipart,
    /// Listing.
    List,
    /// Deletion.
    Delete,
    /// Server-side copy.
    Copy,
}

impl StoreOp {
    /// All kinds, for tables.
    pub const ALL: [Self; 6] = [Self::Get, Self::Put, Self::Multipart, Self::List, Self::Delete, Self::Copy];

    /// The metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put => "put",
            Self::Multipart => "multipart",
            Self::List => "list",
            Self::Delete => "delete",
            Self::Copy => "copy",
        }
    }
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestOutcome {
    /// Success.
    Ok,
    /// Not found, already exists, not modified: responses, not faults.
    Refused,
    /// A fault of the store or of the connection to it.
    Error,
}

impl RequestOutcome {
    /// The metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Refused => "refused",
            Self::Error => "error",
        }
    }

    fn of<T>(result: &Result<T>) -> Self {
        use object_store::Error as E;
        match result {
            Ok(_) => Self::Ok,
            Err(
                E::NotFound { .. } | E::AlreadyExists { .. } | E::Precondition { .. } | E::NotModified { .. },
            ) => Self::Refused,
            Err(_) => Self::Error,
        }
    }
}

/// An action of the resilient layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreEvent {
    /// A failed request is retried.
    Retried,
    /// Not retried: the retry budget is exhausted.
    BudgetSpent,
    /// An attempt or a body took too long.
    DeadlinePassed,
    /// An interrupted body resumes where it stopped.
    Resumed,
    /// A conditional write of unknown outcome was read back.
    ReadBack,
    /// A request was rejected because too many are queued.
    Busy,
    /// A request was rejected because the breaker is open.
    RefusedByBreaker,
    /// The breaker opened.
    BreakerOpened,
    /// The breaker closed.
    BreakerClosed,
}

impl StoreEvent {
    /// All actions, for tables.
    pub const ALL: [Self; 9] = [
        Self::Retried,
        Self::BudgetSpent,
        Self::DeadlinePassed,
        Self::Resumed,
        Self::ReadBack,
        Self::Busy,
        Self::RefusedByBreaker,
        Self::BreakerOpened,
        Self::BreakerClosed,
    ];

    /// The metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retried => "retried",
            Self::BudgetSpent => "budget_spent",
            Self::DeadlinePassed => "deadline_passed",
            Self::Resumed => "resumed",
            Self::ReadBack => "read_back",
            Self::Busy => "busy",
            Self::RefusedByBreaker => "refused_by_breaker",
            Self::BreakerOpened => "breaker_opened",
            Self::BreakerClosed => "breaker_closed",
        }
    }
}

/// Receives reports. Called while serving requests: must be cheap.
pub trait StoreObserver: fmt::Debug + Send + Sync + 'static {
    /// A request ended; `bytes` is the requested transfer, `elapsed` the time to the response's head.
    fn request(&self, op: StoreOp, outcome: RequestOutcome, bytes: u64, elapsed: Duration);

    /// The resilient layer took an action.
    fn event(&self, _event: StoreEvent) {}
}

/// Drops all reports.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl StoreObserver for NoObserver {
    fn request(&self, _: StoreOp, _: RequestOutcome, _: u64, _: Duration) {}
}

/// The decorator.
#[derive(Debug)]
pub struct ObservedStore<T> {
    inner: T,
    observer: Arc<dyn StoreObserver>,
}

impl<T> ObservedStore<T> {
    /// Reports `inner`'s requests to `observer`.
    pub fn new(inner: T, observer: Arc<dyn StoreObserver>) -> Self {
        Self { inner, observer }
    }

    async fn timed<R>(
        &self,
        op: StoreOp,
        bytes: impl FnOnce(&R) -> u64,
        request: impl Future<Output = Result<R>>,
    ) -> Result<R> {
        observed(&*self.observer, op, bytes, request).await
    }
}

pub(crate) async fn observed<R>(
    observer: &dyn StoreObserver,
    op: StoreOp,
    bytes: impl FnOnce(&R) -> u64,
    request: impl Future<Output = Result<R>>,
) -> Result<R> {
    let start = Instant::now();
    let result = request.await;
    let moved = result.as_ref().map_or(0, bytes);
    observer.request(op, RequestOutcome::of(&result), moved, start.elapsed());
    result
}

impl<T: fmt::Display> fmt::Display for ObservedStore<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Observed({})", self.inner)
    }
}

#[async_trait]
impl<T: ObjectStore> ObjectStore for ObservedStore<T> {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let bytes = payload.content_length() as u64;
        self.timed(StoreOp::Put, |_| bytes, self.inner.put_opts(location, payload, opts)).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let start = self.inner.put_multipart_opts(location, opts);
        let inner = self.timed(StoreOp::Multipart, |_| 0, start).await?;
        Ok(Box::new(ObservedUpload { inner, observer: Arc::clone(&self.observer) }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let head = options.head;
        let moved = |result: &GetResult| if head { 0 } else { result.range.end - result.range.start };
        self.timed(StoreOp::Get, moved, self.inner.get_opts(location, options)).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let moved = |parts: &Vec<Bytes>| parts.iter().map(|p| p.len() as u64).sum();
        self.timed(StoreOp::Get, moved, self.inner.get_ranges(location, ranges)).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.each(StoreOp::Delete, self.inner.delete_stream(locations))
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.whole(self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.whole(self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.timed(StoreOp::List, |_| 0, self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.timed(StoreOp::Copy, |()| 0, self.inner.copy_opts(from, to, options)).await
    }
}

impl<T> ObservedStore<T> {
    /// One report per item of the stream.
    fn each<R: Send + 'static>(
        &self,
        op: StoreOp,
        stream: BoxStream<'static, Result<R>>,
    ) -> BoxStream<'static, Result<R>> {
        let (observer, start) = (Arc::clone(&self.observer), Instant::now());
        stream.inspect(move |r| observer.request(op, RequestOutcome::of(r), 0, start.elapsed())).boxed()
    }

    /// One report for the whole listing, when it ends, fails or is dropped, with the time to its first object: its reader may
    /// pause as long as it likes.
    fn whole<R: Send + 'static>(
        &self,
        stream: BoxStream<'static, Result<R>>,
    ) -> BoxStream<'static, Result<R>> {
        struct Report {
            observer: Arc<dyn StoreObserver>,
            started: Instant,
            first: Option<Duration>,
            outcome: RequestOutcome,
        }
        impl Report {
            fn record(&mut self, outcome: RequestOutcome) {
                self.first.get_or_insert_with(|| self.started.elapsed());
                self.outcome = outcome;
            }
        }
        impl Drop for Report {
            fn drop(&mut self) {
                let elapsed = self.first.unwrap_or_else(|| self.started.elapsed());
                self.observer.request(StoreOp::List, self.outcome, 0, elapsed);
            }
        }
        let (observer, started) = (Arc::clone(&self.observer), Instant::now());
        let mut report = Report { observer, started, first: None, outcome: RequestOutcome::Ok };
        stream.inspect(move |item| report.record(RequestOutcome::of(item))).boxed()
    }
}

#[derive(Debug)]
struct ObservedUpload {
    inner: Box<dyn MultipartUpload>,
    observer: Arc<dyn StoreObserver>,
}

#[async_trait]
impl MultipartUpload for ObservedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (bytes, observer) = (data.content_length() as u64, Arc::clone(&self.observer));
        let part = self.inner.put_part(data);
        Box::pin(async move { observed(&*observer, StoreOp::Multipart, |()| bytes, part).await })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        observed(&*self.observer, StoreOp::Multipart, |_| 0, self.inner.complete()).await
    }

    async fn abort(&mut self) -> Result<()> {
        observed(&*self.observer, StoreOp::Multipart, |()| 0, self.inner.abort()).await
    }
}
