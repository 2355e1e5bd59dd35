//! Errors as RFC 9457 problem documents.

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use kvasir_api::{ErrorCode, MEDIA_PROBLEM, Problem};
use kvasir_storage::{
    CatalogError, ChunkError, ContextError, ObjectError, PutError, QuotaError, UploadError, UrlError,
};
use kvasir_store::StoreError;

use crate::limits;

/// A refused or failed request.
#[derive(Debug)]
pub(crate) struct ApiError {
    problem: Problem,
    /// Size of the object, for an unsatisfiable range.
    object_bytes: Option<u64>,
}

impl From<Problem> for ApiError {
    fn from(problem: Problem) -> Self {
        Self { problem, object_bytes: None }
    }
}

/// Converts an error of storage to a problem document.
macro_rules! from_storage {
    ($($error:ident),*) => {
        $(impl From<$error> for ApiError {
            fn from(error: $error) -> Self {
                Self::of_storage(error.code(), &error)
            }
        })*
    };
}

from_storage!(CatalogError, ContextError, PutError, QuotaError, StoreError, UploadError, UrlError);

impl From<ChunkError> for ApiError {
    fn from(error: ChunkError) -> Self {
        let object_bytes = match error {
            ChunkError::Range { object_bytes } => Some(object_bytes),
            _ => None,
        };
        Self { object_bytes, ..Self::of_storage(error.code(), &error) }
    }
}

impl From<ObjectError> for ApiError {
    fn from(error: ObjectError) -> Self {
        match error {
            ObjectError::Chunk(error) => error.into(),
            error => Self::of_storage(error.code(), &error),
        }
    }
}

impl ApiError {
    fn of_storage(code: ErrorCode, error: &dyn std::error::Error) -> Self {
        // Internal causes belong in the log, not in the response.
        let detail = match code {
            ErrorCode::StoreUnavailable => {
                tracing::warn!(%error, "a request to the object store failed");
                "the object store did not respond; no acknowledged data is lost; send the request again"
                    .to_owned()
            }
            ErrorCode::KeyLost => {
                tracing::warn!(%error, "a sealed object cannot be opened");
                error.to_string()
            }
            ErrorCode::Internal => {
                tracing::error!(%error, "internal error");
                "the service's log has the cause under this request id".to_owned()
            }
            _ => error.to_string(),
        };
        Problem::new(code, detail).into()
    }

    /// An internal error of the service.
    pub(crate) fn internal(error: &dyn std::error::Error) -> Self {
        Self::of_storage(ErrorCode::Internal, error)
    }

    /// The problem document.
    pub(crate) fn problem(&self) -> &Problem {
        &self.problem
    }

    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Problem::new(ErrorCode::BadRequest, detail).into()
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self.problem).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_PROBLEM));
        if self.problem.retryable {
            headers.insert(header::RETRY_AFTER, limits::RETRY_AFTER_SECONDS.into());
        }
        if self.problem.code == ErrorCode::StorageQuota {
            headers.insert(header::RETRY_AFTER, limits::QUOTA_RETRY_AFTER_SECONDS.into());
        }
        if let Some(Ok(range)) =
            self.object_bytes.map(|bytes| HeaderValue::try_from(format!("bytes */{bytes}")))
        {
            headers.insert(header::CONTENT_RANGE, range);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table in api.md must equal the code's table, line by line.
    #[test]
    fn the_api_page_has_the_table_of_codes() {
        let page = include_str!("../docs/api.md");
        let rows = ErrorCode::ALL.iter().map(|code| {
            let retry = if code.is_retryable() { "yes" } else { "no" };
            let (text, status) = (code.as_str(), code.status());
            format!("| `{text}` | {status} | {retry} | {} | {} |\n", code.title(), code.remedy())
        });
        let table = format!("|---|---|---|---|---|\n{}", rows.collect::<String>());
        assert!(page.contains(&table), "docs/api.md must have this table:\n{table}");
    }
}
