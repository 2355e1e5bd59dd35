//! Limits on every request before it is parsed: its head, its encoding, the rate of its body.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, Version, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures::{FutureExt, Stream, StreamExt, stream};
use kvasir_api::{ErrorCode, Problem};
use tokio::time::Instant;

use crate::{api_error::ApiError, limits};

/// Content encodings that a listener accepts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AcceptedEncodings(pub(crate) &'static [&'static str]);

impl AcceptedEncodings {
    fn refuse(self, headers: &HeaderMap) -> bool {
        let is_accepted =
            |value: &[u8]| self.0.iter().any(|accepted| value.eq_ignore_ascii_case(accepted.as_bytes()));
        headers.get_all(header::CONTENT_ENCODING).iter().any(|value| !is_accepted(value.as_bytes()))
    }
}

/// Forwards a request within the limits, and enforces a minimum rate of its body.
pub(crate) async fn enforce_request_limits(
    State(encodings): State<AcceptedEncodings>,
    request: Request,
    next: Next,
) -> Response {
    if let Err(error) = check_head(&request, encodings) {
        return error.into_response();
    }
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let is_slow = Arc::new(AtomicBool::new(false));
    let (parts, body) = request.into_parts();
    let body = Body::from_stream(with_minimum_rate(body.into_data_stream(), Arc::clone(&is_slow)));
    let response = next.run(Request::from_parts(parts, body)).await;
    // Handlers only see a broken body; the cause is known here.
    if is_slow.load(Ordering::Relaxed) && response.status() == StatusCode::BAD_REQUEST {
        let detail = format!(
            "the body stalled for {} s, or arrived at less than {} bytes per second",
            limits::BODY_STALL_MAX.as_secs(),
            limits::BODY_BYTES_PER_SECOND_MIN
        );
        return ApiError::from(Problem::new(ErrorCode::BodyTooSlow, detail)).into_response();
    }
    response
}

fn check_head(request: &Request, encodings: AcceptedEncodings) -> Result<(), ApiError> {
    let over = |code, what: &str, found: usize, limit: usize| {
        Err(Problem::new(code, format!("the request has {found} {what}; the maximum is {limit}")).into())
    };
    let uri = request.uri();
    let uri_bytes = uri.path().len() + uri.query().map_or(0, str::len);
    if uri_bytes > limits::URI_BYTES_MAX {
        return over(ErrorCode::UriTooLong, "bytes of path and query", uri_bytes, limits::URI_BYTES_MAX);
    }
    if !is_text(uri.path()) {
        return Err(ApiError::bad_request("the path is not UTF-8 after resolving its %-escapes"));
    }
    let headers = request.headers();
    if headers.len() > limits::HEADERS_MAX {
        return over(ErrorCode::HeadersTooLarge, "headers", headers.len(), limits::HEADERS_MAX);
    }
    let header_bytes = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if header_bytes > limits::HEADER_BYTES_MAX {
        return over(ErrorCode::HeadersTooLarge, "bytes of headers", header_bytes, limits::HEADER_BYTES_MAX);
    }
    check_single(request)?;
    if encodings.refuse(headers) {
        // Nothing is ever decompressed, so a small body cannot become a large one.
        let detail = "send the body without Content-Encoding: it is not supported here";
        return Err(Problem::new(ErrorCode::UnsupportedEncoding, detail).into());
    }
    Ok(())
}

/// Rejects heads that two parsers in a row could attribute to different hosts or callers.
fn check_single(request: &Request) -> Result<(), ApiError> {
    let count = |name| request.headers().get_all(name).iter().count();
    // The URI has an authority in HTTP/2, from `:authority`, and if the target is absolute.
    let (host, authority) = (request.headers().get(header::HOST), request.uri().authority());
    let is_host_missing = match request.version() {
        Version::HTTP_11 => host.is_none(),
        Version::HTTP_2 => host.is_none() && authority.is_none(),
        _ => false,
    };
    if is_host_missing || count(header::HOST) > 1 {
        return Err(ApiError::bad_request("send exactly one Host header (in HTTP/2 :authority)"));
    }
    // Signatures cover one of them, and the bucket of an S3 request may be in it.
    let port: &[u8] = if request.uri().scheme_str() == Some("https") { b":443" } else { b":80" };
    let is_other = |(host, uri): (&HeaderValue, &Authority)| {
        let (host, uri) = (without_port(host.as_bytes(), port), without_port(uri.as_str().as_bytes(), port));
        !host.eq_ignore_ascii_case(uri)
    };
    if host.zip(authority).is_some_and(is_other) {
        return Err(ApiError::bad_request(
            "the Host header and the target of the request name different hosts",
        ));
    }
    if count(header::AUTHORIZATION) > 1 {
        return Err(ApiError::bad_request("send exactly one Authorization header"));
    }
    Ok(())
}

/// A host without the port that its scheme implies.
fn without_port<'a>(host: &'a [u8], implied: &[u8]) -> &'a [u8] {
    host.strip_suffix(implied).unwrap_or(host)
}

