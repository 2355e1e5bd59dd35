//! Routes, and what happens around every request.

mod error;
mod inlet;
mod middleware;
mod openapi;
mod ops;
mod v1;

use axum::{
    Router,
    extract::DefaultBodyLimit,
    middleware::{from_fn, from_fn_with_state},
    routing::get,
};
pub(crate) use error::ApiError;
use kvasir_api::routes;

use crate::{auth, state::AppState};

/// Probes and metrics alone: no credential, no quota, nothing of anybody's data.
pub(crate) fn ops_router(state: AppState) -> Router {
    Router::new()
        .route(routes::LIVEZ, get(ops::livez))
        .route(routes::READYZ, get(ops::readyz))
        .route(routes::METRICS, get(ops::metrics))
        .fallback(error::unknown_route)
        .method_not_allowed_fallback(error::method_not_allowed)
        .with_state(state)
}

/// The whole service.
pub(crate) fn router(state: AppState) -> Router {
    let (router, document) = openapi::routes().split_for_parts();
    let document = openapi::finish(document);
    let router =
        router.route(routes::OPENAPI, get(move || openapi::serve(document.clone()))).merge(openapi::page());
    router
        .fallback(error::unknown_route)
        .method_not_allowed_fallback(error::method_not_allowed)
        // Every handler has a limit of its own.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(state.clone(), auth::gate))
        .layer(from_fn(inlet::inlet))
        .layer(from_fn_with_state(state.clone(), middleware::around))
        .with_state(state)
}
