//! Multipart uploads: parts are retried individually, under the same budget as all other requests.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use object_store::{
    MultipartUpload, PutPayload, PutResult, Result, UploadPart,
    retry::{RetryContext, RetryFailure, RetryPolicy},
};
use tokio::time::Instant;

use crate::request_executor::{RequestExecutor, RequestSide, Retries};

/// The backend asks here whether to send a part again: only it can send the same part again.
#[derive(Debug)]
pub(crate) struct PartRetries(pub(crate) Arc<RequestExecutor>);

#[async_trait]
impl RetryPolicy for PartRetries {
    async fn retry(&self, context: RetryContext) -> bool {
        let may_pass = match context.failure {
            RetryFailure::Status(status) => {
                let status = status.as_u16();
                status == 200 || status == 408 || status == 429 || (status >= 500 && status != 501)
            }
            _ => true,
        };
        let begun = Instant::now() - context.elapsed.min(Duration::from_secs(3600));
        may_pass && Retries::resumed(&self.0, begun, context.attempt.saturating_sub(1)).next().await
    }
}

/// An upload whose requests are bounded in number and time.
#[derive(Debug)]
pub(crate) struct BoundedUpload {
    pub(crate) inner: Box<dyn MultipartUpload>,
    pub(crate) executor: Arc<RequestExecutor>,
}

#[async_trait]
impl MultipartUpload for BoundedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (part, executor) = (self.inner.put_part(data), Arc::clone(&self.executor));
        // Once: the retries are inside.
        Box::pin(async move { executor.once(RequestSide::Write, part).await })
    }

    /// Not retried: one that took effect cannot be completed again. The caller checks the stored object.
    async fn complete(&mut self) -> Result<PutResult> {
        self.executor.once(RequestSide::Write, self.inner.complete()).await
    }

    async fn abort(&mut self) -> Result<()> {
        self.executor.once(RequestSide::Write, self.inner.abort()).await
    }
}
