//! Errors in OpenAI's shape.

use axum::{
    Json,
    extract::rejection::BytesRejection,
    http::{HeaderValue, StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
};
use serde::Serialize;

use crate::{error::EngineError, serving::SubmitError};

/// `Retry-After` in seconds when all places are taken: about the time of a prefill.
const RETRY_SECONDS: &str = "1";

/// A refused or failed request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", body.error.message)]
pub struct ApiError {
    status: StatusCode,
    body: ErrorBody,
}

/// `{"error": {…}}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ErrorBody {
    error: Detail,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Detail {
    message: String,
    r#type: &'static str,
    param: Option<&'static str>,
    code: Option<&'static str>,
}

const INVALID: &str = "invalid_request_error";

impl ApiError {
    fn new(status: StatusCode, r#type: &'static str, message: impl Into<String>) -> Self {
        let error = Detail { message: message.into(), r#type, param: None, code: None };
        Self { status, body: ErrorBody { error } }
    }

    const fn code(mut self, code: &'static str) -> Self {
        self.body.error.code = Some(code);
        self
    }

    /// A field whose value is not supported.
    pub(super) fn param(param: &'static str, message: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::BAD_REQUEST, INVALID, message);
        error.body.error.param = Some(param);
        error
    }

    /// A body that is not a completion request.
    pub(super) fn json(error: &serde_json::Error) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            INVALID,
            format!("the body is not a valid completion request: {error}"),
        )
    }

    pub(super) fn body(&self) -> &ErrorBody {
        &self.body
    }

    pub(super) fn body_rejected(rejection: &BytesRejection) -> Self {
        Self::new(rejection.status(), INVALID, rejection.body_text())
    }

    pub(super) fn model(asked: &str, served: &str) -> Self {
        let message = format!("the model `{asked}` is not served here; `{served}` is");
        Self::new(StatusCode::NOT_FOUND, INVALID, message).code("model_not_found")
    }

    pub(super) fn route() -> Self {
        Self::new(StatusCode::NOT_FOUND, INVALID, "there is no such route; use POST /v1/completions")
    }

    pub(super) fn method() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, INVALID, "the route has another method")
    }

    /// The engine failed while it ran a request.
    pub(super) fn engine() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "server_error",
            "the engine stopped this request; its log has the reason",
        )
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::Busy { .. } => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message).code("queue_full")
            }
            SubmitError::TooLong { .. } => Self::param("prompt", message).code("context_length_exceeded"),
            SubmitError::Empty | SubmitError::Token { .. } => Self::param("prompt", message),
        }
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", error.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body)).into_response();
        if self.status == StatusCode::TOO_MANY_REQUESTS {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(RETRY_SECONDS));
        }
        response
    }
}
