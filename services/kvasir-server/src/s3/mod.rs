//! The S3 front end: objects by key for clients that speak S3
//! (<https://docs.aws.amazon.com/AmazonS3/latest/API/>), on its own listener. Buckets are namespaces, keys
//! are keys, and bytes are stored unchanged; the back end is that of `/v1/…/objects`.
//!
//! `s3s` reads requests, checks signatures and writes responses. Requests that it would buffer without a
//! limit are refused before it: forms. So are signatures of version 2, which do not cover the body.

mod access;
mod bucket_domains;
mod downloads;
mod errors;
mod held_body;
mod listing;
mod multipart;
mod objects;
mod operations;
mod uploads;

use std::sync::Arc;

use axum::{
    Router,
    body::{Body, HttpBody},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    middleware::{Next, from_fn, from_fn_with_state},
    response::{IntoResponse, Response},
};
use kvasir_api::{ErrorCode, MEDIA_PROBLEM, Problem};
use s3s::{
    config::{S3Config, StaticConfigProvider},
    service::{S3Service, S3ServiceBuilder},
    validation::NameValidation,
};
use url::form_urlencoded;

use self::{access::CallRecord, bucket_domains::BucketDomains, held_body::HeldBody, operations::Operations};
use crate::{
    api_error::ApiError,
    limits,
    middleware::{
        observe_request::{REQUEST_ID, RouteLabel, observe_request},
        request_limits::{AcceptedEncodings, enforce_request_limits},
    },
    state::AppState,
};

/// The front end's service. `domains` are those whose subdomains are buckets.
///
/// # Errors
/// If an entry is not a valid domain.
pub(crate) fn router(state: AppState, domains: &[String]) -> Result<Router, String> {
    let mut builder = S3ServiceBuilder::new(Operations::new(state.clone()));
    builder.set_auth(access::AccessKeys::new(state.clone()));
    builder.set_access(access::AccessCheck::new(state.clone()));
    builder.set_validation(AnyNamespace);
    let mut config = S3Config::default();
    config.xml_max_body_size = limits::S3_XML_BYTES_MAX;
    // Forms are refused earlier; if one came through, it could hold nothing.
    (config.post_object_max_file_size, config.form_max_fields_size, config.form_max_parts) = (0, 0, 0);
    builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(config))));
    if !domains.is_empty() {
        let hosts = BucketDomains::new(domains).map_err(|error| format!("s3.domains: {error}"))?;
        builder.set_host(hosts);
    }
    let front = Front { service: builder.build(), state: state.clone() };
    let encodings = AcceptedEncodings(&["identity", "aws-chunked"]);
    Ok(Router::new()
        .fallback(answer)
        .with_state(front)
        .layer(from_fn_with_state(encodings, enforce_request_limits))
        .layer(from_fn_with_state(state, observe_request))
        .layer(from_fn(problems_as_s3_errors)))
}

#[derive(Clone)]
struct Front {
    service: S3Service,
    state: AppState,
}

/// Buckets are namespaces, which allow more names than AWS; the operations reject invalid ones.
struct AnyNamespace;

impl NameValidation for AnyNamespace {
    fn validate_bucket_name(&self, name: &str) -> bool {
        name.parse::<kvasir_types::Name>().is_ok()
    }
}

