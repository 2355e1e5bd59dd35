//! Request bodies: counted, and verified against their length and their checksums.

use std::{pin::Pin, sync::Arc};

use axum::{body::Bytes, http::HeaderMap};
use base64::{Engine, engine::general_purpose::STANDARD};
use data_encoding::HEXLOWER;
use futures::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use s3s::{
    S3Error, S3Result, StdError, TrailingHeaders,
    crypto::{Checksum, Crc32, Crc32c, Crc64Nvme, Md5, Sha1, Sha256},
    dto::StreamingBlob,
    s3_error,
};

use super::held_body::HeldBody;
use crate::{handlers::v1::body, metrics::Metrics, state::AppState};

/// What a request says of its body.
pub(super) struct Declared<'a> {
    /// Its length.
    pub(super) bytes: u64,
    /// The request's headers.
    pub(super) headers: &'a HeaderMap,
    /// The trailers of a body of aws-chunks.
    pub(super) trailers: Option<TrailingHeaders>,
    /// Whether `s3s` has checked a signature, which is one of version 4: others are refused before it. Then it
    /// compares the body with the digest in `x-amz-content-sha256`, if that has one.
    pub(super) is_signed: bool,
}

/// A body that is verified at its end: if its length or a checksum differs from what was declared, it ends with an error.
pub(super) struct Upload {
    parts: Pin<Box<dyn Stream<Item = Result<Bytes, StdError>> + Send>>,
    /// How the body differs from what was declared, once that is known.
    difference: Arc<Mutex<Option<S3Error>>>,
    held: HeldBody,
}

impl Upload {
    /// A body of which `declared` was announced. A longer one is passed on, for its reader to end.
    ///
    /// # Errors
    /// `InvalidRequest` for a checksum that is not computed here.
    pub(super) fn new(
        state: &AppState,
        body: Option<StreamingBlob>,
        held: HeldBody,
        declared: Declared<'_>,
    ) -> S3Result<Self> {
        let Declared { bytes: declared, headers, trailers, is_signed } = declared;
        let sums = Sums::announced(headers, is_signed)?;
        let difference = Arc::new(Mutex::new(None));
        let Some(body) = body else {
            let parts = stream::empty().boxed();
            return Ok(Self { parts, difference, held });
        };
        let receiving = ReceivedBody {
            body,
            sums,
            received: 0,
            declared,
            headers: headers.clone(),
            trailers,
            difference: Arc::clone(&difference),
            metrics: Arc::clone(state.metrics()),
            held: held.clone(),
        };
        let parts = stream::try_unfold(receiving, |mut body| async move {
            Ok::<_, StdError>(body.next().await?.map(|part| (part, body)))
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

/// A body while it is received, and what it is compared with at its end.
struct ReceivedBody {
    body: StreamingBlob,
    sums: Sums,
    received: u64,
    declared: u64,
    headers: HeaderMap,
    trailers: Option<TrailingHeaders>,
    difference: Arc<Mutex<Option<S3Error>>>,
    metrics: Arc<Metrics>,
    held: HeldBody,
}

impl ReceivedBody {
    /// The next part; `None` at the end of a body that is what was declared.
    async fn next(&mut self) -> Result<Option<Bytes>, StdError> {
        let part = self.body.next().await.transpose()?;
        let declared = self.declared;
        if let Some(part) = part {
            self.metrics.received(part.len());
            self.held.passed_on();
            self.sums.update(&part);
            self.received += part.len() as u64;
            if self.received > declared {
                *self.difference.lock() = Some(s3_error!(
                    IncompleteBody,
                    "the body is longer than the {declared} bytes that were declared; declare its length"
                ));
            }
            return Ok(Some(part));
        }
        let (received, trailers) = (self.received, self.trailers.take());
        let trailers = trailers.and_then(|trailers| trailers.take()).unwrap_or_default();
        let difference = if received < declared {
            s3_error!(
                IncompleteBody,
                "the body ended after {received} of {declared} declared bytes; send it again"
            )
        } else if self.sums.agree(&self.headers, &trailers) {
            return Ok(None);
        } else {
            s3_error!(BadDigest, "the body does not match its checksum; send it again")
        };
        *self.difference.lock() = Some(difference);
        Err("the body is not what was declared".into())
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
    /// The checksums to compute for a body with these headers; see [`Declared::is_signed`].
    fn announced(headers: &HeaderMap, is_signed: bool) -> S3Result<Self> {
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
        let wanted =
            KINDS.iter().filter(|(name, _)| is_said(name) && !(is_signed && is_payload(name, headers)));
        Ok(Self(wanted.map(|(name, new)| (*name, new())).collect()))
    }

    fn update(&mut self, bytes: &[u8]) {
        self.0.iter_mut().for_each(|(_, sum)| sum.update(bytes));
    }

    fn agree(&mut self, headers: &HeaderMap, trailers: &HeaderMap) -> bool {
        self.0.drain(..).all(|(name, sum)| {
            let said = headers.get(name).or_else(|| trailers.get(name));
            said.is_some_and(|said| said.as_bytes() == sum.text().as_bytes())
        })
    }
}

/// Whether a checksum is the digest of the payload that signatures cover, and says the same.
fn is_payload(name: &str, headers: &HeaderMap) -> bool {
    let mut payloads = headers.get_all("x-amz-content-sha256").iter();
    let (Some(payload), None) = (payloads.next(), payloads.next()) else { return false };
    let (Ok(digest), Some(said)) = (HEXLOWER.decode(payload.as_bytes()), headers.get(name)) else {
        return false;
    };
    name == "x-amz-checksum-sha256" && said.as_bytes() == STANDARD.encode(digest).as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_that_the_signature_covers_is_not_computed_again() {
        let (digest, other) = (Sha256::checksum(b"bytes"), Sha256::checksum(b"other"));
        let payload = ("x-amz-content-sha256", HEXLOWER.encode(&digest));
        let sum = ("x-amz-checksum-sha256", STANDARD.encode(digest));
        let computed = |is_signed, pairs: &[&(&'static str, String)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, value.parse().expect("a value"));
            }
            Sums::announced(&headers, is_signed).expect("they are known").0.len()
        };
        assert_eq!(computed(true, &[&payload, &sum]), 0);
        let crc = ("x-amz-checksum-crc32", "AAAAAA==".to_owned());
        assert_eq!(computed(true, &[&payload, &sum, &crc]), 1, "of another kind");
        assert_eq!(computed(false, &[&payload, &sum]), 1, "nobody else compares it");
        assert_eq!(computed(true, &[&sum]), 1);
        assert_eq!(computed(true, &[&payload, &payload, &sum]), 1, "which of them is meant");
        let wrong = ("x-amz-checksum-sha256", STANDARD.encode(other));
        assert_eq!(computed(true, &[&payload, &wrong]), 1, "it is refused at the end");
        let unsigned = ("x-amz-content-sha256", "UNSIGNED-PAYLOAD".to_owned());
        assert_eq!(computed(true, &[&unsigned, &sum]), 1);
    }
}
