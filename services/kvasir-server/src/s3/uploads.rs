//! Request bodies: counted, and verified against their length and their checksums.

use std::{pin::Pin, sync::Arc};

use axum::{body::Bytes, http::HeaderMap};
use base64::{Engine, engine::general_purpose::STANDARD};
use futures::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use s3s::{
    S3Error, S3Result, StdError, TrailingHeaders,
    crypto::{Checksum, Crc32, Crc32c, Crc64Nvme, Md5, Sha1, Sha256},
    dto::StreamingBlob,
    s3_error,
};

use super::held_body::HeldBody;
use crate::{handlers::v1::body, state::AppState};

/// A body that is verified at its end: if its length or a checksum differs from what was declared, it ends with an error.
pub(super) struct Upload {
    parts: Pin<Box<dyn Stream<Item = Result<Bytes, StdError>> + Send>>,
    /// How the body differs from what was declared, once that is known.
    difference: Arc<Mutex<Option<S3Error>>>,
    held: HeldBody,
}

impl Upload {
    /// A body of which `declared` bytes were announced. A longer one is passed on, for its reader to end.
    ///
    /// # Errors
    /// `InvalidRequest` for a checksum that is not computed here.
    pub(super) fn new(
        state: &AppState,
        body: Option<StreamingBlob>,
        declared: u64,
        held: HeldBody,
        headers: &HeaderMap,
        trailers: Option<TrailingHeaders>,
    ) -> S3Result<Self> {
        let sums = Sums::announced(headers)?;
        let (difference, metrics) = (Arc::new(Mutex::new(None)), state.metrics().clone());
        let Some(body) = body else {
            let parts = stream::empty().boxed();
            return Ok(Self { parts, difference, held });
        };
        let (found, headers, measured) = (Arc::clone(&difference), headers.clone(), held.clone());
        let parts = stream::try_unfold((body, sums, 0), move |(mut body, mut sums, mut received)| {
            let (found, headers, trailers) = (Arc::clone(&found), headers.clone(), trailers.clone());
            let (metrics, measured) = (metrics.clone(), measured.clone());
            async move {
                if let Some(part) = body.next().await.transpose()? {
                    metrics.received(part.len());
                    measured.passed_on();
                    sums.update(&part);
                    received += part.len() as u64;
                    if received > declared {
                        *found.lock() = Some(s3_error!(
                            IncompleteBody,
                            "the body is longer than the {declared} bytes that were declared; declare its length"
                        ));
                    }
                    return Ok(Some((part, (body, sums, received))));
                }
                let trailers = trailers.and_then(|trailers| trailers.take()).unwrap_or_default();
                let difference = if received < declared {
                    s3_error!(
                        IncompleteBody,
                        "the body ended after {received} of {declared} declared bytes; send it again"
                    )
                } else if sums.agree(&headers, &trailers) {
                    return Ok(None);
                } else {
                    s3_error!(BadDigest, "the body does not match its checksum; send it again")
                };
                *found.lock() = Some(difference);
                Err("the body is not what was declared".into())
            }
        });
        Ok(Self { parts: parts.boxed(), difference, held })
    }

    /// The body.
    pub(super) fn parts(&mut self) -> impl Stream<Item = Result<Bytes, StdError>> + Send + Unpin {
        &mut self.parts
    }

    /// The error of an operation that consumed the body: `IncompleteBody` or `BadDigest` if its length or its checksum is the
    /// reason.
    pub(super) async fn failure(self, error: impl Into<S3Error>) -> S3Error {
        let difference = self.difference.lock().take();
        self.held.decided();
        body::drain(self.parts).await;
        difference.unwrap_or_else(|| error.into())
    }
}

/// A running checksum of any kind.
trait Running: Send {
    fn update(&mut self, bytes: &[u8]);
    fn text(self: Box<Self>) -> String;
}

impl<C: Checksum + Send> Running for C {
    fn update(&mut self, bytes: &[u8]) {
        Checksum::update(self, bytes);
    }

    fn text(self: Box<Self>) -> String {
        STANDARD.encode((*self).finalize())
    }
}

/// The header of a checksum, and its constructor.
type Kind = (&'static str, fn() -> Box<dyn Running>);

const KINDS: &[Kind] = &[
    ("content-md5", || Box::new(Md5::new())),
    ("x-amz-checksum-crc32", || Box::new(Crc32::new())),
    ("x-amz-checksum-crc32c", || Box::new(Crc32c::new())),
    ("x-amz-checksum-crc64nvme", || Box::new(Crc64Nvme::new())),
    ("x-amz-checksum-sha1", || Box::new(Sha1::new())),
    ("x-amz-checksum-sha256", || Box::new(Sha256::new())),
];

/// The checksums of a body, each with its header or trailer.
struct Sums(Vec<(&'static str, Box<dyn Running>)>);

impl Sums {
    fn announced(headers: &HeaderMap) -> S3Result<Self> {
        let trailers = headers.get_all("x-amz-trailer").iter().filter_map(|value| value.to_str().ok());
        let trailers: Vec<&str> = trailers.flat_map(|list| list.split(',')).map(str::trim).collect();
        let is_known = |name: &str| KINDS.iter().any(|(kind, _)| name.eq_ignore_ascii_case(kind));
        let of_checksums = headers.keys().map(|name| name.as_str()).chain(trailers.iter().copied());
        let unknown =
            of_checksums.filter(|name| name.to_ascii_lowercase().starts_with("x-amz-checksum-")).find(
                |name| !is_known(name) && !["x-amz-checksum-type", "x-amz-checksum-algorithm"].contains(name),
            );
        if let Some(name) = unknown {
            return Err(s3_error!(InvalidRequest, "{name} is not supported; send another checksum"));
        }
        let is_said =
            |name: &str| headers.contains_key(name) || trailers.iter().any(|t| t.eq_ignore_ascii_case(name));
        Ok(Self(KINDS.iter().filter(|(name, _)| is_said(name)).map(|(name, new)| (*name, new())).collect()))
    }

    fn update(&mut self, bytes: &[u8]) {
        self.0.iter_mut().for_each(|(_, sum)| sum.update(bytes));
    }

    fn agree(self, headers: &HeaderMap, trailers: &HeaderMap) -> bool {
        self.0.into_iter().all(|(name, sum)| {
            let said = headers.get(name).or_else(|| trailers.get(name));
            said.is_some_and(|said| said.as_bytes() == sum.text().as_bytes())
        })
    }
}