async fn answer(State(front): State<Front>, mut request: Request) -> Response {
    if let Some(refused) = unsupported(&request) {
        return errors::s3_error(&refused.into()).into_response();
    }
    let record = CallRecord::default();
    request.extensions_mut().insert(record.clone());
    let watch = record.watch(&front.state);
    let held = HeldBody::default();
    request.extensions_mut().insert(held.clone());
    let is_held = !is_passed_through(&request);
    let has_body = !request.body().is_end_stream();
    let is_waiting = request.headers().contains_key(header::EXPECT);
    let mut request = watch.request(request);
    if is_held {
        request = request.map(|body| held.measure(body, record.clone()));
    }
    let answered = front.service.call(request.map(s3s::Body::http_body_unsync)).await;
    let mut call = record.take();
    let mut response = match answered {
        Ok(response) => response.map(Body::new),
        Err(error) => {
            tracing::error!(error = %s3s::StdError::from(error), "an S3 response could not be written");
            errors::s3_error(&Problem::new(ErrorCode::Internal, "the service's log has the cause").into())
                .into_response()
        }
    };
    let is_refused = !response.status().is_success();
    // Of a call that reached no operation, nobody read the body. What a client has sent is read for it to find the connection
    // open. One that waits to be asked for its body is not asked, and told, like one that sends an object, that it is closed.
    let is_closing = is_refused && has_body && (is_waiting || !is_held) && call.operation.is_none();
    if is_refused && !is_closing {
        held.drain().await;
    }
    if let Some(refused) = held.refusal().filter(|_| !response.status().is_success()) {
        if refused.code == ErrorCode::Throttled {
            // As where a quota refuses: the label keeps it out of the service's errors.
            call.operation = None;
        }
        response = errors::s3_error(&refused.into()).into_response();
    }
    if !call.is_checked && response.status() == StatusCode::FORBIDDEN {
        front.state.metrics().auth_refused("invalid");
    }
    if watch.has_ended() && !response.status().is_success() {
        let detail = "the access key is unknown to this service or no longer valid";
        response = errors::s3_error(&Problem::new(ErrorCode::Unauthorized, detail).into()).into_response();
    }
    if is_closing {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response = watch.response(response, |response| match (front.state.egress(), &call.tenant) {
        (Some(egress), Some(tenant)) => egress.schedule(tenant, None, response),
        _ => response,
    });
    response.extensions_mut().insert(RouteLabel(call.operation.unwrap_or("s3:unknown")));
    match call.permit {
        Some(permit) => permit.charge(response),
        None => response,
    }
}

/// Whether `s3s` passes on the parts of the body as they come: of an object that is not sent in chunks. It keeps XML.
fn is_passed_through(request: &Request) -> bool {
    let has_key = request.uri().path().trim_matches('/').contains('/');
    request.method() == Method::PUT && has_key && !is_chunked(request.headers())
}

/// Whether the body comes in aws-chunks.
fn is_chunked(headers: &HeaderMap) -> bool {
    headers.get("x-amz-content-sha256").is_some_and(|content| content.as_bytes().starts_with(b"STREAMING-"))
}

/// Why a request is refused before parsing.
fn unsupported(request: &Request) -> Option<Problem> {
    let refused = |detail: &str| Some(Problem::new(ErrorCode::BadRequest, detail));
    let text = |headers: &HeaderMap, name| {
        headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).unwrap_or_default().to_owned()
    };
    let query = request.uri().query().unwrap_or_default();
    let is_old_query = form_urlencoded::parse(query.as_bytes()).any(|(name, _)| name == "Signature");
    if is_old_query || text(request.headers(), header::AUTHORIZATION).starts_with("AWS ") {
        return refused("sign with Signature Version 4; version 2 does not cover the body");
    }
    let media = text(request.headers(), header::CONTENT_TYPE);
    if request.method() == Method::POST && media.to_ascii_lowercase().starts_with("multipart/") {
        return refused("send objects with PUT; forms are not supported");
    }
    // `s3s` decodes chunks where it checks a signature in headers. Elsewhere their heads would count as bytes of the object.
    if is_chunked(request.headers()) && !request.headers().contains_key(header::AUTHORIZATION) {
        return refused(
            "sign a body of aws-chunks with the Authorization header, or send the bytes as they are",
        );
    }
    None
}

/// Converts problem documents from before or around `s3s`, which S3 clients cannot read.
async fn problems_as_s3_errors(request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    // What `s3s` answered has a label, and its reader may have chosen its media type.
    let is_of_s3s = response.extensions().get::<RouteLabel>().is_some();
    let media = response.headers().get(header::CONTENT_TYPE);
    if is_of_s3s || media.is_none_or(|media| media.as_bytes() != MEDIA_PROBLEM.as_bytes()) {
        return response;
    }
    let (head, body) = response.into_parts();
    let body = axum::body::to_bytes(body, limits::JSON_BYTES_MAX).await.unwrap_or_default();
    let unknown = |_| Problem::new(ErrorCode::Internal, "the service's log has the cause");
    let problem: Problem = serde_json::from_slice(&body).unwrap_or_else(unknown);
    let mut answer = errors::s3_error(&ApiError::from(problem)).into_response();
    if let Some(id) = head.headers.get(REQUEST_ID) {
        answer.headers_mut().insert(REQUEST_ID, id.clone());
    }
    answer
}
