//! Reads response bodies within a bound.

use std::time::Duration;

use bytes::Bytes;
use reqwest::Response;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::upload_pacer::transfer_time_max;
use crate::{
    Error,
    limits::{CONTROL_BYTES_MAX, TRANSFER_BYTES_PER_SECOND_MIN},
};

/// The value that a control response's body is the JSON of.
pub(crate) async fn read_json<T: DeserializeOwned>(response: Response) -> Result<T, Error> {
    let body = read_bounded(response, CONTROL_BYTES_MAX).await?;
    serde_json::from_slice(&body).map_err(|e| Error::protocol(e.to_string()))
}

/// The whole body, or an error if it is longer than `bytes_max` or comes slower than any that is waited for.
pub(crate) async fn read_bounded(response: Response, bytes_max: usize) -> Result<Vec<u8>, Error> {
    let too_long = || Error::protocol(format!("a response of more than {bytes_max} bytes"));
    read_within(response, bytes_max).await?.ok_or_else(too_long)
}

/// As [`read_bounded`]; `None` if it is longer, which is known before it is read where the response says its length.
pub(super) async fn read_within(mut response: Response, bytes_max: usize) -> Result<Option<Vec<u8>>, Error> {
    let declared = response.content_length().and_then(|bytes| usize::try_from(bytes).ok());
    if declared.is_some_and(|bytes| bytes > bytes_max) {
        return Ok(None);
    }
    let mut time_left = transfer_time_max(declared.unwrap_or(bytes_max));
    let mut body = Vec::new();
    while let Some(part) = next_part(&mut response, &mut time_left).await? {
        if body.len() + part.len() > bytes_max {
            return Ok(None);
        }
        body.extend_from_slice(&part);
    }
    Ok(Some(body))
}

/// The next part of a body. The wait for it is taken from `time_left`; when that is used up, the body is too slow.
pub(super) async fn next_part(
    response: &mut Response,
    time_left: &mut Duration,
) -> Result<Option<Bytes>, Error> {
    let begun = Instant::now();
    let part = tokio::time::timeout(*time_left, response.chunk()).await;
    *time_left = time_left.saturating_sub(begun.elapsed());
    let slow = |_| {
        let (path, mbps) = (response.url().path(), TRANSFER_BYTES_PER_SECOND_MIN * 8 / 1_000_000);
        Error::Slow { what: format!("{path} at less than {mbps} Mb/s") }
    };
    part.map_err(slow)?.map_err(Error::Transport)
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt, stream};

    use super::*;
    use crate::limits::READ_TIMEOUT;

    /// No pause is as long as the silence that is borne.
    #[tokio::test(start_paused = true)]
    async fn a_body_that_trickles_without_end_is_given_up() {
        let parts = stream::repeat(()).then(|()| async {
            tokio::time::sleep(READ_TIMEOUT / 4).await;
            Ok::<_, std::io::Error>(Bytes::from_static(b"x"))
        });
        let response = axum::http::Response::new(reqwest::Body::wrap_stream(parts));
        let read = tokio::time::timeout(Duration::from_secs(600), read_bounded(response.into(), 1 << 20));
        let given_up = read.await.expect("it ends").expect_err("it has no end");
        assert!(matches!(given_up, Error::Slow { .. }) && given_up.is_retryable(), "{given_up}");
    }
}
