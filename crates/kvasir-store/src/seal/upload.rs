//! Multipart uploads of sealed objects: parts of any size in, whole segments out.

use std::sync::Arc;

use async_trait::async_trait;
use futures::FutureExt;
use object_store::{MultipartUpload, PutPayload, PutResult, Result, UploadPart};

use super::segments::{SEGMENT_BYTES, Segments};

/// Smallest part sent before the last one: S3 completes no upload with a shorter one.
const PART_BYTES_MIN: usize = 5 << 20;

/// Seals the bytes passing through. The last segment is marked as such, so one is always held back.
#[derive(Debug)]
pub(super) struct SealedUpload {
    inner: Box<dyn MultipartUpload>,
    segments: Arc<Segments>,
    /// Plain bytes that are not sealed yet: at most one segment after a part.
    held: Vec<u8>,
    /// Sealed bytes waiting for the next part: less than the smallest one after a part. Initially the prefix.
    ready: Vec<u8>,
    next: u64,
}

impl SealedUpload {
    pub(super) fn new(inner: Box<dyn MultipartUpload>, segments: Segments, prefix: &[u8]) -> Self {
        let (segments, ready) = (Arc::new(segments), prefix.to_vec());
        Self { inner, segments, held: Vec::new(), ready, next: 0 }
    }

    fn seal_whole(&mut self) {
        let whole = (self.held.len().saturating_sub(1)) / SEGMENT_BYTES as usize;
        for plain in self.held.chunks_exact(SEGMENT_BYTES as usize).take(whole) {
            self.segments.seal(self.next, false, plain, &mut self.ready);
            self.next += 1;
        }
        self.held.drain(..whole * SEGMENT_BYTES as usize);
    }
}

#[async_trait]
impl MultipartUpload for SealedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        for bytes in data.iter() {
            self.held.extend_from_slice(bytes);
        }
        self.seal_whole();
        // The last part is sent by `complete`.
        if self.ready.len() < PART_BYTES_MIN {
            return async { Ok(()) }.boxed();
        }
        self.inner.put_part(PutPayload::from(std::mem::take(&mut self.ready)))
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let last = std::mem::take(&mut self.held);
        self.segments.seal(self.next, true, &last, &mut self.ready);
        let rest = std::mem::take(&mut self.ready);
        self.inner.put_part(PutPayload::from(rest)).await?;
        self.inner.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}