/// Whether a path is UTF-8 after resolving its escapes. One that is not matches no route.
fn is_text(path: &str) -> bool {
    let bytes = path.as_bytes();
    if !bytes.contains(&b'%') {
        return true;
    }
    let mut plain = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [first, after @ ..] = rest {
        let digit = |at: usize| after.get(at).and_then(|b| char::from(*b).to_digit(16));
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                plain.push((high * 16 + low) as u8);
                rest = &after[2..];
            }
            _ => {
                plain.push(*first);
                rest = after;
            }
        }
    }
    std::str::from_utf8(&plain).is_ok()
}

/// The body, which ends in an error if the sender stalls or is too slow.
fn with_minimum_rate(
    body: impl Stream<Item = Result<Bytes, axum::Error>> + Send + Unpin,
    is_slow: Arc<AtomicBool>,
) -> impl Stream<Item = Result<Bytes, axum::Error>> + Send {
    let start = (body, ReceiveRate::default());
    stream::unfold(Some(start), move |state| {
        let is_slow = Arc::clone(&is_slow);
        async move {
            let (mut body, mut rate) = state?;
            // Bytes that are already there need no timer.
            let part = match body.next().now_or_never() {
                Some(part) => part,
                None => {
                    let asked = Instant::now();
                    let part = tokio::time::timeout(limits::BODY_STALL_MAX, body.next()).await;
                    rate.waited += asked.elapsed();
                    match part {
                        Ok(part) if !rate.is_slow() => part,
                        _ => {
                            is_slow.store(true, Ordering::Relaxed);
                            return Some((Err(axum::Error::new("it arrived too slowly")), None));
                        }
                    }
                }
            };
            match part? {
                Ok(part) => {
                    rate.bytes += part.len() as u64;
                    Some((Ok(part), Some((body, rate))))
                }
                Err(error) => Some((Err(error), None)),
            }
        }
    })
    // Draining the rest of a refused body polls again after its end.
    .fuse()
}

/// How long the service waited for a sender, and how much it received.
#[derive(Debug, Default)]
struct ReceiveRate {
    waited: Duration,
    bytes: u64,
}

impl ReceiveRate {
    fn is_slow(&self) -> bool {
        let counted = self.waited.saturating_sub(limits::BODY_STALL_MAX).as_secs();
        self.bytes < counted.saturating_mul(limits::BODY_BYTES_PER_SECOND_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn received(pause: Duration, part: usize, parts: usize) -> (usize, bool) {
        let is_slow = Arc::new(AtomicBool::new(false));
        let body = stream::iter(0..parts).then(move |_| async move {
            tokio::time::sleep(pause).await;
            Ok(Bytes::from(vec![0; part]))
        });
        let sound = with_minimum_rate(Box::pin(body), Arc::clone(&is_slow))
            .take_while(|part| std::future::ready(part.is_ok()));
        (sound.count().await, is_slow.load(Ordering::Relaxed))
    }

    #[test]
    fn a_request_names_one_host() {
        let is_taken = |version, target: &str, hosts: &[&str]| {
            let request = axum::http::Request::builder().version(version).uri(target);
            let request = hosts.iter().fold(request, |request, host| request.header(header::HOST, *host));
            check_single(&request.body(Body::empty()).expect("a request")).is_ok()
        };
        for version in [Version::HTTP_11, Version::HTTP_2] {
            for (target, hosts, expected) in [
                ("/a", &["h:1"][..], true),
                ("/a", &[], false),
                ("/a", &["h:1", "h:1"], false),
                ("http://h:1/a", &["h:1"], true),
                ("http://h:1/a", &["H:1"], true),
                ("http://h:1/a", &["h"], false),
                ("http://h:1/a", &["other:1"], false),
                ("http://h:1/a", &["h:1", "h:1"], false),
                ("http://h:80/a", &["h"], true),
                ("http://h/a", &["h:80"], true),
                ("http://h:443/a", &["h"], false),
                ("https://h:443/a", &["h"], true),
                ("https://h:80/a", &["h"], false),
                ("http://h:1/a", &[], version == Version::HTTP_2),
            ] {
                assert_eq!(is_taken(version, target, hosts), expected, "{version:?} {target} {hosts:?}");
            }
        }
    }

    #[test]
    fn escapes_are_resolved_before_they_are_judged() {
        for sound in ["/v1/models", "/%c3%a9", "/%", "/%4", "/%zz", "/%00", "/a%2fb"] {
            assert!(is_text(sound), "{sound}");
        }
        for wrong in ["/%ff", "/%c3", "/a%fe%fd", "/%C3%28"] {
            assert!(!is_text(wrong), "{wrong}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_trickle_ends_and_a_slow_line_does_not() {
        assert_eq!(received(limits::BODY_STALL_MAX + Duration::from_secs(1), 1 << 20, 3).await, (0, true));
        let (parts, is_slow) = received(Duration::from_secs(5), 1, 1_000).await;
        assert!(is_slow && parts < 20, "{parts}");
        assert_eq!(received(Duration::from_secs(1), 8 << 10, 500).await, (500, false));
        assert_eq!(received(Duration::ZERO, 1, 10_000).await, (10_000, false));
    }
}
