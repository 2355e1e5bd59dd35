//! The authenticated principal of a request.

use std::sync::Arc;

use axum::{extract::FromRequestParts, http::request::Parts};
use kvasir_api::{ErrorCode, Problem, Role};
use kvasir_types::Name;

use crate::api_error::ApiError;

/// The authenticated principal: the tenant of a request and its permissions. Handlers take it as an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Principal {
    /// The tenant that owns all data the principal can see or store.
    pub(crate) tenant: Name,
    pub(crate) role: Role,
    /// The credential's name in the audit log: the token's name, or the claim `sub`.
    pub(crate) credential: Arc<str>,
}

impl<S: Sync> FromRequestParts<S> for Principal {
    type Rejection = ApiError;

    /// Extracts the principal that the authorization middleware inserted. Without it the request is rejected:
    /// a route that the middleware does not cover must not be open.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts.extensions.get().cloned().ok_or_else(|| {
            Problem::new(ErrorCode::Internal, "the route needs a principal but has no authorization").into()
        })
    }
}
