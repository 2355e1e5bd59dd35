//! Request and response bodies.

use axum::{
    Json,
    body::{Body, Bytes},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures::{Stream, StreamExt, TryStreamExt};
use kvasir_api::{ErrorCode, Problem};
use kvasir_storage::ObjectRead;
use kvasir_types::Name;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    api_error::ApiError,
    body_room::{HeldRoom, LONG_BODIES},
    limits,
    state::AppState,
};

tokio::task_local! {
    /// Whose request is being handled.
    static TENANT: Name;
}

/// Handles a request of a tenant: bodies that it reads whole count as the tenant's.
pub(crate) async fn of_tenant<F: Future>(tenant: Name, handling: F) -> F::Output {
    TENANT.scope(tenant, handling).await
}

/// A whole body of at most `limit` bytes; its head may declare how many it has.
pub(super) async fn read(body: Body, declared: Option<u64>, limit: usize) -> Result<Bytes, ApiError> {
    let read = read_within(LONG_BODIES.hold(TENANT.try_with(Name::clone).ok()), body, declared, limit);
    tokio::time::timeout(limits::WHOLE_BODY_TIME_MAX, read).await.unwrap_or_else(|_| {
        let seconds = limits::WHOLE_BODY_TIME_MAX.as_secs();
        Err(Problem::new(ErrorCode::BodyTooSlow, format!("the body took longer than {seconds} s")).into())
    })
}

async fn read_within(
    mut room: HeldRoom,
    body: Body,
    declared: Option<u64>,
    limit: usize,
) -> Result<Bytes, ApiError> {
    // Memory that grows is copied. No more than what needs no room: the rest may never come.
    let at_once = declared.map_or(0, |bytes| bytes.min(limits::SHORT_BODY_BYTES as u64) as usize);
    let mut bytes = Vec::with_capacity(at_once.min(limit));
    let mut parts = body.into_data_stream();
    while let Some(part) = parts.next().await {
        let part = part.map_err(|e| ApiError::bad_request(format!("the body broke off: {e}")))?;
        let length = bytes.len() + part.len();
        if length > limit {
            drain(parts).await;
            return Err(too_large(limit as u64));
        }
        if !room.resize(length) {
            let detail = "the service is reading too many long bodies at once; send the request again";
            return Err(Problem::new(ErrorCode::Throttled, detail).into());
        }
        bytes.extend_from_slice(&part);
    }
    Ok(bytes.into())
}

/// A JSON body.
pub(super) async fn json<T: DeserializeOwned>(body: Body) -> Result<T, ApiError> {
    json_within(body, limits::JSON_BYTES_MAX).await
}

/// A JSON body of at most `limit` bytes.
pub(super) async fn json_within<T: DeserializeOwned>(body: Body, limit: usize) -> Result<T, ApiError> {
    let bytes = read(body, None, limit).await?;
    serde_json::from_slice(&bytes)
        .map_err(|e| ApiError::bad_request(format!("the body is not valid JSON for this route: {e}")))
}

pub(super) fn too_large(limit: u64) -> ApiError {
    Problem::new(ErrorCode::BodyTooLarge, format!("the body is larger than the limit of {limit} bytes"))
        .into()
}

/// The length that the headers declare.
pub(crate) fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok())
}

/// Rejects by the declared length, before reading a byte of the body.
pub(super) fn check_length(headers: &HeaderMap, limit: u64) -> Result<(), ApiError> {
    if declared_length(headers).is_some_and(|length| length > limit) { Err(too_large(limit)) } else { Ok(()) }
}

/// An upload, with its bytes counted.
pub(super) fn upload(
    state: &AppState,
    body: Body,
) -> impl Stream<Item = Result<Bytes, axum::Error>> + Send + Unpin {
    let metrics = state.metrics().clone();
    body.into_data_stream().inspect_ok(move |part| metrics.received(part.len()))
}

/// Reads on for a while after a refusal: a client that is still sending would see a reset instead of the
/// response.
pub(crate) async fn drain<E>(mut rest: impl Stream<Item = Result<Bytes, E>> + Unpin) {
    let mut left = limits::REFUSED_BODY_BYTES_MAX;
    let draining = async {
        while let Some(Ok(part)) = rest.next().await {
            left = left.saturating_sub(part.len() as u64);
            if left == 0 {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(limits::REFUSED_BODY_TIME_MAX, draining).await;
}

/// An object's bytes as a body, counted. A read that fails midway closes the connection: the declared length
/// reveals it.
pub(super) fn download(state: &AppState, read: ObjectRead) -> Body {
    let metrics = state.metrics().clone();
    let bytes = read.bytes.inspect_ok(move |part| metrics.sent(part.len()));
    Body::from_stream(bytes.inspect_err(|error| tracing::warn!(%error, "a download was cut off")))
}

/// Completes the response to a read: its length, its range if one was requested, and its bytes unless the
/// method is `HEAD`.
pub(super) fn ranged(
    state: &AppState,
    mut response: Response,
    read: ObjectRead,
    is_partial: bool,
    method: &Method,
) -> Response {
    let (range, object_bytes) = (read.range.clone(), read.object_bytes);
    if method != Method::HEAD {
        *response.body_mut() = download(state, read);
    }
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, (range.end - range.start).into());
    if is_partial {
        let text = format!("bytes {}-{}/{object_bytes}", range.start, range.end.saturating_sub(1));
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.insert(header::CONTENT_RANGE, value);
        }
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    response
}

/// 201 if an object was created, otherwise 200.
pub(super) fn created_or_ok(created: bool, answer: impl Serialize) -> Response {
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    (status, Json(answer)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body_room::BodyRoom;

    #[tokio::test]
    async fn long_bodies_share_a_limit_and_short_ones_need_none_of_it() {
        static ROOM: BodyRoom = BodyRoom::new(4);
        let body = |bytes: usize| Body::from(vec![7; bytes]);
        let unit = limits::SHORT_BODY_BYTES;
        let read_declared = async |bytes, declared| {
            read_within(ROOM.hold(None), body(bytes), declared, 10 * unit).await.map(|bytes| bytes.len())
        };
        let read = async |bytes| read_declared(bytes, None).await;
        for bytes in [0, 1, unit, 3 * unit] {
            assert_eq!(read(bytes).await.expect("there is room"), bytes);
            for declared in [0, bytes as u64, u64::MAX] {
                assert_eq!(read_declared(bytes, Some(declared)).await.expect("there is room"), bytes);
            }
        }
        assert!(read(3 * unit + 1).await.is_err(), "no room");
        let mut other = ROOM.hold(None);
        assert!(other.resize(3 * unit), "all was given back");
        assert_eq!(read(unit).await.expect("short"), unit);
        assert!(read(unit + 1).await.is_err());
        drop(other);
        assert!(read(11 * unit).await.is_err(), "too long");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_trickles_ends() {
        let trickle = futures::stream::unfold((), |()| async {
            tokio::time::sleep(std::time::Duration::from_secs(20)).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b" ")), ()))
        });
        assert!(read(Body::from_stream(trickle), None, 1 << 20).await.is_err());
    }
}
