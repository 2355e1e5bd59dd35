//! Ranged reads of chunk objects.

use bytes::Bytes;
use kvasir_api::{HEADER_DEADLINE, Via, routes};
use kvasir_types::{ModelId, ObjectDigest, SeqHash};
use reqwest::{
    Method, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_RANGE, RANGE},
};

use super::{Client, problem};
use crate::{Deadline, Error};

/// Some bytes of one object.
#[derive(Debug, Clone)]
pub struct ObjectRange {
    /// The model.
    pub model_id: ModelId,
    /// The chunk.
    pub seq_hash: SeqHash,
    /// The object.
    pub object_digest: ObjectDigest,
    /// First byte.
    pub start: u64,
    /// One past the last byte; above `start`.
    pub end: u64,
}

/// A response that arrives piece by piece: exactly the requested bytes, or an error.
#[derive(Debug)]
pub struct ObjectRead {
    response: Response,
    /// Remaining bytes.
    left: u64,
}

impl Client {
    /// Opens a read of a range. Where a replica cannot be reached, the next one is asked; beyond that there are no retries: those
    /// are the fetcher's decision. `via` is the route from the lookup.
    ///
    /// # Errors
    /// `unknown_chunk`, `range_not_satisfiable`, `corrupt_chunk`, `store_unavailable`; transport errors;
    /// [`Error::Protocol`] if the response has another range.
    pub async fn get_object(&self, range: &ObjectRange, via: &Via) -> Result<ObjectRead, Error> {
        self.get_object_from(0, range, via, false, None).await
    }

    /// As [`get_object`](Self::get_object), of the replica `nth` places behind the best one. With `verify`, the service verifies
    /// what it has in memory before it answers. With a `deadline`, a service whose link is full knows what is due first.
    pub(super) async fn get_object_from(
        &self,
        nth: usize,
        range: &ObjectRange,
        via: &Via,
        verify: bool,
        deadline: Option<Deadline>,
    ) -> Result<ObjectRead, Error> {
        let ObjectRange { start, end, .. } = *range;
        if start >= end {
            return Err(Error::Config { what: format!("bytes {start}..{end} are not a valid range") });
        }
        let header = format!("bytes={start}-{}", end - 1);
        let response = match via {
            Via::Direct { url, .. } => {
                let sent = self.direct.get(url).header(RANGE, header).send().await;
                // Whoever reads the URL in a log may read the object.
                problem::check(sent.map_err(|error| Error::Transport(error.without_url()))?).await?
            }
            Via::Proxy => {
                let path = routes::chunk_object(&range.model_id, &range.seq_hash, &range.object_digest);
                let request = || {
                    let mut request = self.request(Method::GET, &path).header(RANGE, header.as_str());
                    if let Some(deadline) = &deadline {
                        let left = deadline.left().as_millis();
                        request = request.header(HEADER_DEADLINE, left.to_string());
                    }
                    if verify { request.header(CACHE_CONTROL, "no-cache") } else { request }
                };
                Box::pin(self.send_once_from(nth, request)).await?
            }
        };
        let first = match response.status() {
            StatusCode::PARTIAL_CONTENT => content_range_start(&response),
            // A store that ignores `Range` sends the object from its first byte.
            StatusCode::OK => Some(0),
            _ => None,
        };
        if first != Some(start) {
            return Err(Error::protocol(format!(
                "bytes from {start} were requested, but the response starts at {first:?}"
            )));
        }
        Ok(ObjectRead { response, left: end - start })
    }
}

fn content_range_start(response: &Response) -> Option<u64> {
    let text = response.headers().get(CONTENT_RANGE)?.to_str().ok()?;
    text.strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
}

impl ObjectRead {
    /// The next bytes; `None` once all requested bytes have arrived.
    ///
    /// # Errors
    /// If the response breaks off or ends early.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        if self.left == 0 {
            return Ok(None);
        }
        match self.response.chunk().await.map_err(Error::Transport)? {
            None => Err(Error::protocol(format!("the response ended {} bytes early", self.left))),
            Some(mut bytes) => {
                bytes.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
                self.left -= bytes.len() as u64;
                Ok(Some(bytes))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rest::ClientConfig;

    #[tokio::test]
    async fn errors_do_not_tell_presigned_urls() {
        let client = Client::new("http://127.0.0.1:9".parse().unwrap(), ClientConfig::default()).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = listener.local_addr().unwrap();
        drop(listener);
        let url = format!("http://{closed}/key?X-Amz-Signature=5ec7e7");
        let (model_id, seq_hash, object_digest) = ([1; 32].into(), [2; 32].into(), [3; 32].into());
        let range = ObjectRange { model_id, seq_hash, object_digest, start: 0, end: 1 };
        let error = client.get_object(&range, &Via::Direct { url, expires_in_s: 60 }).await.unwrap_err();
        assert!(!format!("{error} {error:?}").contains("5ec7e7"), "{error}");
    }
}
