//! The routers of the service: every route with its handler, and the middleware around them.

use axum::{
    Router,
    extract::DefaultBodyLimit,
    http::{Method, Uri},
    middleware::from_fn_with_state,
    routing::get,
};
use kvasir_api::{ErrorCode, Problem, routes};

use crate::{
    api_error::ApiError,
    handlers::{console, openapi, ops},
    middleware::{
        authorize::authorize,
        label_route::label_route,
        observe_request::observe_request,
        request_limits::{AcceptedEncodings, enforce_request_limits},
    },
    state::AppState,
};

/// Probes and metrics only: no credential, no quota, no tenant data.
pub(crate) fn ops_router(state: AppState) -> Router {
    Router::new()
        .route(routes::LIVEZ, get(ops::livez))
        .route(routes::READYZ, get(ops::readyz))
        .route(routes::METRICS, get(ops::metrics))
        .fallback(unknown_route)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(state)
}

/// The whole service.
pub(crate) fn router(state: AppState) -> Router {
    with_middleware(routes(), state)
}

/// Every route with its handler.
pub(crate) fn routes() -> Router<AppState> {
    let (router, document) = openapi::routes().split_for_parts();
    let document = openapi::finalize_document(document);
    let router = router
        .route(routes::OPENAPI, get(move || openapi::serve_document(document.clone())))
        .merge(openapi::swagger_ui())
        .merge(console::routes());
    router.fallback(unknown_route).method_not_allowed_fallback(method_not_allowed)
}

/// The middleware before every handler.
pub(crate) fn with_middleware(routes: Router<AppState>, state: AppState) -> Router {
    // The first is the outermost. One layer of all: axum boxes each call of `layer`, and clones the boxes for every request.
    let middleware = (
        from_fn_with_state(state.clone(), observe_request),
        from_fn_with_state(AcceptedEncodings(&["identity"]), enforce_request_limits),
        from_fn_with_state(state.clone(), authorize),
        from_fn_with_state(state.clone(), label_route),
        // Each handler sets its own limit.
        DefaultBodyLimit::disable(),
    );
    routes.layer(middleware).with_state(state)
}

async fn unknown_route(uri: Uri) -> ApiError {
    let detail = format!("{} does not exist; the API's routes look like {}", uri.path(), routes::MODELS);
    Problem::new(ErrorCode::UnknownRoute, detail).into()
}

async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    let detail =
        format!("{} does not support {method}; the Allow header lists the supported methods", uri.path());
    Problem::new(ErrorCode::MethodNotAllowed, detail).into()
}
