//! Reads response bodies within a bound.

use reqwest::Response;
use serde::de::DeserializeOwned;

use crate::{Error, limits::CONTROL_BYTES_MAX};

/// The value that a control response's body is the JSON of.
pub(crate) async fn read_json<T: DeserializeOwned>(response: Response) -> Result<T, Error> {
    let body = read_bounded(response, CONTROL_BYTES_MAX).await?;
    serde_json::from_slice(&body).map_err(|e| Error::protocol(e.to_string()))
}

/// The whole body, or an error once it is longer than `bytes_max`.
pub(crate) async fn read_bounded(mut response: Response, bytes_max: usize) -> Result<Vec<u8>, Error> {
    let mut body = Vec::new();
    while let Some(part) = response.chunk().await.map_err(Error::Transport)? {
        if body.len() + part.len() > bytes_max {
            return Err(Error::protocol(format!("a response of more than {bytes_max} bytes")));
        }
        body.extend_from_slice(&part);
    }
    Ok(body)
}
