//! Bodies that survive their connection: an interrupted read resumes where it stopped.

use std::{ops::Range, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use object_store::{GetOptions, GetRange, GetResult, GetResultPayload, ObjectStore, Result, path::Path};
use tokio::time::{Instant, timeout};

use crate::{
    body_limit::BodyPermit,
    error_class::CallError,
    file_body, limits,
    observe::StoreEvent,
    request_executor::{RequestExecutor, RequestSide, Retries},
};

/// A body being read.
struct Body<T> {
    inner: Arc<T>,
    executor: Arc<RequestExecutor>,
    location: Path,
    options: GetOptions,
    object_bytes: u64,
    /// The remaining range.
    left: Range<u64>,
    stream: BoxStream<'static, Result<Bytes>>,
    /// How long the store may still make us wait; the reader's own pauses do not count.
    wait_max: Duration,
    begun: Instant,
    retries: usize,
    _permit: BodyPermit,
}

/// Makes the body of `result` bounded in time, exact in length, and resumable after faults.
pub(crate) async fn resumed<T: ObjectStore>(
    inner: &Arc<T>,
    executor: &Arc<RequestExecutor>,
    location: &Path,
    options: GetOptions,
    result: GetResult,
) -> Result<GetResult> {
    let GetResult { payload, meta, range, attributes, extensions } = result;
    let payload = match payload {
        GetResultPayload::Stream(stream) => {
            let bytes = range.end - range.start;
            let slow = Duration::from_secs(bytes / limits::STORE_BODY_BYTES_PER_SECOND_MIN);
            let permit = executor.body(&options).await?;
            let body = Body {
                inner: Arc::clone(inner),
                executor: Arc::clone(executor),
                location: location.clone(),
                // Only resume from the same object that the response began with.
                options: GetOptions { if_match: meta.e_tag.clone(), if_none_match: None, ..options },
                object_bytes: meta.size,
                left: range.clone(),
                stream,
                wait_max: executor.request_timeout() + slow,
                begun: Instant::now(),
                retries: 0,
                _permit: permit,
            };
            let parts = futures::stream::try_unfold(body, |mut body| async move {
                Ok(body.next().await?.map(|part| (part, body)))
            });
            GetResultPayload::Stream(parts.boxed())
        }
        GetResultPayload::File(file, path) => {
            GetResultPayload::Stream(file_body::parts(file, path, range.clone()).boxed())
        }
    };
    Ok(GetResult { payload, meta, range, attributes, extensions })
}

impl<T: ObjectStore> Body<T> {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            match self.part().await {
                Ok(part) => return Ok(part),
                Err(error) if CallError::of(&error) == Some(CallError::Long) => return Err(error),
                Err(error) => {
                    if self.options.if_match.is_none() || self.left.is_empty() {
                        return Err(error);
                    }
                    let executor = Arc::clone(&self.executor);
                    let mut retries = Retries::resumed(&executor, self.begun, self.retries);
                    if !retries.next().await {
                        return Err(error);
                    }
                    self.retries += 1;
                    self.reopen().await?;
                }
            }
        }
    }

    /// The next part of the open connection.
    async fn part(&mut self) -> Result<Option<Bytes>> {
        let asked = Instant::now();
        let wait = self.wait_max.min(limits::STORE_BODY_STALL_MAX);
        let part = timeout(wait, self.stream.try_next()).await;
        self.wait_max = self.wait_max.saturating_sub(asked.elapsed());
        match part {
            Err(_) => {
                self.executor.observer().event(StoreEvent::DeadlinePassed);
                Err(CallError::Stalled.into())
            }
            Ok(Err(error)) => Err(error),
            Ok(Ok(None)) if self.left.is_empty() => Ok(None),
            Ok(Ok(None)) => Err(CallError::Short.into()),
            Ok(Ok(Some(part))) => {
                let bytes = part.len() as u64;
                if bytes > self.left.end - self.left.start {
                    return Err(CallError::Long.into());
                }
                self.left.start += bytes;
                Ok(Some(part))
            }
        }
    }

    async fn reopen(&mut self) -> Result<()> {
        self.executor.observer().event(StoreEvent::Resumed);
        let range = Some(GetRange::Bounded(self.left.clone()));
        let options = GetOptions { range, ..self.options.clone() };
        let again = || self.inner.get_opts(&self.location, options.clone());
        let result = self.executor.ask(RequestSide::Read, again).await?;
        if result.meta.size != self.object_bytes || result.range != self.left {
            return Err(CallError::Changed.into());
        }
        self.stream = result.into_stream();
        Ok(())
    }
}
