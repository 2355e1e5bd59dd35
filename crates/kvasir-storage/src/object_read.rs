//! Bytes of one object as a stream: all of them, or a range.

use std::ops::Range;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use kvasir_store::StoreError;
use object_store::GetResult;

use crate::error::ChunkError;

/// Which bytes of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteRange {
    /// All bytes.
    Whole,
    /// From the first to the last, inclusive; an end beyond the object is clamped.
    Bounded(u64, u64),
    /// From an offset to the end.
    From(u64),
    /// The last bytes, this many.
    Suffix(u64),
}

impl ByteRange {
    /// As offsets into an object of that size; `None` if it contains none of its bytes.
    pub fn resolve(self, object_bytes: u64) -> Option<Range<u64>> {
        let range = match self {
            Self::Whole => return Some(0..object_bytes),
            Self::Bounded(first, last) => first..last.saturating_add(1).min(object_bytes),
            Self::From(first) => first..object_bytes,
            Self::Suffix(count) => object_bytes.saturating_sub(count)..object_bytes,
        };
        (range.start < range.end).then_some(range)
    }
}

/// An open read.
pub struct ObjectRead {
    /// The range of the bytes, as offsets into the object.
    pub range: Range<u64>,
    /// Size of the whole object.
    pub object_bytes: u64,
    /// The bytes; exactly the range's length, or an error.
    pub bytes: BoxStream<'static, Result<Bytes, ChunkError>>,
}

impl ObjectRead {
    /// Describes a read without reading.
    pub fn empty(range: Range<u64>, object_bytes: u64) -> Self {
        Self { range, object_bytes, bytes: futures::stream::empty().boxed() }
    }

    pub(crate) fn whole(result: GetResult) -> Self {
        let object_bytes = result.meta.size;
        let failed = StoreError::request("reading an object");
        let failed = move |error| failed(error).into();
        Self::of(result, 0..object_bytes, object_bytes, failed)
    }

    /// The bytes of `range` of an object, in the parts of the store's response.
    pub(crate) fn of(
        result: GetResult,
        range: Range<u64>,
        object_bytes: u64,
        failed: impl Fn(object_store::Error) -> ChunkError + Send + 'static,
    ) -> Self {
        Self { range: range.clone(), object_bytes, bytes: exactly(result, range, failed) }
    }
}

impl std::fmt::Debug for ObjectRead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ObjectRead({:?} of {})", self.range, self.object_bytes)
    }
}

/// Exactly the bytes of a range: too few are an error at the end, too many are an error at once.
fn exactly(
    result: GetResult,
    range: Range<u64>,
    failed: impl Fn(object_store::Error) -> ChunkError + Send + 'static,
) -> BoxStream<'static, Result<Bytes, ChunkError>> {
    let state = (result.into_stream(), range.end - range.start, failed);
    futures::stream::try_unfold(state, |(mut bytes, left, failed)| async move {
        let short = |reason| ChunkError::from(StoreError::own("reading an object", reason));
        match bytes.try_next().await.map_err(&failed)? {
            Some(part) => match left.checked_sub(part.len() as u64) {
                Some(left) => Ok(Some((part, (bytes, left, failed)))),
                None => Err(short("the store sent more bytes than requested")),
            },
            None if left == 0 => Ok(None),
            None => Err(short("the store's response ended early")),
        }
    })
    .boxed()
}
