//! Probes and metrics.

use axum::{
    extract::State,
    http::header,
    response::{AppendHeaders, IntoResponse},
};
use kvasir_api::{ErrorCode, HEADER_ZONE, Problem, routes};

use crate::{api_error::ApiError, state::AppState};

/// Liveness: the process responds. Never queries the store.
#[utoipa::path(get, path = routes::LIVEZ, operation_id = "livez", tag = "probes",
    responses((status = 200, description = "alive", body = String, content_type = "text/plain")))]
pub(crate) async fn livez() -> &'static str {
    "ok\n"
}

/// Readiness: the store was reached since start, no shutdown has begun, and credentials and other replicas'
/// removals are up to date. A later outage of the store does not change it: other replicas would be no better
/// off.
#[utoipa::path(get, path = routes::READYZ, operation_id = "readyz", tag = "probes",
    responses((status = 200, description = "ready", body = String, content_type = "text/plain",
        headers(("kvasir-zone" = Option<String>, description = "the zone that this replica runs in, where it knows that")))))]
pub(crate) async fn readyz(State(state): State<AppState>) -> Result<impl IntoResponse, ApiError> {
    if state.is_draining() {
        return Err(
            Problem::new(ErrorCode::Draining, "this replica is shutting down; use another replica").into()
        );
    }
    if let Some(task) = state.failing_task() {
        let detail = format!("the background task {task} keeps panicking; use another replica");
        return Err(Problem::new(ErrorCode::Draining, detail).into());
    }
    state.storage()?;
    Ok((AppendHeaders(state.cluster().zone().map(|zone| (HEADER_ZONE, zone.to_string()))), "ok\n"))
}

/// Prometheus metrics.
#[utoipa::path(get, path = routes::METRICS, operation_id = "metrics", tag = "probes",
    responses((status = 200, description = "Prometheus' text format", body = String, content_type = "text/plain")))]
pub(crate) async fn metrics(State(state): State<AppState>) -> impl IntoResponse {
    if let Some(storage) = state.ready_storage() {
        state.metrics().refresh(storage);
    }
    state.metrics().cluster().refresh(state.cluster());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], state.metrics().render())
}
