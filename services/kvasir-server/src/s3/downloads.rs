//! Objects on their way out.

use std::time::{Duration, SystemTime};

use futures::TryStreamExt;
use kvasir_storage::ObjectRead;
use s3s::dto::{ETag, StreamingBlob, Timestamp};
use sync_wrapper::SyncStream;

use crate::state::AppState;

/// An object's bytes as a body, counted. A read that fails midway cuts the connection: the declared length tells.
pub(super) fn body(state: &AppState, read: ObjectRead) -> StreamingBlob {
    let metrics = state.metrics().clone();
    let bytes = read.bytes.inspect_ok(move |part| metrics.sent(part.len()));
    let bytes = bytes.inspect_err(|error| tracing::warn!(%error, "a download was cut off"));
    StreamingBlob::wrap(SyncStream::new(bytes))
}

/// An ETag as it is in headers, quotes included.
pub(super) fn etag(quoted: &str) -> ETag {
    ETag::Strong(quoted.trim_matches('"').to_owned())
}

/// Milliseconds since 1970 in whole seconds, as headers say times.
pub(super) fn timestamp(ms: u64) -> Timestamp {
    (SystemTime::UNIX_EPOCH + Duration::from_secs(ms / 1_000)).into()
}
