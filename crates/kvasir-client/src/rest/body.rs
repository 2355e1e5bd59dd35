//! Reads response bodies within a bound.

use reqwest::Response;

use crate::Error;

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
