//! Errors in S3's form.

use axum::{
    body::Body,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use kvasir_api::ErrorCode;
use s3s::{S3Error, S3ErrorCode};

use crate::api_error::ApiError;

/// An error of the API as an S3 error with the same text.
pub(super) fn s3_error(error: &ApiError) -> S3Failure {
    let problem = error.problem();
    let code = match problem.code {
        ErrorCode::UnknownObject => S3ErrorCode::NoSuchKey,
        ErrorCode::ObjectExists => S3ErrorCode::PreconditionFailed,
        ErrorCode::BodyTooLarge => S3ErrorCode::EntityTooLarge,
        ErrorCode::UnknownUpload => S3ErrorCode::InvalidPart,
        ErrorCode::LengthRequired => S3ErrorCode::MissingContentLength,
        ErrorCode::RangeNotSatisfiable => S3ErrorCode::InvalidRange,
        ErrorCode::StoreUnavailable => S3ErrorCode::ServiceUnavailable,
        ErrorCode::Throttled => S3ErrorCode::SlowDown,
        ErrorCode::BodyTooSlow => S3ErrorCode::RequestTimeout,
        ErrorCode::Unauthorized | ErrorCode::Forbidden => S3ErrorCode::AccessDenied,
        ErrorCode::StorageQuota => S3ErrorCode::Custom("QuotaExceeded".into()),
        ErrorCode::Internal => S3ErrorCode::InternalError,
        _ if problem.status >= 500 => S3ErrorCode::InternalError,
        _ => S3ErrorCode::InvalidRequest,
    };
    let mut failure = S3Error::with_message(code, problem.detail.clone());
    // A missing part is 404 in the API, but 400 to S3 clients; and a slow-down 429, but 503.
    if let Ok(status) = StatusCode::from_u16(problem.status)
        && !matches!(problem.code, ErrorCode::UnknownUpload | ErrorCode::Throttled)
    {
        failure.set_status_code(status);
    }
    S3Failure(failure)
}

/// An S3 error that is also a response.
#[derive(Debug)]
pub(super) struct S3Failure(S3Error);

impl<E: Into<ApiError>> From<E> for S3Failure {
    fn from(error: E) -> Self {
        s3_error(&error.into())
    }
}

impl From<S3Failure> for S3Error {
    fn from(failure: S3Failure) -> Self {
        failure.0
    }
}

impl IntoResponse for S3Failure {
    fn into_response(self) -> Response {
        match self.0.to_http_response() {
            Ok(response) => response.map(Body::new),
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }
}
