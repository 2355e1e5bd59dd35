//! The authenticated principal of a request.

use std::sync::Arc;

use axum::{extract::FromRequestParts, http::request::Parts};
use kvasir_api::{ErrorCode, Problem, Role};
use kvasir_types::Name;

use crate::api_error::ApiError;

/// The authenticated principal: whose request this is and what it may do. Handlers take it as an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Principal {
    /// Everything the principal sees and stores is under this name.
    pub(crate) tenant: Name,
    pub(crate) role: Role,
    /// Which credential it was, for the audit log: the token's name or the claim `sub`.
    pub(crate) credential: Arc<str>,
}

impl<S: Sync> FromRequestParts<S> for Principal {
    type Rejection = ApiError;

    /// Takes what the authorization middleware put there. Without it the request is refused: a route that the
    /// middleware does not cover must not be open.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts.extensions.get().cloned().ok_or_else(|| {
            Problem::new(ErrorCode::Internal, "the route takes a caller but is open to anybody").into()
        })
    }
}
