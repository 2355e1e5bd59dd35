//! Response bodies of objects.

use std::time::{Duration, SystemTime};

use futures::TryStreamExt;
use kvasir_storage::ObjectRead;
use s3s::dto::{ETag, StreamingBlob, Timestamp};
use sync_wrapper::SyncStream;

use crate::state::AppState;

/// An object's bytes as a body, counted. A read that fails midway closes the connection: the declared length
/// reveals it.
pub(super) fn body(state: &AppState, read: ObjectRead) -> StreamingBlob {
    let metrics = state.metrics().clone();
    let bytes = read.bytes.inspect_ok(move |part| metrics.sent(part.len()));
    let bytes = bytes.inspect_err(|error| tracing::warn!(%error, "a download was cut off"));
    StreamingBlob::wrap(SyncStream::new(bytes))
}

/// An ETag as in headers, with quotes.
pub(super) fn etag(quoted: &str) -> ETag {
    ETag::Strong(quoted.trim_matches('"').to_owned())
}

/// Milliseconds since 1970 in whole seconds, the resolution of times in headers.
pub(super) fn timestamp(ms: u64) -> Timestamp {
    (SystemTime::UNIX_EPOCH + Duration::from_secs(ms / 1_000)).into()
}
