//! Around every request: its id, a span, metrics, and a handler for panics.

use std::{panic::AssertUnwindSafe, time::Instant};

use axum::{
    extract::{MatchedPath, Request, State},
    http::{HeaderName, HeaderValue},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures::FutureExt;
use kvasir_api::{ErrorCode, Problem};
use kvasir_store::trace::{self, TRACEPARENT, TraceContext};
use tracing::Instrument;

use crate::{api_error::ApiError, limits, state::AppState, wall_clock::unix_ms};

/// Header of the id of a request, in requests and in answers.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The label of a response without a route.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RouteLabel(pub(crate) &'static str);

/// Runs a request in its span, and counts it.
pub(crate) async fn observe_request(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let start = Instant::now();
    let id = request_id(&request);
    let matched = request.extensions().get::<MatchedPath>().cloned();
    let route = matched.as_ref().map_or("unknown", MatchedPath::as_str);
    let method = method_label(request.method());
    let trace = trace_context(&request);
    let span = tracing::info_span!(
        "request",
        id = id.to_str().unwrap_or_default(),
        trace_id = trace.trace_id(),
        method,
        route
    );
    let metrics = state.metrics();
    let in_flight = metrics.request_begins();
    let answered = AssertUnwindSafe(next.run(request)).catch_unwind().instrument(span.clone());
    let answered = trace::scope(trace, answered).await;
    let mut response = answered.unwrap_or_else(|_| {
        span.in_scope(|| tracing::error!("a handler panicked"));
        let detail = "the service's log has the cause under this request id";
        ApiError::from(Problem::new(ErrorCode::Internal, detail)).into_response()
    });
    response.headers_mut().insert(REQUEST_ID, id);
    let elapsed = start.elapsed();
    let route = response.extensions().get::<RouteLabel>().map_or(route, |label| label.0);
    drop(in_flight);
    metrics.request_ends(route, method, response.status().as_u16(), elapsed);
    span.in_scope(|| tracing::debug!(status = response.status().as_u16(), ?elapsed, "answered"));
    response
}

/// The caller's trace context if it sent one, otherwise a new one that only this service knows.
fn trace_context(request: &Request) -> TraceContext {
    let given = request.headers().get(TRACEPARENT).and_then(|value| TraceContext::parse(value.as_bytes()));
    given.map_or_else(TraceContext::root, TraceContext::child)
}

/// The caller's request id if it is safe, otherwise a new one.
fn request_id(request: &Request) -> HeaderValue {
    let given = request.headers().get(REQUEST_ID).filter(|id| {
        let harmless = |b: &u8| b.is_ascii_alphanumeric() || b"-_.".contains(b);
        (1..=limits::REQUEST_ID_BYTES_MAX).contains(&id.len()) && id.as_bytes().iter().all(harmless)
    });
    // As `Uuid::now_v7`, without its system call for random bytes.
    let new = || uuid::Builder::from_unix_timestamp_millis(unix_ms(), &rand::random()).into_uuid();
    let ours = || HeaderValue::try_from(new().to_string()).unwrap_or(HeaderValue::from_static("-"));
    given.cloned().unwrap_or_else(ours)
}

/// Methods are free text from the caller; labels are bounded.
fn method_label(method: &axum::http::Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "PUT" => "PUT",
        "POST" => "POST",
        "DELETE" => "DELETE",
        _ => "other",
    }
}
