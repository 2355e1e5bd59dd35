//! Reads response bodies within a bound.

use reqwest::Response;
use serde::de::DeserializeOwned;

use super::upload_pacer::transfer_time_max;
use crate::{Error, limits::CONTROL_BYTES_MAX};

/// The value that a control response's body is the JSON of.
pub(crate) async fn read_json<T: DeserializeOwned>(response: Response) -> Result<T, Error> {
    let body = read_bounded(response, CONTROL_BYTES_MAX).await?;
    serde_json::from_slice(&body).map_err(|e| Error::protocol(e.to_string()))
}

/// The whole body, or an error once it is longer than `bytes_max` or comes slower than any that is waited for.
pub(crate) async fn read_bounded(mut response: Response, bytes_max: usize) -> Result<Vec<u8>, Error> {
    let declared = response.content_length().and_then(|bytes| usize::try_from(bytes).ok());
    let time_max = transfer_time_max(declared.unwrap_or(bytes_max).min(bytes_max));
    let read = async {
        let mut body = Vec::new();
        while let Some(part) = response.chunk().await.map_err(Error::Transport)? {
            if body.len() + part.len() > bytes_max {
                return Err(Error::protocol(format!("a response of more than {bytes_max} bytes")));
            }
            body.extend_from_slice(&part);
        }
        Ok(body)
    };
    let late = |_| Err(Error::protocol(format!("a response that took longer than {} s", time_max.as_secs())));
    tokio::time::timeout(time_max, read).await.unwrap_or_else(late)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
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
        assert!(read.await.expect("it ends").is_err());
    }
}
