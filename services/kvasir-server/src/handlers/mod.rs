//! Routes, and what happens around every request.

mod error;
mod middleware;
mod ops;
mod v1;

use axum::{
    Router,
    extract::DefaultBodyLimit,
    middleware::from_fn_with_state,
    routing::{get, post, put},
};
use kvasir_api::routes;

pub(crate) use error::ApiError;

use crate::{auth, state::AppState};

/// The whole service.
pub(crate) fn router(state: AppState) -> Router {
    let router = Router::new()
        .route(routes::LIVEZ, get(ops::livez))
        .route(routes::READYZ, get(ops::readyz))
        .route(routes::METRICS, get(ops::metrics))
        .route(routes::CONFIG, get(v1::config::get))
        .route(routes::MODELS, post(v1::models::register))
        .route(routes::MODEL, get(v1::models::get))
        .route(routes::PROFILES, get(v1::profiles::list))
        .route(routes::PROFILE, put(v1::profiles::put).get(v1::profiles::get))
        .route(routes::NAMESPACES, post(v1::namespaces::post))
        .route(routes::LOOKUP, post(v1::lookup::post))
        .route(routes::CHUNK, put(v1::chunks::put).get(v1::chunks::get_preferred).delete(v1::chunks::delete))
        .route(routes::CHUNK_OBJECT, get(v1::chunks::get_object).delete(v1::chunks::delete_object));
    router
        .fallback(error::unknown_route)
        .method_not_allowed_fallback(error::method_not_allowed)
        // Every handler has a limit of its own.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(state.clone(), auth::gate))
        .layer(from_fn_with_state(state.clone(), middleware::around))
        .with_state(state)
}
