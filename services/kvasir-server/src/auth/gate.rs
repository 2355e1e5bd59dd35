//! Before every handler: who calls, and may they?

use axum::{
    extract::{MatchedPath, Request},
    middleware::Next,
    response::{IntoResponse, Response},
};
use kvasir_api::{ErrorCode, Problem, required_role};

use super::Caller;
use crate::handlers::ApiError;

/// Lets through what the caller's role allows, with the [`Caller`] among the request's extensions.
pub(crate) async fn gate(mut request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let Some(required) = required_role(request.method().as_str(), route) else {
        return next.run(request).await;
    };
    let caller = Caller::anyone();
    if caller.role < required {
        let detail =
            format!("this needs the role {}, the credential has {}", required.as_str(), caller.role.as_str());
        return ApiError::from(Problem::new(ErrorCode::Forbidden, detail)).into_response();
    }
    request.extensions_mut().insert(caller);
    next.run(request).await
}
