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

/// The last second of the year 9999: headers cannot name a later one.
const LAST_SECOND: u64 = 253_402_300_799;

/// Milliseconds since 1970 in whole seconds, the resolution of times in headers.
pub(super) fn timestamp(ms: u64) -> Timestamp {
    (SystemTime::UNIX_EPOCH + Duration::from_secs((ms / 1_000).min(LAST_SECOND))).into()
}

#[cfg(test)]
mod tests {
    use s3s::dto::TimestampFormat;

    use super::*;

    #[test]
    fn a_time_of_a_damaged_head_is_a_date() {
        let date = |ms| {
            let mut text = Vec::new();
            timestamp(ms).format(TimestampFormat::HttpDate, &mut text).expect("formats");
            String::from_utf8(text).expect("text")
        };
        assert_eq!(date(1_999), "Thu, 01 Jan 1970 00:00:01 GMT");
        assert_eq!(date(u64::MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
    }
}
